"""What our client asks a broker about schemas."""

import json

import pytest

import magnetar
from magnetar.client.schemas.schema import SchemaInfo
from magnetar.protocol.schema_types import SchemaType

TOPIC = "persistent://public/default/asked"


def avro(*fields: str) -> SchemaInfo:
    listed = [{"name": one, "type": "int"} for one in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": listed}).encode()
    return SchemaInfo("R", SchemaType.AVRO, data)


def test_a_client_learns_versions_and_fetches_schemas(cluster):
    async def run() -> None:
        async with magnetar.AsyncClient(cluster.service_url, operation_timeout_seconds=10) as client:
            await client.create_producer("persistent://public/default/other")
            assert client._core is not None
            lookup = client._core.lookup
            with pytest.raises(magnetar.TopicNotFound):
                await lookup.version_of_schema(TOPIC, avro("a"))
            with pytest.raises(magnetar.TopicNotFound):
                await lookup.schema(TOPIC, b"")
            await client.create_producer(TOPIC)
            assert await lookup.version_of_schema(TOPIC, avro("a")) == bytes(8)
            found = await lookup.schema(TOPIC, b"")
            assert found.definition == avro("a").definition
            assert await lookup.schema(TOPIC, bytes(8)) == found
            with pytest.raises(magnetar.TopicNotFound):
                await lookup.schema(TOPIC, (7).to_bytes(8, "big"))
            with pytest.raises(magnetar.IncompatibleSchema, match="lacks field b of R"):
                await lookup.version_of_schema(TOPIC, avro("a", "b"))

    cluster.run(run())
