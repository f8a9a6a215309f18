"""Schemas of topics on a cluster: what official clients meet, and what is left when a broker or a topic goes."""

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from magnetar.actors.schemas.definition import SchemaDefinition
from magnetar.protocol.pulsar_pb2 import CommandGetSchema
from magnetar.protocol.schema_types import SchemaType
from magnetar.protocol.topics import TopicName
from support.clients.wire_peer import WirePeer


class First(Record):
    """What topics begin with."""

    _avro_namespace = "n"
    number = Integer()


class Wider(Record):
    """`First` with one field more, which has a default."""

    _avro_namespace = "n"
    number = Integer()
    text = String(required_default=True)


class Narrow(Record):
    """`First` with a field that has no default."""

    _avro_namespace = "n"
    number = Integer()
    needed = String(required=True)


def versions(cluster, topic: str) -> list[int]:
    """The versions that the broker has."""

    async def ask() -> list[int]:
        return [one.version for one in await cluster.brokers[1].schemas.versions(TopicName.parse(topic))]

    return cluster.run(ask())


@pytest.mark.promise("2.1", "2.6")
def test_an_official_client_meets_a_changed_schema(cluster, official_client):
    topic = "persistent://public/default/changing"
    consumer = official_client.subscribe(topic, "s", schema=JsonSchema(First))
    official_client.create_producer(topic, schema=JsonSchema(First)).send(First(number=1))
    official_client.create_producer(topic, schema=JsonSchema(Wider)).send(Wider(number=2, text="two"))
    for wrong in (JsonSchema(Narrow), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            official_client.create_producer(topic, schema=wrong)
        with pytest.raises(pulsar.IncompatibleSchema):
            official_client.subscribe(topic, "other", schema=wrong)
    received = [consumer.receive(10_000) for _ in range(2)]
    assert [message.value().number for message in received] == [1, 2]
    assert [int.from_bytes(message.schema_version().encode("latin-1"), "big") for message in received] == [0, 1]
    assert versions(cluster, topic) == [0, 1]


def test_all_partitions_have_one_schema(cluster, official_client):
    topic = "persistent://public/default/parted"
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=3))
    producer = official_client.create_producer(topic, schema=JsonSchema(First))
    producer.send(First(number=1))
    assert versions(cluster, topic) == [0]

    async def ask() -> bytes:
        peer = await WirePeer.open(int(cluster.service_url.rsplit(":", 1)[1]))
        found = await peer.request(CommandGetSchema(topic=f"{topic}-partition-2"))
        await peer.close()
        return found.schema_version

    assert cluster.run(ask()) == bytes(8)


def test_schemas_outlive_a_broker_and_go_with_their_topic(cluster, official_client):
    topic, other = "persistent://public/default/kept", "persistent://public/default/kept-too"
    for one in (topic, other):
        official_client.create_producer(one, schema=JsonSchema(First)).close()
    cluster.run(cluster.stop_broker(1))
    cluster.run(cluster.start_broker(1))
    assert versions(cluster, topic) == [0]
    cluster.run(cluster.coordinator_call("delete_topic", topic=topic, force=True))
    assert versions(cluster, topic) == []
    with pytest.raises(pulsar.IncompatibleSchema):
        official_client.create_producer(other, schema=StringSchema())


def test_a_namespace_is_created_without_schemas(cluster):
    topic = "persistent://public/passing/early"

    async def run() -> list[int]:
        registry, name = cluster.brokers[1].schemas, TopicName.parse(topic)
        found = []
        for _ in range(2):
            await cluster.coordinator_call("create_namespace", namespace="public/passing")
            found.append(len(await registry.versions(name)))
            policies = cluster.brokers[1].topics.policies.of_namespace("public/passing")
            definition = SchemaDefinition(SchemaType.STRING, b"")
            found.append(await registry.put(name, definition, policies.schema_compatibility_strategy))
            await cluster.coordinator_call("delete_namespace", namespace="public/passing")
        return found

    assert cluster.run(run()) == [0, 0, 0, 0]
