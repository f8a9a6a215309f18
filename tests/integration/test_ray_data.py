"""Topics as Ray datasets, and datasets into topics, on a cluster on Ray."""

import itertools
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import ray
import ray.data
from ray.exceptions import RayTaskError

import magnetar
from magnetar.cluster.ray_cluster import RayCluster

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore:::ray"),  # Ray warns of settings that it makes itself
]
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def little_said() -> Iterator[None]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    yield


def publish(cluster: RayCluster, count: int, partitions: int = 0, **options: Any) -> str:
    """A topic with the numbers from 0, some in batches; their keys are their last digits."""
    topic = f"ray-data-{next(_numbers)}"
    with cluster.client() as client:
        if partitions:
            cluster_admin(cluster, "PUT", f"persistent/public/default/{topic}/partitions", partitions)
        producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=50, **options)
        for number in range(count):
            producer.send_async(str(number).encode(), None, partition_key=str(number % 10))
        producer.flush()
    return topic


def cluster_admin(cluster: RayCluster, method: str, path: str, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/{path}", json.dumps(body).encode(), headers, method=method
    )
    urllib.request.urlopen(request).close()


def numbers(dataset: ray.data.Dataset) -> list[int]:
    return [int(row["value"]) for row in dataset.iter_rows()]


@pytest.mark.promise("31.23")
def test_a_dataset_has_the_rows_of_a_topic_and_reads_the_columns_that_it_needs(cluster: RayCluster) -> None:
    topic = publish(cluster, 2_000, partitions=3)
    dataset = magnetar.data.read_topic(topic, max_bytes_per_split=10_000)
    assert dataset.count() == 2_000
    assert sorted(numbers(dataset)) == list(range(2_000))
    assert sorted(numbers(dataset.select_columns(["value"]))) == list(range(2_000))
    assert dataset.select_columns(["__key", "value"]).schema().names == ["__key", "value"]
    counted = Counter(row["__key"] for row in dataset.select_columns(["__key"]).iter_rows())
    assert counted == {str(digit): 200 for digit in range(10)}
    keys = magnetar.data.read_topic(topic, columns=["__key"], override_num_blocks=4)
    assert keys.schema().names == ["__key"] and keys.count() == 2_000


def test_each_execution_reads_the_same_rows_in_their_order(cluster: RayCluster) -> None:
    topic = publish(cluster, 300)
    dataset = magnetar.data.read_topic(topic, max_bytes_per_split=2_000)
    with cluster.client() as client:
        client.create_producer(topic).send(b"300")
    ordered = ray.data.DataContext.get_current()
    ordered.execution_options.preserve_order = True
    try:
        assert numbers(dataset) == numbers(dataset) == list(range(300))
    finally:
        ordered.execution_options.preserve_order = False
    assert magnetar.data.read_topic(topic, start=datetime(2100, 1, 1, tzinfo=UTC)).count() == 0
    assert magnetar.data.read_topic(topic).count() == 301


def test_a_dataset_is_split_between_the_workers_of_a_training(cluster: RayCluster) -> None:
    dataset = magnetar.data.read_topic(publish(cluster, 1_000), max_bytes_per_split=2_000)

    @ray.remote(num_cpus=0)
    def add(part: Any) -> int:
        return sum(int(value) for batch in part.iter_batches(batch_size=64) for value in batch["value"])

    parts = dataset.streaming_split(2)
    assert sum(ray.get([add.remote(part) for part in parts], timeout=120)) == sum(range(1_000))


@pytest.mark.promise("31.23")
def test_typed_rows_are_written_and_read_again(cluster: RayCluster) -> None:
    topic = f"ray-data-{next(_numbers)}"
    rows = ray.data.from_items([{"carrier": f"c{one % 3}", "delay": one, "__key": f"c{one % 3}"} for one in range(100)])
    sink = magnetar.data.TopicDatasink(topic, schema="avro")
    rows.write_datasink(sink)
    assert sink.written.rows == 100 and sink.written.size_bytes > 0
    flights = magnetar.data.read_topic(topic, schema="auto")
    with pytest.raises(magnetar.MagnetarError):  # all tasks have registered the same version
        magnetar.data.read_topic(topic, schema=1)
    assert flights.groupby("carrier").sum("delay").sort("carrier").take_all() == [
        {"carrier": f"c{digit}", "sum(delay)": sum(range(digit, 100, 3))} for digit in range(3)
    ]
    with cluster.client() as client:
        reader = client.create_reader(topic, magnetar.MessageId.earliest)
        assert {reader.read_next(10_000).partition_key() for _ in range(100)} == {"c0", "c1", "c2"}


def written_and_read(dataset: ray.data.Dataset, schema: str | None = "avro") -> list[dict[str, Any]]:
    """The rows without the columns that every topic has, in the order of their values."""
    topic = f"ray-data-{next(_numbers)}"
    sink = magnetar.data.TopicDatasink(topic, schema=schema)
    dataset.write_datasink(sink)
    found = magnetar.data.read_topic(topic, schema="auto" if schema else None)
    rows = [{name: row[name] for name in row if not name.startswith("__")} for row in found.take_all()]
    assert sink.written.rows == len(rows)
    return sorted(rows, key=str)


@pytest.mark.parametrize("batch_format", ["pyarrow", "pandas"])
def test_rows_are_stored_with_the_schema_that_they_have_when_they_are_written(batch_format: str) -> None:
    def named(batch: Any) -> Any:
        names = [f"n{one}" for one in (batch["id"].to_pylist() if batch_format == "pyarrow" else batch["id"])]
        return pa.table({"name": names}) if batch_format == "pyarrow" else pd.DataFrame({"name": names})

    wanted = [{"name": f"n{one}"} for one in range(8)]
    for begun in (ray.data.range(8), ray.data.from_items([{"id": one} for one in range(8)])):
        rows = begun.map_batches(named, batch_format=batch_format)
        assert written_and_read(rows) == wanted
        values = rows.rename_columns({"name": "value"})
        assert written_and_read(values, None) == [{"value": row["name"].encode()} for row in wanted]


@pytest.mark.parametrize("schema", ["avro", None])
def test_blocks_without_rows_are_written(schema: str | None) -> None:
    few = ray.data.range(100, override_num_blocks=10).filter(lambda row: row["id"] in (42, 43))
    rows = few.map(lambda row: {"value": f"n{row['id']}"})
    wanted = [{"value": "n42"}, {"value": "n43"}]
    assert written_and_read(rows, schema) == (
        wanted if schema else [{"value": row["value"].encode()} for row in wanted]
    )
    sink = magnetar.data.TopicDatasink(f"ray-data-{next(_numbers)}", schema=schema)
    rows.filter(lambda _: False).write_datasink(sink)
    assert sink.written.rows == 0


def test_blocks_of_other_columns_or_types_are_written_as_they_are_or_refused() -> None:
    def blocks(*tables: dict[str, list[Any]]) -> ray.data.Dataset:
        return ray.data.from_arrow([pa.table(columns) for columns in tables])

    one, two = {"a": 1, "b": "x"}, {"a": 2, "b": "y"}
    wanted = [one, two]
    assert written_and_read(blocks({"a": [1], "b": ["x"]}, {"b": ["y"], "a": [2]}).repartition(1)) == wanted
    assert sorted(written_and_read(blocks({"a": [1], "b": ["x"]}, {"b": ["y"], "a": [2]})), key=str) == sorted(
        wanted, key=str
    )
    value = pa.array(["p", None], pa.string())
    keyless = blocks({"value": value, "__key": pa.nulls(2)}, {"value": pa.nulls(1)})  # type: ignore[dict-item]
    assert [row["value"] for row in written_and_read(keyless, None)].count(None) == 2
    with pytest.raises((magnetar.IncompatibleSchema, RayTaskError), match="IncompatibleSchema"):
        written_and_read(blocks({"a": [1]}, {"a": [2.5]}))


def test_the_blocks_of_a_task_have_the_fields_of_the_first_one(cluster: RayCluster) -> None:
    topic = f"ray-data-{next(_numbers)}"
    sink = magnetar.data.TopicDatasink(topic, schema="avro", service_url=cluster.service_url)
    sink.on_write_start()
    context = SimpleNamespace(task_idx=0)
    first = pa.table({"a": [1], "b": ["x"]})
    blocks = [first, pa.table({"b": ["y"], "a": [2.0]}), pa.table({"a": pa.nulls(1)}), pa.table({})]
    assert sink.write(blocks, context).rows == 3
    read = magnetar.data.read_topic(topic, schema="auto", columns=["a", "b"]).take_all()
    assert sorted(read, key=str) == sorted([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": None, "b": None}], key=str)
    with pytest.raises(magnetar.InvalidConfiguration, match="other types than the first ones"):
        sink.write([first, pa.table({"a": [2.5]})], context)
    with pytest.raises(magnetar.InvalidConfiguration, match="the columns c, which the first ones have not"):
        sink.write([first, pa.table({"c": [2]})], context)


def test_a_dataset_without_rows_has_the_columns_of_its_topic(cluster: RayCluster) -> None:
    topic = publish(cluster, 10)
    for options in ({"start": "latest"}, {"end": "earliest"}):
        nothing = magnetar.data.read_topic(topic, **options)  # type: ignore[arg-type]
        assert nothing.count() == 0 and nothing.take_all() == []
        assert nothing.schema().names == magnetar.data.read_topic(topic).schema().names
        assert nothing.select_columns(["value"]).schema().names == ["value"]


def test_columns_that_were_not_planned_cannot_be_selected(cluster: RayCluster) -> None:
    keys = magnetar.data.read_topic(publish(cluster, 10), columns=["__key", "__topic"])
    assert keys.select_columns(["__topic", "__key"]).schema().names == ["__topic", "__key"]
    assert keys.select_columns(["__key"]).rename_columns({"__key": "key"}).take(1) == [{"key": "0"}]
    with pytest.raises(magnetar.InvalidConfiguration, match="no column 'value': choose from __key, __topic"):
        keys.select_columns(["value"]).take(1)


def test_what_was_read_is_written_as_it_is_with_a_topic_for_each_row(cluster: RayCluster) -> None:
    read = magnetar.data.read_topic(publish(cluster, 200))
    targets = [f"persistent://public/default/ray-data-target-{digit}" for digit in range(2)]

    def route(table: pa.Table) -> pa.Table:
        topics = pa.array([targets[int(value) % 2] for value in table["value"].to_pylist()])
        return table.set_column(table.column_names.index("__topic"), "__topic", topics)

    sink = magnetar.data.TopicDatasink(None)
    read.map_batches(route, batch_format="pyarrow").write_datasink(sink)
    assert sink.written.rows == 200
    for digit, target in enumerate(targets):
        assert sorted(numbers(magnetar.data.read_topic(target))) == list(range(digit, 200, 2))


def test_rows_are_stored_once_by_their_name_where_deduplication_is_on(cluster: RayCluster) -> None:
    cluster_admin(cluster, "PUT", "namespaces/public/once", {})
    cluster_admin(cluster, "POST", "namespaces/public/once/deduplication", True)
    topic = f"public/once/ray-data-{next(_numbers)}"
    rows = [{"value": str(one)} for one in range(100)]
    first, again = (magnetar.data.TopicDatasink(f"persistent://{topic}", "result") for _ in range(2))
    ray.data.from_items(rows, override_num_blocks=1).write_datasink(first)
    ray.data.from_items(rows, override_num_blocks=1).write_datasink(again)
    assert (first.written.rows, again.written.rows, again.written.known) == (100, 0, 100)
    assert magnetar.data.read_topic(f"persistent://{topic}").count() == 100


def test_what_cannot_be_read_or_written_is_refused(cluster: RayCluster) -> None:
    with pytest.raises(magnetar.TopicNotFound):
        magnetar.data.read_topic("ray-data-nothing")
    topic = publish(cluster, 1)
    with pytest.raises(magnetar.InvalidConfiguration, match="there is no column 'price'"):
        magnetar.data.read_topic(topic, columns=["price"])
    with pytest.raises(magnetar.InvalidConfiguration, match="max_bytes_per_split"):
        magnetar.data.read_topic(topic, max_bytes_per_split=0)
    with pytest.raises(magnetar.NotAllowedError):
        magnetar.data.TopicDatasink("non-persistent://public/default/x")
    with pytest.raises(magnetar.InvalidConfiguration, match="avro or json"):
        magnetar.data.TopicDatasink(topic, schema="xml")
    with pytest.raises((magnetar.InvalidConfiguration, RayTaskError), match="no column `value`"):
        ray.data.range(3).write_datasink(magnetar.data.TopicDatasink(topic))
