"""Policies: the table, what holds when several levels have a value, and what a change does to a loaded topic."""

import dataclasses
from typing import Any

import pytest

from magnetar.actors.policies.effective import POLICIES, EffectivePolicies
from magnetar.actors.policies.persistence import Persistence
from magnetar.actors.policies.record import NamespaceRecord
from magnetar.protocol.errors import InvalidConfiguration, MetadataError
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, CommandSuccess, ServerError
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.runtime.settings.declarations import Settings
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import TOPIC, broker_front, filled

SHARED: Any = {"subType": CommandSubscribe.Shared}
BOUNDS = {
    "max_producers_per_topic": "producers_max_per_topic",
    "max_consumers_per_topic": "consumers_max_per_topic",
    "max_consumers_per_subscription": "consumers_max_per_subscription",
    "max_subscriptions_per_topic": "subscriptions_max_per_topic",
    "max_unacked_messages_per_consumer": "unacked_messages_max_per_consumer",
    "max_unacked_messages_per_subscription": "unacked_messages_max_per_subscription",
}
"""Bounds, and the settings that are their defaults."""
NAMES = {
    "encryption_required": "encryptionRequired",
    "max_producers_per_topic": "maxProducersPerTopic",
    "max_consumers_per_topic": "maxConsumersPerTopic",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "max_unacked_messages_per_consumer": "maxUnackedMessagesPerConsumer",
    "max_unacked_messages_per_subscription": "maxUnackedMessagesPerSubscription",
    "persistence": "persistence",
    "compaction_threshold": "compactionThreshold",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
    "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
    "schema_validation_enforced": "schemaValidationEnforced",
    "retention": "retention",
    "publish_rate": "publishRate",
    "topic_dispatch_rate": "dispatchRate",
    "subscription_dispatch_rate": "subscriptionDispatchRate",
    "subscribe_rate": "subscribeRate",
    "deduplication_enabled": "deduplication",
    "deduplication_snapshot_interval_seconds": "deduplicationSnapshotInterval",
    "message_ttl": "messageTTL",
    "backlog_quota_map": "backlogQuotaMap",
    "delayed_delivery": "delayedDelivery",
    "max_message_size": "maxMessageSize",
    "subscription_types_enabled": "subscriptionTypesEnabled",
    "auto_topic_creation_override": "autoTopicCreation",
    "auto_subscription_creation_override": "autoSubscriptionCreation",
    "inactive_topic_policies": "inactiveTopicPolicies",
    "subscription_expiration_time_minutes": "subscriptionExpirationTime",
    "max_topics_per_namespace": "maxTopicsPerNamespace",
    "auth_policies": "permissions",
}


# -- the table ---------------------------------------------------------------------------------------------------------


def test_names_and_paths_are_those_of_pulsar() -> None:
    paths = {name: policy.namespace or policy.topic for name, policy in POLICIES.items()}
    assert {name: path.path for name, path in paths.items() if path is not None} == NAMES


def test_every_default_is_a_value_that_a_level_may_have() -> None:
    for name, policy in POLICIES.items():
        default = policy.default(Settings())
        assert policy.check(policy.kind.write(default)) == default, name
        assert getattr(EffectivePolicies.resolve(Settings()), name) == default


def test_a_wrong_value_is_refused_in_the_name_of_the_policy() -> None:
    for name, value, reason in (
        ("max_producers_per_topic", -1, "maxProducersPerTopic must be 0 or more"),
        ("max_producers_per_topic", "3", "maxProducersPerTopic is a whole number up to 2147483647, not '3'"),
        ("encryption_required", 1, "encryptionRequired is true or false, not 1"),
        ("persistence", {"bookkeeperEnsemble": 6}, "Bookkeeper-Ensemble must be <= 5 and > 0."),
    ):
        with pytest.raises(InvalidConfiguration) as refused:
            POLICIES[name].check(value)
        assert str(refused.value) == reason


# -- which level counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [0, 7])
def test_a_bound_of_the_namespace_takes_the_place_of_the_setting_also_zero(name: str, value: int) -> None:
    settings = dataclasses.replace(Settings(), **{BOUNDS[name]: 3})  # type: ignore[arg-type]
    assert getattr(EffectivePolicies.resolve(settings), name) == 3
    assert getattr(EffectivePolicies.resolve(settings, {}), name) == 3
    assert getattr(EffectivePolicies.resolve(settings, {name: value}), name) == value


def test_of_several_levels_the_narrowest_that_has_a_bound_counts() -> None:
    wide, narrow = {"max_producers_per_topic": 1, "max_consumers_per_topic": 2}, {"max_producers_per_topic": 5}
    found = EffectivePolicies.resolve(Settings(), wide, narrow)
    assert (found.max_producers_per_topic, found.max_consumers_per_topic) == (5, 2)


@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("level", [{"encryption_required": True}, {"encryption_required": False}, {}])
def test_encryption_is_required_where_setting_or_namespace_say_so(setting: bool, level: dict[str, object]) -> None:
    found = EffectivePolicies.resolve(Settings(encryption_require_on_producer=setting), level)
    assert found.encryption_required is (setting or level.get("encryption_required", False))


def test_a_policy_of_a_newer_coordinator_is_left_out() -> None:
    assert EffectivePolicies.resolve(Settings(), {"no_such_policies": {}}) == EffectivePolicies.resolve(Settings())


def test_copies_of_the_namespace_take_the_place_of_the_settings() -> None:
    settings = dataclasses.replace(Settings(), ensemble_size=5, write_quorum=3, ack_quorum=2)
    assert EffectivePolicies.resolve(settings).persistence == Persistence(5, 3, 2, 1.0)
    level = {"persistence": {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}}
    assert EffectivePolicies.resolve(settings, level).persistence == Persistence(2, 2, 2, -1.0)


def test_effective_policies_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EffectivePolicies.resolve(Settings()).max_producers_per_topic = 1  # type: ignore[misc]


# -- a change reaches a loaded topic -----------------------------------------------------------------------------------


def policies(**values: object) -> EffectivePolicies:
    return EffectivePolicies.resolve(Settings(), values)


async def test_a_lower_bound_keeps_the_producers_that_are_there() -> None:
    async with broker_front() as front:
        peer = await front.peer()
        assert (await peer.producer(TOPIC, 1)).producer_ready
        assert (await peer.producer(TOPIC, 2)).producer_ready
        front.topic.use_policies(policies(max_producers_per_topic=1))
        refused = await peer.producer(TOPIC, 3)
        assert refused.error == ServerError.ProducerBusy and len(front.topic.publishing.producers) == 2
        front.topic.use_policies(policies(max_producers_per_topic=0))
        assert (await peer.producer(TOPIC, 3)).producer_ready
        await peer.close()


async def test_bounds_of_consumers_and_subscriptions_follow_the_policies() -> None:
    async with broker_front() as front:
        peer = await front.peer()
        assert type(await peer.subscribe(TOPIC, "s", 1, **SHARED)) is CommandSuccess
        front.topic.use_policies(policies(max_consumers_per_topic=1))
        assert (await peer.subscribe(TOPIC, "s", 2, **SHARED)).error == ServerError.ConsumerBusy
        front.topic.use_policies(policies(max_consumers_per_subscription=1))
        assert (await peer.subscribe(TOPIC, "s", 2, **SHARED)).error == ServerError.ConsumerBusy
        assert type(await peer.subscribe(TOPIC, "t", 3, **SHARED)) is CommandSuccess
        front.topic.use_policies(policies(max_subscriptions_per_topic=2))
        assert (await peer.subscribe(TOPIC, "u", 4, **SHARED)).error == ServerError.NotAllowedError
        front.topic.use_policies(policies())
        assert type(await peer.subscribe(TOPIC, "u", 4, **SHARED)) is CommandSuccess
        await peer.close()


async def test_encryption_that_becomes_required_ends_a_plain_producer_when_it_sends() -> None:
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        peer.send_entry(entry(b"0", sequence_id=0), 0)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        front.topic.use_policies(policies(encryption_required=True))
        assert len(front.topic.publishing.producers) == 1  # Pulsar leaves it alone until it sends
        peer.send_entry(entry(b"1", sequence_id=1), 1)
        refused = await peer.expect(BaseCommand.SEND_ERROR, sequence_id=1)
        assert (refused.error, refused.message) == (ServerError.MetadataError, "Messages must be encrypted")
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        refused = await peer.producer(TOPIC, 2)
        assert (refused.error, refused.message) == (ServerError.MetadataError, f"Encryption is required in {TOPIC}")
        front.topic.use_policies(policies())
        assert (await peer.producer(TOPIC, 2)).producer_ready
        assert front.topic.publishing.published.entries == 1
        await peer.close()


UNACKED_BOUNDS = ["max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription"]


async def receives(peer: WirePeer, count: int) -> bool:
    """Whether so many messages come, and no more."""
    await peer.messages(count)
    await peer.settle()
    return not any(frame.command.type == BaseCommand.MESSAGE for frame in peer.received)


@pytest.mark.parametrize("bound", UNACKED_BOUNDS)
async def test_a_raised_bound_of_unacknowledged_messages_lets_dispatch_go_on(bound: str) -> None:
    async with broker_front() as front:
        peer = await filled(front, 10)
        front.topic.use_policies(policies(**{bound: 3}))
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(100)
        assert await receives(peer, 3)
        front.topic.use_policies(policies(**{bound: 5}))
        assert await receives(peer, 2)
        front.topic.use_policies(policies(**{bound: 0}))
        assert await receives(peer, 5)
        await peer.close()


@pytest.mark.parametrize("bound", UNACKED_BOUNDS)
async def test_a_lowered_bound_of_unacknowledged_messages_stops_dispatch(bound: str) -> None:
    async with broker_front() as front:
        peer = await filled(front, 4)
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(100)
        assert await receives(peer, 4)
        front.topic.use_policies(policies(**{bound: 2}))
        peer.send_entry(entry(b"4", sequence_id=4), 4, producer_id=9)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=4)
        assert await receives(peer, 0)
        front.topic.use_policies(policies())
        assert await receives(peer, 1)
        await peer.close()


async def test_copies_that_change_hold_for_the_ledgers_to_come() -> None:
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        assert front.ledger.copies == (3, 3, 2)
        front.topic.use_policies(policies(persistence={"bookkeeperEnsemble": 4}))
        assert front.ledger.copies == (4, 2, 2)
        await peer.close()


# -- the record of a namespace -----------------------------------------------------------------------------------------


def test_the_record_of_a_namespace_survives_packing() -> None:
    record = NamespaceRecord.new({"max_producers_per_topic": 3, "encryption_required": True}, 17, Settings())
    assert NamespaceRecord.unpack(record.pack()) == record
    assert record.policies == {"max_producers_per_topic": 3, "encryption_required": True}


def test_a_policy_that_is_set_to_nothing_leaves_the_record() -> None:
    record = NamespaceRecord.new({"max_producers_per_topic": 0, "encryption_required": True}, 17, Settings())
    assert record.with_policy("max_producers_per_topic", None, Settings()).policies == {"encryption_required": True}
    assert record.with_policy("encryption_required", False, Settings()).policies == {"max_producers_per_topic": 0}
    assert record.with_policy("encryption_required", None, Settings()).policies == {"max_producers_per_topic": 0}


@pytest.mark.parametrize("value", [-1, "3", True])
def test_a_record_takes_no_wrong_value_and_no_unknown_policy(value: object) -> None:
    record = NamespaceRecord.new({}, 17, Settings())
    for wrong in (
        lambda: record.with_policy("max_producers_per_topic", value, Settings()),
        lambda: NamespaceRecord.new({"max_producers_per_topic": value}, 17, Settings()),
        lambda: record.with_policy("no_such_policies", {}, Settings()),
        lambda: NamespaceRecord.new({"no_such_policies": {}}, 17, Settings()),
    ):
        with pytest.raises(InvalidConfiguration):
            wrong()


def test_values_that_a_newer_release_stored_stay_in_the_record_when_others_change() -> None:
    quota = {"limitSize": 9, "limitTime": 0, "policy": "producer_exception"}
    newer = {"message_count": {"limitCount": 5}}
    policies = {"schema_compatibility_strategy": "SEMANTIC", "retention": "for ever", "backlog_quota_map": newer}
    record = NamespaceRecord.unpack(pack({"policies": policies, "created_ms": 17}))
    changed = record.with_policy("max_producers_per_topic", 3, Settings())
    assert changed.policies == {**policies, "max_producers_per_topic": 3}
    both = record.with_policy("backlog_quota_map", {**newer, "destination_storage": quota}, Settings())
    assert both.policies["backlog_quota_map"] == {**newer, "destination_storage": quota}
    only = both.with_policy("backlog_quota_map", {"message_age": quota}, Settings())
    assert only.policies["backlog_quota_map"] == {**newer, "message_age": quota}
    assert "backlog_quota_map" not in both.with_policy("backlog_quota_map", None, Settings()).policies


def test_what_a_newer_release_stored_stays_in_the_record() -> None:
    stored = pack({"policies": {"no_such_policies": {"a": 1}}, "created_ms": 17, "further": [1]})
    changed = NamespaceRecord.unpack(stored).with_policy("max_producers_per_topic", 3, Settings())
    assert unpack(changed.pack()) == {
        "policies": {"no_such_policies": {"a": 1}, "max_producers_per_topic": 3},
        "created_ms": 17,
        "further": [1],
    }


@pytest.mark.parametrize(
    "value",
    [b"", b"\xc1", pack([]), pack({}), pack({"policies": []}), pack({"policies": {5: 1}})],
)
def test_what_is_no_record_of_a_namespace_is_refused(value: bytes) -> None:
    with pytest.raises(MetadataError, match="not the record of a namespace"):
        NamespaceRecord.unpack(value)
