"""Non-durable subscriptions of our client, `subscription_mode`, in both faces and of all four types."""

from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.client.core.configuration import SubscriptionMode
from magnetar.protocol.errors import InvalidConfiguration
from support.clients.sides import Side, connect
from support.servers.embedded_cluster import EmbeddedCluster

OUR_FACES = ("ours", "asyncio")
TYPES = ("Exclusive", "Shared", "Failover", "KeyShared")


@pytest.fixture(params=OUR_FACES)
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Side]:
    with connect(cluster.service_url, request.param) as connected:
        yield connected


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def subscriptions(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """The names that the broker knows, with its consumers or without."""
    return sorted(name for name, _ in cluster.brokers[1].topics.loaded[full(topic)].subscriptions)


def publish(side: Side, topic: str, begin: int, end: int) -> list[bytes]:
    producer = side.client.create_producer(topic, batching_enabled=False)
    sent = [b"%d" % number for number in range(begin, end)]
    for value in sent:
        producer.send(value, partition_key=value.decode())
    producer.close()
    return sent


def subscribe(side: Side, topic: str, kind: str, position: str, **options: Any) -> Any:
    module = side.module
    return side.client.subscribe(
        topic,
        "passing",
        getattr(module.ConsumerType, kind),
        initial_position=getattr(module.InitialPosition, position),
        subscription_mode=SubscriptionMode.NonDurable,
        **options,
    )


@pytest.mark.promise("21.2")
@pytest.mark.parametrize("kind", TYPES)
def test_it_begins_where_it_is_told_and_ends_with_its_consumer(cluster: EmbeddedCluster, side: Side, kind: str) -> None:
    topic = f"begins-{side.face}-{kind}"
    side.client.subscribe(topic, "kept").close()
    sent = publish(side, topic, 0, 5)
    early, late = subscribe(side, topic, kind, "Earliest"), None
    assert sorted(side.values(early, 5)) == sorted(sent)
    assert subscriptions(cluster, topic) == ["kept", "passing"]
    early.close()
    assert subscriptions(cluster, topic) == ["kept"]
    late = subscribe(side, topic, kind, "Latest")
    more = publish(side, topic, 5, 8)
    assert sorted(side.values(late, 3, acknowledge=True)) == sorted(more)
    late.close()
    assert subscriptions(cluster, topic) == ["kept"]


@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_left_out_when_the_topic_moves(cluster: EmbeddedCluster, side: Side, kind: str) -> None:
    """What was taken is not acknowledged: the application has it. A Shared type may deliver it a second time."""
    topic = f"moves-{side.face}-{kind}"
    side.client.subscribe(topic, "kept").close()
    sent = publish(side, topic, 0, 20)
    consumer = subscribe(side, topic, kind, "Earliest", receiver_queue_size=4)
    found = side.values(consumer, 7)
    for begin in (20, 30):
        cluster.run(cluster.coordinator_call("unload", topic=full(topic)))
        sent += publish(side, topic, begin, begin + 10)
        found += side.values(consumer, 3)
    while len(set(found)) < len(sent):
        found += side.values(consumer, 1)
    assert set(found) == set(sent)
    if kind in ("Exclusive", "Failover"):
        assert found == sent
    assert not side.what_comes(consumer) or kind in ("Shared", "KeyShared")


@pytest.mark.parametrize("kind", TYPES)
def test_negative_acknowledgement_brings_a_message_again(side: Side, kind: str) -> None:
    topic = f"again-{side.face}-{kind}"
    consumer = subscribe(side, topic, kind, "Earliest", negative_ack_redelivery_delay_ms=100)
    sent = publish(side, topic, 0, 2)
    first = consumer.receive(10_000)
    consumer.negative_acknowledge(first)
    found = [consumer.receive(10_000).data() for _ in range(2)]
    assert sorted({first.data(), *found}) == sent and first.data() in found


def test_two_shared_consumers_divide_what_comes(cluster: EmbeddedCluster, side: Side) -> None:
    topic = f"two-{side.face}"
    consumers = [subscribe(side, topic, "Shared", "Latest", receiver_queue_size=1) for _ in range(2)]
    sent = publish(side, topic, 0, 20)
    found = [one.data() for consumer in consumers for one in side.what_comes(consumer, 500)]
    assert sorted(found) == sorted(sent)
    consumers[0].close()
    assert subscriptions(cluster, topic) == ["passing"], "the other one is still there"
    consumers[1].close()
    assert subscriptions(cluster, topic) == []


def test_partitions_and_lists_of_topics_have_it_too(cluster: EmbeddedCluster, side: Side) -> None:
    parts, plain = f"parts-{side.face}", f"plain-{side.face}"
    cluster.run(cluster.coordinator_call("create_topic", topic=full(parts), partitions=2))
    side.client.subscribe([parts, plain], "kept").close()
    sent = publish(side, parts, 0, 6) + publish(side, plain, 6, 8)
    consumer = subscribe(side, [parts, plain], "Shared", "Earliest")  # type: ignore[arg-type]
    assert sorted(side.values(consumer, 8)) == sorted(sent)
    consumer.close()
    for topic in (plain, f"{parts}-partition-0", f"{parts}-partition-1"):
        assert subscriptions(cluster, topic) == ["kept"]


def test_a_seek_moves_it(side: Side) -> None:
    topic = f"sought-{side.face}"
    for kind in ("Exclusive", "Shared"):
        consumer = subscribe(side, topic, kind, "Latest")
        sent = publish(side, topic, 0, 4)
        assert side.values(consumer, 4) == sent
        consumer.seek(side.module.MessageId.earliest)
        assert side.values(consumer, 2) == [b"0", b"1"]
        consumer.close()


def test_what_is_no_mode_is_refused(side: Side) -> None:
    with pytest.raises(InvalidConfiguration, match=r"subscription_mode must be a magnetar\.SubscriptionMode"):
        side.client.subscribe("t", "s", subscription_mode="NonDurable")
