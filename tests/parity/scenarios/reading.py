"""Readers: where they begin, what they leave."""

import time

import pulsar

from ..registry import scenario
from ..stage import Stage


def _filled(stage: Stage, client: pulsar.Client, count: int) -> list[pulsar.MessageId]:
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    return [producer.send(b"%d" % number) for number in range(count)]


@scenario()
def a_reader_begins_where_it_is_told(stage: Stage) -> None:
    """Earliest, latest, behind an id, at an id."""
    client = stage.client()
    ids = _filled(stage, client, 4)
    earliest = stage.step("earliest", client.create_reader, stage.topic(), pulsar.MessageId.earliest)
    stage.step("has it a message", earliest.has_message_available)
    stage.receive("from the earliest", earliest, 4)
    stage.step("has it one more", earliest.has_message_available)
    latest = stage.step("latest", client.create_reader, stage.topic(), pulsar.MessageId.latest)
    stage.step("has the latest a message", latest.has_message_available)
    behind = client.create_reader(stage.topic(), ids[1])
    stage.receive("behind the second", behind, 2)
    at = client.create_reader(stage.topic(), ids[1], start_message_id_inclusive=True)
    stage.receive("at the second", at, 3)


@scenario()
def a_reader_can_seek(stage: Stage) -> None:
    """To an id, a time and the ends."""
    client = stage.client()
    ids = _filled(stage, client, 4)
    reader = client.create_reader(stage.topic(), pulsar.MessageId.earliest)
    stage.receive("all", reader, 4)
    stage.step("to the second", reader.seek, ids[1])
    stage.receive("behind the second", reader, 2)
    stage.step("to the earliest", reader.seek, pulsar.MessageId.earliest)
    stage.receive("all again", reader, 4)
    stage.step("to a time after all", reader.seek, int(time.time() * 1000) + 60_000)
    stage.nothing("nothing then", reader)
    stage.step("to a time before all", reader.seek, 1)
    stage.receive("all once more", reader, 4)


@scenario(promises=("21.5",))
def a_reader_leaves_no_subscription(stage: Stage) -> None:
    """Its subscription is there while it lives, and not durable."""
    client = stage.client()
    _filled(stage, client, 1)
    reader = client.create_reader(
        stage.topic(), pulsar.MessageId.earliest, reader_name="r", subscription_role_prefix="role"
    )
    stage.receive("the message", reader)
    stats = stage.stats()["subscriptions"]
    stage.note("subscriptions while it lives", [one["isDurable"] for one in stats.values()])
    stage.note("the name has the prefix", [name.startswith("role-") for name in stats])
    stage.step("it closes", reader.close)
    stage.until(lambda: not stage.stats()["subscriptions"])
    stage.http("subscriptions then", "GET", "/admin/v2/persistent/{ns}/topic/subscriptions")
