"""Schemas that learn from the topic what they are."""

import json
from collections.abc import Callable
from typing import cast

from ...protocol.errors import SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .avro_schema import decode_plain, parse
from .key_value import KeyValue, KeyValueEncodingType, parts_of, split
from .primitives import BY_TYPE
from .protobuf_schema import DescribedMessages
from .schema import Schema, SchemaInfo

READERS_MAX = 100
"""So many definitions are kept ready."""


class AutoConsumeSchema(Schema):
    """Decodes each message as the schema says that it was written with; bytes without one.

    Values of AVRO and JSON are dicts, those of PROTOBUF_NATIVE messages of protobuf. It is for consumers and readers.
    """

    needs_writer = True
    learns = True

    def __init__(self) -> None:
        """Make the schema."""
        self._readers: dict[tuple[SchemaType, bytes], Callable[[bytes], object]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (AutoConsumeSchema, ())

    def _encode(self, value: object) -> bytes:
        raise SchemaSerializationError("AutoConsumeSchema only reads: use AutoProduceBytesSchema for a producer")

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        return self._decode_with_key(None, data, writer)

    def _decode_with_key(self, key: bytes | None, data: bytes, writer: SchemaInfo | None = None) -> object:
        if writer is None:
            return data
        if writer.type is not SchemaType.KEY_VALUE:
            return self._read(writer, data)
        key_info, value_info, encoding = parts_of(writer)
        parts = (key, data) if encoding is KeyValueEncodingType.SEPARATED else split(data)
        return KeyValue(
            None if parts[0] is None else self._read(key_info, parts[0]),
            None if parts[1] is None else self._read(value_info, parts[1]),
        )

    def _read(self, info: SchemaInfo, data: bytes) -> object:
        marked = (info.type, info.definition)
        found = self._readers.get(marked)
        if found is None:
            while len(self._readers) >= READERS_MAX:
                self._readers.pop(next(iter(self._readers)), None)
            found = self._readers[marked] = reader_of(info)
        return found(data)


class AutoProduceBytesSchema(Schema):
    """Takes payloads that are encoded already, and checks that they fit the topic's schema. For producers."""

    learns = True

    def __init__(self) -> None:
        """Make the schema."""

    def _encode(self, value: object) -> bytes:
        raise SchemaSerializationError("AutoProduceBytesSchema belongs to a producer, which knows the topic's schema")

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        return data


class ProducedBytes(Schema):
    """What AutoProduceBytesSchema is on a topic whose schema is known."""

    def __init__(self, info: SchemaInfo | None) -> None:
        self.info = info
        self._read: Callable[[bytes], object] | None = None if info is None else _checker_of(info)

    def __reduce__(self) -> tuple[object, ...]:
        return (ProducedBytes, (self.info,))

    def _encode(self, value: object) -> bytes:
        if not isinstance(value, bytes | bytearray):
            raise SchemaSerializationError(
                f"AutoProduceBytesSchema takes bytes that are encoded already, not {type(value).__name__}"
            )
        data = bytes(value)
        if self._read is not None:
            self._read(data)
        return data

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        return data


def reader_of(info: SchemaInfo) -> Callable[[bytes], object]:
    """What decodes payloads that were written with a schema. Raises SchemaSerializationError."""
    if info.type is SchemaType.AVRO:
        parsed = parse(info.definition)
        return lambda data: decode_plain(data, parsed, None)
    if info.type is SchemaType.JSON:
        return _read_json
    if info.type is SchemaType.PROTOBUF_NATIVE:
        return DescribedMessages(info.definition).decode
    kind = BY_TYPE.get(info.type)
    return _as_it_is if kind is None else kind().decode


def _checker_of(info: SchemaInfo) -> Callable[[bytes], object]:
    if info.type is not SchemaType.KEY_VALUE:
        return reader_of(info)
    consumer = AutoConsumeSchema()
    return lambda data: consumer.decode_with_key(None, data, info)


def _as_it_is(data: bytes) -> object:
    return data


def _read_json(data: bytes) -> object:
    try:
        return cast("object", json.loads(data))
    except (ValueError, RecursionError) as error:
        raise SchemaSerializationError(f"the payload is no JSON: {error}") from None
