"""What clients create by using it, and which types of subscriptions they may use, as policies, with both clients."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.protocol.topics import TopicName
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(heartbeat_interval_s=0.2, session_timeout_s=20.0)

TOPICS = "auto_topic_creation_override"
SUBSCRIPTIONS = "auto_subscription_creation_override"
TYPES = "subscription_types_enabled"
PARTITIONED = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Any]:
    module = request.param
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if module is pulsar else {}
    client = module.Client(cluster.service_url, operation_timeout_seconds=10, **options)
    yield SimpleNamespace(module=module, client=client, Shared=module.ConsumerType.Shared)
    client.close()


@pytest.fixture
def namespace(cluster: EmbeddedCluster, topic: str) -> str:
    """One that no other test uses."""
    name = "public/" + TopicName.parse(topic).local_name.lower()
    cluster.run(cluster.coordinator_call("create_namespace", namespace=name))
    return name


def set_policy(cluster: EmbeddedCluster, scope: str, policy: str, value: object) -> None:
    """Of a namespace or a topic; in effect at its broker within a second."""
    if "://" in scope:
        cluster.run(cluster.coordinator_call("set_topic_policy", topic=scope, policy=policy, value=value))
    else:
        cluster.run(cluster.coordinator_call("set_policy", namespace=scope, policy=policy, value=value))

    def is_there() -> bool:
        held = cluster.brokers[1].topics.policies._held.get(scope)
        return (held.values.get(policy) if held is not None else None) == value

    until(is_there, 1.0)


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def partitions(cluster: EmbeddedCluster, topic: str) -> int | None:
    assert cluster.coordinator is not None
    return cluster.coordinator.office.registry.find(TopicName.parse(topic))


@pytest.mark.promise("15.7", "15.8", "15.9")
def test_a_namespace_says_whether_clients_create_topics_and_of_which_kind(
    side: Any, cluster: EmbeddedCluster, namespace: str
) -> None:
    one, other = (f"persistent://{namespace}/{name}" for name in ("one", "other"))
    side.client.create_producer(one).close()
    assert partitions(cluster, one) == 0
    set_policy(cluster, namespace, TOPICS, {"allowAutoTopicCreation": False})
    for use in (side.client.create_producer, lambda topic: side.client.subscribe(topic, "s")):
        with pytest.raises(side.module.TopicNotFound):
            use(other)
    assert partitions(cluster, other) is None
    side.client.create_producer(one).close()
    set_policy(cluster, namespace, TOPICS, PARTITIONED)
    side.client.subscribe(other, "s").close()
    assert partitions(cluster, other) == 3
    side.client.create_producer(other).close()
    set_policy(cluster, namespace, TOPICS, None)
    side.client.create_producer(other + "-2").close()
    assert partitions(cluster, other + "-2") == 0


@pytest.mark.promise("16.7")
def test_a_namespace_or_topic_says_whether_consumers_create_subscriptions(
    side: Any, cluster: EmbeddedCluster, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    side.client.subscribe(topic, "old").close()
    loaded = cluster.brokers[1].topics.loaded[topic]
    set_policy(cluster, namespace, SUBSCRIPTIONS, {"allowAutoSubscriptionCreation": False})
    if side.module is magnetar:  # the official client asks again until its time is over
        with pytest.raises(magnetar.SubscriptionNotFound):
            side.client.subscribe(topic, "new")
    side.client.subscribe(topic, "old").close()
    side.client.create_reader(topic, side.module.MessageId.earliest).close()
    set_policy(cluster, topic, SUBSCRIPTIONS, {"allowAutoSubscriptionCreation": True})
    side.client.subscribe(topic, "new").close()
    assert cluster.brokers[1].topics.loaded[topic] is loaded


@pytest.mark.promise("16.1")
def test_only_enabled_types_of_subscriptions_are_served_and_old_consumers_stay(
    side: Any, cluster: EmbeddedCluster, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    first = side.client.subscribe(topic, "s", consumer_type=side.Shared)
    loaded = cluster.brokers[1].topics.loaded[topic]
    set_policy(cluster, namespace, TYPES, ["Exclusive", "Failover"])
    for name in ("s", "new"):
        with pytest.raises(side.module.NotAllowedError):
            side.client.subscribe(topic, name, consumer_type=side.Shared)
    assert list(loaded.subscriptions) == [("s", True)], "nothing is left of what was refused"
    assert first.is_connected()
    side.client.subscribe(topic, "exclusive").close()
    set_policy(cluster, topic, TYPES, ["Shared"])
    side.client.subscribe(topic, "s", consumer_type=side.Shared).close()
    with pytest.raises(side.module.NotAllowedError):
        side.client.subscribe(topic, "exclusive")
    assert cluster.brokers[1].topics.loaded[topic] is loaded
    first.close()


def test_topics_of_both_domains_and_the_setting_follow_the_same_rule(tmp_path_factory: Any) -> None:
    with EmbeddedCluster(tmp_path_factory.mktemp("types"), subscription_types_enabled="Shared, Key_Shared") as cluster:
        with magnetar.Client(cluster.service_url) as client:
            for topic in ("persistent://public/default/t", "non-persistent://public/default/t"):
                with pytest.raises(magnetar.NotAllowedError):
                    client.subscribe(topic, "s")
                client.subscribe(topic, "s", consumer_type=magnetar.ConsumerType.Shared).close()
