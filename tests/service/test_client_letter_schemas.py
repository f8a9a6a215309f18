"""Retry letters and dead letters keep the schema that their original was written with, on a whole cluster."""

import itertools
from collections.abc import Iterator
from dataclasses import make_dataclass
from typing import Any

import pytest

import magnetar
from magnetar import AutoConsumeSchema, AvroSchema, ConsumerType, JsonSchema, KeyValue, KeyValueSchema, MessageId
from magnetar.protocol.topics import TopicName
from support.servers.embedded_cluster import EmbeddedCluster

First = make_dataclass("Order", [("item", str)])
Second = make_dataclass("Order", [("item", str), ("count", int, 1)])
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"typed-letters-{next(_numbers)}"


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Iterator[magnetar.Client]:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


def letters_of(subscribe: Any, topic: str, **options: Any) -> Any:
    options.setdefault("dead_letter_policy", magnetar.ConsumerDeadLetterPolicy(1))
    return subscribe(topic, "s", ConsumerType.Shared, enable_retry=True, **options)


@pytest.mark.promise("33.3")
@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_letters_are_decoded_with_the_definition_of_their_original(
    client: magnetar.Client, topic: str, kind: Any
) -> None:
    """The retry letter topic gets the newer definition first, so that its versions are not those of the topic."""
    consumer = letters_of(client.subscribe, topic, schema=kind(Second))
    client.create_producer(topic, schema=kind(First)).send(First("pen"))
    client.create_producer(topic, schema=kind(Second)).send(Second("ink", 3))
    originals = [consumer.receive(10_000) for _ in range(2)]
    assert len({one.schema_version() for one in originals}) == 2
    for one in originals:
        consumer.reconsume_later(one)
    copies = sorted([consumer.receive(10_000) for _ in range(2)], key=lambda one: one.value().item)
    assert [one.value() for one in copies] == [Second("ink", 3), Second("pen", 1)]
    assert all(one.schema_version() and one.topic_name().endswith("-RETRY") for one in copies)
    for one in copies:
        consumer.reconsume_later(one)
    dead = client.create_reader(f"{topic}-s-DLQ", MessageId.earliest, schema=AutoConsumeSchema())
    values = [dead.read_next(10_000).value() for _ in range(2)]
    assert values == [{"item": "ink", "count": 3}, {"item": "pen"}]


async def test_dead_letters_keep_their_schema_where_the_consumer_has_none(cluster: EmbeddedCluster, topic: str) -> None:
    async with magnetar.AsyncClient(cluster.service_url, operation_timeout_seconds=10) as client:
        consumer = await letters_of(client.subscribe, topic, negative_ack_redelivery_delay_ms=1)
        producer = await client.create_producer(topic, schema=AvroSchema(First))
        await producer.send_many([First("pen"), First("ink")])
        plain = await client.create_producer(topic)
        await plain.send(b"\x06raw")
        for _ in range(2):
            for one in [await consumer.receive(10_000) for _ in range(3)]:
                await consumer.negative_acknowledge(one)
        dead = await client.create_reader(f"{topic}-s-DLQ", MessageId.earliest, schema=AutoConsumeSchema())
        found = [await dead.read_next(10_000) for _ in range(3)]
        assert sorted((one.schema_version(), str(one.value())) for one in found) == [
            (b"", str(b"\x06raw")),
            (bytes(8), str({"item": "ink"})),
            (bytes(8), str({"item": "pen"})),
        ]


def test_pairs_whose_key_is_that_of_the_message_are_whole_in_letters(client: magnetar.Client, topic: str) -> None:
    schema = KeyValueSchema(AvroSchema(First), AvroSchema(Second), magnetar.KeyValueEncodingType.SEPARATED)
    consumer = letters_of(client.subscribe, topic, schema=schema)
    pair = KeyValue(First("k"), Second("v", 2))
    client.create_producer(topic, schema=schema).send(pair)
    consumer.reconsume_later(consumer.receive(10_000))
    copy = consumer.receive(10_000)
    assert copy.value() == pair
    consumer.reconsume_later(copy)
    dead = client.create_reader(f"{topic}-s-DLQ", MessageId.earliest, schema=schema)
    assert dead.read_next(10_000).value() == pair


@pytest.mark.promise("33.3")
def test_a_letter_whose_definition_is_deleted_is_stored_without_a_version(
    client: magnetar.Client, cluster: EmbeddedCluster, topic: str
) -> None:
    consumer = letters_of(client.subscribe, topic)
    client.create_producer(topic, schema=AvroSchema(First)).send(First("pen"))
    message = consumer.receive(10_000)
    cluster.run(cluster.brokers[1].schemas.delete(TopicName.parse(topic), force=True))
    consumer.reconsume_later(message)
    copy = consumer.receive(10_000)
    assert (copy.data(), copy.schema_version()) == (message.data(), b"")
