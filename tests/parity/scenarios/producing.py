"""Producers: names, sequence ids, sizes, compression, batches."""

from typing import Any

import pulsar

from magnetar.protocol.commands import send_header
from magnetar.protocol.entries import build_entry
from magnetar.protocol.pulsar_pb2 import CommandCloseProducer, CommandProducer, MessageMetadata

from ..registry import scenario
from ..stage import Stage


@scenario()
def a_producer_name_is_taken_while_its_producer_lives(stage: Stage) -> None:
    """A second producer of a name is refused, on each topic by itself, and taken when the first has gone."""
    client = stage.client()
    first = stage.step("the first producer", client.create_producer, stage.topic(), producer_name="chosen")
    stage.step("the second producer of that name", client.create_producer, stage.topic(), producer_name="chosen")
    stage.step("on another topic", client.create_producer, stage.topic("other"), producer_name="chosen")
    stage.step("the first one closes", first.close)
    stage.step("the name again", client.create_producer, stage.topic(), producer_name="chosen")


@scenario(promises=("2.4",))
def producers_without_a_name_get_one_each(stage: Stage) -> None:
    """The broker makes up a name, with the cluster's name in front."""
    client = stage.client()
    made = [stage.step(f"producer {number}", client.create_producer, stage.topic()) for number in (1, 2)]
    stage.note("the names differ", made[0].producer_name() != made[1].producer_name())
    stage.note("they begin with the cluster", [one.producer_name().startswith("standalone-") for one in made])


@scenario()
def a_producer_id_that_is_taken_is_answered_as_its_first_time(stage: Stage) -> None:
    """The same producer id twice on one connection."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("the first", peer, CommandProducer(topic=topic, producer_id=1, producer_name="a"))
    stage.ask("the same id and name", peer, CommandProducer(topic=topic, producer_id=1, producer_name="a"))
    stage.ask("the same id, another name", peer, CommandProducer(topic=topic, producer_id=1, producer_name="b"))
    stage.settle("what else came", peer)


@scenario(promises=("2.2", "2.3"))
def everything_that_a_message_carries_arrives(stage: Stage) -> None:
    """Keys, properties, event time, empty and long payloads, and the id of each."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s")
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    stage.step("empty", producer.send, b"")
    stage.step("a key", producer.send, b"1", partition_key="k", ordering_key="o")
    stage.step("properties", producer.send, b"2", properties={"a": "1", "ä": "ü", "empty": ""})
    stage.step("event time", producer.send, b"3", event_timestamp=1234)
    stage.step("long", producer.send, bytes(100_000))
    stage.receive("all", consumer, 5)
    stage.nothing("no more", consumer)


@scenario(promises=("11.1",))
def messages_of_a_batch_share_an_entry(stage: Stage) -> None:
    """Ids with a batch index, for each compression."""
    client = stage.client()
    consumer = client.subscribe(stage.topic(), "s")
    for kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        producer = client.create_producer(
            stage.topic(),
            producer_name=kind,
            compression_type=getattr(pulsar.CompressionType, kind),
            batching_enabled=True,
            batching_max_publish_delay_ms=10_000,
        )
        ids: list[str] = []
        for number in range(3):
            producer.send_async(b"%s %d" % (kind.encode(), number), lambda _, sent, ids=ids: ids.append(sent))
        producer.flush()
        stage.until(lambda ids=ids: len(ids) == 3)
        stage.note(f"sent with {kind}", ids)
        producer.close()
    stage.receive("all", consumer, 15)


@scenario(promises=("2.7",))
def a_producer_goes_on_at_its_sequence_id(stage: Stage) -> None:
    """What the client says of sequence ids, without deduplication."""
    client = stage.client()
    producer = stage.step("a producer", client.create_producer, stage.topic(), producer_name="p")
    stage.step("send", producer.send, b"0")
    stage.step("its last sequence id", producer.last_sequence_id)
    stage.step("send with 7", producer.send, b"7", sequence_id=7)
    stage.step("its last sequence id then", producer.last_sequence_id)
    producer.close()
    stage.step("the same name again", client.create_producer, stage.topic(), producer_name="p")
    first = client.create_producer(stage.topic("other"), producer_name="q", initial_sequence_id=41)
    stage.step("with an initial sequence id", first.send, b"42")
    stage.step("its sequence id", first.last_sequence_id)


@scenario(promises=("2.16",))
def a_message_above_the_largest_size_is_refused(stage: Stage) -> None:
    """By the official client, and by the broker when raw frames bring it."""
    client = stage.client()
    producer = client.create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    stage.step("the largest that fits", producer.send, bytes(5_242_880 - 200))
    stage.step("one byte above the limit", producer.send, bytes(5_242_881))
    stage.step("a small one after it", producer.send, b"small")
    topic, peer = stage.found_topic("raw"), stage.peer()
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="raw"))
    peer.send_message(bytes(5_242_880 + 1), 0)
    stage.next_frame("by raw frames", peer)


@scenario(promises=("2.9",))
def receipts_name_sequence_ids_and_places(stage: Stage) -> None:
    """Raw entries, one by one and as a batch."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    peer.send_message(b"a", 0)
    stage.next_frame("the first", peer)
    peer.send_message(b"b", 5)
    stage.next_frame("with sequence id 5", peer)
    peer.send_message(b"b", 5)
    stage.next_frame("with sequence id 5 again", peer)
    peer.send_message(b"c", 3)
    stage.next_frame("with sequence id 3", peer)
    peer.send_message(b"c", 10, messages=3, num_messages_in_batch=3, highest_sequence_id=12)
    stage.next_frame("a batch of three", peer)
    stage.ask("the producer closes", peer, CommandCloseProducer(producer_id=1))
    stage.ask("it closes again", peer, CommandCloseProducer(producer_id=1))


@scenario()
def entries_of_an_unknown_producer_are_refused(stage: Stage) -> None:
    """A producer id that nobody registered, or that has closed."""
    topic, peer = stage.found_topic(), stage.peer()
    peer.send_message(b"a", 0, producer_id=7)
    stage.settle("an id that nobody registered", peer)
    peer = stage.peer()
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    peer.request(CommandCloseProducer(producer_id=1))
    peer.send_message(b"a", 0)
    stage.settle("an id that has closed", peer)


@scenario()
def an_entry_with_a_wrong_checksum_is_refused(stage: Stage) -> None:
    """The broker checks before it stores."""
    topic, peer = stage.found_topic(), stage.peer()
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    body = bytearray(build_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload"))
    body[-1] ^= 1
    peer.write(send_header(1, 0, 0, 1, len(body)) + body)
    stage.next_frame("the broken one", peer)
    peer.send_message(b"whole", 1)
    stage.next_frame("a whole one after it", peer)


@scenario()
def a_producer_comes_back_with_its_next_epoch(stage: Stage) -> None:
    """The same generated name with a higher, an equal and a lower epoch."""
    topic, first = stage.found_topic(), stage.peer()
    made = stage.ask("made up", first, CommandProducer(topic=topic, producer_id=1, epoch=0))
    again: dict[str, Any] = {"topic": topic, "producer_id": 1, "producer_name": made.producer_name}
    again["user_provided_producer_name"] = False
    stage.ask("equal epoch", stage.peer(), CommandProducer(**again, epoch=0))
    stage.ask("next epoch", stage.peer(), CommandProducer(**again, epoch=1))
    stage.settle("the first learns it", first)
    stage.ask("stale epoch", stage.peer(), CommandProducer(**again, epoch=0))
    chosen: dict[str, Any] = {"topic": topic, "producer_id": 2, "producer_name": "chosen"}
    stage.ask("chosen", first, CommandProducer(**chosen, epoch=0))
    stage.ask("chosen, next epoch, elsewhere", stage.peer(), CommandProducer(**chosen, epoch=1))


@scenario()
def names_of_topics_that_cannot_be_are_refused_to_producers(stage: Stage) -> None:
    """Malformed names, and namespaces that do not exist."""
    peer = stage.peer()
    for label, topic in [
        ("an empty name", ""),
        ("a domain that does not exist", f"strange://{stage.namespace}/t"),
        ("too many parts", f"persistent://{stage.namespace}/a/b/c"),
        ("a namespace that does not exist", "persistent://parity/none-such/t"),
        ("a tenant that does not exist", "persistent://none-such/none/t"),
    ]:
        stage.ask(label, peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))
