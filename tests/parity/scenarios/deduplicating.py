"""Deduplication: its switches, what duplicates are answered, and what a producer learns when it comes back."""

from typing import Any

import pulsar

from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandProducer

from ..peer import Peer
from ..registry import scenario
from ..stage import Stage

NAMESPACE = "/admin/v2/namespaces/{ns}"
TOPIC = "/admin/v2/persistent/{ns}/topic"
RECEIPT = BaseCommand.SEND_RECEIPT


def _switch_on(stage: Stage) -> None:
    assert stage.admin("POST", f"{NAMESPACE}/deduplication", True).status == 204


def _send(stage: Stage, label: str, peer: Peer, sequence_id: int, **metadata: Any) -> None:
    peer.send_message(b"%d" % sequence_id, sequence_id, producer_name="p", **metadata)
    stage.next_frame(label, peer, RECEIPT)


def _producer(stage: Stage, label: str, peer: Peer, topic: str) -> None:
    stage.ask(label, peer, CommandProducer(topic=topic, producer_id=1, producer_name="p"))


def _content(stage: Stage, label: str, count: int, topic: str = "topic") -> None:
    reader = stage.client().create_reader(stage.topic(topic), pulsar.MessageId.earliest)
    stage.receive(label, reader, count)
    stage.step(f"{label}: is there more", reader.has_message_available)


@scenario()
def deduplication_is_switched_for_a_namespace_and_a_topic(stage: Stage) -> None:
    """The paths of the switch and of the interval of snapshots."""
    stage.admin("PUT", TOPIC)
    for level, names in (
        (NAMESPACE, ("deduplication", "deduplicationSnapshotInterval")),
        (TOPIC, ("deduplicationEnabled", "deduplicationSnapshotInterval")),
    ):
        on = "namespace" if level is NAMESPACE else "topic"
        switch, interval = (f"{level}/{name}" for name in names)
        stage.http(f"{on}: not set", "GET", switch)
        stage.http(f"{on}: on", "POST", switch, True)
        stage.http(f"{on}: shown", "GET", switch)
        stage.http(f"{on}: off", "POST", switch, False)
        stage.http(f"{on}: shown then", "GET", switch)
        stage.http(f"{on}: removed", "DELETE", switch)
        stage.http(f"{on}: shown at the end", "GET", switch)
        stage.http(f"{on}: interval not set", "GET", interval)
        stage.http(f"{on}: interval", "POST", interval, 7)
        stage.http(f"{on}: interval shown", "GET", interval)
        stage.http(f"{on}: interval below zero", "POST", interval, -1)
    stage.http("of a missing namespace", "POST", "/admin/v2/namespaces/parity/none-such/deduplication", True)
    stage.http("of a missing topic", "POST", "/admin/v2/persistent/{ns}/none-such/deduplicationEnabled", True)
    stage.http(
        "all policies", "GET", NAMESPACE, only=[".deduplicationEnabled", ".deduplicationSnapshotIntervalSeconds"]
    )


@scenario()
def duplicates_are_answered_without_a_place(stage: Stage) -> None:
    """Sequence ids that rise, stay and fall, by raw frames; and what is stored."""
    _switch_on(stage)
    topic, peer = stage.found_topic(), stage.peer()
    _producer(stage, "a producer", peer, topic)
    for number, sequence_id in enumerate((0, 5, 5, 3, 6)):
        _send(stage, f"message {number} with sequence id {sequence_id}", peer, sequence_id)
    _content(stage, "stored", 3)


@scenario()
def batches_are_told_by_their_highest_sequence_id(stage: Stage) -> None:
    """A batch again, one that overlaps, and one behind all."""
    _switch_on(stage)
    topic, peer = stage.found_topic(), stage.peer()
    _producer(stage, "a producer", peer, topic)

    def batch(label: str, first: int, last: int) -> None:
        more = {"messages": 3, "num_messages_in_batch": 3, "highest_sequence_id": last}
        _send(stage, label, peer, first, **more)

    batch("a batch", 0, 2)
    batch("the batch again", 0, 2)
    batch("one that overlaps", 1, 3)
    batch("one behind", 4, 6)
    stage.http("statistics count", "GET", f"{TOPIC}/stats", only=[".msgInCounter", ".deduplicationStatus"])
    again = stage.peer()
    peer.close()
    _producer_again(stage, "the producer comes back", again, topic)


def _producer_again(stage: Stage, label: str, peer: Peer, topic: str) -> None:
    """Once the broker has noticed that the old connection is gone."""
    stage.until(lambda: not stage.stats().get("publishers"))
    _producer(stage, label, peer, topic)


@scenario()
def a_producer_learns_its_last_sequence_id(stage: Stage) -> None:
    """After a reconnect, after an unload, and under another name."""
    _switch_on(stage)
    topic, peer = stage.found_topic(), stage.peer()
    _producer(stage, "a new producer", peer, topic)
    assert stage.admin("PUT", f"{TOPIC}/subscription/keeper", "earliest").status == 204
    for sequence_id in (7, 9):
        _send(stage, f"sequence id {sequence_id}", peer, sequence_id)
    peer.close()
    peer = stage.peer()
    _producer_again(stage, "after a reconnect", peer, topic)
    _send(stage, "a duplicate", peer, 9)
    _send(stage, "a new message", peer, 10)
    peer.close()
    stage.until(lambda: not stage.stats().get("publishers"))
    assert stage.admin("PUT", f"{TOPIC}/unload").status == 204
    peer, topic = stage.peer(), stage.found_topic()
    _producer(stage, "after an unload", peer, topic)
    _send(stage, "a duplicate after an unload", peer, 10)
    _send(stage, "a new message after an unload", peer, 11)
    stage.ask("another name", peer, CommandProducer(topic=topic, producer_id=2, producer_name="q"))
    _content(stage, "stored", 4)


@scenario()
def an_application_repeats_what_it_is_not_sure_of(stage: Stage) -> None:
    """The official client with sequence ids of the application's own."""
    _switch_on(stage)
    client = stage.client()
    options = {"producer_name": "app", "batching_enabled": False}
    producer = stage.step("a producer", client.create_producer, stage.topic(), **options)
    for number in (1, 2, 3):
        producer.send(b"%d" % number, sequence_id=10 * number)
    stage.step("its last sequence id", producer.last_sequence_id)
    producer.close()
    producer = stage.step("the name again", client.create_producer, stage.topic(), **options)
    for number in (2, 3, 4):
        stage.step(f"message {number} again", producer.send, b"%d" % number, sequence_id=10 * number)
    stage.step("its last sequence id then", producer.last_sequence_id)
    stage.step("a message without a sequence id", producer.send, b"5")
    stage.step("its sequence id", producer.last_sequence_id)
    _content(stage, "stored", 5)


@scenario(promises=("27.3",))
def a_topic_may_differ_from_its_namespace(stage: Stage) -> None:
    """A duplicate where the topic says no, and where the namespace says no and the topic yes."""
    for label, of_topic in (("topic off", False), ("topic on", True)):
        assert stage.admin("POST", f"{NAMESPACE}/deduplication", not of_topic).status == 204
        name = label.replace(" ", "-")
        assert stage.admin("PUT", f"/admin/v2/persistent/{{ns}}/{name}").status == 204
        policy = f"/admin/v2/persistent/{{ns}}/{name}/deduplicationEnabled"
        assert stage.admin("POST", policy, of_topic).status == 204
        wanted = "Enabled" if of_topic else "Disabled"
        stage.until(lambda name=name, wanted=wanted: stage.stats(name)["deduplicationStatus"] == wanted)
        topic, peer = stage.found_topic(name), stage.peer()
        _producer(stage, f"{label}: a producer", peer, topic)
        _send(stage, f"{label}: a message", peer, 1)
        _send(stage, f"{label}: again", peer, 1)


@scenario()
def chunks_share_a_sequence_id(stage: Stage) -> None:
    """The chunks of a message are no duplicates of each other; the whole message again is one."""
    _switch_on(stage)
    topic, peer = stage.found_topic(), stage.peer()
    _producer(stage, "a producer", peer, topic)
    for time in ("first", "second"):
        for chunk in range(3):
            parts = {"uuid": "u", "chunk_id": chunk, "num_chunks_from_msg": 3, "total_chunk_msg_size": 3}
            _send(stage, f"{time} time: chunk {chunk}", peer, 4, **parts)
    _send(stage, "a message behind it", peer, 5)
    stage.http("statistics count", "GET", f"{TOPIC}/stats", only=[".msgInCounter"])
