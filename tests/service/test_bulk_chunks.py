"""Bulk reads of messages in chunks and of encrypted ones, against what readers of both clients get from a cluster."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.bulk import look_back, read_plan
from support.clients.plain_reading import rows_of
from support.clients.sides import connect
from support.files.key_files import write_key_files
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until

SIZE_MAX = 20_000
EARLIEST = magnetar.MessageId.earliest
Action = magnetar.ConsumerCryptoFailureAction

pytestmark = pytest.mark.cluster_settings(
    brokers=2, max_message_size_bytes=SIZE_MAX, ledger_entries_max=12, ledger_rollover_min_minutes=0
)


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of about two entries, and pieces of one."""
    monkeypatch.setattr(read_plan, "SPLIT_SIZE_MIN_BYTES", 2 * SIZE_MAX)
    monkeypatch.setattr(read_plan, "SPLIT_SIZE_MAX_BYTES", 2 * SIZE_MAX)
    monkeypatch.setattr(look_back, "PIECE_SIZE_BYTES", SIZE_MAX)
    monkeypatch.setattr(look_back, "PIECE_ENTRIES_UNKNOWN", 2)


@pytest.fixture
def kept(cluster: EmbeddedCluster, topic: str) -> str:
    """A topic that keeps what is published."""
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
    return topic


def publish(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    """Large and small messages of both clients, interwoven: in chunks with and without compression, and in batches."""
    with connect(cluster.service_url, "ours") as ours, connect(cluster.service_url, "official") as official:
        producers: list[Any] = []
        for side in (ours, official):
            chunking: dict[str, Any] = {"chunking_enabled": True, "batching_enabled": False}
            zlib = side.module.CompressionType.ZLib
            producers += [
                side.client.create_producer(topic, **chunking),
                side.client.create_producer(topic, compression_type=zlib, **chunking),
                side.client.create_producer(topic, batching_enabled=True, batching_max_messages=3),
            ]
        for number in range(count):
            for place, producer in enumerate(producers):
                size = 20 if place % 3 == 2 else (number % 4) * SIZE_MAX * 9 // 10 + 10
                content = os.urandom(size // 2) + bytes(size // 2)
                more: dict[str, Any] = {"partition_key": f"k{number % 3}", "event_timestamp": 7} if number % 2 else {}
                producer.send_async(content, lambda *_: None, properties={"n": str(number)}, **more)
        for producer in producers:
            producer.flush()


def read(client: magnetar.Client, topic: str, start: magnetar.MessageId = EARLIEST, **options: Any) -> list[Any]:
    """The messages that a reader gets from there on."""
    reader = client.create_reader(topic, start, start_message_id_inclusive=True, **options)
    found: list[Any] = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000))
    return found


def table(topic: str, admin_url: str, *bounds: Any, **options: Any) -> list[dict[str, Any]]:
    found = magnetar.to_arrow(topic, *bounds, admin_url=admin_url, **options).to_pylist(maps_as_pydicts="strict")
    return [{**row, "__partition": 0} for row in found] if "columns" not in options else found


def expected(messages: list[Any]) -> list[dict[str, Any]]:
    return [{**row, "__partition": 0} for row in rows_of(messages)]


@pytest.mark.promise("29.7")
def test_a_table_has_the_messages_in_chunks_of_both_clients(
    cluster: EmbeddedCluster, official_client: pulsar.Client, kept: str, admin_url: str
) -> None:
    publish(cluster, kept, 20)
    with magnetar.Client(cluster.service_url) as client:
        messages = read(client, kept)
    rows = table(kept, admin_url)
    assert len(messages) == 6 * 20 and rows == expected(messages)
    assert sum(len(magnetar.MessageId.deserialize(row["__messageId"]).text.split(";")) == 2 for row in rows) >= 30
    reader = official_client.create_reader(kept, pulsar.MessageId.earliest)
    theirs = [reader.read_next(10_000) for _ in rows]
    assert [(one.message_id().serialize(), one.data()) for one in theirs] == [
        (row["__messageId"], row["value"]) for row in rows
    ]
    assert [row["__messageId"] for row in table(kept, admin_url, columns=["__messageId"])] == [
        row["__messageId"] for row in rows
    ]


def test_bounds_are_those_of_a_reader_that_starts_there(cluster: EmbeddedCluster, kept: str, admin_url: str) -> None:
    publish(cluster, kept, 8)
    with magnetar.Client(cluster.service_url) as client:
        messages = read(client, kept)
        ids = [message.message_id() for message in messages]
        places = [place for place, one in enumerate(ids) if ";" in one.text]
        for place in (0, places[0], places[len(places) // 2], places[-1], len(ids) - 1):
            inside = magnetar.MessageId(-1, *ids[place].position)  # the entry alone: of a message its last chunk
            for start in (ids[place], inside):
                assert table(kept, admin_url, start) == expected(read(client, kept, start))
            until = expected(messages[: place + 1])
            assert table(kept, admin_url, "earliest", ids[place]) == until
            assert table(kept, admin_url, "earliest", inside)[: len(until)] == until
    times = sorted(message.publish_timestamp() for message in messages)
    middle = times[len(times) // 2]
    early, late = table(kept, admin_url, times[0], middle), table(kept, admin_url, middle)
    assert early == expected([one for one in messages if one.publish_timestamp() < middle])
    assert late == expected([one for one in messages if one.publish_timestamp() >= middle])


def test_a_compacted_read_has_the_messages_in_chunks_that_are_left(
    cluster: EmbeddedCluster, kept: str, admin_url: str
) -> None:
    publish(cluster, kept, 9)
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(kept, chunking_enabled=True, batching_enabled=False)
        for number in range(12):
            producer.send(os.urandom(3 * SIZE_MAX), partition_key=f"film-{number % 4}")
    path = f"{admin_url}/admin/v2/{kept.replace('://', '/')}/compaction"
    urllib.request.urlopen(urllib.request.Request(path, method="PUT"), timeout=10).close()

    def compacted() -> bool:
        with urllib.request.urlopen(path, timeout=10) as answer:
            return json.load(answer)["status"] == "SUCCESS"

    wait_until(compacted, "the topic is compacted", 30)
    with magnetar.Client(cluster.service_url) as client:
        everything = len(read(client, kept))
        publish(cluster, kept, 3)
        messages = read(client, kept, is_read_compacted=True)
    assert 18 < len(messages) < everything
    films = [one for one in messages if one.partition_key().startswith("film")]
    assert len(films) == 4 and all(len(one.data()) == 3 * SIZE_MAX for one in films)
    assert table(kept, admin_url, is_read_compacted=True) == expected(messages)


@pytest.mark.promise("29.7")
def test_what_both_clients_encrypted_is_read_with_the_key(
    cluster: EmbeddedCluster, kept: str, admin_url: str, tmp_path: Path
) -> None:
    public, private = write_key_files(tmp_path)
    keys = magnetar.CryptoKeyReader(public, private)
    content = os.urandom(3 * SIZE_MAX)
    with connect(cluster.service_url, "ours") as ours, connect(cluster.service_url, "official") as official:
        for side in (ours, official):
            sealing: dict[str, Any] = {
                "encryption_key": "agency",
                "crypto_key_reader": side.module.CryptoKeyReader(public, private),
                "compression_type": side.module.CompressionType.LZ4,
            }
            batches = side.client.create_producer(kept, batching_enabled=True, **sealing)
            for number in range(10):
                batches.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number}")
            batches.flush()
            chunking = side.client.create_producer(kept, batching_enabled=False, chunking_enabled=True, **sealing)
            chunking.send(content)
            side.client.create_producer(kept).send(b"plain")
    with magnetar.Client(cluster.service_url) as client:
        messages = read(client, kept, crypto_key_reader=keys)
        opaque = read(client, kept, crypto_failure_action=Action.CONSUME)
    assert [len(message.data()) for message in messages] == [1] * 10 + [3 * SIZE_MAX, 5] + [1] * 10 + [3 * SIZE_MAX, 5]
    assert table(kept, admin_url, crypto_key_reader=keys) == expected(messages)
    assert table(kept, admin_url, crypto_failure_action=Action.CONSUME) == expected(opaque)
    rows = table(kept, admin_url, crypto_failure_action=Action.DISCARD)
    assert [row["value"] for row in rows] == [b"plain", b"plain"]
    with pytest.raises(magnetar.CryptoError, match="crypto_key_reader"):
        table(kept, admin_url)
    assert len(table(kept, admin_url, columns=["__publishTime"])) == len(messages), "this needs no key"
    frame = magnetar.to_pandas(kept, admin_url=admin_url, crypto_key_reader=keys, columns=["value"])
    assert list(frame["value"]) == [message.data() for message in messages]
