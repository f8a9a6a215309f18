"""Chunks of large messages. They are sent by raw frames, so that small ones do, and consumed by the official client."""

from typing import Any

import pulsar

from magnetar.protocol.commands import send_header
from magnetar.protocol.entries import build_entry
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandProducer, MessageMetadata

from ..peer import Peer
from ..registry import scenario
from ..stage import Stage


def producing(stage: Stage, name: str = "p") -> Peer:
    """A connection with a producer of the topic, which is created by looking it up."""
    peer = stage.peer()
    peer.request(CommandProducer(topic=stage.found_topic(), producer_id=1, producer_name=name))
    return peer


def send(peer: Peer, chunk: int, of: int, *, uuid: str = "p-0", number: int = 0, **fields: Any) -> None:
    """Send one chunk, one byte long, and wait for its receipt."""
    described = {"total_chunk_msg_size": of, **fields}
    metadata = MessageMetadata(
        producer_name=uuid.partition("-")[0], sequence_id=number, publish_time=1, uuid=uuid, chunk_id=chunk,
        num_chunks_from_msg=of, **described,
    )  # fmt: skip
    body = build_entry(metadata, b"%d" % chunk)
    peer.write(send_header(1, number, 0, 1, len(body), is_chunk=True) + body)
    peer.next_frame(BaseCommand.SEND_RECEIPT)


def shared(stage: Stage, name: str) -> pulsar.Consumer:
    """A consumer of a Shared subscription."""
    return stage.client().subscribe(
        stage.topic(), "s", pulsar.ConsumerType.Shared, consumer_name=name,
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip


@scenario(promises=("13.8",))
def chunks_of_a_message_arrive_as_one(stage: Stage) -> None:
    """Three chunks, and ordinary messages around them."""
    peer = producing(stage)
    consumer = stage.client().subscribe(stage.topic(), "s", initial_position=pulsar.InitialPosition.Earliest)
    peer.send_message(b"before", 7)
    for chunk in range(3):
        send(peer, chunk, 3)
    peer.send_message(b"behind", 8)
    got = stage.receive("all", consumer, 3)
    stage.note("the id serialized", len(got[1].message_id().serialize()))
    stage.nothing("no more", consumer)


@scenario(promises=("13.9",))
def interwoven_chunks_of_two_producers_are_told_apart(stage: Stage) -> None:
    """Chunks of two messages in turn."""
    one, other = producing(stage, "p"), producing(stage, "q")
    for chunk in range(2):
        send(one, chunk, 2, uuid="p-0")
        send(other, chunk, 2, uuid="q-0")
    consumer = stage.client().subscribe(stage.topic(), "s", initial_position=pulsar.InitialPosition.Earliest)
    stage.receive("both", consumer, 2)
    stage.nothing("no more", consumer)


@scenario()
def acknowledging_a_chunked_message_acknowledges_its_chunks(stage: Stage) -> None:
    """The backlog before and after."""
    peer = producing(stage)
    consumer = stage.client().subscribe(stage.topic(), "s")
    for chunk in range(3):
        send(peer, chunk, 3)
    stage.receive("the message", consumer, acknowledge=True)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 0)
    stage.note("the backlog is empty", True)


@scenario(promises=("13.7",))
def an_incomplete_message_is_not_delivered_until_its_last_chunk_comes(stage: Stage) -> None:
    """Nothing is handed over before, and its chunks stay in the backlog."""
    peer = producing(stage)
    consumer = stage.client().subscribe(stage.topic(), "s")
    send(peer, 0, 3)
    send(peer, 1, 3)
    stage.nothing("two of three", consumer)
    stage.note("the backlog", stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"]))
    send(peer, 2, 3)
    stage.receive("the last one", consumer)


@scenario()
def a_chunk_that_is_stored_twice_is_taken_once(stage: Stage) -> None:
    """The second chunk comes again, as after a lost receipt. The official client gives the message up."""
    peer = producing(stage)
    consumer = stage.client().subscribe(stage.topic(), "s")
    for chunk in (0, 1, 1, 2):
        send(peer, chunk, 3)
    peer.send_message(b"behind", 7)
    stage.receive("what comes first", consumer)
    stage.nothing("no more", consumer)


@scenario()
def a_first_chunk_again_begins_the_message_again(stage: Stage) -> None:
    """The producer sends all of it again. The official client gives the message up."""
    peer = producing(stage)
    consumer = stage.client().subscribe(stage.topic(), "s")
    for chunk in (0, 1, 0, 1, 2):
        send(peer, chunk, 3)
    peer.send_message(b"behind", 7)
    stage.receive("what comes first", consumer)
    stage.nothing("no more", consumer)


@scenario(promises=("13.11", "13.12"))
def beyond_the_bound_the_oldest_message_is_given_up(stage: Stage) -> None:
    """One message at a time may be incomplete; the older one is acknowledged and never comes."""
    peer = producing(stage)
    send(peer, 0, 2, uuid="p-0")
    send(peer, 0, 2, uuid="p-1", number=1)
    send(peer, 1, 2, uuid="p-1", number=1)
    consumer = stage.client().subscribe(
        stage.topic(), "s", initial_position=pulsar.InitialPosition.Earliest, max_pending_chunked_message=1,
        auto_ack_oldest_chunked_message_on_queue_full=True,
    )  # fmt: skip
    stage.receive("the younger one", consumer, acknowledge=True)
    stage.until(lambda: stage.stats()["subscriptions"]["s"]["msgBacklog"] == 0)
    stage.note("the backlog is empty", True)


@scenario(promises=("13.10",))
def chunks_on_shared_go_to_one_consumer(stage: Stage) -> None:
    """Two consumers, and chunks between ordinary messages: one of the two gets the message whole."""
    consumers = [shared(stage, name) for name in ("one", "two")]
    peer = producing(stage)
    for chunk in range(4):
        send(peer, chunk, 4)
        peer.send_message(b"-", 10 + chunk)
    found: list[bytes] = []
    while len(found) < 5:
        for consumer in consumers:
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            found.append(message.data())
            consumer.acknowledge(message)
    stage.note("what both got", sorted(found))


@scenario(promises=("13.10",))
def a_consumer_that_comes_back_gets_the_whole_message_again(stage: Stage) -> None:
    """The first consumer leaves without acknowledging."""
    peer = producing(stage)
    for chunk in range(3):
        send(peer, chunk, 3)
    options: dict[str, Any] = {"initial_position": pulsar.InitialPosition.Earliest}
    first = stage.client().subscribe(stage.topic(), "s", **options)
    stage.receive("first", first)
    first.close()
    stage.receive("again", stage.client().subscribe(stage.topic(), "s", **options))


@scenario(promises=("13.2",))
def chunking_and_batching_exclude_each_other(stage: Stage) -> None:
    """Both together are refused when the producer is created."""
    client = stage.client()
    stage.step("both", client.create_producer, stage.topic(), chunking_enabled=True, batching_enabled=True)
    stage.step("chunking", client.create_producer, stage.topic(), chunking_enabled=True, producer_name="p")


@scenario()
def encrypted_entries_pass_the_broker_unchanged(stage: Stage) -> None:
    """A consumer without keys that asks for encrypted messages gets them with what the producer said of the keys."""
    consumer = stage.client().subscribe(
        stage.topic(), "s", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
    )
    peer = producing(stage)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, encryption_param=b"nonce")
    metadata.encryption_keys.add(key="k", value=b"wrapped")
    body = build_entry(metadata, b"secret")
    peer.write(send_header(1, 0, 0, 1, len(body)) + body)
    (message,) = stage.receive("as it is", consumer)
    context = message.encryption_context()
    stage.note("its keys", [(key.key, key.value) for key in context.keys()])
    stage.note("its nonce", context.param())
    stage.note("decryption failed", context.is_decryption_failed())
