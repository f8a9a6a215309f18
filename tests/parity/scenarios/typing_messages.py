"""Schemas with Magnetar's client on both servers: pairs, values of any schema, and refusals with their reason."""

from dataclasses import make_dataclass
from typing import Any

import magnetar
from magnetar import AutoConsumeSchema, AutoProduceBytesSchema, AvroSchema, JsonSchema, KeyValueSchema, StringSchema

from ..registry import scenario
from ..stage import Stage

SCHEMA = "/admin/v2/schemas/{ns}/topic/schema"
First = make_dataclass("Order", [("item", str), ("count", int, 1)])
Second = make_dataclass("Order", [("item", str), ("count", int, 1), ("note", str, "none")])
Other = make_dataclass("Order", [("item", int)])


def _producer(stage: Stage, client: magnetar.Client, schema: Any, label: str, topic: str = "topic") -> Any:
    options = {"producer_name": label.replace(" ", "-"), "batching_enabled": False}
    return stage.step(label, client.create_producer, stage.topic(topic), schema=schema, **options)


def _values(stage: Stage, label: str, consumer: Any, count: int) -> None:
    got = stage.receive(label, consumer, count)
    stage.note(f"{label}: values", [_shown(one.value()) for one in got])
    stage.note(f"{label}: versions", [one.schema_version() for one in got])


def _shown(value: Any) -> str:
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


@scenario()
def a_consumer_of_any_schema_gets_values_of_all_versions(stage: Stage) -> None:
    """AutoConsume: records of two versions as dicts, and a reader with the new record."""
    client = stage.own_client()
    _producer(stage, client, AvroSchema(First), "the first version").send(First("pen", 2))
    _producer(stage, client, AvroSchema(Second), "the second version").send(Second("ink", 3, "blue"))
    reader = client.create_reader(stage.topic(), magnetar.MessageId.earliest, schema=AutoConsumeSchema())
    _values(stage, "any schema", reader, 2)
    reader = client.create_reader(stage.topic(), magnetar.MessageId.earliest, schema=AvroSchema(Second))
    _values(stage, "the second record", reader, 2)
    stage.http("versions", "GET", "/admin/v2/schemas/{ns}/topic/schemas", only=[".getSchemaResponses.version"])


@scenario()
def pairs_keep_their_key_within_or_beside_the_value(stage: Stage) -> None:
    """KeyValue, INLINE and SEPARATED, with the definition that the admin shows."""
    client = stage.own_client()
    for name in ("INLINE", "SEPARATED"):
        schema = KeyValueSchema(StringSchema(), JsonSchema(First), getattr(magnetar.KeyValueEncodingType, name))
        producer = _producer(stage, client, schema, f"a producer of {name} pairs", name.lower())
        producer.send(("k", First("pen", 2)))
        reader = client.create_reader(stage.topic(name.lower()), magnetar.MessageId.earliest, schema=schema)
        _values(stage, f"{name} pairs", reader, 1)
        path = f"/admin/v2/schemas/{{ns}}/{name.lower()}/schema"
        stage.http(f"{name}: what the admin shows", "GET", path, only=[".version", ".type", ".data", ".properties."])


@scenario()
def a_wrong_schema_is_refused_with_a_reason(stage: Stage) -> None:
    """Producers and consumers of Magnetar's client, under three strategies."""
    client = stage.own_client()
    _producer(stage, client, AvroSchema(First), "the first").close()
    strategy = "/admin/v2/namespaces/{ns}/schemaCompatibilityStrategy"
    for name in ("FULL", "BACKWARD", "ALWAYS_INCOMPATIBLE"):
        assert stage.admin("PUT", strategy, name).status == 204
        stage.until(lambda name=name: _strategy(stage) == name)
        _producer(stage, client, AvroSchema(Other), f"{name}: a producer of another record")
        stage.step(f"{name}: a consumer of texts", client.subscribe, stage.topic(), name, schema=StringSchema())
        _producer(stage, client, AvroSchema(First), f"{name}: the first record again")


def _strategy(stage: Stage) -> Any:
    body = {"type": "STRING", "schema": "", "properties": {}}
    answer = stage.admin("POST", "/admin/v2/schemas/{ns}/none/compatibility", body)
    return answer.body["schemaCompatibilityStrategy"]


@scenario()
def bytes_are_checked_against_the_schema_of_the_topic(stage: Stage) -> None:
    """AutoProduce: bytes that fit, bytes that do not, and a topic without a schema."""
    client = stage.own_client()
    schema = AvroSchema(First)
    stage.note("the definition", stage.admin("POST", SCHEMA, _payload(schema)).status)
    producer = _producer(stage, client, AutoProduceBytesSchema(), "a producer of bytes")
    stage.step("bytes that fit", producer.send, schema.encode(First("pen", 2)))
    reader = client.create_reader(stage.topic(), magnetar.MessageId.earliest, schema=schema)
    _values(stage, "read", reader, 1)


def _payload(schema: Any) -> dict[str, object]:
    info = schema.info
    return {"type": "AVRO", "schema": info.definition.decode(), "properties": dict(info.properties)}


@scenario()
def the_strategy_of_a_topic_comes_before_that_of_its_namespace(stage: Stage) -> None:
    """The path of the policy at a topic, and its effect."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic")
    path = "/admin/v2/persistent/{ns}/topic/schemaCompatibilityStrategy"
    stage.http("not set", "GET", path)
    stage.http("applied", "GET", path + "?applied=true")
    stage.http("set", "PUT", path, "ALWAYS_COMPATIBLE")
    stage.http("shown", "GET", path)
    client = stage.own_client()
    _producer(stage, client, AvroSchema(First), "the first")
    _producer(stage, client, AvroSchema(Other), "another record")
    stage.http("removed", "DELETE", path)
    stage.http("no strategy", "PUT", path, "SOMETIMES")
    stage.http("shown at the end", "GET", path)
