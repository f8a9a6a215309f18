"""Messages that come again: how often, in which order, to whom."""

import pulsar

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    MessageIdData,
)

from ..registry import scenario
from ..stage import Stage

SHARED = {"consumer_type": pulsar.ConsumerType.Shared}


@scenario()
def a_negative_acknowledgement_brings_a_message_again(stage: Stage) -> None:
    """On Shared, with its count; others are left alone."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s", negative_ack_redelivery_delay_ms=100, **SHARED)
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    got = stage.receive("all", consumer, 3)
    consumer.negative_acknowledge(got[1])
    again = stage.receive("again", consumer)
    consumer.negative_acknowledge(again[0])
    stage.receive("and again", consumer)
    stage.nothing("no more", consumer)


@scenario()
def redelivery_of_all_begins_at_the_first_unacknowledged(stage: Stage) -> None:
    """On Exclusive and on Shared, by the official client."""
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for name, kind in (("exclusive", pulsar.ConsumerType.Exclusive), ("shared", pulsar.ConsumerType.Shared)):
        consumer = client.subscribe(stage.topic(), name, consumer_type=kind)
        for number in range(4):
            producer.send(b"%d" % number)
        got = stage.receive(f"{name}: all", consumer, 4)
        consumer.acknowledge(got[1])
        stage.until(lambda name=name: stage.stats()["subscriptions"][name]["msgBacklog"] == 3)
        consumer.redeliver_unacknowledged_messages()
        stage.receive(f"{name}: again", consumer, 3)
        stage.nothing(f"{name}: no more", consumer)


@scenario(promises=("1.7",))
def what_a_lost_consumer_held_goes_to_the_others(stage: Stage) -> None:
    """Shared: the other consumer gets it, with a count."""
    one, two = stage.client(), stage.client()
    first = one.subscribe(stage.topic(), "s", consumer_name="one", **SHARED)
    producer = two.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    got = stage.receive("the first has all", first, 3)
    first.acknowledge(got[0])
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 2)
    second = two.subscribe(stage.topic(), "s", consumer_name="two", **SHARED)
    stage.nothing("the second has nothing", second)
    one.close()
    stage.receive("the second gets what is left", second, 2)


@scenario()
def redelivery_of_single_entries_counts_them_alone(stage: Stage) -> None:
    """By raw frames on Shared: entries by id, ids that it does not hold, and all."""
    topic, peer = stage.found_topic(), stage.peer()
    peer.request(CommandSubscribe(topic=topic, subscription="s", consumer_id=1, subType=CommandSubscribe.Shared))
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    for number in range(3):
        peer.send_message(b"%d" % number, number)
        peer.next_frame(BaseCommand.SEND_RECEIPT)
    peer.send(CommandFlow(consumer_id=1, messagePermits=100))
    ids = []
    for number in range(3):
        ids.append(stage.next_frame(f"message {number}", peer, BaseCommand.MESSAGE).message_id)
    command = CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[ids[1]])
    peer.send(command)
    stage.next_frame("the second again", peer, BaseCommand.MESSAGE)
    stranger = MessageIdData(ledgerId=ids[0].ledgerId, entryId=77)
    peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[stranger]))
    stage.settle("an entry that is not there", peer)
    peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    for number in range(3):
        stage.next_frame(f"all again {number}", peer, BaseCommand.MESSAGE)


@scenario()
def an_acknowledgement_that_cannot_be_is_without_effect(stage: Stage) -> None:
    """By raw frames: ids that are not there, no id at all, cumulative on Shared, several ids cumulative."""
    topic, peer = stage.found_topic(), stage.peer()
    peer.request(CommandSubscribe(topic=topic, subscription="x", consumer_id=1, subType=CommandSubscribe.Exclusive))
    peer.request(CommandSubscribe(topic=topic, subscription="s", consumer_id=2, subType=CommandSubscribe.Shared))
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    for number in range(3):
        peer.send_message(b"%d" % number, number)
        peer.next_frame(BaseCommand.SEND_RECEIPT)
    for consumer in (1, 2):
        peer.send(CommandFlow(consumer_id=consumer, messagePermits=100))
    ids = [peer.next_frame(BaseCommand.MESSAGE).command.message.message_id for _ in range(6)][:3]
    stranger = MessageIdData(ledgerId=ids[0].ledgerId, entryId=77)
    unknown = MessageIdData(ledgerId=1 << 40, entryId=0)
    one, all_ = CommandAck.Individual, CommandAck.Cumulative
    for label, consumer, kind, named in [
        ("an entry that is not there", 1, one, [stranger]),
        ("a ledger that is not there", 1, one, [unknown]),
        ("no id", 1, one, []),
        ("twice the same", 1, one, [ids[0], ids[0]]),
        ("several ids", 1, one, [ids[1], ids[2]]),
        ("cumulative on Shared", 2, all_, [ids[1]]),
    ]:
        stage.ask(label, peer, CommandAck(consumer_id=consumer, ack_type=kind, message_id=named))
    stage.until(lambda: stage.stats()["subscriptions"]["x"]["msgBacklog"] == 0)
    stage.http("backlog", "GET", "/admin/v2/persistent/{ns}/topic/stats", only=BACKLOGS)


BACKLOGS = [".subscriptions.x.msgBacklog", ".subscriptions.s.msgBacklog"]
