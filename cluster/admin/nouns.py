"""The nouns of `magnetar admin`, and those of `pulsar-admin` whose features are missing."""

import re

NOUNS = {
    "tenants": "Tenants: what namespaces belong to.",
    "namespaces": "Namespaces, their topics and policies.",
    "topics": "Topics, their partitions, messages and subscriptions.",
    "topicPolicies": "Policies of single topics.",
    "subscriptions": "Subscriptions of topics: the verbs of topics that concern them.",
    "schemas": "Schemas of topics.",
    "brokers": "Brokers, and the health of the cluster.",
    "broker-stats": "Load of brokers.",
    "bookies": "Bookies.",
    "clusters": "Clusters: this one.",
}

_ABSENT_NOUNS = {
    "functions": "functions",
    "functions-worker": "functions",
    "sources": "Pulsar IO",
    "sinks": "Pulsar IO",
    "packages": "packages",
    "ns-isolation-policy": "isolation of namespaces",
    "resource-quotas": "resource quotas",
    "resourcegroups": "resource groups",
    "transactions": "transactions",
    "proxy-stats": "proxy of its own",
}
_ABSENT_VERBS = {
    "tiered storage": r"offload",
    "geo-replication": r"replicat|shadow",
    "authorization": r"permission|auth",
    "splitting of bundles": r"split-bundle|bundle-stats",
    "affinity groups": r"affinity",
    "resource groups": r"resource-?group|resourcegroup",
    "transactions": r"transaction",
    "change of settings while it runs": r"dynamic-config",
}


def absent_noun(noun: str) -> str | None:
    """The feature that is missing and to which a noun of `pulsar-admin` belongs. It is said in the singular, too."""
    return _ABSENT_NOUNS.get(noun) or _ABSENT_NOUNS.get(f"{noun}s")


def absent_verb(verb: str) -> str | None:
    """The feature that is missing and to which a verb of `pulsar-admin` belongs."""
    return next((feature for feature, verbs in _ABSENT_VERBS.items() if re.search(verbs, verb)), None)
