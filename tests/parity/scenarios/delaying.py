"""Delayed delivery: who waits, who does not, and what becomes of messages that are held back."""

from datetime import timedelta
from typing import Any

import pulsar

from magnetar.protocol.pulsar_pb2 import (
    CommandAck,
    CommandFlow,
    CommandProducer,
    CommandSubscribe,
    MessageIdData,
)

from ..registry import scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"
POLICY = "/admin/v2/namespaces/{ns}/delayedDelivery"
HOUR_MS = 3_600_000
FAR = 4_102_444_800_000
"""In the year 2100."""


def _short_tick(stage: Stage, **more: Any) -> None:
    body = {"active": True, "tickTime": 50, "maxDeliveryDelayInMillis": 0, **more}
    assert stage.admin("POST", POLICY, body).status == 204


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _producer(stage: Stage, topic: str = "topic") -> Any:
    return stage.client().create_producer(stage.topic(topic), producer_name="p", batching_enabled=False)


@scenario()
def shared_consumers_wait_for_the_delivery_time(stage: Stage) -> None:
    """Delayed messages come by their times, behind one without a delay."""
    _short_tick(stage)
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = _producer(stage)
    stage.step("in two seconds", producer.send, b"later", deliver_after=_ms(1600))
    stage.step("in one second", producer.send, b"sooner", deliver_after=_ms(800))
    stage.step("in a day that is gone", producer.send, b"past", deliver_at=1_000)
    stage.step("without a delay", producer.send, b"now")
    stage.receive("at once", consumer, 2)
    stage.nothing("then nothing", consumer, 100)
    stage.receive("by their times", consumer, 2)


@scenario()
def only_shared_types_wait(stage: Stage) -> None:
    """A message of the year 2100 and one without a delay, to each type of subscription."""
    producer = _producer(stage)
    client = stage.client()
    kinds = ("Exclusive", "Failover", "Shared", "KeyShared")
    consumers = {
        kind: client.subscribe(stage.topic(), kind, consumer_type=getattr(pulsar.ConsumerType, kind)) for kind in kinds
    }
    producer.send(b"far", deliver_at=FAR, partition_key="k")
    producer.send(b"now", partition_key="k")
    for kind, consumer in consumers.items():
        stage.receive(f"{kind} gets", consumer, 2 if kind in ("Exclusive", "Failover") else 1)
        stage.nothing(f"{kind} gets no more", consumer, 100)


@scenario(promises=("28.2",))
def statistics_count_what_is_held_back(stage: Stage) -> None:
    """`msgDelayed`, the backlog, and both after the messages were skipped."""
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = _producer(stage)
    for number in range(3):
        producer.send(b"%d" % number, deliver_at=FAR + number)
    producer.send(b"now")
    stage.receive("the one without a delay", consumer, 1, acknowledge=True)
    shown = [".subscriptions.s.msgBacklog", ".subscriptions.s.msgDelayed"]
    shown += [".subscriptions.s.msgBacklogNoDelayed"]
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 3)
    stage.http("statistics", "GET", f"{TOPIC}/stats", only=shown)
    stage.http("skip all", "POST", f"{TOPIC}/subscription/s/skip_all")
    stage.http("statistics of backlogs then", "GET", f"{TOPIC}/stats", only=shown[:1])


@scenario(promises=("28.2",))
def an_acknowledgement_cancels_a_delayed_message(stage: Stage) -> None:
    """By raw frames: the message was never delivered. It leaves the backlog, and is not held back after an unload."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a consumer", peer, CommandSubscribe(topic=topic, subscription="s", consumer_id=1, subType=1))
    peer.send(CommandFlow(consumer_id=1, messagePermits=10))
    cancelled = _producer(stage).send(b"cancelled", deliver_at=FAR)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgDelayed"] == 1)
    place = MessageIdData(ledgerId=cancelled.ledger_id(), entryId=cancelled.entry_id())
    stage.ask("acknowledged before its time", peer, CommandAck(consumer_id=1, ack_type=0, message_id=[place]))
    stage.http("the backlog", "GET", f"{TOPIC}/stats", only=[".subscriptions.s.msgBacklog"])
    peer.close()
    assert stage.admin("PUT", f"{TOPIC}/unload").status == 204
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    stage.nothing("nothing comes", consumer, 100)
    shown = [".subscriptions.s.msgBacklog", ".subscriptions.s.msgDelayed"]
    stage.http("after an unload", "GET", f"{TOPIC}/stats", only=shown)


@scenario()
def delays_have_a_policy_at_two_levels(stage: Stage) -> None:
    """Paths, statuses, and values that cannot be."""
    stage.admin("PUT", TOPIC)
    whole = {"active": True, "tickTime": 2000, "maxDeliveryDelayInMillis": 5000}
    for level, path in (("namespace", POLICY), ("topic", f"{TOPIC}/delayedDelivery")):
        stage.http(f"{level}: not set", "GET", path)
        stage.http(f"{level}: set", "POST", path, whole)
        stage.http(f"{level}: shown", "GET", path)
        stage.http(f"{level}: without a tick", "POST", path, {"active": False})
        stage.http(f"{level}: shown then", "GET", path)
        stage.http(f"{level}: a delay below zero", "POST", path, {**whole, "maxDeliveryDelayInMillis": -1})
        stage.http(f"{level}: a tick that is a text", "POST", path, {**whole, "tickTime": "long"})
        stage.http(f"{level}: removed", "DELETE", path)
        stage.http(f"{level}: shown at the end", "GET", path)
    stage.http("of a missing namespace", "POST", "/admin/v2/namespaces/parity/none-such/delayedDelivery", whole)


@scenario()
def a_policy_bounds_the_delay(stage: Stage) -> None:
    """A message beyond the bound is refused, and one within it is held back."""
    _short_tick(stage, maxDeliveryDelayInMillis=HOUR_MS)
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    peer.send_message(b"too far", 0, deliver_at_time=FAR)
    stage.next_frame("beyond the bound", peer)
    producer = stage.client().create_producer(stage.topic(), producer_name="official", batching_enabled=False)
    stage.step("the official client within it", producer.send, b"near", deliver_after=_ms(1000))


@scenario(promises=("28.4",))
def delays_can_be_switched_off(stage: Stage) -> None:
    """Then a message of the year 2100 comes at once, also to a Shared consumer."""
    assert stage.admin("POST", POLICY, {"active": False, "tickTime": 1000}).status == 204
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = _producer(stage)
    producer.send(b"far", deliver_at=FAR)
    producer.send(b"now")
    stage.receive("both", consumer, 2)


@scenario()
def held_messages_outlive_an_unload(stage: Stage) -> None:
    """What was held back is held back again, and comes at its time."""
    _short_tick(stage)
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = _producer(stage)
    producer.send(b"far", deliver_at=FAR)
    producer.send(b"near", deliver_after=_ms(1500))
    producer.send(b"now")
    stage.receive("before", consumer, 1, acknowledge=True)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 2)
    assert stage.admin("PUT", f"{TOPIC}/unload").status == 204
    stage.receive("after", consumer, 1)
    stage.nothing("no more", consumer, 100)
    stage.http("statistics", "GET", f"{TOPIC}/stats", only=[".subscriptions.s.msgDelayed"])
