"""The eight strategies, by type of schema."""

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from magnetar.actors.policies.schema_strategy import SchemaCompatibilityStrategy as Strategy
from magnetar.actors.schemas.compatibility import check_consumer, check_new
from magnetar.actors.schemas.definition import SchemaDefinition, key_and_value, pack_parts
from magnetar.actors.schemas.validation import check_definition
from magnetar.protocol.errors import IncompatibleSchema
from magnetar.protocol.schema_types import SchemaType

A = '{"name":"a","type":"int"}'
B = '{"name":"b","type":"int"}'
B_DEFAULT = '{"name":"b","type":"int","default":1}'
STRATEGIES = [one for one in Strategy if one is not Strategy.UNDEFINED]


def avro(*fields: str, of: SchemaType = SchemaType.AVRO) -> SchemaDefinition:
    return SchemaDefinition(of, ('{"type":"record","name":"R","fields":[' + ",".join(fields) + "]}").encode())


def native(message: str, package: str = "p") -> SchemaDefinition:
    file = FileDescriptorProto(name="f.proto", package=package)
    outer = file.message_type.add(name="Outer")
    outer.nested_type.add(name="Inner")
    data = {
        "fileDescriptorSet": base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode(),
        "rootMessageTypeName": message,
        "rootFileDescriptorName": "f.proto",
    }
    return SchemaDefinition(SchemaType.PROTOBUF_NATIVE, json.dumps(data).encode())


def key_value(key: SchemaDefinition, value: SchemaDefinition) -> SchemaDefinition:
    properties = {"key.schema.type": key.type.name, "value.schema.type": value.type.name}
    return SchemaDefinition(SchemaType.KEY_VALUE, pack_parts(key.data, value.data), properties)


def allowed(existing: list[SchemaDefinition], new: SchemaDefinition) -> str:
    """The strategies that let the new schema in."""
    found = []
    for strategy in STRATEGIES:
        try:
            check_new(existing, new, strategy)
        except IncompatibleSchema:
            continue
        found.append(strategy.name)
    return " ".join(found)


BACKWARDS = "ALWAYS_COMPATIBLE BACKWARD BACKWARD_TRANSITIVE"
FORWARDS = "ALWAYS_COMPATIBLE FORWARD FORWARD_TRANSITIVE"
ALL = " ".join(one.name for one in STRATEGIES if one is not Strategy.ALWAYS_INCOMPATIBLE)


@pytest.mark.parametrize("of", [SchemaType.AVRO, SchemaType.JSON])
def test_schemas_made_of_avro_are_compared_in_the_direction_of_the_strategy(of: SchemaType):
    one, two, three = avro(A, of=of), avro(A, B, of=of), avro(A, B_DEFAULT, of=of)
    assert allowed([one], two) == FORWARDS
    assert allowed([two], one) == BACKWARDS
    assert allowed([one], three) == ALL
    assert allowed([], one) == f"ALWAYS_INCOMPATIBLE {ALL}"
    # version 0 has no b at all: only the transitive strategies mind
    assert allowed([one, three], two) == "ALWAYS_COMPATIBLE BACKWARD FORWARD FULL FORWARD_TRANSITIVE"


def test_primitive_schemas_go_with_themselves_only():
    string, number = SchemaDefinition(SchemaType.STRING, b""), SchemaDefinition(SchemaType.INT32, b"")
    assert allowed([string], number) == "ALWAYS_COMPATIBLE"
    assert allowed([string], SchemaDefinition(SchemaType.STRING, b"null")) == ALL
    assert allowed([avro(A, of=SchemaType.PROTOBUF)], avro(A, B, of=SchemaType.PROTOBUF)) == ALL


def test_external_schemas_go_with_themselves_under_every_strategy():
    one, other = (SchemaDefinition(SchemaType.EXTERNAL, data) for data in (b"1", b"2"))
    assert allowed([one], other) == f"ALWAYS_INCOMPATIBLE {ALL}"


def test_the_root_message_of_protobuf_native_schemas_stays():
    outer, inner, moved = native("p.Outer"), native("p.Outer.Inner"), native("q.Outer", "q")
    for schema in (outer, inner, moved):
        check_definition(schema)
    assert allowed([outer], inner) == allowed([outer], moved) == "ALWAYS_COMPATIBLE"
    again = SchemaDefinition(outer.type, outer.data + b" ")
    assert allowed([outer], again) == ALL
    with pytest.raises(IncompatibleSchema, match="recheck rootMessageTypeName"):
        check_definition(native("p.Missing"))


def test_both_parts_of_key_value_schemas_are_compared():
    string = SchemaDefinition(SchemaType.STRING, b"")
    old = key_value(string, avro(A))
    assert allowed([old], key_value(string, avro(A, B))) == FORWARDS
    assert allowed([old], key_value(avro(A), avro(A))) == "ALWAYS_COMPATIBLE"
    assert [part.type for part in key_and_value(old)] == [SchemaType.STRING, SchemaType.AVRO]
    with pytest.raises(IncompatibleSchema, match="from key schema type is STRING and to key schema is AVRO"):
        check_new([old], key_value(avro(A), avro(A)), Strategy.FULL)


def test_a_consumer_must_read_the_latest_version_or_all():
    one, two, three = avro(A), avro(A, B), avro(A, B_DEFAULT)

    def reads(existing: list[SchemaDefinition], own: SchemaDefinition) -> str:
        found = []
        for strategy in STRATEGIES:
            try:
                check_consumer(existing, own, strategy)
            except IncompatibleSchema:
                continue
            found.append(strategy.name)
        return " ".join(found)

    assert reads([one], two) == "ALWAYS_COMPATIBLE"
    assert reads([one, two], two) == "ALWAYS_COMPATIBLE BACKWARD FORWARD FULL FORWARD_TRANSITIVE"
    assert reads([two], one) == "ALWAYS_COMPATIBLE BACKWARD FORWARD FULL BACKWARD_TRANSITIVE FORWARD_TRANSITIVE"
    assert reads([one], three) == ALL
