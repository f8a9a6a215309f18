"""One schema, as it is defined: its type, its data and its properties.

Data is what Pulsar's clients send. It is the text of an Avro schema for AVRO, JSON and PROTOBUF. PROTOBUF_NATIVE has
JSON around a set of file descriptors. KEY_VALUE has two definitions behind each other, whose types stand in the
properties. All other types have none.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from ...protocol.errors import InvalidSchema
from ...protocol.plain_values import is_text_map
from ...protocol.pulsar_pb2 import Schema
from ...protocol.schema_types import SchemaType

VERSION = struct.Struct(">q")
"""A version as it travels: 8 bytes, big-endian."""

_LENGTH = struct.Struct(">i")


OTHER_NAMES: Mapping[str, SchemaType] = {
    "BYTES": SchemaType.NONE,
    "AUTO": SchemaType.AUTO_CONSUME,
    "AUTO_PUBLISH": SchemaType.AUTO_CONSUME,
}
"""Types that Pulsar's tools know, and that travel as another one, or not at all."""

AVRO_TYPES = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose data is the text of an Avro schema."""

DATALESS_TYPES = frozenset(SchemaType) - AVRO_TYPES - {SchemaType.KEY_VALUE, SchemaType.PROTOBUF_NATIVE}


@dataclass(frozen=True)
class SchemaDefinition:
    """See the module."""

    type: SchemaType
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of_wire(cls, schema: Schema) -> "SchemaDefinition":
        """What a client sent."""
        properties = {item.key: item.value for item in schema.properties}
        return cls(SchemaType(schema.type), schema.schema_data, properties)

    def to_wire(self, name: str) -> Schema:
        """As it is sent to a client."""
        answer = Schema(name=name, schema_data=self.data, type=cast("Schema.Type", int(self.type)))
        for key, value in self.properties.items():
            answer.properties.add(key=key, value=value)
        return answer


def type_named(name: str) -> SchemaType:
    """The type that Pulsar's tools call so. Raises IncompatibleSchema."""
    found = SchemaType.__members__.get(name, OTHER_NAMES.get(name))
    if found is None:
        raise InvalidSchema(f"{name[:100]!r} is no type of schema")
    return found


def key_and_value(schema: SchemaDefinition) -> tuple[SchemaDefinition, SchemaDefinition]:
    """The two parts of a KEY_VALUE schema. Raises IncompatibleSchema for anything else."""
    key, rest = _first_part(schema.data)
    value, _ = _first_part(rest)
    return _part(schema, "key", key), _part(schema, "value", value)


def pack_parts(key: bytes, value: bytes) -> bytes:
    """The data of a KEY_VALUE schema with these parts."""
    return _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value


def _first_part(data: bytes) -> tuple[bytes, bytes]:
    if len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + max(length, 0)
        if length >= -1 and len(data) >= end:
            return data[_LENGTH.size : end], data[end:]
    raise InvalidSchema("Invalid schema definition data for KEY_VALUE schema: a part is cut off")


def _part(schema: SchemaDefinition, which: str, data: bytes) -> SchemaDefinition:
    text = schema.properties.get(f"{which}.schema.properties", "")
    try:
        properties = cast("object", json.loads(text or "{}"))
    except (ValueError, RecursionError):
        properties = None
    if not is_text_map(properties) or not all(isinstance(value, str) for value in properties.values()):
        raise InvalidSchema(f"the property {which}.schema.properties is no JSON object of texts")
    of = type_named(schema.properties.get(f"{which}.schema.type", "BYTES"))
    return SchemaDefinition(of, data, cast("dict[str, str]", properties))
