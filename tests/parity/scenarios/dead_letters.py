"""Dead letter topics of the official client, and what brokers do for them."""

import pulsar

from magnetar.protocol.pulsar_pb2 import CommandProducer, CommandSubscribe

from ..registry import NO_CREATION, scenario
from ..stage import Stage

SHARED = {"consumer_type": pulsar.ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 100}


def _until_dead(stage: Stage, consumer: pulsar.Consumer, deliveries: int) -> None:
    for number in range(deliveries):
        got = stage.receive(f"delivery {number + 1}", consumer)
        consumer.negative_acknowledge(got[0])


@scenario(promises=("9.1",))
def a_message_becomes_a_dead_letter_after_its_redeliveries(stage: Stage) -> None:
    """Two redeliveries, the default name, and the properties of the copy."""
    client = stage.client()
    policy = pulsar.ConsumerDeadLetterPolicy(2)
    consumer = client.subscribe(stage.topic(), "s", dead_letter_policy=policy, consumer_name="c", **SHARED)
    dead = client.subscribe(stage.topic("topic-s-DLQ"), "keeper")
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    producer.send(b"bad", {"mine": "1"}, partition_key="k")
    _until_dead(stage, consumer, 3)
    moved = dead.receive(15_000)
    stage.note("content and key", [moved.data(), moved.partition_key()])
    stage.note("names of properties", sorted(moved.properties()))
    stage.note("the topic that it came from", moved.properties().get("REAL_TOPIC"))
    stage.nothing("no more", consumer, 500)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 0)
    stage.http("subscriptions of the dead letter topic", "GET", "/admin/v2/persistent/{ns}/topic-s-DLQ/subscriptions")


@scenario(promises=("9.3", "9.8"))
def an_initial_subscription_keeps_dead_letters(stage: Stage) -> None:
    """The subscription is there before the first message of the dead letter topic."""
    client = stage.client()
    policy = pulsar.ConsumerDeadLetterPolicy(1, stage.topic("dead"), "keeper")
    consumer = client.subscribe(stage.topic(), "s", dead_letter_policy=policy, **SHARED)
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    producer.send(b"bad")
    _until_dead(stage, consumer, 2)
    stage.until(lambda: stage.stats("dead").get("msgInCounter") == 1)
    stage.http("its subscriptions", "GET", "/admin/v2/persistent/{ns}/dead/subscriptions")
    keeper = client.subscribe(stage.topic("dead"), "keeper")
    stage.note("what it kept", keeper.receive(15_000).data())
    # The official client may crash when it is closed before it has acknowledged what became a dead letter.
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 0)


@scenario(promises=("9.8",))
def a_producer_may_name_an_initial_subscription(stage: Stage) -> None:
    """By raw frames: on a new topic, and again on the same topic with another name."""
    topic, peer = stage.found_topic(), stage.peer()
    first = CommandProducer(topic=topic, producer_id=1, producer_name="a", initial_subscription_name="one")
    stage.ask("with a subscription", peer, first)
    second = CommandProducer(topic=topic, producer_id=2, producer_name="b", initial_subscription_name="two")
    stage.ask("with another one", peer, second)
    stage.http("subscriptions", "GET", "/admin/v2/persistent/{ns}/topic/subscriptions")
    stage.ask("a consumer takes it", peer, CommandSubscribe(topic=topic, subscription="one", consumer_id=3, subType=1))


@scenario(NO_CREATION, promises=("9.9",))
def an_initial_subscription_is_refused_where_none_are_created(stage: Stage) -> None:
    """By raw frames, where subscriptions are not created by themselves."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic")
    topic, peer = stage.found_topic(), stage.peer()
    named = CommandProducer(topic=topic, producer_id=1, producer_name="a", initial_subscription_name="one")
    stage.ask("with a subscription", peer, named)
    stage.ask("without", peer, CommandProducer(topic=topic, producer_id=2, producer_name="b"))
    stage.http("subscriptions", "GET", "/admin/v2/persistent/{ns}/topic/subscriptions")
