"""Compaction: on request and by threshold, what is left, and what those who read compacted get."""

from typing import Any

import pulsar

import magnetar
from magnetar.protocol.pulsar_pb2 import CommandSubscribe

from ..registry import KEEPING, scenario
from ..stage import Stage

TOPIC = "/admin/v2/persistent/{ns}/topic"
COMPACTION = TOPIC + "/compaction"
MISSING = "/admin/v2/persistent/{ns}/none-such"
THRESHOLD = "/admin/v2/namespaces/{ns}/compactionThreshold"
EARLIEST = pulsar.MessageId.earliest
LONG = b"0123456789abcdef"


def _kept_topic(stage: Stage, client: pulsar.Client) -> None:
    """A topic whose messages are kept for a subscription that takes none."""
    client.subscribe(stage.topic(), "keeper").close()


def _publish(stage: Stage, client: pulsar.Client, *messages: tuple[str | None, bytes], **options: Any) -> None:
    producer = client.create_producer(stage.topic(), batching_enabled=False, **options)
    for key, value in messages:
        producer.send(value, partition_key=key)
    producer.close()


def _compact(stage: Stage) -> None:
    assert stage.admin("PUT", COMPACTION).status == 204
    stage.until(lambda: stage.admin("GET", COMPACTION).body["status"] == "SUCCESS")


def _read(stage: Stage, label: str, client: pulsar.Client, count: int, **options: Any) -> None:
    options.setdefault("is_read_compacted", True)
    reader = client.create_reader(stage.topic(), EARLIEST, **options)
    stage.receive(label, reader, count)
    stage.step(f"{label}: is there more", reader.has_message_available)
    reader.close()


@scenario()
def a_topic_is_compacted_on_request(stage: Stage) -> None:
    """Statuses and answers, also of topics that cannot be compacted."""
    client = stage.client()
    _kept_topic(stage, client)
    stage.http("not yet", "GET", COMPACTION)
    _publish(stage, client, ("a", b"1"), ("b", b"2"), ("a", b"3"))
    stage.http("on request", "PUT", COMPACTION)
    stage.until(lambda: stage.admin("GET", COMPACTION).body["status"] != "RUNNING")
    stage.http("its outcome", "GET", COMPACTION)
    figures = [".compaction.lastCompactionRemovedEventCount", ".compaction.lastCompactionFailedTimestamp"]
    figures += [".compaction.lastCompactionSucceedTimestamp"]
    stage.http("statistics", "GET", f"{TOPIC}/stats", only=figures)
    stage.http(
        "ledger", "GET", f"{TOPIC}/internalStats", only=[".compactedLedger.ledgerId", ".compactedLedger.entries"]
    )
    stage.http("subscriptions", "GET", f"{TOPIC}/subscriptions")
    stage.http("of a missing topic", "GET", f"{MISSING}/compaction")
    stage.http("a missing topic", "PUT", f"{MISSING}/compaction")
    stage.http("a non-persistent topic", "PUT", "/admin/v2/non-persistent/{ns}/volatile/compaction")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/parts/partitions", 2)
    stage.http("a partitioned topic", "PUT", "/admin/v2/persistent/{ns}/parts/compaction")
    stage.http("of a partitioned topic", "GET", "/admin/v2/persistent/{ns}/parts/compaction")


@scenario()
def a_reader_gets_the_last_message_of_each_key(stage: Stage) -> None:
    """Before and behind the compaction, and a reader that does not read compacted."""
    client = stage.client()
    _kept_topic(stage, client)
    _publish(stage, client, ("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("b", b"5"))
    _read(stage, "before", client, 5)
    _compact(stage)
    _read(stage, "then", client, 3)
    _read(stage, "everything", client, 5, is_read_compacted=False)
    _publish(stage, client, ("a", b"6"), ("d", b"7"), ("a", b"8"))
    _read(stage, "with what came later", client, 6)
    _compact(stage)
    _read(stage, "compacted once more", client, 4)


@scenario()
def a_tombstone_removes_its_key(stage: Stage) -> None:
    """An empty payload, also in a later compaction, and a message with the key after it."""
    client = stage.client()
    _kept_topic(stage, client)
    _publish(stage, client, ("a", b"1"), ("b", b"2"), ("a", b""))
    _read(stage, "before", client, 3)
    _compact(stage)
    _read(stage, "without its key", client, 1)
    _publish(stage, client, ("b", b""), ("a", b"3"))
    _compact(stage)
    _read(stage, "one back, one gone", client, 1)
    _publish(stage, client, ("a", b""))
    _compact(stage)
    reader = client.create_reader(stage.topic(), EARLIEST, is_read_compacted=True)
    stage.step("nothing is left", reader.has_message_available)
    _publish(stage, client, ("z", b"4"))
    stage.receive("what comes then", reader)


@scenario()
def messages_without_a_key_are_compacted_away(stage: Stage) -> None:
    """By themselves, in a batch, and with an empty key."""
    client = stage.client()
    _kept_topic(stage, client)
    _publish(stage, client, (None, b"keyless"), ("a", b"1"), (None, b"keyless too"), ("", b"empty key"))
    _compact(stage)
    _read(stage, "left", client, 1)
    _read(stage, "everything", client, 4, is_read_compacted=False)


@scenario()
def batches_are_compacted_message_by_message(stage: Stage) -> None:
    """What is left of a batch, its ids, and a batch of which nothing is left."""
    client = stage.client()
    _kept_topic(stage, client)

    def batch(*messages: tuple[str | None, bytes]) -> None:
        producer = client.create_producer(
            stage.topic(), batching_enabled=True, batching_max_publish_delay_ms=10_000, producer_name="p"
        )
        sent: list[Any] = []
        for key, value in messages:
            producer.send_async(value, lambda _, place: sent.append(place), partition_key=key)
        producer.flush()
        stage.until(lambda: len(sent) == len(messages))
        producer.close()

    batch(("a", b"1"), ("b", b"2"), ("a", b"3"))
    batch(("c", b"4"), ("c", b""))
    batch(("d", b"5"), (None, b"keyless"), ("b", b"6"))
    _compact(stage)
    _read(stage, "left", client, 3)
    stage.http("entries", "GET", f"{TOPIC}/internalStats", only=[".compactedLedger.entries"])
    own = stage.own_client().create_reader(stage.topic(), magnetar.MessageId.earliest, is_read_compacted=True)
    stage.receive("left, with Magnetar's client", own, 3)


@scenario()
def a_consumer_reads_compacted(stage: Stage) -> None:
    """An Exclusive and a Failover consumer: what they get, and what is left after an acknowledgement."""
    client = stage.client()
    _kept_topic(stage, client)
    _publish(stage, client, ("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"))
    _compact(stage)
    options: dict[str, Any] = {"initial_position": pulsar.InitialPosition.Earliest, "is_read_compacted": True}
    for kind in ("Exclusive", "Failover"):
        consumer = client.subscribe(stage.topic(), kind, getattr(pulsar.ConsumerType, kind), **options)
        got = stage.receive(f"{kind} gets", consumer, 3)
        consumer.acknowledge_cumulative(got[1])
        consumer.close()
        consumer = client.subscribe(stage.topic(), kind, getattr(pulsar.ConsumerType, kind), **options)
        stage.receive(f"{kind} gets when it comes back", consumer)
        stage.nothing(f"{kind} gets no more", consumer, 100)


@scenario()
def what_cannot_be_read_compacted_is_refused(stage: Stage) -> None:
    """Shared types, non-persistent topics, and the name of the broker's own subscription."""
    topic, peer = stage.found_topic(), stage.peer()
    for number, kind in enumerate(("Exclusive", "Shared", "Failover", "Key_Shared")):
        command = CommandSubscribe(
            topic=topic, subscription=kind, consumer_id=number, subType=CommandSubscribe.SubType.Value(kind)
        )
        command.read_compacted = True
        stage.ask(kind, peer, command)
    volatile = stage.found_topic("volatile", domain="non-persistent")
    command = CommandSubscribe(topic=volatile, subscription="s", consumer_id=9, subType=0, read_compacted=True)
    stage.ask("a non-persistent topic", peer, command)


@scenario()
def the_threshold_of_compaction_is_a_policy(stage: Stage) -> None:
    """Paths, statuses, and values that cannot be, at both levels."""
    stage.admin("PUT", TOPIC)
    for level, path, method in (("namespace", THRESHOLD, "PUT"), ("topic", TOPIC + "/compactionThreshold", "POST")):
        stage.http(f"{level}: not set", "GET", path)
        stage.http(f"{level}: set", method, path, 100_000)
        stage.http(f"{level}: shown", "GET", path)
        stage.http(f"{level}: below zero", method, path, -1)
        stage.http(f"{level}: a text", method, path, "large")
        stage.http(f"{level}: nothing", method, path, 0)
        stage.http(f"{level}: shown then", "GET", path)
        stage.http(f"{level}: removed", "DELETE", path)
        stage.http(f"{level}: shown at the end", "GET", path)
    stage.http("applied", "GET", TOPIC + "/compactionThreshold?applied=true")
    stage.http("of a missing namespace", "PUT", THRESHOLD.replace("{ns}", "parity/none-such"), 1)


@scenario(KEEPING)
def a_topic_is_compacted_by_its_threshold(stage: Stage) -> None:
    """Once its backlog for compaction is larger, by itself."""
    client = stage.client()
    _kept_topic(stage, client)
    _publish(stage, client, *(("a", LONG) for _ in range(5)), ("b", LONG))
    assert stage.admin("PUT", THRESHOLD, 10).status == 204
    stage.until(lambda: stage.admin("GET", COMPACTION).body["status"] == "SUCCESS")
    reader = client.create_reader(stage.topic(), EARLIEST, is_read_compacted=True)
    stage.note("left", [reader.read_next(15_000).partition_key() for _ in range(2)])
    stage.step("is there more", reader.has_message_available)


@scenario()
def compaction_outlives_an_unload(stage: Stage) -> None:
    """The next owner of the topic has the compacted ledger."""
    client = stage.client()
    _kept_topic(stage, client)
    _publish(stage, client, ("a", b"1"), ("a", b"2"))
    _compact(stage)
    assert stage.admin("PUT", f"{TOPIC}/unload").status == 204
    stage.until(lambda: stage.admin("GET", f"{TOPIC}/stats").status == 200)
    stage.http("its status", "GET", COMPACTION)
    _read(stage, "left", client, 1)
    stage.http("delete its cursor", "DELETE", f"{TOPIC}/subscription/__compaction")
    stage.http("ledger then", "GET", f"{TOPIC}/internalStats", only=[".compactedLedger.entries"])
    stage.http("a subscription of that name", "PUT", f"{TOPIC}/subscription/__compaction")
