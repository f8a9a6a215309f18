"""Subscriptions: types, conflicts, where they begin, seeking, leaving."""

import pulsar

from ..registry import scenario
from ..stage import Stage


@scenario()
def a_second_exclusive_consumer_is_refused(stage: Stage) -> None:
    """A subscription of type Exclusive takes one consumer at a time."""
    client = stage.client()
    first = stage.step("the first", client.subscribe, stage.topic(), "s")
    stage.step("the second", client.subscribe, stage.topic(), "s")
    stage.step("a Shared one", client.subscribe, stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    stage.step("the first one closes", first.close)
    stage.step("the second again", client.subscribe, stage.topic(), "s")


@scenario()
def a_subscription_begins_at_the_end_or_at_the_beginning(stage: Stage) -> None:
    """Latest, the default, and Earliest."""
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p")
    for number in range(3):
        stage.step(f"send {number}", producer.send, b"%d" % number)
    latest = client.subscribe(stage.topic(), "latest")
    earliest = client.subscribe(stage.topic(), "earliest", initial_position=pulsar.InitialPosition.Earliest)
    stage.step("send 3", producer.send, b"3")
    stage.receive("from the end", latest)
    stage.receive("from the beginning", earliest, 4)
