"""Schemas of our client on a cluster: both faces, both clients, old data with a new schema, and what is refused."""

import asyncio
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pulsar.schema as official
import pytest

import magnetar
from magnetar.client.core.lookup import Lookup
from magnetar.client.schemas.key_value import KeyValueEncodingType
from support.files.key_files import write_key_files
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = magnetar.InitialPosition.Earliest
KINDS = ["JsonSchema", "AvroSchema"]


@dataclass
class Order:
    item: str | None
    count: int | None


@dataclass
class LaterOrder:
    item: str | None
    count: int | None
    note: str = "none"


class OrderRecord(official.Record):
    item = official.String()
    count = official.Long()


OrderRecord.__name__ = LaterOrder.__name__ = "Order"


@pytest.fixture
def blocking(cluster: EmbeddedCluster) -> Any:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=20) as client:
        yield client


@pytest.mark.promise("2.1")
@pytest.mark.parametrize("kind", KINDS)
def test_both_clients_share_one_version_and_read_each_other(
    cluster: EmbeddedCluster, blocking: magnetar.Client, official_client: pulsar.Client, kind: str
) -> None:
    topic = f"shared-{kind}"
    ours, theirs = getattr(magnetar, kind)(Order), getattr(official, kind)(OrderRecord)
    consumers = [
        blocking.subscribe(topic, "ours", schema=ours),
        blocking.subscribe(topic, "records", schema=theirs),
        blocking.subscribe(topic, "anything", schema=magnetar.AutoConsumeSchema()),
    ]
    other = official_client.subscribe(topic, "theirs", schema=theirs)
    blocking.create_producer(topic, schema=ours).send(Order("a", 1))
    official_client.create_producer(topic, schema=theirs).send(OrderRecord(item="b", count=2))
    expected = [("a", 1), ("b", 2)]
    for consumer in consumers:
        received = [consumer.receive(10_000) for _ in expected]
        values = [one.value() for one in received]
        assert [(v["item"], v["count"]) if isinstance(v, dict) else (v.item, v.count) for v in values] == expected
        assert [one.schema_version() for one in received] == [bytes(8)] * 2
        travelled = pickle.loads(pickle.dumps(received[0])).value()
        assert (travelled["item"] if isinstance(travelled, dict) else travelled.item) == "a"
    assert [(v.item, v.count) for v in (other.receive(10_000).value() for _ in expected)] == expected


@pytest.mark.promise("2.6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partitions", [0, 3])
def test_old_data_is_read_with_a_new_schema_and_asked_for_once(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, kind: str, partitions: int
) -> None:
    asked: list[bytes] = []
    ask = Lookup.schema

    async def counted(self: Lookup, topic: str, version: bytes) -> Any:
        asked.append(version)
        return await ask(self, topic, version)

    monkeypatch.setattr(Lookup, "schema", counted)
    topic = f"persistent://public/default/evolving-{kind}-{partitions}"

    async def run() -> None:
        async with magnetar.AsyncClient(cluster.service_url, operation_timeout_seconds=20) as client:
            old, new = getattr(magnetar, kind)(Order), getattr(magnetar, kind)(LaterOrder)
            first = await client.create_producer(topic, schema=old)
            await asyncio.gather(*[first.send(Order("old", 1), partition_key=str(n)) for n in range(20)])
            second = await client.create_producer(topic, schema=new)
            await second.send_many([LaterOrder("new", 0, "x")] * 5)
            reader = await client.create_reader(topic, magnetar.MessageId.earliest, schema=new)
            found = []
            while await reader.has_message_available():
                message = await reader.read_next(10_000)
                found.append((message.schema_version()[-1], message.value()))
            assert [v for version, v in found if version == 0] == [LaterOrder("old", 1)] * 20
            assert [v for version, v in found if version == 1] == [LaterOrder("new", 0, "x")] * 5

    if partitions:
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=partitions))
    cluster.run(run())
    assert sorted(asked) == ([] if kind == "JsonSchema" else [bytes(8), bytes(7) + b"\1"])


def test_values_go_through_batches_chunks_compression_and_encryption(
    cluster: EmbeddedCluster, blocking: magnetar.Client, tmp_path: Path
) -> None:
    public, private = write_key_files(tmp_path)
    keys = magnetar.CryptoKeyReader(str(public), str(private))
    schema = magnetar.AvroSchema(Order)
    for number, options in enumerate(
        [
            {"batching_enabled": True, "compression_type": magnetar.CompressionType.LZ4},
            {"batching_enabled": True, "encryption_key": "k", "crypto_key_reader": keys},
            {"chunking_enabled": True, "compression_type": magnetar.CompressionType.NONE},
        ]
    ):
        topic = f"ways-{number}"
        consumer = blocking.subscribe(topic, "s", schema=schema, crypto_key_reader=keys)
        producer = blocking.create_producer(topic, schema=schema, **options)
        values = [Order("x" * (6_000_000 if "chunking_enabled" in options else 10), n) for n in range(2)]
        producer.send_many(values)
        producer.send(None, partition_key="k")
        received = [consumer.receive(20_000) for _ in range(3)]
        assert [one.value() for one in received] == [*values, None]


def test_incompatible_schemas_are_refused_with_the_brokers_reason(
    cluster: EmbeddedCluster, blocking: magnetar.Client
) -> None:
    blocking.create_producer("strict", schema=magnetar.AvroSchema(Order)).send(Order("a", 1))
    for make in (
        lambda schema: blocking.create_producer("strict", schema=schema),
        lambda schema: blocking.subscribe("strict", "s", schema=schema),
        lambda schema: blocking.create_reader("strict", magnetar.MessageId.earliest, schema=schema),
    ):
        with pytest.raises(magnetar.IncompatibleSchema, match="AVRO"):
            make(magnetar.StringSchema())
    producer = blocking.create_producer("strict", schema=magnetar.AvroSchema(Order))
    consumer = blocking.subscribe("strict", "s", schema=magnetar.AvroSchema(Order))
    for send in (
        producer.send,
        lambda value: producer.send_async(value, None),
        lambda value: producer.send_many([value]),
    ):
        with pytest.raises(magnetar.SchemaSerializationError, match="field 'count' of Order"):
            send(Order("a", "one"))  # pyright: ignore[reportArgumentType] (that is the test)
    producer.send(Order("after", 2))
    assert consumer.receive(10_000).value() == Order("after", 2)


def test_a_producer_of_encoded_bytes_takes_the_topics_schema(
    cluster: EmbeddedCluster, blocking: magnetar.Client
) -> None:
    schema = magnetar.AvroSchema(Order)
    consumer = blocking.subscribe("encoded", "s", schema=schema)
    producer = blocking.create_producer("encoded", schema=magnetar.AutoProduceBytesSchema())
    producer.send(schema.encode(Order("a", 1)))
    message = consumer.receive(10_000)
    assert (message.value(), message.schema_version()) == (Order("a", 1), bytes(8))
    with pytest.raises(magnetar.SchemaSerializationError):
        producer.send(b"\xff\xff")
    untyped = blocking.create_producer("untyped", schema=magnetar.AutoProduceBytesSchema())
    untyped.send(b"anything")


@pytest.mark.parametrize("encoding", list(KeyValueEncodingType))
def test_pairs_travel_with_their_key(
    cluster: EmbeddedCluster, blocking: magnetar.Client, encoding: KeyValueEncodingType
) -> None:
    topic = f"pairs-{encoding.name}"
    schema = magnetar.KeyValueSchema(magnetar.StringSchema(), magnetar.AvroSchema(Order), encoding)
    consumer = blocking.subscribe(topic, "s", schema=schema)
    anything = blocking.subscribe(topic, "a", schema=magnetar.AutoConsumeSchema())
    for batching in (True, False):
        blocking.create_producer(topic, schema=schema, batching_enabled=batching).send(("k", Order("a", 1)))
        message = consumer.receive(10_000)
        assert message.value() == ("k", Order("a", 1))
        assert message.partition_key() == ("aw==" if encoding is KeyValueEncodingType.SEPARATED else "")
        assert anything.receive(10_000).value() == ("k", {"item": "a", "count": 1})


def test_table_views_and_listeners_get_values(cluster: EmbeddedCluster, blocking: magnetar.Client) -> None:
    schema = magnetar.AvroSchema(Order)
    producer = blocking.create_producer("table", schema=schema)
    producer.send(Order("a", 1), partition_key="a")
    producer.send(Order("b", 2), partition_key="b")
    producer.send(None, partition_key="a")
    table = blocking.create_table_view("table", schema=schema)
    assert table.get("a") is None and table.get("b") == Order("b", 2)
    table.close()
