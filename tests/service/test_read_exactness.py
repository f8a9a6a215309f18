"""Bulk reads of random topics give what a plain reader gets: the same messages, in the same order, in each partition.

Each seed draws a topic (partitions, producers with their codecs, batches and chunks, keys, tombstones, properties). It
draws what happens to it (ledgers that end, compaction, messages that are acknowledged and trimmed, unloads), and starts
and ends. `READS=200` in the environment tries as many seeds; `FIRST` is the first.
"""

import os
import random
import urllib.request
from collections import defaultdict
from typing import Any, NamedTuple

import pytest

import magnetar
from magnetar.bulk import read_plan
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import until

MESSAGE_SIZE_MAX_BYTES = 4096
pytestmark = pytest.mark.cluster_settings(
    brokers=2, ledger_entries_max=5, ledger_rollover_min_minutes=0, max_message_size_bytes=MESSAGE_SIZE_MAX_BYTES
)
FIRST = int(os.environ.get("FIRST", "0"))
READS = int(os.environ.get("READS", "24"))
SPLIT_BYTES = (300, 3_000, 1 << 20)
WAIT_MS = 20_000
ATTEMPTS = 5


class Row(NamedTuple):
    """A message as a reader shows it."""

    message_id: bytes
    value: bytes
    key: str
    properties: tuple[tuple[str, str], ...]
    event_time_ms: int
    publish_time_ms: int


class RandomTopic:
    """A topic that a seed draws, on a cluster that is there."""

    def __init__(self, cluster: EmbeddedCluster, client: magnetar.Client, admin_url: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.name = f"persistent://public/default/exact-{seed}"
        self.partitions = self.chance.choice([0, 0, 1, 3])
        self.compacted = self.chance.random() < 0.3
        self._cluster, self._client, self._admin_url = cluster, client, admin_url
        cluster.run(cluster.coordinator_call("create_topic", topic=self.name, partitions=self.partitions))
        self.parts = [f"{self.name}-partition-{index}" for index in range(self.partitions)] or [self.name]
        self._kept = 0
        """Messages that are published and not acknowledged."""
        self._keeper = client.subscribe(
            self.name,
            "keeper",
            initial_position=magnetar.InitialPosition.Earliest,
            auto_ack_oldest_chunked_message_on_queue_full=False,
        )

    def fill(self) -> None:
        """Publish, and let things happen between."""
        for _ in range(self.chance.randint(1, 3)):
            self._publish()
            happening = self.chance.choice(["nothing", "unload", "compact" if self.compacted else "trim"])
            if happening == "unload":
                for part in self.parts:
                    self._ask("PUT", part, "/unload")
            elif happening == "compact":
                self._compact()
            elif happening == "trim":
                for _ in range(self.chance.randint(0, min(self._kept, 15))):
                    self._keeper.acknowledge(self._keeper.receive(WAIT_MS))
                    self._kept -= 1

    def _publish(self) -> None:
        producers = [self._producer() for _ in range(self.chance.randint(1, 3))]
        for number in range(self.chance.randint(1, 60)):
            producer, size_max = self.chance.choice(producers)
            key = self.chance.choice([None, "", "k1", "k2", f"k{number}"])
            properties = {"n": str(number), "ü": "ä"} if self.chance.random() < 0.3 else None
            value: bytes | None = self.chance.randbytes(min(size_max, int(self.chance.expovariate(1 / 300))))
            if self.chance.random() < 0.1:
                value = self.chance.randbytes(self.chance.randint(0, size_max))
            elif self.chance.random() < 0.1:
                value = b""
            more = {"event_timestamp": self.chance.randint(1, 2**41)} if self.chance.random() < 0.3 else {}
            producer.send_async(value, None, properties=properties, partition_key=key, **more)
            self._kept += 1
            if self.chance.random() < 0.1:
                producer.flush()
        for producer, _ in producers:
            producer.flush()
            producer.close()

    def _producer(self) -> tuple[Any, int]:
        """A producer, and how large its messages may be."""
        kind = self.chance.choice(["single", "batch", "key batch", "chunks"])
        made = self._client.create_producer(
            self.name,
            compression_type=self.chance.choice(list(magnetar.CompressionType)),
            batching_enabled="batch" in kind,
            batching_max_messages=self.chance.randint(1, 20),
            batching_type=getattr(magnetar.BatchingType, "KeyBased" if kind == "key batch" else "Default"),
            chunking_enabled=kind == "chunks",
            block_if_queue_full=True,
        )
        return made, 5 * MESSAGE_SIZE_MAX_BYTES if kind == "chunks" else 3000

    def _compact(self) -> None:
        for part in self.parts:
            self._ask("PUT", part, "/compaction")
            until(lambda part=part: b"SUCCESS" in self._ask("GET", part, "/compaction"))

    def _ask(self, method: str, topic: str, path: str) -> bytes:
        url = f"{self._admin_url}/admin/v2/{topic.replace('://', '/')}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return bytes(answer.read())

    def read(self, start: Any = None) -> dict[int, list[Row]]:
        """What a plain reader gets of each partition, from a message on or from the beginning."""
        found: dict[int, list[Row]] = {}
        for index, part in enumerate(self.parts):
            options = {"is_read_compacted": self.compacted, "start_message_id_inclusive": True}
            with self._client.create_reader(part, start or magnetar.MessageId.earliest, **options) as reader:
                rows: list[Row] = []
                while reader.has_message_available():
                    rows.append(as_row(reader.read_next(WAIT_MS)))
            found[index if self.partitions else -1] = rows
        return found


def as_row(message: Any) -> Row:
    return Row(
        message.message_id().serialize(),
        message.data(),
        message.partition_key(),
        tuple(sorted(message.properties().items())),
        message.event_timestamp(),
        message.publish_timestamp(),
    )


def in_bulk(topic: RandomTopic, admin_url: str, start: Any, end: Any) -> dict[int, list[Row]]:
    """What a bulk read gives, by partition."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for batch in magnetar.arrow_batches(topic.name, start, end, is_read_compacted=topic.compacted, admin_url=admin_url):
        for row in batch.to_pylist():
            event_time = row["__eventTime"]
            found[row["__partition"]].append(
                Row(
                    row["__messageId"],
                    row["value"] or b"",
                    row["__key"] or "",
                    tuple(sorted(dict(row["__messageProperties"]).items())),
                    0 if event_time is None else round(event_time.timestamp() * 1000),
                    round(row["__publishTime"].timestamp() * 1000),
                )
            )
    return dict(found)


def drawn_bound(chance: random.Random, rows: dict[int, list[Row]], otherwise: str) -> tuple[Any, Any]:
    """A start or an end: as a bulk read takes it, and as a row of the only partition or a time."""
    every = [row for part in rows.values() for row in part]
    kind = chance.choice([otherwise, "time", "id"])
    if not every or kind == otherwise or (kind == "id" and len(rows) > 1):
        return otherwise, None
    row = chance.choice(every)
    return (row.publish_time_ms, row.publish_time_ms) if kind == "time" else (row.message_id, row)


@pytest.fixture(scope="module")
def client(cluster: EmbeddedCluster) -> Any:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=30) as made:
        yield made


def between(topic: RandomTopic, rows: dict[int, list[Row]], first: Any, last: Any) -> dict[int, list[Row]]:
    """What a plain reader gets between two bounds, of partitions that have something there."""
    if isinstance(first, Row):
        rows = topic.read(magnetar.MessageId.deserialize(first.message_id))
    elif first is not None:
        rows = {part: [row for row in found if row.publish_time_ms >= first] for part, found in rows.items()}
    if isinstance(last, Row):
        ((part, found),) = rows.items()
        ids = [row.message_id for row in found]
        rows = {part: found[: ids.index(last.message_id) + 1 if last.message_id in ids else 0]}
    elif last is not None:
        rows = {part: [row for row in found if row.publish_time_ms < last] for part, found in rows.items()}
    return {part: found for part, found in rows.items() if found}


@pytest.mark.parametrize("seed", range(FIRST, FIRST + READS))
def test_a_bulk_read_gives_what_a_reader_gets(
    cluster: EmbeddedCluster, client: magnetar.Client, admin_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = RandomTopic(cluster, client, admin_url, seed)
    topic.fill()
    monkeypatch.setattr(read_plan, "SPLIT_SIZE_MIN_BYTES", 1)
    monkeypatch.setattr(read_plan, "SPLIT_SIZE_MAX_BYTES", topic.chance.choice(SPLIT_BYTES))
    compared = 0
    for _ in range(ATTEMPTS):
        rows = topic.read()
        start, first = drawn_bound(topic.chance, rows, "earliest")
        end, last = drawn_bound(topic.chance, rows, "latest")
        found, expected = in_bulk(topic, admin_url, start, end), between(topic, rows, first, last)
        if topic.read() == rows:  # else a ledger was trimmed meanwhile
            compared += 1
            assert found == expected, (start, end)
    assert compared, "the topic does not come to rest"
