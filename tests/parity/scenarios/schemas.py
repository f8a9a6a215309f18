"""Schemas of topics: versions, what clients and the admin are told, and which schema may follow which."""

import base64
import json
from typing import Any

import pulsar
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from pulsar.schema import Integer, JsonSchema, Record, String

from magnetar.protocol.pulsar_pb2 import (
    CommandError,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandProducer,
    CommandSubscribe,
    Schema,
)

from ..peer import content_of
from ..registry import scenario
from ..stage import Stage

NOWHERE = "/admin/v2/schemas/parity/missing/t/schema"
STRATEGIES = (
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)

A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "string"}
B_OPTIONAL = {**B, "default": "x"}


def record(*fields: object, name: str = "R", **more: object) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


def field(of: object, **more: object) -> dict[str, object]:
    return {"name": "a", "type": of, **more}


def payload(schema: str, of: str = "AVRO", **properties: str) -> dict[str, object]:
    return {"type": of, "schema": schema, "properties": properties}


def wire(schema: str, of: int = Schema.Avro) -> Schema:
    return Schema(name="R", schema_data=schema.encode(), type=of)  # type: ignore[arg-type]


def native(message: str, package: str = "p") -> str:
    file = FileDescriptorProto(name="f.proto", package=package)
    file.message_type.add(name="Outer").nested_type.add(name="Inner")
    return json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode(),
            "rootMessageTypeName": message,
            "rootFileDescriptorName": "f.proto",
        }
    )


def key_value(key: str, value: str) -> dict[str, object]:
    schema = json.dumps({"key": json.loads(key), "value": json.loads(value)})
    return payload(schema, "KEY_VALUE", **{"key.schema.type": "AVRO", "value.schema.type": "AVRO"})


ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
PAIRS: dict[str, tuple[dict[str, object], ...]] = {
    "a field with a default comes": (payload(record(A)), payload(record(A, B_OPTIONAL))),
    "a field without a default comes": (payload(record(A)), payload(record(A, B))),
    "a field with a default goes": (payload(record(A, B_OPTIONAL)), payload(record(A))),
    "a field without a default goes": (payload(record(A, B)), payload(record(A))),
    "int becomes long": (payload(record(A)), payload(record(field("long")))),
    "int becomes string": (payload(record(A)), payload(record(field("string")))),
    "string becomes bytes": (payload(record(field("string"))), payload(record(field("bytes")))),
    "int becomes optional": (payload(record(A)), payload(record(field(["null", "int"])))),
    "an enum has one symbol more": (
        payload(record(field(ENUM))),
        payload(record(field({**ENUM, "symbols": ["X", "Y", "Z"]}))),
    ),
    "an enum has another name": (payload(record(field(ENUM))), payload(record(field({**ENUM, "name": "F"})))),
    "a field has another name and the old one as alias": (
        payload(record(A)),
        payload(record({"name": "b", "type": "int", "aliases": ["a"]})),
    ),
    "the record has another name": (payload(record(A)), payload(record(A, name="S"))),
    "a fixed type has another size": (
        payload(record(field({"type": "fixed", "name": "F", "size": 4}))),
        payload(record(field({"type": "fixed", "name": "F", "size": 8}))),
    ),
    "only the documentation changes": (payload(record(A)), payload(record(A, doc="new"))),
    "a default comes after two versions": (
        payload(record(A)),
        payload(record(A, B_OPTIONAL)),
        payload(record(A, B)),
    ),
    "the first version comes again": (payload(record(A)), payload(record(A, B_OPTIONAL)), payload(record(A))),
    "JSON: a field without a default comes": (payload(record(A), "JSON"), payload(record(A, B), "JSON")),
    "PROTOBUF: a field without a default goes": (payload(record(A, B), "PROTOBUF"), payload(record(A), "PROTOBUF")),
    "AVRO becomes JSON": (payload(record(A)), payload(record(A), "JSON")),
    "AVRO becomes STRING": (payload(record(A)), payload("", "STRING")),
    "STRING becomes INT32": (payload("", "STRING"), payload("", "INT32")),
    "STRING stays": (payload("", "STRING"), payload("", "STRING")),
    "the root message of PROTOBUF_NATIVE changes": (
        payload(native("p.Outer"), "PROTOBUF_NATIVE"),
        payload(native("p.Outer.Inner"), "PROTOBUF_NATIVE"),
    ),
    "the file of PROTOBUF_NATIVE is written otherwise": (
        payload(native("p.Outer"), "PROTOBUF_NATIVE"),
        payload(native("p.Outer") + " ", "PROTOBUF_NATIVE"),
    ),
    "KEY_VALUE: the key's record gets a field without a default": (
        key_value(record(A), record(A)),
        key_value(record(A, B), record(A)),
    ),
    "KEY_VALUE: the value's record loses a field without a default": (
        key_value(record(A), record(A, B)),
        key_value(record(A), record(A)),
    ),
    "EXTERNAL changes": (payload("1", "EXTERNAL"), payload("2", "EXTERNAL")),
}
"""What is posted one after the other to a topic of its own. The last one may be refused."""


@scenario()
def schemas_follow_each_other_by_the_strategy_of_the_namespace(stage: Stage) -> None:
    """Which schema may follow which, under each strategy."""
    verdicts: dict[str, list[str]] = {label: [] for label in PAIRS}
    for number, strategy in enumerate(STRATEGIES):
        assert stage.admin("PUT", "/admin/v2/namespaces/{ns}/schemaCompatibilityStrategy", strategy).status == 204
        stage.until(lambda strategy=strategy: _strategy_of(stage) == strategy)
        for topic, (label, schemas) in enumerate(PAIRS.items()):
            path = f"/admin/v2/schemas/{{ns}}/topic-{number}-{topic}/schema"
            first = stage.admin("POST", path, schemas[0])
            assert first.status == 200, (label, first)
            answers = [stage.admin("POST", path, schema) for schema in schemas[1:]]
            verdicts[label].append(" ".join(_verdict(answer) for answer in answers))
    for label, found in verdicts.items():
        stage.note(label, [f"{strategy}: {one}" for strategy, one in zip(STRATEGIES, found, strict=True)])


def _strategy_of(stage: Stage) -> Any:
    answer = stage.admin("POST", "/admin/v2/schemas/{ns}/none/compatibility", payload("", "STRING"))
    return answer.body["schemaCompatibilityStrategy"]


def _verdict(answer: Any) -> str:
    return f"version {answer.body['version']['version']}" if answer.status == 200 else f"refused ({answer.status})"


@scenario()
def the_admin_keeps_versions_of_schemas(stage: Stage) -> None:
    """Versions, deletions, and what is found afterwards."""
    topic = "/admin/v2/schemas/{ns}/topic"
    fields = ["version", "type", "data", "getSchemaResponses.version", "getSchemaResponses.type", "properties.k"]
    stage.http("a topic that nobody has heard of has no schema", "GET", f"{topic}/schema")
    stage.http("nor a list of them", "GET", f"{topic}/schemas")
    stage.http("a schema", "POST", f"{topic}/schema", payload(record(A), k="v"))
    stage.http("does not create the topic", "GET", "/admin/v2/persistent/{ns}")
    stage.http("a second one", "POST", f"{topic}/schema", payload(record(A, B_OPTIONAL)))
    stage.http("the first again", "POST", f"{topic}/schema", payload(record(A, doc="other words")))
    stage.http("the latest", "GET", f"{topic}/schema", only=fields)
    stage.http("the first", "GET", f"{topic}/schema/0", only=fields)
    stage.http("a partition of it", "GET", f"{topic}-partition-3/schema", only=fields)
    stage.http("one that is not there", "GET", f"{topic}/schema/7")
    stage.http("all", "GET", f"{topic}/schemas", only=fields)
    stage.http("the version of a definition", "POST", f"{topic}/version", payload(record(A)))
    stage.http("the version of an unknown definition", "POST", f"{topic}/version", payload(record(A, B)))
    stage.http("may it have this", "POST", f"{topic}/compatibility", payload(record(A)))
    stage.http("deleted", "DELETE", f"{topic}/schema")
    stage.http("then there is none", "GET", f"{topic}/schema")
    stage.http("nor an old version", "GET", f"{topic}/schema/0")
    stage.http("the list is empty", "GET", f"{topic}/schemas")
    stage.http("deleted again", "DELETE", f"{topic}/schema")
    stage.http("a new one goes on counting", "POST", f"{topic}/schema", payload("", "STRING"))
    stage.http("deleted by force", "DELETE", f"{topic}/schema?force=true")
    stage.http("counting begins again", "POST", f"{topic}/schema", payload(record(A)))
    stage.http("a missing namespace takes none", "POST", NOWHERE, payload(record(A)))
    stage.http("of two parts", "POST", "/admin/v2/schemas/{ns}/kv/schema", key_value(record(A), record(A)))
    stage.http("shown as two parts", "GET", "/admin/v2/schemas/{ns}/kv/schema", only=fields)
    stage.http("bytes", "POST", "/admin/v2/schemas/{ns}/bytes/schema", payload("", "BYTES"))
    stage.http("are no type of their own", "GET", "/admin/v2/schemas/{ns}/bytes/schema", only=fields)


@scenario()
def the_admin_refuses_what_is_no_schema(stage: Stage) -> None:
    """Malformed definitions, by status."""
    wrong = {
        "no JSON": payload("{"),
        "an Avro union": payload('["null","int"]'),
        "text for a string": payload("x", "STRING"),
        "text for a number": payload("x", "INT8"),
        "a type of clients": payload("", "AUTO_CONSUME"),
        "no descriptors": payload("", "PROTOBUF_NATIVE"),
        "a name with a dash": payload(record(A, name="a-b")),
        "a field twice": payload(record(A, A)),
        "an undefined type": payload(record(field("Missing"))),
    }
    for number, (label, body) in enumerate(wrong.items()):
        stage.note(label, stage.admin("POST", f"/admin/v2/schemas/{{ns}}/topic-{number}/schema", body).status)
    right = {
        "a union as JSON": payload('["null","int"]', "JSON"),
        "a primitive Avro type": payload('"int"'),
        "none": payload("", "NONE"),
        "a name with a dollar": payload(record(A, name="$a")),
        "a default of a wrong type": payload(record(field("int", default="x"))),
        "no properties": {"type": "STRING", "schema": ""},
    }
    for number, (label, body) in enumerate(right.items()):
        stage.note(label, stage.admin("POST", f"/admin/v2/schemas/{{ns}}/right-{number}/schema", body).status)


@scenario()
def a_topic_loses_its_schemas_when_it_is_deleted(stage: Stage) -> None:
    """With partitions and without."""
    for label, name, path in (("plain", "one", "one"), ("partitioned", "many", "many/partitions")):
        body = 2 if label == "partitioned" else None
        assert stage.admin("PUT", f"/admin/v2/persistent/{{ns}}/{path}", body).status == 204
        member = f"{name}-partition-1" if body else name
        whole = f"/admin/v2/schemas/{{ns}}/{name}/schema"
        stage.http(f"{label}: a schema", "POST", f"/admin/v2/schemas/{{ns}}/{member}/schema", payload(record(A)))
        stage.http(f"{label}: another", "POST", whole, payload(record(A, B_OPTIONAL)))
        stage.http(f"{label}: the topic goes", "DELETE", f"/admin/v2/persistent/{{ns}}/{path}")
        stage.http(f"{label}: so does the schema", "GET", whole)
        stage.http(f"{label}: versions begin again", "POST", whole, payload(record(A)))


@scenario()
def clients_bring_their_schemas(stage: Stage) -> None:
    """PRODUCER, SUBSCRIBE, GET_SCHEMA and GET_OR_CREATE_SCHEMA."""
    topic, peer = stage.found_topic(), stage.peer()

    def producer(label: str, schema: Schema | None, number: int, on: str = topic) -> None:
        command = CommandProducer(topic=on, producer_id=number, producer_name=f"p{number}")
        if schema is not None:
            command.schema.CopyFrom(schema)
        stage.ask(label, peer, command)

    def subscribe(label: str, schema: Schema | None, number: int, on: str = topic) -> None:
        command = CommandSubscribe(
            topic=on, subscription="s", consumer_id=number, consumer_name=f"c{number}", subType=CommandSubscribe.Shared
        )
        if schema is not None:
            command.schema.CopyFrom(schema)
        stage.ask(label, peer, command)

    stage.ask("no schema yet", peer, CommandGetSchema(topic=topic))
    subscribe("a consumer that takes any schema", wire("", Schema.AutoConsume), 1)
    subscribe("the first consumer with a schema", wire(record(A)), 2)
    stage.ask("its schema is the topic's", peer, CommandGetSchema(topic=topic))
    producer("a producer with the same schema", wire(record(A)), 1)
    producer("a producer with a compatible one", wire(record(A, B_OPTIONAL)), 2)
    producer("a producer whose field has no default", wire(record(A, B)), 3)
    producer("a producer with an incompatible one", wire(record(A, {**B, "name": "c"})), 10)
    producer("a producer with another type", wire("", Schema.String), 4)
    producer("a producer with a malformed one", wire("{"), 5)
    producer("a producer without one", None, 6)
    subscribe("a consumer that cannot read the topic", wire(record(A, {**B, "name": "c"})), 3)
    subscribe("a consumer that can", wire(record(A, {**A, "name": "c", "default": 1})), 4)
    subscribe("a consumer without one", None, 5)
    stage.ask("the first version", peer, CommandGetSchema(topic=topic, schema_version=bytes(8)))
    stage.ask("a missing version", peer, CommandGetSchema(topic=topic, schema_version=b"\0\0\0\0\0\0\0\x09"))
    stage.ask("an empty version", peer, CommandGetSchema(topic=topic, schema_version=b""))
    wider = wire(record(A, {**A, "name": "d", "default": 0}))
    stage.ask("known", peer, CommandGetOrCreateSchema(topic=topic, schema=wire(record(A))))
    stage.ask("new", peer, CommandGetOrCreateSchema(topic=topic, schema=wider))
    stage.ask("refused", peer, CommandGetOrCreateSchema(topic=topic, schema=wire("", Schema.String)))
    stage.ask("bytes", peer, CommandGetOrCreateSchema(topic=topic, schema=wire("", Schema.NoSchema)))
    other = stage.found_topic("bytes")
    producer("a producer of bytes that says so", wire("", Schema.NoSchema), 7, other)
    stage.ask("bytes are a schema then", peer, CommandGetSchema(topic=other))
    used = stage.found_topic("used")
    producer("a producer without a schema", None, 8, used)
    subscribe("makes the topic one of bytes", wire(record(A)), 6, used)
    producer("until a producer brings one", wire(record(A)), 9, used)
    subscribe("then a consumer may", wire(record(A)), 7, used)


@scenario(promises=("33.5",))
def schemas_may_be_frozen_and_demanded(stage: Stage) -> None:
    """`isAllowAutoUpdateSchema` and `schemaValidationEnforced` of a namespace."""
    topic, peer = stage.found_topic(), stage.peer()
    same, wide = wire(record(A)), wire(record(A, B_OPTIONAL))
    stage.ask(
        "a producer adds a schema",
        peer,
        CommandProducer(topic=topic, producer_id=1, schema=same, producer_name="p1"),
    )
    path = "/admin/v2/namespaces/{ns}/"
    for name in ("schemaCompatibilityStrategy", "isAllowAutoUpdateSchema", "schemaValidationEnforced"):
        stage.http(f"{name} at first", "GET", path + name)
    stage.http("frozen", "POST", path + "isAllowAutoUpdateSchema", False)
    stage.http("shown", "GET", path + "isAllowAutoUpdateSchema")

    _until_refused(stage, topic, wire(record(A, {**B_OPTIONAL, "name": "e"})))
    stage.ask("new", peer, CommandProducer(topic=topic, producer_id=2, schema=wide, producer_name="p2"))
    stage.ask("known", peer, CommandProducer(topic=topic, producer_id=3, schema=same, producer_name="p3"))
    added = stage.admin("POST", "/admin/v2/schemas/{ns}/topic/schema", payload(record(A, B_OPTIONAL)))
    stage.note("the admin may add", added.status)
    stage.http("demanded", "POST", path + "schemaValidationEnforced", True)
    stage.http("shown, too", "GET", path + "schemaValidationEnforced")
    _until_refused(stage, topic, None)
    stage.ask("without", peer, CommandProducer(topic=topic, producer_id=4, producer_name="p4"))
    stage.ask("with", peer, CommandProducer(topic=topic, producer_id=5, schema=same, producer_name="p5"))


def _until_refused(stage: Stage, topic: str, schema: Schema | None) -> None:
    """Wait until the broker knows of the policy. The schema that is tried may be added meanwhile."""
    numbers = iter(range(100, 10_000))

    def refused() -> bool:
        peer, number = stage.peer(), next(numbers)
        command = CommandProducer(topic=topic, producer_id=number, producer_name=f"t{number}")
        if schema is not None:
            data = json.loads(schema.schema_data)
            data["fields"][-1]["name"] = f"e{number}"
            command.schema.CopyFrom(wire(json.dumps(data)))
        answer = peer.request(command)
        peer.close()
        return isinstance(content_of(answer), CommandError)

    stage.until(refused)


class First(Record):
    """What the topic begins with."""

    number = Integer()


class Needing(Record):
    """Another record."""

    number = String(required=True)


@scenario()
def the_official_client_meets_another_schema(stage: Stage) -> None:
    """Records of the official client."""
    client, topic = stage.client(), stage.topic()
    consumer = stage.step("a consumer", client.subscribe, topic, "s", schema=JsonSchema(First))
    producer = stage.step(
        "a producer", client.create_producer, topic, producer_name="p", schema=JsonSchema(First), batching_enabled=False
    )
    stage.step("sends", producer.send, First(number=1))
    (message,) = stage.receive("received", consumer)
    stage.note("its value", message.value().number)
    stage.note("its version", message.schema_version().encode("latin-1"))
    stage.step("a producer of another record", client.create_producer, topic, schema=JsonSchema(Needing))
    stage.step("a consumer of another record", client.subscribe, topic, "t", schema=JsonSchema(Needing))
    stage.step("a producer of texts", client.create_producer, topic, schema=pulsar.schema.StringSchema())
