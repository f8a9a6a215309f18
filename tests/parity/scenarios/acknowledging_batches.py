"""Acknowledgement of single messages of a batch, with the switch of the broker and that of the consumer on and off."""

from typing import Any

import pulsar

from magnetar.protocol.ack_sets import bits_to_words
from magnetar.protocol.batches import encode_single
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandFlow,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    MessageIdData,
)

from ..peer import Peer
from ..registry import BATCH_INDEX, scenario
from ..stage import Stage
from .acknowledging import COUNTS, HOLES, OF_CONSUMERS, TOPIC, acknowledgement, consuming, of_subscription

EARLIEST = pulsar.InitialPosition.Earliest
EXCLUSIVE, SHARED = pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared


def publish_batch(stage: Stage, count: int = 4, name: str = "p") -> None:
    """One batch of so many messages."""
    producer = stage.client().create_producer(
        stage.topic(), producer_name=name, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


def subscribe(stage: Stage, kind: Any, *, by_index: bool, name: str = "s") -> tuple[pulsar.Client, Any]:
    """A consumer, and its client, whose end ends it."""
    client = stage.client()
    consumer = client.subscribe(
        stage.topic(), name, kind, consumer_name="c", initial_position=EARLIEST, batch_index_ack_enabled=by_index,
        negative_ack_redelivery_delay_ms=100,
    )  # fmt: skip
    return client, consumer


def send_batch(peer: Peer, count: int, sequence_id: int = 0) -> None:
    """One batch by raw frames."""
    payload = b"".join(encode_single(b"%d" % number) for number in range(count))
    peer.send_message(payload, sequence_id, messages=count, num_messages_in_batch=count)
    peer.next_frame(BaseCommand.SEND_RECEIPT)


def open_messages(place: MessageIdData, *numbers: int, size: int = 4, words: int = 1) -> MessageIdData:
    """The id of a batch with the set of the messages that are not acknowledged."""
    found = bits_to_words(sum(1 << number for number in numbers))
    found += [0] * (words - len(found))
    return MessageIdData(ledgerId=place.ledgerId, entryId=place.entryId, ack_set=found, batch_size=size)


def _by_index_over_a_restart(stage: Stage, *, by_index: bool, kind: Any) -> None:
    """Two of four messages are acknowledged; then the consumer goes, and another one comes."""
    client, consumer = subscribe(stage, kind, by_index=by_index)
    publish_batch(stage)
    got = stage.receive("all", consumer, 4)
    for number in (0, 2):
        consumer.acknowledge(got[number])
    client.close()
    stage.until(lambda: not of_subscription(stage, "consumers"))
    stage.http("statistics without a consumer", "GET", TOPIC + "/stats", only=[*COUNTS, *HOLES])
    _, consumer = subscribe(stage, kind, by_index=by_index)
    again = stage.receive("after the restart", consumer, 2 if by_index else 4)
    stage.nothing("no more", consumer)
    for message in again:
        consumer.acknowledge(message)


@scenario(BATCH_INDEX, promises=("12.5",))
def messages_of_a_batch_stay_acknowledged_when_their_consumer_restarts(stage: Stage) -> None:
    """Both switches are on; Shared."""
    _by_index_over_a_restart(stage, by_index=True, kind=SHARED)
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 0)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


@scenario(BATCH_INDEX)
def messages_of_a_batch_stay_acknowledged_on_exclusive(stage: Stage) -> None:
    """Both switches are on; Exclusive."""
    _by_index_over_a_restart(stage, by_index=True, kind=EXCLUSIVE)
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 0)
    stage.http("statistics", "GET", TOPIC + "/stats", only=COUNTS)


@scenario(BATCH_INDEX, promises=("12.2", "12.3"))
def without_the_consumers_switch_the_whole_batch_comes_again(stage: Stage) -> None:
    """The broker's switch alone; Shared."""
    _by_index_over_a_restart(stage, by_index=False, kind=SHARED)
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 0)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


@scenario(promises=("12.1", "12.3"))
def without_the_brokers_switch_the_whole_batch_comes_again(stage: Stage) -> None:
    """The consumer's switch alone; Shared."""
    client, consumer = subscribe(stage, SHARED, by_index=True)
    publish_batch(stage)
    got = stage.receive("all", consumer, 4)
    for number in (0, 2):
        consumer.acknowledge(got[number])
    client.close()
    stage.until(lambda: not of_subscription(stage, "consumers"))
    _, consumer = subscribe(stage, SHARED, by_index=True)
    again = stage.receive("after the restart", consumer, 4)
    for message in again:
        consumer.acknowledge(message)
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 0)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


@scenario(BATCH_INDEX)
def messages_of_a_batch_stay_acknowledged_over_an_unload(stage: Stage) -> None:
    """One of four is acknowledged; the topic is loaded again."""
    _, consumer = subscribe(stage, SHARED, by_index=True)
    publish_batch(stage)
    got = stage.receive("all", consumer, 4)
    consumer.acknowledge(got[1])
    stage.until(lambda: of_subscription(stage, "unackedMessages") == 3)
    stage.admin("PUT", TOPIC + "/unload")
    stage.receive("after the unload", consumer, 3)
    stage.nothing("no more", consumer)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


@scenario(BATCH_INDEX, promises=("5.2",))
def a_cumulative_acknowledgement_ends_inside_a_batch(stage: Stage) -> None:
    """Exclusive, with the consumer's switch on and off; then the consumer restarts."""
    for by_index, name in ((True, "on"), (False, "off")):
        subscribe(stage, EXCLUSIVE, by_index=by_index, name=name)[0].close()
    publish_batch(stage, name="p")
    publish_batch(stage, name="q")
    for by_index, name in ((True, "on"), (False, "off")):
        client, consumer = subscribe(stage, EXCLUSIVE, by_index=by_index, name=name)
        got = stage.receive(f"{name}: all", consumer, 8)
        consumer.acknowledge_cumulative(got[5])
        stage.until(lambda name=name: stage.stats()["subscriptions"][name]["msgBacklog"] == 1)
        client.close()
        _, consumer = subscribe(stage, EXCLUSIVE, by_index=by_index, name=name)
        stage.receive(f"{name}: after the restart", consumer, 2 if by_index else 4)
        stage.nothing(f"{name}: no more", consumer)


@scenario(BATCH_INDEX, promises=("6.8",))
def a_negative_acknowledgement_of_one_message_of_a_batch(stage: Stage) -> None:
    """Shared: one message is acknowledged, another one refused; what comes again, and with which count."""
    _, consumer = subscribe(stage, SHARED, by_index=True)
    publish_batch(stage)
    got = stage.receive("all", consumer, 4)
    consumer.acknowledge(got[0])
    stage.until(lambda: of_subscription(stage, "unackedMessages") == 3)
    consumer.negative_acknowledge(got[2])
    stage.receive("again", consumer, 3)
    stage.nothing("no more", consumer)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


def _raw(stage: Stage) -> None:
    peer = consuming(stage, CommandSubscribe.Shared, 1)
    send_batch(peer, 4)
    peer.send(CommandFlow(consumer_id=1, messagePermits=100))
    first = stage.next_frame("the batch", peer, BaseCommand.MESSAGE).message_id
    shown = [*COUNTS, *OF_CONSUMERS, ".subscriptions.s.consumers.availablePermits", *HOLES]
    stage.ask("two of four", peer, acknowledgement([open_messages(first, 1, 3)]))
    stage.http("statistics with two open", "GET", TOPIC + "/stats", only=shown)
    peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    stage.next_frame("again", peer, BaseCommand.MESSAGE)
    stage.ask("a message that is acknowledged already", peer, acknowledgement([open_messages(first, 1, 2, 3)]))
    stage.http("statistics after it came again", "GET", TOPIC + "/stats", only=shown)
    stage.ask("the rest", peer, acknowledgement([open_messages(first, 0, 2)]))
    stage.http("statistics at the end", "GET", TOPIC + "/stats", only=shown)
    peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    stage.settle("what is left", peer)


@scenario(BATCH_INDEX)
def sets_of_open_messages_are_kept_and_delivered(stage: Stage) -> None:
    """By raw frames, with the broker's switch on: what MESSAGE says of a batch that comes again."""
    _raw(stage)


@scenario()
def sets_of_open_messages_are_left_out_without_the_brokers_switch(stage: Stage) -> None:
    """The same frames, with the broker's switch off."""
    _raw(stage)


@scenario(BATCH_INDEX)
def sets_of_open_messages_that_do_not_fit(stage: Stage) -> None:
    """By raw frames: of a plain entry, of an entry that is not there, longer than the batch, and empty."""
    peer = consuming(stage, CommandSubscribe.Shared, 1)
    peer.send_message(b"plain", 0)
    peer.next_frame(BaseCommand.SEND_RECEIPT)
    send_batch(peer, 4, 1)
    peer.send(CommandFlow(consumer_id=1, messagePermits=100))
    plain = stage.next_frame("plain", peer, BaseCommand.MESSAGE).message_id
    batch = stage.next_frame("the batch", peer, BaseCommand.MESSAGE).message_id
    stranger = MessageIdData(ledgerId=batch.ledgerId, entryId=77)
    shown = [*COUNTS, *OF_CONSUMERS]
    for label, place in [
        ("of an entry that is not there", open_messages(stranger, 1)),
        ("longer than the batch", open_messages(batch, 0, 1, 2, 3, 70, size=71)),
        ("with an empty word behind", open_messages(batch, 0, 1, words=2)),
        ("of a plain entry", open_messages(plain, 0, size=1)),
    ]:
        stage.ask(label, peer, acknowledgement([place]))
        stage.http(f"statistics: {label}", "GET", TOPIC + "/stats", only=shown)
    stage.ask("nothing is left open", peer, acknowledgement([open_messages(batch, words=1)]))
    stage.http("statistics at the end", "GET", TOPIC + "/stats", only=shown)
