"""Acknowledgement of entries: receipts, cumulative, negative, too late, with holes, and what the statistics say."""

from typing import Any

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

from ..peer import Peer
from ..registry import scenario
from ..stage import Stage
from .chunking import producing
from .chunking import send as send_chunk

TOPIC = "/admin/v2/persistent/{ns}/topic"
TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key-shared": pulsar.ConsumerType.KeyShared,
}
SHARED = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
HOLES = [".nonContiguousDeletedMessagesRanges", ".subscriptions.s.nonContiguousDeletedMessagesRanges"]
COUNTS = [f".subscriptions.s.{name}" for name in ("msgBacklog", "unackedMessages", "msgOutCounter", "msgInReplay")]
OF_CONSUMERS = [
    f".subscriptions.s.consumers.{name}" for name in ("consumerName", "unackedMessages", "blockedConsumerOnUnackedMsgs")
]


def publish(stage: Stage, count: int, **options: Any) -> None:
    """So many messages, one in each entry."""
    producer = stage.client().create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    for number in range(count):
        producer.send(b"%d" % number, **options)
    producer.close()


def of_subscription(stage: Stage, name: str) -> Any:
    """A figure of the subscription, to wait for."""
    return stage.stats()["subscriptions"]["s"][name]


def consuming(stage: Stage, kind: int, *consumers: int) -> Peer:
    """A connection with a producer of the topic and consumers of one subscription."""
    topic, peer = stage.found_topic(), stage.peer()
    for consumer in consumers:
        peer.request(
            CommandSubscribe(
                topic=topic, subscription="s", consumer_id=consumer, consumer_name=f"c{consumer}", subType=kind
            )
        )  # fmt: skip
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    return peer


def fetch(peer: Peer, count: int, first: int = 0, consumer: int = 1) -> list[MessageIdData]:
    """Publish so many entries and let one consumer have them; their ids."""
    for number in range(first, first + count):
        peer.send_message(b"%d" % number, number)
        peer.next_frame(BaseCommand.SEND_RECEIPT)
    peer.send(CommandFlow(consumer_id=consumer, messagePermits=count))
    return [peer.next_frame(BaseCommand.MESSAGE).command.message.message_id for _ in range(count)]


def at_its_bound(stage: Stage, published: int) -> tuple[Peer, list[MessageIdData]]:
    """A Shared consumer that has four messages, and may have no more of those that are published."""
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxUnackedMessagesPerConsumer", 4)
    peer = consuming(stage, CommandSubscribe.Shared, 1)
    for number in range(published):
        peer.send_message(b"%d" % number, number)
        peer.next_frame(BaseCommand.SEND_RECEIPT)
    peer.send(CommandFlow(consumer_id=1, messagePermits=100))
    return peer, [peer.next_frame(BaseCommand.MESSAGE).command.message.message_id for _ in range(4)]


def acknowledgement(ids: list[MessageIdData], *, consumer: int = 1, cumulative: bool = False, **more: Any) -> Any:
    """The command."""
    kind = CommandAck.Cumulative if cumulative else CommandAck.Individual
    return CommandAck(consumer_id=consumer, ack_type=kind, message_id=ids, **more)


@scenario()
def an_acknowledgement_is_answered_when_it_asks_for_a_receipt(stage: Stage) -> None:
    """By raw frames: without and with a request id, single and cumulative, damaged, in a transaction."""
    peer = consuming(stage, CommandSubscribe.Exclusive, 1)
    ids = fetch(peer, 5)
    peer.send(acknowledgement(ids[:1]))
    stage.settle("without a request id", peer)
    stage.ask("with one", peer, acknowledgement(ids[1:2]))
    stage.ask("the same again", peer, acknowledgement(ids[1:2]))
    damaged = acknowledgement(ids[4:], validation_error=CommandAck.BatchDeSerializeError)
    stage.ask("of a message that is damaged", peer, damaged)
    stage.ask("cumulative", peer, acknowledgement(ids[2:3], cumulative=True))
    stage.ask("cumulative, of an earlier one", peer, acknowledgement(ids[:1], cumulative=True))
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 1)
    stage.http("statistics", "GET", TOPIC + "/stats", only=COUNTS)


@scenario()
def an_acknowledgement_in_a_transaction_needs_transactions(stage: Stage) -> None:
    """By raw frames, on a broker without transactions; the message stays."""
    peer = consuming(stage, CommandSubscribe.Exclusive, 1)
    ids = fetch(peer, 1)
    stage.ask("the acknowledgement", peer, acknowledgement(ids, txnid_most_bits=1, txnid_least_bits=7))
    stage.http("statistics", "GET", TOPIC + "/stats", only=COUNTS)


@scenario(promises=("5.3", "19.10"))
def cumulative_acknowledgement_by_type(stage: Stage) -> None:
    """The official client, on each type: two of three messages at once."""
    consumers = {name: stage.client().subscribe(stage.topic(), name, kind) for name, kind in TYPES.items()}
    publish(stage, 3, partition_key="k")
    for name, consumer in consumers.items():
        got = stage.receive(f"{name}: all", consumer, 3)
        stage.step(f"{name}: up to the second", consumer.acknowledge_cumulative, got[1])
    for name in ("exclusive", "failover"):
        stage.until(lambda name=name: stage.stats()["subscriptions"][name]["msgBacklog"] == 1)
    backlogs = [f".subscriptions.{name}.msgBacklog" for name in TYPES]
    stage.http("statistics", "GET", TOPIC + "/stats", only=backlogs)


@scenario(promises=("5.3",))
def a_cumulative_acknowledgement_on_key_shared_is_without_effect(stage: Stage) -> None:
    """By raw frames; a receipt comes all the same."""
    peer = consuming(stage, CommandSubscribe.Key_Shared, 1)
    ids = fetch(peer, 2)
    stage.ask("cumulative", peer, acknowledgement(ids[1:], cumulative=True))
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


@scenario(promises=("6.4", "6.5"))
def a_negative_acknowledgement_by_type(stage: Stage) -> None:
    """The official client, on each type: the second of three messages, after the third was acknowledged."""
    consumers = {
        name: stage.client().subscribe(stage.topic(), name, kind, negative_ack_redelivery_delay_ms=100)
        for name, kind in TYPES.items()
    }
    publish(stage, 3, partition_key="k")
    for name, consumer in consumers.items():
        got = stage.receive(f"{name}: all", consumer, 3)
        consumer.acknowledge(got[2])
        stage.until(lambda name=name: stage.stats()["subscriptions"][name]["msgBacklog"] == 2)
        consumer.negative_acknowledge(got[1])
        again = 2 if name in ("exclusive", "failover") else 1
        stage.receive(f"{name}: again", consumer, again)
        stage.nothing(f"{name}: no more", consumer)


@scenario(promises=("1.5", "7.2"))
def what_is_not_acknowledged_in_time_comes_again(stage: Stage) -> None:
    """The official client's shortest time-out, ten seconds, on Shared."""
    consumer = stage.client().subscribe(
        stage.topic(), "s", unacked_messages_timeout_ms=10_000, consumer_name="c", **SHARED
    )
    publish(stage, 3)
    got = stage.receive("all", consumer, 3)
    consumer.acknowledge(got[1])
    again = stage.receive("again", consumer, 2)
    for message in again:
        consumer.acknowledge(message)
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 0)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *OF_CONSUMERS])


@scenario(promises=("32.14",))
def holes_in_what_is_acknowledged_are_counted(stage: Stage) -> None:
    """Three holes, seen in both kinds of statistics, and what is left of them when the first one closes."""
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_name="c", **SHARED)
    publish(stage, 10)
    got = stage.receive("all", consumer, 10)
    for number in (0, 2, 3, 5, 8):
        consumer.acknowledge(got[number])
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 5)
    of_cursor = [".markDeletePosition", ".individuallyDeletedMessages", ".totalNonContiguousDeletedMessagesRange"]
    internal = [f".cursors.s{name}" for name in [*of_cursor, ".numberOfEntriesSinceFirstNotAckedMessage"]]
    shown = [*COUNTS, *HOLES, *OF_CONSUMERS, ".subscriptions.s.backlogSize", ".backlogSize"]
    stage.http("statistics with three holes", "GET", TOPIC + "/stats", only=shown)
    stage.http("internal with three holes", "GET", TOPIC + "/internalStats", only=internal)
    consumer.acknowledge(got[1])
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 4)
    stage.http("statistics with two", "GET", TOPIC + "/stats", only=shown)
    stage.http("internal with two", "GET", TOPIC + "/internalStats", only=internal)


@scenario(promises=("5.1",))
def holes_survive_an_unload(stage: Stage) -> None:
    """What was acknowledged alone stays so, and the rest comes without a count."""
    consumer = stage.client().subscribe(stage.topic(), "s", consumer_name="c", **SHARED)
    publish(stage, 6)
    got = stage.receive("all", consumer, 6)
    for number in (1, 4):
        consumer.acknowledge(got[number])
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 4)
    stage.admin("PUT", TOPIC + "/unload")
    stage.receive("after the unload", consumer, 4)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[*COUNTS, *HOLES, *OF_CONSUMERS])


@scenario()
def redelivery_counts_rise_with_each_delivery_and_end_with_the_last_consumer(stage: Stage) -> None:
    """Shared: two negative acknowledgements, another consumer that takes over, and one that comes when all are gone."""
    one, two = stage.client(), stage.client()
    options = {"negative_ack_redelivery_delay_ms": 100, **SHARED}
    first = one.subscribe(stage.topic(), "s", consumer_name="one", **options)
    publish(stage, 2)
    got = stage.receive("all", first, 2)
    first.negative_acknowledge(got[0])
    (again,) = stage.receive("again", first)
    first.negative_acknowledge(again)
    stage.receive("and again", first)
    second = two.subscribe(stage.topic(), "s", consumer_name="two", **options)
    one.close()
    stage.receive("to the other", second, 2)
    two.close()
    stage.receive("to a new one", stage.client().subscribe(stage.topic(), "s", **options), 2)


@scenario()
def a_consumer_may_acknowledge_what_another_holds(stage: Stage) -> None:
    """By raw frames on Shared: the unacknowledged messages of both, before and after."""
    peer = consuming(stage, CommandSubscribe.Shared, 1, 2)
    first = fetch(peer, 2, consumer=1)
    fetch(peer, 1, first=2, consumer=2)
    shown = [*COUNTS, *OF_CONSUMERS]
    stage.http("statistics before", "GET", TOPIC + "/stats", only=shown)
    stage.ask("the second acknowledges what the first holds", peer, acknowledgement(first[:1], consumer=2))
    stage.http("statistics after", "GET", TOPIC + "/stats", only=shown)


@scenario(promises=("20.9",))
def a_consumer_with_too_many_unacknowledged_messages_waits(stage: Stage) -> None:
    """Shared, with a bound of four: when it stops, how many acknowledgements let it go on, and the statistics."""
    peer, ids = at_its_bound(stage, 10)
    stage.settle("no fifth one", peer)
    shown = [*COUNTS, *OF_CONSUMERS, ".subscriptions.s.blockedSubscriptionOnUnackedMsgs"]
    stage.http("statistics while it waits", "GET", TOPIC + "/stats", only=shown)
    stage.ask("one acknowledged", peer, acknowledgement(ids[:1]))
    stage.settle("nothing comes", peer)
    stage.ask("two acknowledged", peer, acknowledgement(ids[1:2]))
    for number in range(2):
        stage.next_frame(f"it goes on {number}", peer, BaseCommand.MESSAGE)
    stage.settle("and stops again", peer)
    stage.http("statistics at the end", "GET", TOPIC + "/stats", only=shown)


@scenario()
def a_waiting_consumer_gets_again_what_it_gives_back(stage: Stage) -> None:
    """Shared, with a bound of four. It gives back one message and acknowledges none, twice, and then two."""
    peer, ids = at_its_bound(stage, 6)
    for given_back in (ids[3:], ids[3:], ids[1:3]):
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=given_back))
        for number in range(len(given_back)):
            stage.next_frame(f"it comes again {number}", peer, BaseCommand.MESSAGE)
        stage.settle("and no other", peer)
    shown = [*COUNTS[:3], *OF_CONSUMERS, ".subscriptions.s.blockedSubscriptionOnUnackedMsgs"]
    stage.http("statistics at the end", "GET", TOPIC + "/stats", only=shown)


@scenario()
def a_refused_chunked_message_does_not_come_again_on_shared(stage: Stage) -> None:
    """The official client refuses its last chunk alone, so that it stays in the backlog."""
    consumer = stage.client().subscribe(stage.topic(), "s", negative_ack_redelivery_delay_ms=100, **SHARED)
    peer = producing(stage)
    for chunk in range(3):
        send_chunk(peer, chunk, 3)
    peer.send_message(b"plain", 7)
    got = stage.receive("both", consumer, 2)
    consumer.acknowledge(got[1])
    stage.until(lambda: of_subscription(stage, "msgBacklog") == 3)
    consumer.negative_acknowledge(got[0])
    stage.receive("the chunked one again", consumer, timeout_ms=500)
    stage.http("statistics", "GET", TOPIC + "/stats", only=[".subscriptions.s.msgBacklog"])
