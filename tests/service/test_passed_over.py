"""What a cursor passes over is no longer held at consumers that never acknowledge it: it expired, was skipped, evicted,
or its ledger was trimmed. With the official client."""

import time
from typing import Any

import pulsar
import pytest

from magnetar.actors.broker.backlog import skip, truncate
from magnetar.actors.broker.methods import OwnerMethods
from magnetar.actors.policies.backlog_quota import QuotaType
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, MessageIdData
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = (1 << 64) - 1
HELD = 5
WAIT_MS = 20_000

pytestmark = pytest.mark.cluster_settings(
    ledger_entries_max=10,
    ledger_rollover_min_minutes=0,
    cursor_flush_interval_s=0.05,
    message_expiry_check_interval_minutes=0.001,
    backlog_quota_check_interval_s=0.1,
    unacked_messages_max_per_consumer=HELD,
)


def until(condition: Any, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def loaded(cluster: EmbeddedCluster, topic: str) -> Any:
    return cluster.brokers[cluster.owner(topic)].topics.loaded[topic]


def methods(cluster: EmbeddedCluster, topic: str) -> Any:
    return OwnerMethods(cluster.brokers[cluster.owner(topic)].topics, list)


def set_policy(cluster: EmbeddedCluster, topic: str, policy: str, value: object) -> None:
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=topic, policy=policy, value=value))


def expires(cluster: EmbeddedCluster, topic: str) -> None:
    time.sleep(0.01)  # a message is not older than 0 s in the millisecond in which it was published
    cluster.run(methods(cluster, topic).expire_messages(topic=topic, age_s=0))


def reaches_its_time_to_live(cluster: EmbeddedCluster, topic: str) -> None:
    set_policy(cluster, topic, "message_ttl", 1)
    until(lambda: figures(cluster, topic).backlog_entries == 0)
    set_policy(cluster, topic, "message_ttl", 3600)
    until(lambda: loaded(cluster, topic).policies.message_ttl == 3600)


def is_skipped(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(skip(loaded(cluster, topic), loaded(cluster, topic).subscriptions["s", True], HELD + 1))


def is_cleared(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(methods(cluster, topic).skip_all(topic=topic, subscription="s"))


def is_truncated(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(truncate(loaded(cluster, topic)))


def is_evicted(cluster: EmbeddedCluster, topic: str) -> None:
    quota = {"limitSize": 1, "limitTime": 0, "policy": "consumer_backlog_eviction"}
    set_policy(cluster, topic, "backlog_quota_map", {"destination_storage": quota})
    until(lambda: figures(cluster, topic).backlog_entries == 0)
    set_policy(cluster, topic, "backlog_quota_map", None)
    until(lambda: loaded(cluster, topic).policies.backlog_quota_map[QuotaType.DESTINATION_STORAGE].size_bytes != 1)


def figures(cluster: EmbeddedCluster, topic: str, name: str = "s") -> Any:
    async def describe() -> Any:
        return next(one for one in loaded(cluster, topic).describe().subscriptions if one.name == name)

    return cluster.run(describe())


def held(cluster: EmbeddedCluster, topic: str) -> set[tuple[int, int]]:
    """What the dispatcher still knows of, redelivery counts included."""

    async def ask() -> set[tuple[int, int]]:
        return loaded(cluster, topic).subscriptions["s", True].dispatcher.held()

    return cluster.run(ask())


WAYS = [expires, reaches_its_time_to_live, is_skipped, is_cleared, is_truncated, is_evicted]
TYPES = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]


@pytest.mark.promise("26.3")
@pytest.mark.parametrize("subscription_type", TYPES, ids=["shared", "key_shared"])
@pytest.mark.parametrize("passes", WAYS)
def test_a_consumer_at_its_bound_goes_on_when_what_it_holds(
    passes: Any, subscription_type: Any, cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    consumer = official_client.subscribe(topic, "s", subscription_type, receiver_queue_size=100)
    producer = official_client.create_producer(topic, batching_enabled=False)
    for number in range(HELD + 1):
        producer.send(b"%d" % number, partition_key=f"{number % 3}")
    for number in range(HELD):
        assert consumer.receive(WAIT_MS).data() == b"%d" % number
    assert figures(cluster, topic).consumers[0].blocked
    passes(cluster, topic)
    shown = figures(cluster, topic)
    assert (shown.backlog_entries, shown.unacked_messages, shown.consumers[0].blocked) == (0, 0, False)
    assert held(cluster, topic) == set()
    for number in range(HELD):
        producer.send(b"new %d" % number, partition_key=f"{number % 3}")
    assert [consumer.receive(WAIT_MS).data() for _ in range(HELD)] == [b"new %d" % number for number in range(HELD)]
    producer.close()
    consumer.close()


@pytest.mark.parametrize("subscription_type", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_a_consumer_that_gets_everything_goes_on_behind_what_was_skipped(
    subscription_type: Any, cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    consumer = official_client.subscribe(topic, "s", subscription_type, receiver_queue_size=1)
    producer = official_client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number)
    assert consumer.receive(WAIT_MS).data() == b"0"
    cluster.run(skip(loaded(cluster, topic), loaded(cluster, topic).subscriptions["s", True], 20))
    until(lambda: figures(cluster, topic).backlog_entries == 10)
    reads = loaded(cluster, topic).subscriptions["s", True].read_position
    assert reads >= loaded(cluster, topic).subscriptions["s", True].cursor.first_unacknowledged
    got = [consumer.receive(WAIT_MS).data()]
    while got[-1] != b"29":
        got.append(consumer.receive(WAIT_MS).data())
    assert got[-10:] == [b"%d" % number for number in range(20, 30)]


def test_keys_whose_messages_have_expired_go_to_their_new_consumer(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    """A slot drains no longer when nothing of it is left to acknowledge."""
    shared = {"consumer_type": pulsar.ConsumerType.KeyShared, "receiver_queue_size": 100}
    first = official_client.subscribe(topic, "s", consumer_name="first", **shared)
    producer = official_client.create_producer(topic, batching_enabled=False)
    keys = [f"{number}" for number in range(HELD)]
    for key in keys:
        producer.send(b"old", partition_key=key)
    for _ in keys:
        first.receive(WAIT_MS)
    second = official_client.subscribe(topic, "s", consumer_name="second", **shared)
    drains = [len(one.key_shared.draining) for one in figures(cluster, topic).consumers]
    assert sum(drains) > 0, "the new consumer has some of the keys"
    expires(cluster, topic)
    assert [one.key_shared.draining for one in figures(cluster, topic).consumers] == [[], []]
    for key in keys:
        producer.send(b"new", partition_key=key)
    until(lambda: figures(cluster, topic).unacked_messages == HELD)
    got = [
        second.receive(WAIT_MS).partition_key() for _ in range(figures(cluster, topic).consumers[1].unacked_messages)
    ]
    assert len(got) == sum(drains), "it gets what drained"


@pytest.mark.parametrize("subscription_type", TYPES, ids=["shared", "key_shared"])
def test_redeliveries_of_what_has_expired_are_not_counted_for_ever(
    subscription_type: Any, cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    consumer = official_client.subscribe(topic, "s", subscription_type, negative_ack_redelivery_delay_ms=50)
    producer = official_client.create_producer(topic, batching_enabled=False)
    for _ in range(3):
        for number in range(HELD):
            producer.send(b"%d" % number)
        for _ in range(HELD):
            consumer.negative_acknowledge(consumer.receive(WAIT_MS))
        again = [consumer.receive(WAIT_MS) for _ in range(HELD)]
        assert [one.redelivery_count() for one in again] == [1] * HELD
        assert len(held(cluster, topic)) == HELD
        expires(cluster, topic)
        assert held(cluster, topic) == set()


def test_a_delayed_message_that_was_cleared_is_no_longer_held(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    official_client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = official_client.create_producer(topic, batching_enabled=False)
    for _ in range(HELD):
        producer.send_async(b"later", lambda *_: None, deliver_at=2_000_000_000_000)
    producer.flush()
    until(lambda: figures(cluster, topic).delayed_entries == HELD)
    is_cleared(cluster, topic)
    assert figures(cluster, topic).delayed_entries == 0


async def reader_at_its_bound(port: int, topic: str) -> WirePeer:
    """A consumer of a subscription that is not durable, which holds as much as it may."""
    peer = await WirePeer.open(port)
    start = MessageIdData(ledgerId=EARLIEST, entryId=EARLIEST)
    await peer.subscribe(topic, "reads", subType=CommandSubscribe.Shared, durable=False, start_message_id=start)
    peer.flow(100)
    await peer.messages(HELD)
    return peer


def test_a_reader_goes_on_when_the_ledgers_of_what_it_holds_are_gone(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    consumer = official_client.subscribe(topic, "s")
    producer = official_client.create_producer(topic, batching_enabled=False)
    for number in range(12):
        producer.send(b"%d" % number)
    peer = cluster.run(reader_at_its_bound(int(cluster.service_url.rpartition(":")[2]), topic))
    ledger = loaded(cluster, topic).ledger
    first = ledger.first_position
    for _ in range(12):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    while ledger.first_position == first:  # a ledger ends a little behind its last entry
        producer.send(b"more")
        consumer.acknowledge(consumer.receive(WAIT_MS))
    producer.send(b"last")
    assert cluster.run(peer.messages(1)) == [(0, 0)], "it goes on in the ledger that is left"
    until(lambda: figures(cluster, topic, "reads").unacked_messages == min(ledger.count_after(first), HELD))
    cluster.run(peer.close())
