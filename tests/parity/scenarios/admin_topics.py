"""The admin's paths of topics and their statistics."""

import pulsar

from ..registry import scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"


@scenario()
def statistics_of_a_topic_with_a_producer_and_a_consumer(stage: Stage) -> None:
    """Every field of a topic's statistics."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s", consumer_name="c", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    stage.receive("three messages", consumer, 3)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgOutCounter"] == 3)
    stage.http("statistics", "GET", TOPIC + "/stats")
