"""`to_arrow` and `to_pandas` on a cluster, in a process that knows only the admin HTTP."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import magnetar
from magnetar.bulk import local_read
from magnetar.bulk.message_table import COLUMNS
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2)

Publish = Callable[..., list[Any]]


@pytest.fixture
def publish(cluster: EmbeddedCluster, topic: str) -> Publish:
    """Publish messages in small batches to a topic that keeps them; returns what a reader gets."""

    def run(count: int, partitions: int = 0, **options: Any) -> list[Any]:
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=partitions))
        with magnetar.Client(cluster.service_url) as client:
            client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
            producer = client.create_producer(topic, batching_max_messages=7, block_if_queue_full=True, **options)
            for number in range(count):
                more = {"partition_key": f"k{number % 5}", "event_timestamp": 1 + number} if number % 3 else {}
                producer.send_async(b"%d" % number, None, properties={"n": str(number)} if number % 4 else None, **more)
            producer.flush()
            reader = client.create_reader(topic, magnetar.MessageId.earliest)
            return [reader.read_next(10_000) for _ in range(count)]

    return run


def ids(messages: list[Any]) -> list[bytes]:
    return sorted(one.message_id().serialize() for one in messages)


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_table_has_what_a_reader_gets(publish: Publish, topic: str, admin_url: str, partitions: int) -> None:
    messages = publish(400, partitions, compression_type=magnetar.CompressionType.LZ4)
    table = magnetar.to_arrow(topic, admin_url=admin_url)
    assert table.column_names == list(COLUMNS)
    rows = {row["__messageId"]: row for row in table.to_pylist()}
    assert sorted(rows) == ids(messages)
    for message in messages:
        row = rows[message.message_id().serialize()]
        found = (row["value"], row["__key"] or "", dict(row["__messageProperties"]), row["__topic"])
        assert found == (message.data(), message.partition_key(), message.properties(), message.topic_name())
    numbers = [int(row["value"]) for row in table.to_pylist() if row["__partition"] == table["__partition"][0].as_py()]
    assert numbers == sorted(numbers), "a partition is in order"


def test_bounds_columns_and_pandas(publish: Publish, topic: str, admin_url: str) -> None:
    messages = publish(100)
    first, last = messages[17].message_id(), messages[55].message_id()
    table = magnetar.to_arrow(topic, first, last, columns=["__sequenceId", "value"], admin_url=admin_url)
    assert table.column_names == ["__sequenceId", "value"]
    assert table["value"].to_pylist() == [b"%d" % number for number in range(17, 56)]
    frame = magnetar.to_pandas(topic, first, last, columns=["value"], admin_url=admin_url)
    assert list(frame["value"]) == table["value"].to_pylist()
    now_ms = int(time.time() * 1000) + 1_000
    assert magnetar.to_arrow(topic, now_ms, admin_url=admin_url).num_rows == 0


def test_a_topic_that_is_larger_than_what_is_held_is_read_with_little(
    publish: Publish, topic: str, admin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(3_000)  # entries of about 60 bytes, in a ledger that is still open
    monkeypatch.setattr("magnetar.bulk.read_plan.SPLIT_SIZE_MIN_BYTES", 2_000)
    monkeypatch.setattr("magnetar.bulk.read_plan.SPLIT_SIZE_MAX_BYTES", 2_000)
    begun = 0
    read_split = local_read._read_split

    async def counting(*arguments: Any) -> list[Any]:
        nonlocal begun
        begun += 1
        return await read_split(*arguments)

    monkeypatch.setattr(local_read, "_read_split", counting)
    batches = magnetar.arrow_batches(topic, admin_url=admin_url)
    first = next(batches)
    assert begun <= local_read.SPLITS_AHEAD
    batches.close()
    assert first.num_rows and begun <= local_read.SPLITS_AHEAD
    assert sum(batch.num_rows for batch in magnetar.arrow_batches(topic, admin_url=admin_url)) == 3_000
    assert 30 < begun < 300


def test_errors_say_what_is_wrong(topic: str, admin_url: str) -> None:
    with pytest.raises(magnetar.TopicNotFound):
        magnetar.to_arrow(topic, admin_url=admin_url)
    with pytest.raises(magnetar.InvalidConfiguration, match="no column 'key'"):
        magnetar.to_arrow(topic, columns=["key"], admin_url=admin_url)
    with pytest.raises(magnetar.InvalidConfiguration, match="http://host:port"):
        magnetar.to_arrow(topic, admin_url="pulsar://127.0.0.1:6650")
    with pytest.raises(magnetar.ConnectError, match="does not answer"):
        magnetar.to_arrow(topic, admin_url="http://127.0.0.1:1")
