"""Subscriptions: types, conflicts, where they begin, seeking, leaving."""

import time
from typing import Any

import pulsar

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandFlow,
    CommandGetLastMessageId,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    MessageIdData,
)

from ..registry import scenario
from ..stage import Stage

STATS = "/admin/v2/persistent/{ns}/topic/stats"


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


def _filled(stage: Stage, client: pulsar.Client, count: int, name: str = "topic") -> list[Any]:
    """Publish `count` messages, one in each entry; their ids."""
    producer = client.create_producer(stage.topic(name), producer_name="p", batching_enabled=False)
    return [producer.send(b"%d" % number) for number in range(count)]


@scenario(promises=("16.3",))
def another_type_is_refused_while_consumers_are_connected(stage: Stage) -> None:
    """Shared first, then the others; after the last one has left any type may come."""
    client = stage.client()
    kinds = pulsar.ConsumerType
    shared = client.subscribe(stage.topic(), "s", consumer_type=kinds.Shared)
    stage.step("Exclusive beside Shared", client.subscribe, stage.topic(), "s", consumer_type=kinds.Exclusive)
    stage.step("Failover beside Shared", client.subscribe, stage.topic(), "s", consumer_type=kinds.Failover)
    second = stage.step("Shared beside Shared", client.subscribe, stage.topic(), "s", consumer_type=kinds.Shared)
    shared.close()
    second.close()
    stage.step("Exclusive when all have left", client.subscribe, stage.topic(), "s", consumer_type=kinds.Exclusive)


@scenario(promises=("1.2",))
def a_subscription_goes_on_after_what_was_acknowledged(stage: Stage) -> None:
    """One by one, cumulatively, and with a hole."""
    client = stage.client()
    _filled(stage, client, 8)
    consumer = client.subscribe(stage.topic(), "s", initial_position=pulsar.InitialPosition.Earliest)
    got = stage.receive("all", consumer, 8)
    consumer.acknowledge_cumulative(got[2])
    consumer.acknowledge(got[4])
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 4)
    consumer.close()
    again = client.subscribe(stage.topic(), "s")
    stage.receive("what is left", again, 4)
    stage.nothing("no more", again)
    stage.http("backlog", "GET", STATS, only=[".subscriptions.s.msgBacklog", ".subscriptions.s.unackedMessages"])


@scenario(promises=("31.5",))
def seeking_moves_a_subscription(stage: Stage) -> None:
    """To an id, to the ends, to a time; acknowledged messages come again."""
    client = stage.client()
    ids = _filled(stage, client, 5)
    consumer = client.subscribe(stage.topic(), "s", initial_position=pulsar.InitialPosition.Earliest)
    stage.receive("all", consumer, 5, acknowledge=True)
    stage.step("to the third", consumer.seek, ids[2])
    stage.receive("after the third", consumer, 2)
    stage.step("to the earliest", consumer.seek, pulsar.MessageId.earliest)
    stage.receive("from the first", consumer, 5)
    stage.step("to the latest", consumer.seek, pulsar.MessageId.latest)
    stage.nothing("nothing is left", consumer)
    stage.step("to a time before all", consumer.seek, 1)
    stage.receive("all of them", consumer, 5)
    stage.step("to a time after all", consumer.seek, int(time.time() * 1000) + 60_000)
    stage.nothing("nothing is left then", consumer)


@scenario()
def leaving_for_good_removes_the_subscription(stage: Stage) -> None:
    """Unsubscribe of one consumer alone, and of one among several."""
    client = stage.client()
    _filled(stage, client, 2)
    first = pulsar.InitialPosition.Earliest
    alone = client.subscribe(stage.topic(), "alone", initial_position=first)
    stage.receive("one", alone, 1, acknowledge=True)
    stage.step("the only consumer leaves", alone.unsubscribe)
    stage.http("subscriptions", "GET", "/admin/v2/persistent/{ns}/topic/subscriptions")
    again = client.subscribe(stage.topic(), "alone", initial_position=first)
    stage.receive("it begins again", again, 2)
    again.close()
    shared = [client.subscribe(stage.topic(), "both", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)]
    stage.step("one of two leaves", shared[0].unsubscribe)
    stage.http("subscriptions then", "GET", "/admin/v2/persistent/{ns}/topic/subscriptions")


@scenario()
def the_last_message_id_is_that_of_the_last_message(stage: Stage) -> None:
    """Of an empty topic, of entries, of a batch."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s")
    stage.step("empty", consumer.get_last_message_id)
    _filled(stage, client, 2)
    stage.step("two entries", consumer.get_last_message_id)
    producer = client.create_producer(
        stage.topic(), producer_name="b", batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for number in range(3):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    stage.step("a batch of three", consumer.get_last_message_id)
    stage.http("the admin says it, too", "GET", "/admin/v2/persistent/{ns}/topic/lastMessageId")


@scenario()
def a_consumer_id_that_is_taken_is_refused_or_answered_again(stage: Stage) -> None:
    """The same consumer id twice on one connection, by raw frames."""
    topic, peer = stage.found_topic(), stage.peer()
    command = {"topic": topic, "consumer_id": 1, "subType": CommandSubscribe.Exclusive}
    stage.ask("the first", peer, CommandSubscribe(**command, subscription="s"))
    stage.ask("the same again", peer, CommandSubscribe(**command, subscription="s"))
    stage.ask("another subscription", peer, CommandSubscribe(**command, subscription="t"))
    stage.ask("it closes", peer, CommandCloseConsumer(consumer_id=1))
    stage.ask("it closes again", peer, CommandCloseConsumer(consumer_id=1))


@scenario()
def commands_of_an_unknown_consumer_are_refused(stage: Stage) -> None:
    """Each command that names a consumer, for one that does not exist."""
    start = MessageIdData(ledgerId=0, entryId=0)
    peer = stage.peer()
    stage.ask("unsubscribe", peer, CommandUnsubscribe(consumer_id=9))
    stage.ask("seek", peer, CommandSeek(consumer_id=9, message_id=start))
    stage.ask("last message id", peer, CommandGetLastMessageId(consumer_id=9))
    stage.ask("statistics", peer, CommandConsumerStats(consumer_id=9))
    for label, command in [
        ("permits", CommandFlow(consumer_id=9, messagePermits=10)),
        ("an acknowledgement", CommandAck(consumer_id=9, ack_type=CommandAck.Individual, message_id=[start])),
        (
            "an acknowledgement that wants a receipt",
            CommandAck(consumer_id=9, ack_type=CommandAck.Individual, message_id=[start], request_id=7),
        ),
        ("redelivery", CommandRedeliverUnacknowledgedMessages(consumer_id=9)),
    ]:
        peer = stage.peer()
        peer.send(command)
        stage.settle(label, peer)


@scenario(promises=("16.5",))
def a_subscribe_command_with_impossible_fields_is_refused(stage: Stage) -> None:
    """Names and combinations that cannot be, by raw frames."""
    topic, peer = stage.found_topic(), stage.peer()
    exclusive = CommandSubscribe.Exclusive
    stage.ask("no subscription name", peer, CommandSubscribe(topic=topic, subscription="", consumer_id=1, subType=0))
    for label, bad in [
        ("an empty topic", ""),
        ("a domain that does not exist", f"strange://{stage.namespace}/t"),
        ("a namespace that does not exist", "persistent://parity/none-such/t"),
    ]:
        command = CommandSubscribe(topic=bad, subscription="s", consumer_id=2, subType=exclusive)
        stage.ask(label, peer, command)
    nowhere = CommandSubscribe(topic=topic, subscription="s/t: ü", consumer_id=4, subType=exclusive)
    stage.ask("a strange subscription name", peer, nowhere)
    stage.http("subscriptions", "GET", "/admin/v2/persistent/{ns}/topic/subscriptions")


@scenario(promises=("14.1",))
def messages_come_only_for_permits(stage: Stage) -> None:
    """By raw frames: nothing without permits, one for each, and a batch for one permit or less."""
    topic, peer = stage.found_topic(), stage.peer()
    peer.request(CommandSubscribe(topic=topic, subscription="s", consumer_id=1, subType=CommandSubscribe.Exclusive))
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    for number in range(4):
        peer.send_message(b"%d" % number, number)
        peer.next_frame(BaseCommand.SEND_RECEIPT)
    stage.settle("no permits", peer)
    peer.send(CommandFlow(consumer_id=1, messagePermits=1))
    stage.next_frame("one permit", peer, BaseCommand.MESSAGE)
    stage.settle("no more", peer)
    peer.send(CommandFlow(consumer_id=1, messagePermits=2))
    stage.next_frame("two permits", peer, BaseCommand.MESSAGE)
    stage.next_frame("the second of them", peer, BaseCommand.MESSAGE)
    peer.send(CommandFlow(consumer_id=1, messagePermits=0))
    stage.settle("a flow of nothing", peer)


@scenario()
def a_consumer_that_subscribes_too_often_is_refused(stage: Stage) -> None:
    """The subscribe rate of a namespace: another name, and another id, count by themselves."""
    rate = {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 3600}
    stage.http("a rate", "POST", "/admin/v2/namespaces/{ns}/subscribeRate", rate)
    topic, peer = stage.found_topic(), stage.peer()
    for label, name, number in [
        ("the first", "c", 1),
        ("the same again", "c", 1),
        ("another name", "d", 1),
        ("another id", "c", 2),
        ("another subscription", "c", 1),
    ]:
        subscription = "t" if label == "another subscription" else "s"
        command = CommandSubscribe(
            topic=topic,
            subscription=subscription,
            consumer_id=number,
            consumer_name=name,
            subType=CommandSubscribe.Shared,
        )
        stage.ask(label, peer, command)
        if label not in ("the same again", "another subscription"):
            stage.ask(f"{label}: it closes", peer, CommandCloseConsumer(consumer_id=number))
