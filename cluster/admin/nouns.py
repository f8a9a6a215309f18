"""The nouns of `magnetar admin`."""

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
