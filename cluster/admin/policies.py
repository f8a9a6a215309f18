"""The commands of policies, made from the table of policies: `get-…`, `set-…` and `remove-…` for each.

A policy gets its commands without a line here: verbs and options are made from its path and its kind. `SPELLINGS` says
where Pulsar's tool has other names, or takes sizes and times with units.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from ...actors.policies.effective import POLICIES
from ...actors.policies.kinds import Choice, Flag, Kind, Real, RecordOf, Text, WholeNumber, WordSet
from ...actors.policies.policy import Policy, PolicyPath
from .arguments import (
    NAMESPACE,
    TOPIC,
    UNITS,
    Argument,
    ArgumentPlace,
    choice,
    json_value,
    megabytes,
    milliseconds,
    minutes,
    option,
    real,
    seconds,
    size,
    whole,
)
from .command import NAMESPACE_PATH, TOPIC_PATH, Command
from .output import ALL

NAMESPACES = "namespaces"
TOPIC_POLICIES = "topicPolicies"


@dataclass(frozen=True)
class Spelled:
    """One option as Pulsar's tool has it. A `default` is sent if the option is left out."""

    flags: str
    read: Callable[[str], object] | None = None
    default: str | None = None
    required: bool | None = None


@dataclass(frozen=True)
class Spelling:
    """`verb` is what follows `get-`, `set-` and `remove-`. Options are by their name in the JSON, "" for the value."""

    verb: str = ""
    options: Mapping[str, Spelled] = field(default_factory=dict[str, Spelled])


_MESSAGES = Spelled("-md --msg-dispatch-rate", default="-1")
_DISPATCH = Spelling(
    options={
        "dispatchThrottlingRateInMsg": _MESSAGES,
        "dispatchThrottlingRateInByte": Spelled("-bd --byte-dispatch-rate", size, "-1"),
        "ratePeriodInSecond": Spelled("-dt --dispatch-rate-period", seconds, "1"),
        "relativeToPublishRate": Spelled("-p --relative-to-publish-rate"),
    }
)
_ON_OFF = Spelled("-e/-d --enable/--disable", required=True)
_SWITCH = Spelling(options={"": _ON_OFF})


def _value(flags: str, read: Callable[[str], object] | None = None, verb: str = "") -> Spelling:
    return Spelling(verb, {"": Spelled(flags, read)})


_BOTH: Mapping[str, Spelling] = {
    "encryption_required": _SWITCH,
    "is_allow_auto_update_schema": _SWITCH,
    "schema_validation_enforced": Spelling("schema-validation-enforce", {"": _ON_OFF}),
    "deduplication_enabled": Spelling("deduplication", {"": _ON_OFF}),
    "max_consumers_per_subscription": _value("-c --max-consumers-per-subscription"),
    "compaction_threshold": _value("-t --threshold", size),
    "schema_compatibility_strategy": _value("-c --compatibility"),
    "deduplication_snapshot_interval_seconds": _value("-i --interval", seconds),
    "subscription_expiration_time_minutes": _value("-t --time", minutes),
    "topic_dispatch_rate": _DISPATCH,
    "subscription_dispatch_rate": _DISPATCH,
    "subscribe_rate": Spelling(
        options={
            "subscribeThrottlingRatePerConsumer": Spelled("-sr --subscribe-rate", default="-1"),
            "ratePeriodInSecond": Spelled("-st --subscribe-rate-period", seconds, "30"),
        }
    ),
    "publish_rate": Spelling(
        options={
            "publishThrottlingRateInMsg": Spelled("-m --msg-publish-rate", default="-1"),
            "publishThrottlingRateInByte": Spelled("-b --byte-publish-rate", size, "-1"),
        }
    ),
    "persistence": Spelling(
        options={
            "bookkeeperEnsemble": Spelled("-e --bookkeeper-ensemble"),
            "bookkeeperWriteQuorum": Spelled("-w --bookkeeper-write-quorum"),
            "bookkeeperAckQuorum": Spelled("-a --bookkeeper-ack-quorum"),
            "managedLedgerMaxMarkDeleteRate": Spelled("-r --ml-mark-delete-max-rate"),
        }
    ),
    "retention": Spelling(
        options={
            "retentionTimeInMinutes": Spelled("-t --time", minutes, required=True),
            "retentionSizeInMB": Spelled("-s --size", megabytes, required=True),
        }
    ),
    "delayed_delivery": Spelling(
        options={
            "active": _ON_OFF,
            "tickTime": Spelled("-t --time", milliseconds, "1s"),
            "maxDeliveryDelayInMillis": Spelled("-md --maxDelay", milliseconds, "0"),
        }
    ),
    "auto_topic_creation_override": Spelling(
        options={
            "allowAutoTopicCreation": _ON_OFF,
            "topicType": Spelled("-t --type"),
            "defaultNumPartitions": Spelled("-n --num-partitions"),
        }
    ),
    "auto_subscription_creation_override": Spelling(options={"allowAutoSubscriptionCreation": _ON_OFF}),
    "subscription_types_enabled": _value("-t --types"),
    "inactive_topic_policies": Spelling(
        options={
            "inactiveTopicDeleteMode": Spelled("-m --delete-mode", required=True),
            "maxInactiveDurationSeconds": Spelled("-t --max-inactive-duration", seconds, required=True),
            "deleteWhileInactive": Spelled(
                "-e/-d --enable-delete-while-inactive/--disable-delete-while-inactive", required=True
            ),
        }
    ),
}

SPELLINGS: Mapping[str, Mapping[str, Spelling]] = {
    NAMESPACES: {
        **_BOTH,
        "max_producers_per_topic": _value("-p --max-producers-per-topic"),
        "max_consumers_per_topic": _value("-c --max-consumers-per-topic"),
        "max_subscriptions_per_topic": _value("-m --max-subscriptions-per-topic"),
        "max_topics_per_namespace": _value("-t --max-topics-per-namespace"),
        "max_unacked_messages_per_consumer": _value("-c --max-unacked-messages-per-topic"),
        "max_unacked_messages_per_subscription": _value("-c --max-unacked-messages-per-subscription"),
        "message_ttl": _value("-ttl --messageTTL", seconds),
        "backlog_quota_map": Spelling("backlog-quotas"),
    },
    TOPIC_POLICIES: {
        **_BOTH,
        "max_producers_per_topic": _value("-p --max-producers"),
        "max_consumers_per_topic": _value("-c --max-consumers"),
        "max_subscriptions_per_topic": _value("-s --max-subscriptions-per-topic"),
        "max_unacked_messages_per_consumer": _value("-m --maxNum", verb="max-unacked-messages-per-consumer"),
        "max_unacked_messages_per_subscription": _value("-m --maxNum", verb="max-unacked-messages-per-subscription"),
        "max_message_size": _value("-m --max-message-size", size),
        "message_ttl": _value("-t --ttl", seconds),
        "backlog_quota_map": Spelling("backlog-quota"),
    },
}

_APPLIED = option("applied", "-ap --applied", "Show what holds, also if wider levels say it.", switch=True)


def policy_commands() -> Iterator[Command]:
    """The commands of all policies, on both levels."""
    for name, policy in POLICIES.items():
        if policy.namespace is not None and policy.namespace.routed:
            yield from _commands(NAMESPACES, f"{NAMESPACE_PATH}/", NAMESPACE, name, policy, policy.namespace)
        if policy.topic is not None:
            yield from _commands(TOPIC_POLICIES, f"{TOPIC_PATH}/", TOPIC, name, policy, policy.topic)
    yield from _quotas(NAMESPACES, f"{NAMESPACE_PATH}/backlogQuota", NAMESPACE)
    yield from _quotas(TOPIC_POLICIES, f"{TOPIC_PATH}/backlogQuota", TOPIC)


def _commands(
    noun: str, beginning: str, resource: Argument, name: str, policy: Policy[object], level: PolicyPath
) -> Iterator[Command]:
    spelling = SPELLINGS[noun].get(name, Spelling())
    verb = spelling.verb or _with_hyphens(level.path)
    path = beginning + level.path
    applied = (_APPLIED,) if noun == TOPIC_POLICIES and level.applied and not level.no_content else ()
    yield Command(f"{noun} get-{verb}", f"Show {policy.doc}.", f"GET {path}", (resource, *applied), ALL)
    if level.settable:
        method = "PUT" if level.put else "POST"
        options = tuple(_options(verb, policy.kind, level, spelling.options))
        yield Command(f"{noun} set-{verb}", f"Set {policy.doc}.", f"{method} {path}", (resource, *options))
    if level.removable:
        wider = "the namespace" if noun == TOPIC_POLICIES else "the broker's setting"
        yield Command(f"{noun} remove-{verb}", f"Let {wider} say {policy.doc}.", f"DELETE {path}", (resource,))


def _options(verb: str, kind: Kind[object], level: PolicyPath, spelled: Mapping[str, Spelled]) -> Iterator[Argument]:
    if isinstance(kind, RecordOf):
        for name, part in kind.parts.items():
            found = spelled.get(name, Spelled(f"--{_with_hyphens(name)}"))
            yield _option(name, part, ArgumentPlace.FIELD, name, found, required=bool(found.required))
        return
    found = spelled.get("", _ON_OFF if isinstance(kind, Flag) else Spelled(f"-v --{verb}"))
    place = ArgumentPlace.QUERY if level.parameter else ArgumentPlace.BODY
    yield _option("value", kind, place, level.parameter, found, required=True)


def _option(
    name: str, kind: Kind[object], place: ArgumentPlace, outside: str, spelled: Spelled, *, required: bool
) -> Argument:
    read = spelled.read or _reader(kind)
    return Argument(
        name,
        UNITS.get(read) or f"{kind.text[0].upper()}{kind.text[1:]}.",
        tuple(spelled.flags.split()),
        place,
        read,
        spelled.default,
        required and spelled.default is None,
        isinstance(kind, Flag),
        isinstance(kind, WordSet),
        outside,
    )


def _reader(kind: Kind[object]) -> Callable[[str], object]:
    if isinstance(kind, WholeNumber):
        return whole
    if isinstance(kind, Real):
        return real
    if isinstance(kind, Text | WordSet):
        return str
    if isinstance(kind, Choice):
        return choice(*(str(word.value) for word in cast("Choice[Enum]", kind).words))
    return json_value


def _quotas(noun: str, path: str, resource: Argument) -> Iterator[Command]:
    kind = option(
        "backlogQuotaType",
        "-t --type",
        "destination_storage limits the size, message_age the time.",
        read=choice("destination_storage", "message_age"),
        default="destination_storage",
    )
    policy = Argument(
        "policy",
        "What happens at the limit: producer_request_hold, producer_exception or consumer_backlog_eviction.",
        ("-p", "--policy"),
        ArgumentPlace.FIELD,
        choice("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    )
    limits = (
        option("limitSize", "-l --limit", "Size, such as 10M or 16G.", ArgumentPlace.FIELD, read=size, default="-1"),
        option("limitTime", "-lt --limitTime", "Time, such as 1h.", ArgumentPlace.FIELD, read=seconds, default="-1"),
    )
    yield Command(
        f"{noun} set-backlog-quota", "Limit the backlog of topics.", f"POST {path}", (resource, *limits, policy, kind)
    )
    yield Command(
        f"{noun} remove-backlog-quota", "Take a limit of the backlog away.", f"DELETE {path}", (resource, kind)
    )


def _with_hyphens(name: str) -> str:
    """`maxProducersPerTopic` as `max-producers-per-topic`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
