"""Pairs of a key and a value with a schema each, as Pulsar's Java client encodes them.

INLINE puts both into the payload. SEPARATED puts only the value there, and the key, in base64, into the message's key.
So the key chooses the partition, and compaction and Key_Shared subscriptions go by it.
"""

import base64
import binascii
import enum
import json
import struct
from typing import NamedTuple, cast

from ...protocol.errors import InvalidConfiguration, SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .schema import EncodedKey, Schema, SchemaInfo

_LENGTH = struct.Struct(">i")
_NOTHING = _LENGTH.pack(-1)


class KeyValueEncodingType(enum.IntEnum):
    """Where the key of a pair travels."""

    INLINE = 0
    SEPARATED = 1


class KeyValue(NamedTuple):
    """A pair. A part may be None."""

    key: object
    value: object


class KeyValueSchema(Schema):
    """Pairs (`KeyValue`, or tuples of two)."""

    def __init__(
        self, key: Schema, value: Schema, encoding_type: KeyValueEncodingType = KeyValueEncodingType.INLINE
    ) -> None:
        """Make the schema of pairs.

        Args:
            key: The schema of keys.
            value: The schema of values.
            encoding_type: Where the key travels.

        Raises:
            InvalidConfiguration: If a part is no schema, or one that learns from the topic what it is.
        """
        for part in (key, value):
            if not isinstance(part, Schema) or part.separates_key or part.learns:  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                raise InvalidConfiguration(f"KeyValueSchema takes two schemas of single values, not {part!r}")
        self.key = key
        self.value = value
        self.encoding_type = KeyValueEncodingType(encoding_type)
        self.separates_key = self.encoding_type is KeyValueEncodingType.SEPARATED
        self.needs_writer = key.needs_writer or value.needs_writer
        self.info = info_of_parts(_info(key), _info(value), self.encoding_type)

    def __reduce__(self) -> tuple[object, ...]:
        return (KeyValueSchema, (self.key, self.value, self.encoding_type))

    def __repr__(self) -> str:
        return f"KeyValueSchema({self.key!r}, {self.value!r}, {self.encoding_type.name})"

    def _encode(self, value: object) -> bytes:
        pair = _pair(value)
        data = _encoded(self.value, pair[1])
        if self.separates_key:
            return data or b""
        return _packed(_encoded(self.key, pair[0])) + _packed(data)

    def _encode_key(self, value: object) -> EncodedKey | None:
        data = _encoded(self.key, _pair(value)[0])
        return None if data is None else EncodedKey(base64.b64encode(data).decode())

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        key, value = split(data)
        return self._decoded(key, value, writer)

    def _decode_with_key(self, key: bytes | None, data: bytes, writer: SchemaInfo | None = None) -> object:
        return self._decoded(key, data, writer)

    def _decoded(self, key: bytes | None, value: bytes | None, writer: SchemaInfo | None) -> KeyValue:
        writers = (None, None) if writer is None else parts_of(writer)[:2]
        return KeyValue(
            None if key is None else self.key.decode(key, writers[0]),
            None if value is None else self.value.decode(value, writers[1]),
        )


def _info(schema: Schema) -> SchemaInfo:
    return schema.info or SchemaInfo("BYTES", SchemaType.NONE)


def _pair(value: object) -> tuple[object, object]:
    parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()
    if len(parts) == 2:
        return parts
    raise SchemaSerializationError(f"KeyValueSchema takes a KeyValue, not {value!r:.60}")


def _encoded(schema: Schema, value: object) -> bytes | None:
    return None if value is None else schema.encode(value)


def _packed(data: bytes | None) -> bytes:
    return _NOTHING if data is None else _LENGTH.pack(len(data)) + data


def split(data: bytes) -> tuple[bytes | None, bytes | None]:
    """The two parts of an inline pair. Raises SchemaSerializationError."""
    key, rest = _first(data)
    value, rest = _first(rest)
    return key, value


def _first(data: bytes) -> tuple[bytes | None, bytes]:
    if len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + max(length, 0)
        if length >= -1 and len(data) >= end:
            return (None if length < 0 else data[_LENGTH.size : end]), data[end:]
    raise SchemaSerializationError(f"the data of {len(data)} bytes is no pair of KEY_VALUE: a part is cut off")


def info_of_parts(key: SchemaInfo, value: SchemaInfo, encoding_type: KeyValueEncodingType) -> SchemaInfo:
    """The definition of pairs: both definitions behind each other, what else they have as properties."""
    properties: dict[str, str] = {}
    for which, part in (("key", key), ("value", value)):
        properties[f"{which}.schema.name"] = part.name
        properties[f"{which}.schema.type"] = part.type.client_name
        properties[f"{which}.schema.properties"] = json.dumps(dict(part.properties), separators=(",", ":"))
    properties["kv.encoding.type"] = encoding_type.name
    definition = _packed(key.definition) + _packed(value.definition)
    return SchemaInfo("KeyValue", SchemaType.KEY_VALUE, definition, properties)


_BY_CLIENT_NAME = {kind.client_name: kind for kind in SchemaType}


def parts_of(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo, KeyValueEncodingType]:
    """The definitions of key and value, and where keys travel. Raises SchemaSerializationError."""
    if info.type is not SchemaType.KEY_VALUE:
        raise SchemaSerializationError(
            f"the message was written with a {info.type.client_name} schema, not with KEY_VALUE"
        )
    definitions = split(info.definition)
    found: list[SchemaInfo] = []
    for which, definition in zip(("key", "value"), definitions, strict=True):
        name = info.properties.get(f"{which}.schema.name", "")
        kind = _BY_CLIENT_NAME.get(info.properties.get(f"{which}.schema.type", ""))
        if kind is None:
            raise SchemaSerializationError(f"the KEY_VALUE schema does not say the type of its {which}")
        found.append(SchemaInfo(name, kind, definition or b""))
    encoding = KeyValueEncodingType.__members__.get(info.properties.get("kv.encoding.type", "INLINE"))
    return found[0], found[1], encoding or KeyValueEncodingType.INLINE


def key_bytes(key: str) -> bytes:
    """The bytes that a message's key in base64 stands for. Raises SchemaSerializationError."""
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error as error:
        raise SchemaSerializationError(f"the message's key is no base64: {error}") from None
