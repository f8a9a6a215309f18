"""Make a data directory of today's version, for later versions to read.

    python -P tests/tools/make_old_directory.py NAME

writes `tests/service/old_directories/NAME.tar.xz`: the data directory, and what a later version has to find in it.
`tests/service/test_old_directories.py` starts each directory and compares. So run this when a stored format is about to
change, with the version before the change, and commit the file. Never make an old one again.

A first process fills the directory and stops its cluster in good order. A second one adds messages and acknowledgements
and ends without stopping anything, as in a crash. So there are closed ledgers, indexes and a checkpoint, and open
ledgers, journals without an index, and cursors behind their last snapshot.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import magnetar
from magnetar import CompressionType, ConsumerType, InitialPosition, MessageId
from magnetar.cluster.directory import METADATA_FILE
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.metadata import keys as metadata_keys
from support.servers.admin_calls import AdminCalls
from support.servers.figures import until

DIRECTORY = Path(__file__).resolve().parents[1] / "service" / "old_directories"
FACTS = "facts.json"
SETTINGS: dict[str, object] = {
    "managedLedgerMaxEntriesPerLedger": 12,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerCursorPositionFlushSeconds": 0.05,
    "acknowledgmentAtBatchIndexLevelEnabled": True,
    "brokerDeduplicationEntriesInterval": 4,
    "delayedDeliveryMinIndexCountPerBucket": 20,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 8,
    "brokerServiceCompactionMonitorIntervalInSeconds": 0.1,
    "brokerDeleteInactiveTopicsEnabled": False,
    "maxMessageSize": 16384,
}
ENSEMBLE = "3/2/2"
SHARED = ConsumerType.Shared
EARLIEST = InitialPosition.Earliest
WAIT_MS = 20_000
CENTURY_MS = 4_102_444_800_000
"""The first of January of 2100."""
SOON_S = 600.0
"""Long enough for a bucket, and over when a later version reads the directory."""

PLAIN = "persistent://public/default/plain"
BATCHED = "persistent://public/default/batched"
FLIGHTS = "persistent://public/default/flights"
LARGE = "persistent://public/default/large"
DELAYED = "persistent://public/default/delayed"
COMPACTED = "persistent://public/default/compacted"
TERMINATED = "persistent://public/default/terminated"
ONCE = "persistent://museum/rooms/once"
ORDERS = "persistent://museum/rooms/orders"
NOTES = "persistent://museum/rooms/notes"
TRIMMED = "persistent://museum/attic/trimmed"
DELETED = "persistent://museum/attic/deleted"
READ_WHOLE = [PLAIN, BATCHED, FLIGHTS, LARGE, DELAYED, TERMINATED, ONCE, ORDERS, NOTES]
"""Topics of which every message that was published is still there."""


@dataclass
class Order:
    """The first version of a schema."""

    item: str
    count: int


@dataclass
class LaterOrder:
    """The second one."""

    item: str
    count: int
    note: str = "none"


LaterOrder.__name__ = "Order"


def text_of(data: bytes) -> str:
    """Bytes as JSON takes them, large ones by their hash."""
    return base64.b64encode(data).decode() if len(data) <= 1000 else hashlib.sha256(data).hexdigest()


def described(message: Any) -> list[Any]:
    """What a later version has to give for a message."""
    place = message.message_id()
    return [
        [place.ledger_id(), place.entry_id(), place.batch_index()],
        text_of(message.data()),
        message.partition_key(),
        dict(sorted(message.properties().items())),
        message.event_timestamp(),
        message.publish_timestamp(),
        message.producer_name(),
        message.sequence_id(),
        text_of(message.schema_version()),
    ]


def read_topic(client: Any, topic: str, **options: Any) -> list[list[Any]]:
    """Every message that a reader finds, in the order of partitions and positions."""
    found: list[list[Any]] = []
    for partition in client.get_topic_partitions(topic):
        reader = client.create_reader(partition, MessageId.earliest, **options)
        while reader.has_message_available():
            found.append(described(reader.read_next(WAIT_MS)))
        reader.close()
    return found


def receive(consumer: Any, count: int) -> list[Any]:
    """The next messages."""
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def waiting(client: Any, topic: str, subscription: str, consumer_type: Any, count: int) -> list[str]:
    """What a subscription has not acknowledged: so many messages, and no more for a moment. Sorted; it stays so.

    A message may come twice: the topic may move to another broker, since the brokers have just started.
    """
    options = {"batch_index_ack_enabled": True}
    with client.subscribe(topic, subscription, consumer_type=consumer_type, **options) as consumer:
        found: dict[Any, str] = {}
        while True:
            try:
                message = consumer.receive(WAIT_MS if len(found) < count else 300)
            except magnetar.Timeout:
                break
            found[message.message_id()] = text_of(message.data())
    assert len(found) == count, f"{topic} {subscription} gave {len(found)} messages instead of {count}"
    return sorted(found.values())


# -- the first process: everything, stopped in good order --------------------------------------------------------------


def publish(client: Any, topic: str, values: Iterator[tuple[bytes, dict[str, Any]]], **options: Any) -> None:
    """Publish values with what else `send` takes: in batches, or each after the receipt of the one before."""
    producer = client.create_producer(topic, **options)
    for value, more in values:
        if options.get("batching_enabled"):
            producer.send_async(value, None, **more)
        else:
            producer.send(value, **more)
    producer.flush()
    producer.close()


def numbered(word: str, numbers: range) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Messages with keys, properties and event times."""
    for number in numbers:
        more = {
            "partition_key": f"key-{number % 7}",
            "properties": {"number": str(number), "of": word},
            "event_timestamp": 1_700_000_000_000 + number,
        }
        yield f"{word} {number}".encode(), more


def acknowledge(client: Any, topic: str, name: str, count: int, wanted: Callable[[int], bool], **options: Any) -> None:
    """Receive so many messages of a Shared subscription, and acknowledge some of them for good."""
    chosen = {"consumer_type": SHARED, "initial_position": EARLIEST, "ack_receipt_enabled": True, **options}
    with client.subscribe(topic, name, batch_index_ack_enabled=True, **chosen) as consumer:
        for number, message in enumerate(receive(consumer, count)):
            if wanted(number):
                consumer.acknowledge(message)


def fill(client: Any, admin: AdminCalls, directory: Path) -> None:
    """What the first process stores."""
    admin.ask("PUT", "/tenants/museum", {"allowedClusters": ["standalone"], "adminRoles": ["curator"]})
    for namespace in ("rooms", "attic"):
        admin.ask("PUT", f"/namespaces/museum/{namespace}", {})
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    for namespace in ("public/default", "museum/rooms"):
        admin.ask("POST", f"/namespaces/{namespace}/retention", forever)
    admin.ask("POST", "/namespaces/museum/rooms/deduplication", True)
    admin.ask("POST", "/namespaces/museum/rooms/maxProducersPerTopic", 7)
    admin.ask("PUT", "/namespaces/museum/rooms/properties", {"floor": "second"})

    publish(client, PLAIN, numbered("plain", range(40)), batching_enabled=False, producer_name="plain-producer")
    admin.ask("POST", "/persistent/public/default/plain/maxConsumers", 11)
    with client.subscribe(PLAIN, "mark", initial_position=EARLIEST, ack_receipt_enabled=True) as consumer:
        consumer.acknowledge_cumulative(receive(consumer, 10)[-1])
    acknowledge(client, PLAIN, "holes", 40, lambda number: number % 3 == 1)
    acknowledge(client, PLAIN, "all", 40, lambda number: True)
    client.subscribe(PLAIN, "untouched", initial_position=EARLIEST).close()

    for compression in CompressionType:
        values = numbered(f"batched {compression.name}", range(10))
        publish(
            client, BATCHED, values,
            batching_enabled=True, batching_max_publish_delay_ms=5000, compression_type=compression,
        )  # fmt: skip
    acknowledge(client, BATCHED, "indexes", 10 * len(CompressionType), lambda number: number % 4 != 0)

    admin.ask("PUT", "/persistent/public/default/flights/partitions", 3)
    publish(client, FLIGHTS, numbered("flight", range(60)), batching_enabled=True)
    acknowledge(client, FLIGHTS, "some", 60, lambda number: number % 2 == 0)

    client.subscribe(LARGE, "chunks", initial_position=EARLIEST).close()
    publish(client, LARGE, iter([(b"large " * 7000, {}), (b"larger" * 9000, {})]), chunking_enabled=True)
    delay(client, admin, directory)
    compact(client, admin)

    publish(client, TERMINATED, numbered("last", range(5)))
    admin.ask("POST", "/persistent/public/default/terminated/terminate")
    number_once(client, range(10))
    for schema, count in ((magnetar.JsonSchema(Order), 3), (magnetar.JsonSchema(LaterOrder), 2)):
        kind = Order if count == 3 else LaterOrder
        publish_values(client, ORDERS, schema, [kind(f"item {number}", number) for number in range(count)])
    publish_values(client, NOTES, magnetar.AvroSchema(Order), [Order("note", number) for number in range(4)])

    client.subscribe(TRIMMED, "reader", initial_position=EARLIEST).close()
    publish(client, TRIMMED, numbered("trimmed", range(30)))
    with client.subscribe(TRIMMED, "reader", ack_receipt_enabled=True) as consumer:
        consumer.acknowledge_cumulative(receive(consumer, 26)[-1])
    trimmed = "/persistent/museum/attic/trimmed/internalStats"
    until(lambda: admin.ask("GET", trimmed)["numberOfEntries"] < 30)
    publish(client, DELETED, numbered("deleted", range(3)))
    admin.ask("DELETE", "/persistent/museum/attic/deleted?force=true")


def publish_values(client: Any, topic: str, schema: Any, values: Sequence[Any]) -> None:
    """Publish values of a schema."""
    producer = client.create_producer(topic, schema=schema)
    for value in values:
        producer.send(value)
    producer.close()


def delay(client: Any, admin: AdminCalls, directory: Path) -> None:
    """Delayed messages, most of them in buckets: 60 for later versions, and ten for the next century."""
    with client.subscribe(DELAYED, "later", consumer_type=SHARED):
        due_ms = int((time.time() + SOON_S) * 1000)
        values = [(b"soon %d" % number, {"deliver_at": due_ms + number}) for number in range(60)]
        values += [(b"century %d" % number, {"deliver_at": CENTURY_MS + number}) for number in range(10)]
        publish(client, DELAYED, iter(values))
        statistics = "/persistent/public/default/delayed/stats"
        until(lambda: admin.ask("GET", statistics)["subscriptions"]["later"]["msgDelayed"] == 70)
        until(lambda: buckets_of(directory))


def buckets_of(directory: Path) -> int:
    """Ledgers of buckets that the record of the delayed messages' cursor names."""
    key = metadata_keys.cursor(TopicName.parse(DELAYED).path, "later")
    with contextlib.closing(sqlite3.connect(directory / METADATA_FILE)) as database:
        (value,) = database.execute("SELECT value FROM magnetar_metadata WHERE key = ?", (key,)).fetchone()
    return len(CursorRecord.unpack(value).beside)


def compact(client: Any, admin: AdminCalls) -> None:
    """A compacted topic, with messages behind the compaction."""
    topic = "/persistent/public/default/compacted/compaction"
    client.subscribe(COMPACTED, "keeper", initial_position=EARLIEST).close()
    publish(client, COMPACTED, numbered("before", range(30)), batching_enabled=True)
    admin.ask("PUT", topic)
    until(lambda: admin.ask("GET", topic)["status"] == "SUCCESS")
    publish(client, COMPACTED, numbered("behind", range(3)))


def number_once(client: Any, numbers: range) -> None:
    """Messages of a producer whose sequence ids are its own."""
    producer = client.create_producer(ONCE, producer_name="teller", send_timeout_millis=0)
    for number in numbers:
        producer.send(b"once %d" % number, sequence_id=10 * number)
    producer.close()


# -- the second process: a crash ---------------------------------------------------------------------------------------


def fill_more(client: Any) -> None:
    """What the second process stores before it crashes. Everything here was answered, so it is durable."""
    publish(client, PLAIN, numbered("plain", range(40, 52)), batching_enabled=False, producer_name="plain-producer")
    acknowledge(client, PLAIN, "holes", 39, lambda number: number % 5 == 0)
    publish(client, FLIGHTS, numbered("flight", range(60, 66)), batching_enabled=True)
    number_once(client, range(10, 13))


def facts_of(client: Any, admin: AdminCalls, cluster_id: str) -> dict[str, Any]:
    """What a later version has to find."""
    return {
        "cluster_id": cluster_id,
        "messages": {topic: read_topic(client, topic) for topic in READ_WHOLE},
        "compacted": read_topic(client, COMPACTED, is_read_compacted=True),
        "trimmed": [described[1] for described in read_topic(client, TRIMMED)],
        "waiting": [
            [PLAIN, "mark", "Exclusive", waiting(client, PLAIN, "mark", ConsumerType.Exclusive, 42)],
            [PLAIN, "holes", "Shared", waiting(client, PLAIN, "holes", SHARED, 31)],
            [PLAIN, "all", "Shared", waiting(client, PLAIN, "all", SHARED, 12)],
            [PLAIN, "untouched", "Exclusive", waiting(client, PLAIN, "untouched", ConsumerType.Exclusive, 52)],
            [BATCHED, "indexes", "Shared", waiting(client, BATCHED, "indexes", SHARED, 13)],
            [FLIGHTS, "some", "Shared", waiting(client, FLIGHTS, "some", SHARED, 36)],
            [LARGE, "chunks", "Exclusive", waiting(client, LARGE, "chunks", ConsumerType.Exclusive, 2)],
            [TRIMMED, "reader", "Exclusive", waiting(client, TRIMMED, "reader", ConsumerType.Exclusive, 4)],
        ],
        "delayed": sorted(text_of(b"soon %d" % number) for number in range(60)),
        "admin": {path: admin.ask("GET", path) for path in ADMIN_PATHS},
    }


ADMIN_PATHS = [
    "/tenants",
    "/tenants/museum",
    "/namespaces/museum",
    "/namespaces/museum/rooms/retention",
    "/namespaces/museum/rooms/deduplication",
    "/namespaces/museum/rooms/maxProducersPerTopic",
    "/namespaces/museum/rooms/properties",
    "/namespaces/public/default/retention",
    "/persistent/public/default",
    "/persistent/public/default/partitioned",
    "/persistent/museum/rooms",
    "/persistent/museum/attic",
    "/persistent/public/default/plain/maxConsumers",
    "/schemas/museum/rooms/orders/schemas",
    "/schemas/museum/rooms/notes/schemas",
]


def start(directory: Path) -> Any:
    """The cluster on a directory, in this process."""
    return magnetar.start(
        embedded=True, data_dir=directory, port=0, admin_port=0, ensemble=ENSEMBLE, settings=SETTINGS, brokers=2
    )


def first_process(directory: Path) -> None:
    """Fill a directory and stop in good order."""
    with start(directory) as cluster, cluster.client() as client:
        fill(client, AdminCalls(cluster.admin_url), directory)


def second_process(directory: Path, facts: Path) -> None:
    """Add to it, note the facts, and end as a crash does."""
    cluster = start(directory)
    client = cluster.client()
    fill_more(client)
    found = facts_of(client, AdminCalls(cluster.admin_url), cluster.cluster_id)
    facts.write_text(json.dumps(found, indent=1, sort_keys=True))
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a data directory for later versions to read.")
    parser.add_argument("name", help="a word that says which formats it has")
    parser.add_argument("--step", nargs=2, metavar=("STEP", "DIRECTORY"), help="(what this program calls itself with)")
    given = parser.parse_args()
    if given.step:
        step, directory = given.step[0], Path(given.step[1])
        if step == "first":
            first_process(directory / "data")
        else:
            second_process(directory / "data", directory / FACTS)
        return
    DIRECTORY.mkdir(exist_ok=True)
    if (DIRECTORY / f"{given.name}.tar.xz").exists():
        raise SystemExit(f"{given.name} exists: choose another name")
    with tempfile.TemporaryDirectory() as temporary:
        for step in ("first", "second"):
            subprocess.run([sys.executable, "-P", __file__, given.name, "--step", step, temporary], check=True)
        with tarfile.open(DIRECTORY / f"{given.name}.tar.xz", "w:xz", preset=9) as archive:
            for name in ("data", FACTS):
                archive.add(Path(temporary) / name, name)
    print(DIRECTORY / f"{given.name}.tar.xz")


if __name__ == "__main__":
    main()
