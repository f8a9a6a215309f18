"""Topics that nobody uses are deleted, and subscriptions without consumers expire, through coordinator and brokers."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.protocol.topics import TopicName
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(
    brokers=2,
    inactive_topics_check_interval_s=0.1,
    subscription_expiry_check_interval_minutes=0.001,
    inactive_partitioned_topics_deletion_enabled=True,
    heartbeat_interval_s=0.2,
    session_timeout_s=20.0,
)

POLICY = "inactive_topic_policies"
CAUGHT_UP = {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "deleteWhileInactive": True}
KEPT = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "deleteWhileInactive": False}


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Any:
    module = request.param
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if module is pulsar else {}
    client = module.Client(cluster.service_url, operation_timeout_seconds=10, **options)
    yield SimpleNamespace(module=module, client=client, earliest=module.InitialPosition.Earliest)
    client.close()


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def exists(cluster: EmbeddedCluster, topic: str) -> bool:
    assert cluster.coordinator is not None and cluster.coordinator.office is not None
    return cluster.coordinator.office.registry.find(TopicName.parse(topic)) is not None


def loaded(cluster: EmbeddedCluster, topic: str) -> Any:
    return cluster.brokers[cluster.owner(topic)].topics.loaded[topic]


def rounds(cluster: EmbeddedCluster, topic: str) -> None:
    """Let the owner look twice for inactive topics."""
    used_s = loaded(cluster, topic).keeping.inactivity
    looks = 0
    check = used_s.check

    def counted() -> bool:
        nonlocal looks
        looks += 1
        return check()

    used_s.check = counted
    until(lambda: looks >= 2)
    used_s.check = check


def set_own(cluster: EmbeddedCluster, topic: str, policy: str, value: object) -> None:
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=topic, policy=policy, value=value))


def test_a_topic_goes_with_its_data_when_its_last_producer_and_subscription_are_gone(
    side: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    producer = side.client.create_producer(topic)
    producer.send(b"old")
    rounds(cluster, topic)
    consumer = side.client.subscribe(topic, "s", initial_position=side.earliest)
    producer.close()
    assert consumer.receive(10_000).data() == b"old"
    consumer.close()
    rounds(cluster, topic)
    assert exists(cluster, topic)
    side.client.subscribe(topic, "s").unsubscribe()
    until(lambda: not exists(cluster, topic))
    consumer = side.client.subscribe(topic, "s", initial_position=side.earliest)
    producer = side.client.create_producer(topic)
    producer.send(b"new")
    assert consumer.receive(10_000).data() == b"new", "a topic of that name begins empty"
    producer.close()
    consumer.unsubscribe()
    consumer.close()
    until(lambda: not exists(cluster, topic))


@pytest.mark.promise("15.7")
def test_a_policy_of_the_topic_keeps_it_or_lets_it_go_within_a_second(
    side: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    producer = side.client.create_producer(topic)
    set_own(cluster, topic, POLICY, KEPT)
    until(lambda: not loaded(cluster, topic).policies.inactive_topic_policies.delete)
    instance = loaded(cluster, topic)
    side.client.subscribe(topic, "s").close()
    producer.send(b"1")
    producer.close()
    rounds(cluster, topic)
    assert loaded(cluster, topic) is instance
    set_own(cluster, topic, POLICY, CAUGHT_UP)
    until(lambda: loaded(cluster, topic).policies.inactive_topic_policies.delete, timeout_s=1.0)
    rounds(cluster, topic)
    assert loaded(cluster, topic) is instance, "its subscription has a backlog"
    consumer = side.client.subscribe(topic, "s")
    consumer.acknowledge(consumer.receive(10_000))
    rounds(cluster, topic)
    assert exists(cluster, topic), "a consumer is connected"
    consumer.close()
    until(lambda: not exists(cluster, topic))


@pytest.mark.promise("30.23")
def test_a_partitioned_topic_goes_as_a_whole_when_no_partition_is_used(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=3))
    with magnetar.Client(cluster.service_url) as client:
        client.create_producer(topic).close()
        consumer = client.subscribe(f"{topic}-partition-2", "s")
        rounds(cluster, f"{topic}-partition-0")
        assert exists(cluster, topic)
        assert all(loaded(cluster, f"{topic}-partition-{number}") for number in range(3)), "none was closed in vain"
        consumer.unsubscribe()
        until(lambda: not exists(cluster, topic))


def test_a_broker_without_its_coordinator_asks_again(cluster: EmbeddedCluster, topic: str) -> None:
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(topic)
        cluster.run(cluster.stop_coordinator())
        producer.close()
    rounds(cluster, topic)
    cluster.run(cluster.start_coordinator())
    until(lambda: not exists(cluster, topic))


@pytest.mark.promise("15.7")
def test_a_subscription_expires_and_its_time_goes_on_when_the_topic_moves(
    side: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    side.client.subscribe(topic, "s").close()
    consumer = side.client.subscribe(topic, "busy")
    instance = loaded(cluster, topic)
    set_own(cluster, topic, "subscription_expiration_time_minutes", 1)
    until(lambda: instance.policies.subscription_expiration_time_minutes == 1, timeout_s=1.0)
    since_ms = instance.subscriptions["s", True].idle_since_ms
    assert since_ms and not instance.subscriptions["busy", True].idle_since_ms
    cluster.run(cluster.coordinator_call("unload", topic=topic))
    until(lambda: any(topic in broker.topics.loaded for broker in cluster.brokers.values()))
    until(lambda: consumer.is_connected())
    moved = loaded(cluster, topic)
    assert moved is not instance and moved.subscriptions["s", True].idle_since_ms == since_ms
    moved.subscriptions["s", True].idle_since_ms -= 60_001
    until(lambda: ("s", True) not in moved.subscriptions)
    assert list(moved.ledger.subscription_cursors) == ["busy"]
    consumer.unsubscribe()
