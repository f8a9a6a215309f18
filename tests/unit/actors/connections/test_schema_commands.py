"""Schemas on a connection: what producers and consumers bring, and what clients ask."""

import json
from typing import Any

import pytest

from magnetar.protocol.pulsar_pb2 import (
    CommandError,
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
    CommandSubscribe,
    Schema,
    ServerError,
)
from support.clients.wire_peer import WirePeer
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, filled

STRING = Schema(name="String", schema_data=b"", type=Schema.String)
BYTES = Schema(name="Bytes", schema_data=b"", type=Schema.NoSchema)
"""As the Go client names it."""
ANY = Schema(name="any", schema_data=b"", type=Schema.AutoConsume)


def avro(*fields: str) -> Schema:
    """A record with these fields of type int; those in capitals have a default."""
    listed = [{"name": one, "type": "int", **({"default": 0} if one.isupper() else {})} for one in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": listed}).encode()
    return Schema(name="R", schema_data=data, type=Schema.Avro)


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


async def subscribe(peer: WirePeer, consumer_id: int, schema: Schema | None, name: str = "s") -> Any:
    command = CommandSubscribe(topic=TOPIC, subscription=name, consumer_id=consumer_id, subType=CommandSubscribe.Shared)
    if schema is not None:
        command.schema.CopyFrom(schema)
    return await peer.request(command)


def policies(front: BrokerFront, **values: object) -> None:
    """What the namespace of TOPIC says from now on."""
    front.topics.policies.take([("public/default", len(front.opened) + 10, values)])


@pytest.mark.promise("2.6")
async def test_producers_learn_the_version_of_their_schema():
    async with broker_front() as front:
        peer = await front.peer()
        for producer_id, (schema, number) in enumerate([(avro("a"), 0), (avro("a", "B"), 1), (avro("a"), 0)]):
            assert (await peer.producer(TOPIC, producer_id, schema=schema)).schema_version == version(number)
        assert (await peer.producer(TOPIC, 9)).schema_version == b""
        await peer.close()


async def test_an_incompatible_producer_is_refused_with_the_reason_and_others_stay():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC, 1, schema=avro("a"))
        refused = await peer.producer(TOPIC, 2, schema=avro("a", "b"))
        assert type(refused) is CommandError and refused.error == ServerError.IncompatibleSchema
        assert "lacks field b of R" in refused.message
        wrong = await peer.producer(TOPIC, 3, schema=Schema(name="", schema_data=b"{", type=Schema.Avro))
        assert wrong.error == ServerError.IncompatibleSchema and "Invalid schema definition data" in wrong.message
        assert [one.producer_id for one in front.topic.publishing.producers.values()] == [1]
        await peer.close()


async def test_a_client_without_a_schema_reads_no_record():
    async with broker_front() as front:
        peer = await front.peer()
        reads: list[object] = []
        front.schemas._metadata = lambda: reads.append(1) or front.metadata  # type: ignore[method-assign]
        await peer.producer(TOPIC, 1)
        await subscribe(peer, 1, None)
        await subscribe(peer, 2, ANY)
        assert not reads
        await peer.close()


@pytest.mark.promise("33.5")
async def test_enforced_validation_refuses_producers_without_a_schema():
    async with broker_front(is_schema_validation_enforced=True) as front:
        peer = await front.peer()
        assert (await peer.producer(TOPIC, 1)).schema_version == b""  # the topic has none yet
        await peer.producer(TOPIC, 2, schema=avro("a"))
        refused = await peer.producer(TOPIC, 3)
        assert refused.error == ServerError.IncompatibleSchema and "SchemaValidationEnforced" in refused.message
        await peer.close()


async def test_policies_of_the_namespace_count_at_the_next_producer():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC, 1, schema=avro("a"))
        policies(front, schema_compatibility_strategy="FORWARD", is_allow_auto_update_schema=False)
        refused = await peer.producer(TOPIC, 2, schema=avro("a", "b"))
        assert refused.message == "Schema not found and schema auto updating is disabled."
        front.topics.policies.take([("public/default", 99, {"schema_compatibility_strategy": "FORWARD"})])
        assert (await peer.producer(TOPIC, 2, schema=avro("a", "b"))).schema_version == version(1)
        await peer.close()


async def test_the_first_consumer_of_an_unused_topic_adds_its_schema():
    async with broker_front() as front:
        peer = await front.peer()
        await subscribe(peer, 1, ANY)
        await subscribe(peer, 2, avro("a"))
        found = await peer.request(CommandGetSchema(topic=TOPIC))
        assert found.schema.schema_data == avro("a").schema_data and found.schema_version == version(0)
        refused = await subscribe(peer, 3, STRING)
        assert refused.error == ServerError.IncompatibleSchema and "exists schema type AVRO" in refused.message
        await subscribe(peer, 4, avro("a", "B"))  # it reads the topic, but is not added
        assert len(await front.schemas.versions(front.topic.name)) == 1
        await peer.close()


async def test_a_used_topic_without_schemas_takes_no_consumer_with_one():
    async with broker_front() as front:
        peer = await filled(front, 1)
        refused = await subscribe(peer, 1, avro("a"))
        assert refused.error == ServerError.IncompatibleSchema
        assert "active topic with empty(BYTES) schema" in refused.message
        await peer.close()


async def test_the_schema_of_bytes_is_kept_like_others_for_a_producer():
    async with broker_front() as front:
        peer = await front.peer()
        assert (await peer.producer(TOPIC, 1, schema=BYTES)).schema_version == version(0)
        found = await peer.request(CommandGetSchema(topic=TOPIC, schema_version=version(0)))
        assert found.schema.type == Schema.NoSchema
        await peer.close()


async def test_questions_about_schemas_are_answered_in_their_own_type():
    async with broker_front() as front:
        peer = await front.peer()
        asked = CommandGetOrCreateSchema(topic=TOPIC, schema=BYTES)
        created = await peer.request(asked)
        assert type(created) is CommandGetOrCreateSchemaResponse and not created.HasField("error_code")
        assert created.schema_version == b""
        added = await peer.request(CommandGetOrCreateSchema(topic=TOPIC, schema=avro("a")))
        assert added.schema_version == version(0)
        refused = await peer.request(CommandGetOrCreateSchema(topic=TOPIC, schema=STRING))
        assert type(refused) is CommandGetOrCreateSchemaResponse
        assert refused.error_code == ServerError.IncompatibleSchema
        missing = await peer.request(CommandGetOrCreateSchema(topic="missing", schema=avro("a")))
        assert missing.error_code == ServerError.TopicNotFound
        for asked, code in [
            (CommandGetSchema(topic=TOPIC, schema_version=version(5)), ServerError.TopicNotFound),
            (CommandGetSchema(topic="other"), ServerError.TopicNotFound),
            (CommandGetSchema(topic=TOPIC, schema_version=b""), ServerError.IncompatibleSchema),
            (CommandGetSchema(topic=TOPIC, schema_version=b"\0"), ServerError.IncompatibleSchema),
            (CommandGetSchema(topic="a/b"), ServerError.InvalidTopicName),
        ]:
            answer = await peer.request(asked)
            assert type(answer) is CommandGetSchemaResponse and answer.error_code == code
        await peer.close()
