"""What a topic keeps, and what it gives up: retention, from the policy to what both clients find."""

import time
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.storage.managed import trimming
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(
    ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.05
)

WAIT_MS = 10_000
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


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
    assert len(plan.ledgers) >= 3, "a bulk read finds it"
    cluster.run(ledgers(cluster, topic).unpin(plan.pin))
    set_policy(cluster, topic, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    until(lambda: kept(cluster, topic) < 10)
