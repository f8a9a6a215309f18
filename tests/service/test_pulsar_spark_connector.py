"""The Pulsar Spark connector of StreamNative, in Java, reads our topics: batches, streams, typed columns, an unload."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until

pytestmark = [
    pytest.mark.cluster_settings(brokers=2, ledger_entries_max=20, ledger_rollover_min_minutes=0),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WAIT_S = 60.0


@dataclass
class Flight:
    carrier: str
    delay: int


@pytest.fixture
def options(cluster: EmbeddedCluster, admin_url: str, topic: str, connector: str) -> dict[str, str]:
    """Those of the connector. The fixture `connector` is the jar, which the session has."""
    return {"service.url": cluster.service_url, "admin.url": admin_url, "topic": topic, "startingOffsets": "earliest"}


def producer(cluster: EmbeddedCluster, client: magnetar.Client, topic: str, **more: Any) -> Any:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=2))
    client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
    return client.create_producer(topic, batching_enabled=True, batching_max_messages=7, **more)


def test_a_batch_has_all_rows_with_their_keys(
    cluster: EmbeddedCluster, local_spark: Any, topic: str, options: dict[str, str]
) -> None:
    with magnetar.Client(cluster.service_url) as client:
        publishing = producer(cluster, client, topic)
        for number in range(300):
            publishing.send_async(b"%d" % number, None, partition_key=f"k{number % 5}")
        publishing.flush()
    rows = local_spark.read.format("pulsar").options(**options).load().collect()
    found = sorted((int(bytes(row["value"])), bytes(row["__key"]).decode()) for row in rows)
    assert found == [(number, f"k{number % 5}") for number in range(300)]


def test_records_are_typed_columns(
    cluster: EmbeddedCluster, local_spark: Any, topic: str, options: dict[str, str]
) -> None:
    with magnetar.Client(cluster.service_url) as client:
        publishing = producer(cluster, client, topic, schema=magnetar.schema.AvroSchema(Flight))
        for number in range(50):
            publishing.send(Flight(carrier=f"c{number % 3}", delay=number))
    frame = local_spark.read.format("pulsar").options(**options).load()
    assert sorted((row["delay"], row["carrier"]) for row in frame.select("delay", "carrier").collect()) == [
        (number, f"c{number % 3}") for number in range(50)
    ]


def test_a_stream_goes_on_across_an_unload(
    cluster: EmbeddedCluster, local_spark: Any, topic: str, admin_url: str, options: dict[str, str], tmp_path: Path
) -> None:
    seen: list[int] = []

    def store(frame: Any, number: int) -> None:
        seen.extend(int(bytes(row["value"])) for row in frame.select("value").collect())

    with magnetar.Client(cluster.service_url) as client:
        publishing = producer(cluster, client, topic)
        frame = local_spark.readStream.format("pulsar").options(**options).load()
        writing = frame.writeStream.foreachBatch(store).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.start()
        try:
            for begin in (0, 100, 200):
                publishing.send_many([b"%d" % number for number in range(begin, begin + 100)])
                wait_until(lambda end=begin + 100: sorted(seen) == list(range(end)), "all rows came", WAIT_S)
                url = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/unload"
                urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            assert query.isActive, json.dumps(query.lastProgress)
        finally:
            query.stop()
