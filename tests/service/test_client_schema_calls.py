"""What our client asks a broker about schemas."""

import json

import pytest

import magnetar
from magnetar.client.schemas.broker_calls import fetch_schema, version_of_schema
from magnetar.protocol.pulsar_pb2 import Schema

TOPIC = "persistent://public/default/asked"


def avro(*fields: str) -> Schema:
    listed = [{"name": one, "type": "int"} for one in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": listed}).encode()
    return Schema(name="R", schema_data=data, type=Schema.Avro)


def test_a_client_learns_versions_and_fetches_schemas(cluster):
    async def run() -> None:
        async with magnetar.AsyncClient(cluster.service_url, operation_timeout_seconds=10) as client:
            await client.create_producer("persistent://public/default/other")
            assert client._core is not None
            lookup = client._core.lookup
            with pytest.raises(magnetar.TopicNotFound):
                await version_of_schema(lookup, TOPIC, avro("a"))
            assert await fetch_schema(lookup, TOPIC) is None
            await client.create_producer(TOPIC)
            assert await version_of_schema(lookup, TOPIC, avro("a")) == bytes(8)
            found = await fetch_schema(lookup, TOPIC)
            assert found is not None and (found.schema.schema_data, found.version) == (avro("a").schema_data, bytes(8))
            assert await fetch_schema(lookup, TOPIC, bytes(8)) == found
            assert await fetch_schema(lookup, TOPIC, (7).to_bytes(8, "big")) is None
            with pytest.raises(magnetar.IncompatibleSchema, match="lacks field b of R"):
                await version_of_schema(lookup, TOPIC, avro("a", "b"))

    cluster.run(run())
