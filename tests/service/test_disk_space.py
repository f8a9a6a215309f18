"""Disk space comes back: the bookies' files shrink once a topic gives messages up, by retention or by compaction."""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.cluster.handle import Cluster

SEGMENT_BYTES = 1 << 20
PAYLOAD_BYTES = 10_000
MESSAGES = 1_000
KEYS = 10
STORED_BYTES = 3 * MESSAGES * PAYLOAD_BYTES
"""By three bookies."""
LEFT_BYTES = STORED_BYTES // 3
"""What may be left: the journals in use, what is kept, and the records of the bookies."""
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def cluster(directory: Path) -> Iterator[Cluster]:
    settings = {
        "logSizeLimit": SEGMENT_BYTES,
        "gcWaitTime": 100,
        "majorCompactionInterval": 0.1,
        "nettyMaxFrameSizeBytes": 300_000,
        "maxMessageSize": 200_000,
        "managedLedgerMaxEntriesPerLedger": 100,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    }
    with magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0, settings=settings) as running:
        yield running


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def client(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Any]:
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if request.param is pulsar else {}
    made = request.param.Client(cluster.service_url, operation_timeout_seconds=20, **options)
    yield made
    made.close()


def disk_bytes(directory: Path) -> int:
    """What the bookies' files take on the disk. Files come and go meanwhile."""
    total = 0
    for path in directory.glob("bookie-*/**/*"):
        try:
            total += os.stat(path).st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def until(condition: Callable[[], bool], shown: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.05)


def ask(cluster: Cluster, method: str, path: str, body: object = None) -> Any:
    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/t{path}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def publish(client: Any) -> None:
    producer = client.create_producer("t", batching_enabled=False, block_if_queue_full=True)
    for number in range(MESSAGES):
        key = f"k{number % KEYS}"
        producer.send_async(os.urandom(PAYLOAD_BYTES), lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


@pytest.mark.promise("26.2")
def test_files_shrink_when_messages_are_no_longer_retained(client: Any, cluster: Cluster, directory: Path) -> None:
    ask(cluster, "PUT", "")
    ask(cluster, "POST", "/retention", FOR_EVER)
    assert disk_bytes(directory) < LEFT_BYTES
    publish(client)
    time.sleep(0.5)  # several collections, which find nothing to delete
    assert disk_bytes(directory) > STORED_BYTES
    ask(cluster, "POST", "/retention", NOTHING)
    until(lambda: disk_bytes(directory) < LEFT_BYTES, lambda: disk_bytes(directory))


@pytest.mark.promise("26.2")
def test_files_shrink_when_a_topic_is_compacted_and_its_values_stay(
    client: Any, cluster: Cluster, directory: Path
) -> None:
    module = magnetar if isinstance(client, magnetar.Client) else pulsar
    ask(cluster, "PUT", "")
    compact(cluster)
    publish(client)
    time.sleep(0.5)
    assert disk_bytes(directory) > STORED_BYTES
    compact(cluster)
    until(lambda: disk_bytes(directory) < LEFT_BYTES, lambda: disk_bytes(directory))
    reader = client.create_reader("t", module.MessageId.earliest, is_read_compacted=True)
    values = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        values[message.partition_key()] = len(message.data())
    assert values == {f"k{number}": PAYLOAD_BYTES for number in range(KEYS)}


def compact(cluster: Cluster) -> None:
    ask(cluster, "PUT", "/compaction")
    until(lambda: ask(cluster, "GET", "/compaction")["status"] == "SUCCESS", lambda: ask(cluster, "GET", "/compaction"))
