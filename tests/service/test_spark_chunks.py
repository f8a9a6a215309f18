"""The data source of Spark 4 on messages in chunks and on encrypted ones: over tasks, micro-batches and runs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import magnetar
from support.files.key_files import write_key_files
from support.servers.embedded_cluster import EmbeddedCluster
from support.spark.spark4 import Spark4, SparkFailed

SIZE_MAX = 20_000
CHUNKS = 4
VALUES = "SELECT __messageId, value FROM t"

pytestmark = pytest.mark.cluster_settings(
    brokers=2, max_message_size_bytes=SIZE_MAX, ledger_entries_max=7, ledger_rollover_min_minutes=0
)


@pytest.fixture
def kept(cluster: EmbeddedCluster, topic: str) -> str:
    """A topic that keeps what is published."""
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
    return topic


def publish(cluster: EmbeddedCluster, topic: str, count: int, **options: Any) -> dict[str, bytes]:
    """Messages of two producers in chunks that are interwoven. By id, in hexadecimal as in Spark's rows."""
    with magnetar.Client(cluster.service_url) as client:
        producers = [
            client.create_producer(topic, chunking_enabled=True, batching_enabled=False, **options) for _ in range(2)
        ]
        contents = [os.urandom(CHUNKS * SIZE_MAX - 10_000) for _ in range(count)]
        for number, content in enumerate(contents):
            producers[number % 2].send_async(content, lambda *_: None)
        for producer in producers:
            producer.flush()
        reader = client.create_reader(
            topic, magnetar.MessageId.earliest, crypto_key_reader=options.get("crypto_key_reader")
        )
        found: dict[str, bytes] = {}
        while reader.has_message_available():
            message = reader.read_next(10_000)
            found[message.message_id().serialize().hex()] = message.data()
        assert set(found.values()) >= set(contents)
        return found


def values(found: dict[str, Any]) -> dict[str, bytes]:
    rows = {message_id: bytes.fromhex(value) for message_id, value in found["rows"]}
    assert len(rows) == len(found["rows"]), "each message comes once"
    return rows


def test_tasks_put_messages_together_and_decrypt(
    cluster: EmbeddedCluster, spark: Spark4, kept: str, admin_url: str, tmp_path: Path
) -> None:
    public, private = write_key_files(tmp_path)
    keys = magnetar.CryptoKeyReader(public, private)
    expected = publish(cluster, kept, 8, encryption_key="agency", crypto_key_reader=keys)
    options = {"admin.url": admin_url, "topic": kept, "maxBytesPerSplit": "65536"}
    found = spark.ask({**options, "privateKeyPath": private}, VALUES, tasks=True)
    assert values(found) == expected and found["tasks"] > 8
    directory = tmp_path / "keys"
    directory.mkdir()
    (directory / "agency.pem").write_bytes(Path(private).read_bytes())
    assert values(spark.ask({**options, "privateKeyPath": str(directory)}, VALUES)) == expected
    with pytest.raises(SparkFailed, match=r"CryptoError.*privateKeyPath"):
        spark.ask(options, VALUES)
    assert spark.rows({**options, "cryptoFailureAction": "DISCARD"}, "SELECT count(*) FROM t") == [[0]]
    opaque = values(spark.ask({**options, "cryptoFailureAction": "consume"}, VALUES))
    assert opaque.keys() == expected.keys() and not {*opaque.values()} & {*expected.values()}
    with pytest.raises(SparkFailed, match="private key"):
        spark.ask({**options, "privateKeyPath": str(tmp_path / "none")}, VALUES)


def test_a_message_may_cross_micro_batches_and_runs_and_comes_once(
    cluster: EmbeddedCluster, spark: Spark4, topic: str, admin_url: str, tmp_path: Path
) -> None:
    options = {
        "admin.url": admin_url,
        "topic": topic,
        "startingOffsets": "earliest",
        "predefinedSubscription": "spark",
        "maxBytesPerTrigger": str(2 * SIZE_MAX),
    }
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    assert spark.ask(options, VALUES, directory=str(tmp_path))["rows"] == []
    expected = publish(cluster, topic, 5)
    found = spark.ask(options, VALUES, directory=str(tmp_path))
    assert values(found) == expected and sum(found["batches"]) == 5
    again = publish(cluster, topic, 3)
    assert values(spark.ask(options, VALUES, directory=str(tmp_path))) == {**expected, **again}


def test_a_query_leaves_out_what_begins_before_it_in_all_micro_batches(
    cluster: EmbeddedCluster, spark: Spark4, kept: str, admin_url: str, tmp_path: Path
) -> None:
    messages = publish(cluster, kept, 6)
    ids = [magnetar.MessageId.deserialize(bytes.fromhex(one)) for one in messages]
    begin = magnetar.MessageId(-1, *sorted(one.position for one in ids)[1])  # the last chunk of the second message
    with magnetar.Client(cluster.service_url) as client:
        reader = client.create_reader(kept, begin, start_message_id_inclusive=True)
        expected: dict[str, bytes] = {}
        while reader.has_message_available():
            message = reader.read_next(10_000)
            expected[message.message_id().serialize().hex()] = message.data()
    assert 0 < len(expected) < len(messages) - 1
    options = {"admin.url": admin_url, "topic": kept, "startingOffsets": json.dumps({kept: begin.serialize().hex()})}
    found = spark.ask({**options, "maxBytesPerTrigger": str(SIZE_MAX)}, VALUES, directory=str(tmp_path))
    assert values(found) == expected
