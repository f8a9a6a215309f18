"""Dead letters and retry letters on a cluster, with each face of our client and the official one where it has them."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

import magnetar
from magnetar.protocol.topics import TopicName
from support.clients.sides import FACES, Side, connect
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures, loaded, until

SIZE_MAX = 20_000
pytestmark = pytest.mark.cluster_settings(brokers=1, max_message_size_bytes=SIZE_MAX)

OURS = pytest.mark.parametrize("side", ["ours", "asyncio"], indirect=True)
"""The official Python client has no retry letters and no customizers."""


@pytest.fixture(params=FACES)
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Side]:
    with connect(cluster.service_url, request.param) as connected:
        yield connected


def join(side: Side, topic: str, kind: str = "Shared", **options: Any) -> Any:
    return side.client.subscribe(
        topic,
        "s",
        consumer_type=getattr(side.module.ConsumerType, kind),
        initial_position=side.module.InitialPosition.Earliest,
        consumer_name="worker",
        negative_ack_redelivery_delay_ms=100,
        **options,
    )


def send(side: Side, topic: str, *contents: bytes, **options: Any) -> None:
    producer = side.client.create_producer(topic, batching_enabled=False, **options)
    for content in contents:
        producer.send(content, partition_key="k")


def refuse(consumer: Any, deliveries: int) -> None:
    """Negatively acknowledge the one message that comes, so many times."""
    for number in range(deliveries):
        message = consumer.receive(10_000)
        assert message.redelivery_count() == number
        consumer.negative_acknowledge(message)


def backlogs(cluster: EmbeddedCluster, topic: str) -> dict[str, int]:
    """By subscription; none where nobody has loaded the topic yet."""
    if topic not in cluster.brokers[1].topics.loaded:
        return {}
    return {name: one["msgBacklog"] for name, one in figures(cluster, topic)["subscriptions"].items()}


def until_moved(cluster: EmbeddedCluster, topic: str) -> None:
    """Wait until the consumer has acknowledged what became a dead letter.

    The official client 3.13.0 crashes when it is closed between the receipt of the letter and that acknowledgement:
    with a real Pulsar 4.2.4 and with us, once in about 50 times.
    """
    until(lambda: figures(cluster, topic)["subscriptions"]["s"]["msgBacklog"] == 0)


@pytest.mark.promise("9.1", "9.2", "9.4", "9.7", "9.10", "9.11")
@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_a_dead_letter_topic_has_no_subscription_by_default(
    side: Side, cluster: EmbeddedCluster, topic: str, kind: str
) -> None:
    dead = f"{topic}-s-DLQ"
    consumer = join(side, topic, kind, dead_letter_policy=side.module.ConsumerDeadLetterPolicy(2))
    send(side, topic, b"bad")
    refuse(consumer, 3)
    until(lambda: dead in cluster.brokers[1].topics.loaded and figures(cluster, dead)["msgInCounter"] == 1)
    assert not backlogs(cluster, dead)
    (producer,) = figures(cluster, dead)["publishers"]
    if side.module is magnetar:  # the official client leaves the name to the broker
        assert re.fullmatch(rf"{re.escape(topic)}-s-worker-\w+-DLQ", producer["producerName"])
    until_moved(cluster, topic)
    send(side, topic, b"good")
    assert side.values(consumer, 1) == [b"good"], "consumption goes on"


@pytest.mark.promise("9.3", "9.8")
def test_an_initial_subscription_is_there_before_the_first_dead_letter(
    side: Side, cluster: EmbeddedCluster, topic: str
) -> None:
    policy = side.module.ConsumerDeadLetterPolicy(1, f"{topic}-dead", "keeper")
    consumer = join(side, topic, dead_letter_policy=policy)
    send(side, topic, b"bad")
    refuse(consumer, 2)
    until(lambda: backlogs(cluster, f"{topic}-dead") == {"keeper": 1})
    keeper = side.client.subscribe(f"{topic}-dead", "keeper")  # from the latest message, if it were new
    assert side.values(keeper, 1) == [b"bad"]
    until_moved(cluster, topic)


@pytest.mark.promise("9.9")
def test_without_automatic_subscriptions_no_dead_letter_producer_is_created(
    side: Side, cluster: EmbeddedCluster, topic: str
) -> None:
    """The message stays, and moves when subscriptions may be created."""
    namespace = "public/" + TopicName.parse(topic).local_name.lower()
    cluster.run(cluster.coordinator_call("create_namespace", namespace=namespace))
    topic, dead = f"persistent://{namespace}/t", f"persistent://{namespace}/dead"
    join(side, topic).close()
    allow(cluster, namespace, False)
    consumer = join(side, topic, dead_letter_policy=side.module.ConsumerDeadLetterPolicy(1, dead, "keeper"))
    send(side, topic, b"bad")
    refuse(consumer, 2)
    until(lambda: dead in cluster.brokers[1].topics.loaded)
    assert not loaded(cluster, dead).subscriptions and not figures(cluster, dead)["publishers"]
    assert figures(cluster, topic)["subscriptions"]["s"]["msgBacklog"] == 1
    consumer.close()  # first: else it stores the dead letter itself, as soon as it may
    allow(cluster, namespace, True)
    again = join(side, topic, dead_letter_policy=side.module.ConsumerDeadLetterPolicy(1, dead, "keeper"))
    refuse(again, 2)
    until(lambda: backlogs(cluster, dead) == {"keeper": 1})
    until_moved(cluster, topic)


def allow(cluster: EmbeddedCluster, namespace: str, allowed: bool) -> None:
    """Whether consumers create subscriptions in the namespace; the broker knows it afterwards."""
    name, value = "auto_subscription_creation_override", {"allowAutoSubscriptionCreation": allowed}
    cluster.run(cluster.coordinator_call("set_policy", namespace=namespace, policy=name, value=value))
    held = cluster.brokers[1].topics.policies._held
    until(lambda: namespace in held and held[namespace].values.get(name) == value)


@pytest.mark.promise("9.5")
@OURS
def test_customizers_change_the_producers_of_letters(side: Side, cluster: EmbeddedCluster, topic: str) -> None:
    seen: list[magnetar.DeadLetterProducerContext] = []

    def customize(context: magnetar.DeadLetterProducerContext, options: dict[str, Any]) -> None:
        seen.append(context)
        options["properties"] = {"made": "by us"}

    consumer = join(
        side,
        topic,
        dead_letter_policy=magnetar.ConsumerDeadLetterPolicy(1),
        enable_retry=True,
        retry_letter_producer_customizer=customize,
        dead_letter_producer_customizer=customize,
    )
    send(side, topic, b"bad")
    consumer.reconsume_later(consumer.receive(10_000), 1)
    consumer.reconsume_later(consumer.receive(10_000), 1)
    names = [f"{topic}-s-RETRY", f"{topic}-s-DLQ"]
    assert seen == [magnetar.DeadLetterProducerContext(name, topic, "s", "worker") for name in names]
    for name in names:
        assert [one["metadata"] for one in figures(cluster, name)["publishers"]] == [{"made": "by us"}]


@pytest.mark.promise("9.6")
@OURS
def test_letters_of_large_messages_travel_in_chunks_and_small_ones_alone(
    side: Side, cluster: EmbeddedCluster, topic: str
) -> None:
    large = os.urandom(3 * SIZE_MAX)
    consumer = join(side, topic, dead_letter_policy=magnetar.ConsumerDeadLetterPolicy(1), enable_retry=True)
    retries = side.client.create_reader(f"{topic}-s-RETRY", magnetar.MessageId.earliest)
    dead = side.client.create_reader(f"{topic}-s-DLQ", magnetar.MessageId.earliest)
    send(side, topic, large, b"small", chunking_enabled=True)
    for _ in range(4):
        consumer.reconsume_later(consumer.receive(10_000), 1)
    for reader, name in ((retries, "RETRY"), (dead, "DLQ")):
        letters = {message.data(): message for message in (reader.read_next(10_000) for _ in range(2))}
        assert set(letters) == {large, b"small"}
        assert str(letters[large].message_id()).count("(") == 2, "the first and the last chunk"
        assert letters[b"small"].message_id().batch_index() == -1, "without a batch"
        assert figures(cluster, f"{topic}-s-{name}")["msgChunkPublished"]


@pytest.mark.promise("9.11")
@OURS
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_other_types_than_shared_ones_have_no_letters(
    side: Side, cluster: EmbeddedCluster, topic: str, kind: str
) -> None:
    for options in ({"dead_letter_policy": magnetar.ConsumerDeadLetterPolicy(1)}, {"enable_retry": True}):
        with pytest.raises(magnetar.InvalidConfiguration, match=kind):
            join(side, topic, kind, **options)
    assert topic not in cluster.brokers[1].topics.loaded
