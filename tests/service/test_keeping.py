"""What a topic keeps, and what it gives up: retention, time to live and backlog quotas, with both clients."""

import itertools
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.actors.admin.topic_figures import topic_json
from magnetar.actors.broker.methods import OwnerMethods
from magnetar.protocol.errors import SubscriptionNotFound
from magnetar.storage.managed import trimming
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(
    ledger_entries_max=10,
    ledger_rollover_min_minutes=0,
    cursor_flush_interval_s=0.05,
    message_expiry_check_interval_minutes=0.001,
    backlog_quota_check_interval_s=0.1,
)

WAIT_MS = 10_000
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_numbers = itertools.count()


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Any:
    module = request.param
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if module is pulsar else {}
    client = module.Client(cluster.service_url, operation_timeout_seconds=10, **options)
    yield SimpleNamespace(module=module, client=client, earliest=module.InitialPosition.Earliest)
    client.close()


def until(condition: Any, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def set_policy(cluster: EmbeddedCluster, topic: str, policy: str, value: object) -> None:
    """For one topic, and in effect when this returns."""
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=topic, policy=policy, value=value))
    owner = cluster.brokers[cluster.owner(topic)]
    wanted = None if value is None else value
    until(
        lambda: (
            (owner.topics.policies._held.get(topic) is not None)
            and owner.topics.policies._held[topic].values.get(policy) == wanted
        )
    )


def namespace(cluster: EmbeddedCluster, policy: str, value: object) -> str:
    """A new namespace with a policy, which topics of it have when they are loaded."""
    name = f"public/kept-{next(_numbers)}"
    cluster.run(cluster.coordinator_call("create_namespace", namespace=name))
    cluster.run(cluster.coordinator_call("set_policy", namespace=name, policy=policy, value=value))
    return name


def ledgers(cluster: EmbeddedCluster, topic: str) -> Any:
    return cluster.brokers[cluster.owner(topic)].topics.loaded[topic].ledger  # type: ignore[attr-defined]


def kept(cluster: EmbeddedCluster, topic: str) -> int:
    return sum(info.entries for info in ledgers(cluster, topic).ledger_infos)


def publish_and_acknowledge(side: Any, topic: str, count: int) -> list[bytes]:
    consumer = side.client.subscribe(topic, "s", initial_position=side.earliest)
    producer = side.client.create_producer(topic)
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        producer.send(body)
    for _ in bodies:
        consumer.acknowledge(consumer.receive(WAIT_MS))
    producer.close()
    consumer.close()
    return bodies


@pytest.mark.promise("5.4", "26.2", "26.4", "29.8")
def test_retained_messages_stay_readable_and_go_when_the_policy_goes(
    side: Any, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "CHANGE_SPREAD_S", 0.0)
    side.client.create_producer(topic).close()
    set_policy(cluster, topic, "retention", FOR_EVER)
    bodies = publish_and_acknowledge(side, topic, 35)
    assert cluster.run(ledgers(cluster, topic).trim()) == []
    reader = side.client.create_reader(topic, side.module.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in bodies] == bodies
    reader.close()
    consumer = side.client.subscribe(topic, "s")
    consumer.seek(side.module.MessageId.earliest)
    assert [consumer.receive(WAIT_MS).data() for _ in bodies] == bodies
    consumer.close()
    side.client.subscribe(topic, "s").unsubscribe()
    assert kept(cluster, topic) == 35, "a topic without subscription keeps what is retained"
    plan = cluster.run(ledgers(cluster, topic).plan((-1, -1)))
    assert len(plan.ledgers) >= 2, "a bulk read finds it"
    cluster.run(ledgers(cluster, topic).unpin(plan.pin))
    set_policy(cluster, topic, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    until(lambda: kept(cluster, topic) < 10)


@pytest.mark.promise("26.4")
def test_a_namespace_retains_the_messages_of_its_topics(side: Any, cluster: EmbeddedCluster) -> None:
    topic = f"persistent://{namespace(cluster, 'retention', FOR_EVER)}/t"
    bodies = publish_and_acknowledge(side, topic, 25)
    assert cluster.run(ledgers(cluster, topic).trim()) == []
    reader = side.client.create_reader(topic, side.module.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in bodies] == bodies
    reader.close()


def figures(cluster: EmbeddedCluster, topic: str) -> Any:
    loaded: Any = cluster.brokers[cluster.owner(topic)].topics.loaded[topic]

    async def describe() -> Any:
        return topic_json(loaded.describe())

    return cluster.run(describe())


def of_subscription(cluster: EmbeddedCluster, topic: str) -> Any:
    return figures(cluster, topic)["subscriptions"]["s"]


@pytest.mark.promise("26.3", "26.4", "28.10")
def test_messages_expire_at_every_subscription_and_those_that_are_younger_come(
    side: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    consumer = side.client.subscribe(topic, "s", initial_position=side.earliest)
    consumer.close()
    producer = side.client.create_producer(topic)
    for number in range(25):
        producer.send(b"old %d" % number)
    set_policy(cluster, topic, "message_ttl", 1)
    until(lambda: of_subscription(cluster, topic)["msgBacklog"] == 0)
    shown = of_subscription(cluster, topic)
    assert shown["totalMsgExpired"] == 25 and shown["lastExpireTimestamp"] > 0
    until(lambda: kept(cluster, topic) < 10)
    set_policy(cluster, topic, "message_ttl", 3600)
    for number in range(15):
        producer.send(b"new %d" % number)
    consumer = side.client.subscribe(topic, "s")
    assert [consumer.receive(WAIT_MS).data() for _ in range(15)] == [b"new %d" % number for number in range(15)]


@pytest.mark.promise("26.4")
def test_a_namespace_lets_the_messages_of_its_topics_expire(side: Any, cluster: EmbeddedCluster) -> None:
    topic = f"persistent://{namespace(cluster, 'message_ttl', 1)}/t"
    side.client.subscribe(topic, "s", initial_position=side.earliest).close()
    side.client.create_producer(topic).send(b"old")
    until(lambda: of_subscription(cluster, topic)["totalMsgExpired"] == 1)
    assert of_subscription(cluster, topic)["msgBacklog"] == 0


@pytest.mark.promise("28.10")
def test_a_delayed_message_expires_before_its_time_and_never_comes(
    side: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    consumer = side.client.subscribe(
        topic, "s", consumer_type=side.module.ConsumerType.Shared, initial_position=side.earliest
    )
    producer = side.client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(seconds=3))
    set_policy(cluster, topic, "message_ttl", 1)
    until(lambda: of_subscription(cluster, topic)["msgBacklog"] == 0)
    set_policy(cluster, topic, "message_ttl", 3600)
    producer.send(b"later", deliver_after=timedelta(seconds=3))  # it is due behind the one that expired
    assert consumer.receive(WAIT_MS).data() == b"later"
    assert of_subscription(cluster, topic)["totalMsgExpired"] == 1


@pytest.mark.promise("26.3")
def test_an_operator_expires_what_is_older_than_asked(side: Any, cluster: EmbeddedCluster, topic: str) -> None:
    side.client.subscribe(topic, "s", initial_position=side.earliest).close()
    producer = side.client.create_producer(topic)
    for number in range(12):
        producer.send(b"%d" % number)
    methods: Any = OwnerMethods(cluster.brokers[cluster.owner(topic)].topics, list)
    assert cluster.run(methods.expire_messages(topic=topic, age_s=60, subscription="s")) == 0
    time.sleep(0.01)  # a message is not older than 0 s in the millisecond in which it was published
    assert cluster.run(methods.expire_messages(topic=topic, age_s=0)) == 12
    assert of_subscription(cluster, topic)["msgBacklog"] == 0
    with pytest.raises(SubscriptionNotFound):
        cluster.run(methods.expire_messages(topic=topic, age_s=0, subscription="none"))


def quota(policy: str, size: int = 2000) -> dict[str, object]:
    return {"destination_storage": {"limitSize": size, "limitTime": 0, "policy": policy}}


def behind(side: Any, cluster: EmbeddedCluster, topic: str, policy: str) -> Any:
    """A producer of a topic whose backlog has just exceeded its quota."""
    side.client.subscribe(topic, "s", initial_position=side.earliest).close()
    producer = side.client.create_producer(topic, send_timeout_millis=20_000)
    set_policy(cluster, topic, "backlog_quota_map", quota(policy))
    for _ in range(10):
        producer.send_async(bytes(1000), lambda *_: None)
    return producer


def test_a_full_quota_refuses_producers_with_an_exception(side: Any, cluster: EmbeddedCluster, topic: str) -> None:
    producer = behind(side, cluster, topic, "producer_exception")
    until(lambda: figures(cluster, topic)["backlogSize"] >= 10_000 and not figures(cluster, topic)["publishers"])
    with pytest.raises(side.module.ProducerBlockedQuotaExceededException):
        side.client.create_producer(topic)
    with pytest.raises(side.module.ProducerBlockedQuotaExceededException):
        producer.send(b"too much")


@pytest.mark.promise("28.9")
def test_delayed_messages_fill_a_quota_and_sends_are_refused(side: Any, cluster: EmbeddedCluster, topic: str) -> None:
    shared = {"consumer_type": side.module.ConsumerType.Shared, "initial_position": side.earliest}
    consumer = side.client.subscribe(topic, "s", **shared)
    producer = side.client.create_producer(topic, send_timeout_millis=20_000)
    set_policy(cluster, topic, "backlog_quota_map", quota("producer_exception"))
    for _ in range(10):
        producer.send_async(bytes(1000), lambda *_: None, deliver_after=timedelta(hours=1))
    until(lambda: figures(cluster, topic)["backlogSize"] >= 10_000 and not figures(cluster, topic)["publishers"])
    assert of_subscription(cluster, topic)["msgDelayed"] == 10
    with pytest.raises(side.module.ProducerBlockedQuotaExceededException):
        side.client.create_producer(topic)
    consumer.close()


def test_a_held_producer_goes_on_once_the_backlog_has_fallen(side: Any, cluster: EmbeddedCluster, topic: str) -> None:
    producer = behind(side, cluster, topic, "producer_request_hold")
    until(lambda: figures(cluster, topic)["backlogSize"] >= 10_000 and not figures(cluster, topic)["publishers"])
    assert figures(cluster, topic)["backlogQuotaLimitSize"] == 2000
    sent: list[Any] = []
    producer.send_async(b"held", lambda result, _: sent.append(result))
    time.sleep(0.3)
    assert not sent, "the quota is used up"
    consumer = side.client.subscribe(topic, "s")
    for _ in range(10):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    assert consumer.receive(WAIT_MS).data() == b"held"
    until(lambda: sent == [side.module.Result.Ok])


def test_eviction_takes_the_oldest_messages_of_a_slow_subscription(
    side: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    producer = behind(side, cluster, topic, "consumer_backlog_eviction")
    producer.flush()
    until(lambda: figures(cluster, topic)["backlogSize"] < 2000)
    assert of_subscription(cluster, topic)["msgBacklog"] == 1
    producer.send(b"more")


@pytest.mark.promise("30.26")
def test_a_topic_without_backlog_is_never_blocked(side: Any, cluster: EmbeddedCluster, topic: str) -> None:
    producer = side.client.create_producer(topic)
    set_policy(cluster, topic, "backlog_quota_map", quota("producer_exception", 0))
    producer.send(bytes(1000))
    consumer = side.client.subscribe(topic, "s")
    producer.send(bytes(1000))
    consumer.acknowledge(consumer.receive(WAIT_MS))
    until(lambda: of_subscription(cluster, topic)["msgBacklog"] == 0)
    side.client.create_producer(topic).close()


@pytest.mark.promise("30.26")
def test_a_backlog_that_is_too_old_refuses_producers(side: Any, cluster: EmbeddedCluster, topic: str) -> None:
    side.client.subscribe(topic, "s", initial_position=side.earliest).close()
    producer = side.client.create_producer(topic)
    producer.send(b"old")
    by_age = {"message_age": {"limitSize": 0, "limitTime": 1, "policy": "producer_exception"}}
    set_policy(cluster, topic, "backlog_quota_map", by_age)
    until(lambda: not figures(cluster, topic)["publishers"])
    assert figures(cluster, topic)["oldestBacklogMessageAgeSeconds"] >= 1
    with pytest.raises(side.module.ProducerBlockedQuotaExceededException):
        side.client.create_producer(topic)
