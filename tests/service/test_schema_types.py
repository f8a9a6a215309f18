"""Each type of schema on a cluster: what one client writes, both clients and both faces of ours read."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import pulsar
import pulsar.schema as official
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
WAIT_MS = 10_000


@dataclass
class Order:
    item: str | None
    count: int | None


class OrderRecord(official.Record):
    item = official.String()
    count = official.Long()


OrderRecord.__name__ = "Order"
INLINE, SEPARATED = magnetar.KeyValueEncodingType.INLINE, magnetar.KeyValueEncodingType.SEPARATED
STAMP = Timestamp(seconds=5, nanos=6)
SHARED: dict[str, tuple[Any, Any, Any, Any]] = {
    "bytes": (magnetar.BytesSchema(), b"\0x", official.BytesSchema(), b"\0x"),
    "string": (magnetar.StringSchema(), "é", official.StringSchema(), "é"),
    "json": (
        magnetar.JsonSchema(Order),
        Order("a", 1),
        official.JsonSchema(OrderRecord),
        OrderRecord(item="a", count=1),
    ),
    "avro": (
        magnetar.AvroSchema(Order),
        Order("a", 1),
        official.AvroSchema(OrderRecord),
        OrderRecord(item="a", count=1),
    ),
    "protobuf": (magnetar.ProtobufNativeSchema(Timestamp), STAMP, official.ProtobufNativeSchema(Timestamp), STAMP),
    "records": (
        official.AvroSchema(OrderRecord),
        OrderRecord(item="a", count=1),
        official.AvroSchema(OrderRecord),
        OrderRecord(item="a", count=1),
    ),
}
"""Our schema and a value of it, the official client's schema and an equal value."""
OURS: dict[str, tuple[Any, Any]] = {
    "boolean": (magnetar.BooleanSchema(), True),
    "int8": (magnetar.Int8Schema(), -1),
    "int16": (magnetar.Int16Schema(), -2),
    "int32": (magnetar.Int32Schema(), 3),
    "int64": (magnetar.Int64Schema(), 1 << 40),
    "float": (magnetar.FloatSchema(), 1.5),
    "double": (magnetar.DoubleSchema(), 0.1),
    "date": (magnetar.DateSchema(), MOMENT),
    "time": (magnetar.TimeSchema(), time(0, 0, 1)),
    "timestamp": (magnetar.TimestampSchema(), MOMENT),
    "instant": (magnetar.InstantSchema(), MOMENT),
    "local date": (magnetar.LocalDateSchema(), date(1970, 1, 3)),
    "local time": (magnetar.LocalTimeSchema(), time(0, 0, 1)),
    "local date time": (magnetar.LocalDateTimeSchema(), datetime(1970, 1, 2, 0, 0, 1)),
    "pairs inline": (magnetar.KeyValueSchema(magnetar.StringSchema(), magnetar.Int32Schema(), INLINE), ("k", 5)),
    "pairs separated": (magnetar.KeyValueSchema(magnetar.StringSchema(), magnetar.Int32Schema(), SEPARATED), ("k", 5)),
}
"""Types that the official Python client does not have."""


@pytest.fixture(scope="module")
def blocking(cluster: EmbeddedCluster) -> Iterator[magnetar.Client]:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=20) as client:
        yield client


async def by_asyncio(url: str, topic: str, schema: Any, value: Any, count: int) -> list[Any]:
    """Publish one value more; returns all of them."""
    async with magnetar.AsyncClient(url, operation_timeout_seconds=20) as client:
        producer = await client.create_producer(topic, schema=schema)
        await producer.send(value)
        reader = await client.create_reader(topic, magnetar.MessageId.earliest, schema=schema)
        return [(await reader.read_next(WAIT_MS)).value() for _ in range(count)]


def plain(value: Any) -> Any:
    """Records, dataclasses and dicts of the same fields alike."""
    if isinstance(value, dict):
        return (value["item"], value["count"])
    if hasattr(value, "seconds"):
        return (value.seconds, value.nanos)
    return (value.item, value.count) if hasattr(value, "item") else value


@pytest.mark.promise("33.1", "33.4")
@pytest.mark.parametrize("name", SHARED)
def test_values_go_both_ways_between_the_clients(
    cluster: EmbeddedCluster, blocking: magnetar.Client, official_client: pulsar.Client, name: str
) -> None:
    ours, value, theirs, equal = SHARED[name]
    topic = f"both-{name}"
    keeper = blocking.subscribe(topic, "keep", schema=ours)
    blocking.create_producer(topic, schema=ours).send(value)
    official_client.create_producer(topic, schema=theirs).send(equal)
    assert [plain(one) for one in asyncio.run(by_asyncio(cluster.service_url, topic, ours, value, 3))] == [
        plain(value)
    ] * 3
    readers: list[Any] = [
        blocking.create_reader(topic, magnetar.MessageId.earliest, schema=ours),
        blocking.create_reader(topic, magnetar.MessageId.earliest, schema=magnetar.AutoConsumeSchema()),
        official_client.create_reader(topic, pulsar.MessageId.earliest, schema=theirs),
    ]
    for reader in readers:
        messages = [reader.read_next(WAIT_MS) for _ in range(3)]
        assert [plain(one.value()) for one in messages] == [plain(value)] * 3
        assert len({one.schema_version() for one in messages}) == 1
    keeper.close()


@pytest.mark.promise("33.1")
@pytest.mark.parametrize("name", OURS)
def test_values_of_other_types_go_through_both_faces(
    cluster: EmbeddedCluster, blocking: magnetar.Client, name: str
) -> None:
    schema, value = OURS[name]
    topic = f"ours-{name.replace(' ', '-')}"
    keeper = blocking.subscribe(topic, "keep", schema=schema)
    blocking.create_producer(topic, schema=schema).send(value)
    assert asyncio.run(by_asyncio(cluster.service_url, topic, schema, value, 2)) == [value] * 2
    for reading in (schema, magnetar.AutoConsumeSchema()):
        reader = blocking.create_reader(topic, magnetar.MessageId.earliest, schema=reading)
        assert [reader.read_next(WAIT_MS).value() for _ in range(2)] == [value] * 2
    keeper.close()


@pytest.mark.parametrize("name", ["string", "json", "avro", "protobuf"])
def test_encoded_bytes_are_taken_for_what_the_official_client_registered(
    blocking: magnetar.Client, official_client: pulsar.Client, name: str
) -> None:
    ours, value, theirs, _ = SHARED[name]
    topic = f"encoded-{name}"
    consumer = official_client.subscribe(topic, "s", schema=theirs)
    producer = blocking.create_producer(topic, schema=magnetar.AutoProduceBytesSchema())
    producer.send(ours.encode(value))
    assert plain(consumer.receive(WAIT_MS).value()) == plain(value)
    if name != "string":
        with pytest.raises(magnetar.SchemaSerializationError):
            producer.send(b"\xff")
