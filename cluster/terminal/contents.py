"""What `magnetar produce` sends: texts, files, their key and properties, and the schema that they are sent with.

With a schema, the contents are encoded already, as by Java's AUTO_PRODUCE_BYTES. They are checked before they are sent.
Only a text for an Avro schema is encoded here: it is the value as JSON.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ...client.schemas.automatic import ProducedBytes
from ...client.schemas.avro_schema import AvroSchema
from ...client.schemas.key_value import KeyValueEncodingType, KeyValueSchema
from ...client.schemas.primitives import StringSchema
from ...client.schemas.schema import Schema, SchemaInfo
from ...protocol.errors import InvalidConfiguration
from ...protocol.plain_values import is_text_map
from ...protocol.schema_types import SchemaType

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Contents:
    """Messages to send, in order. With `pairs` the key is a part of the value."""

    payloads: Sequence[bytes]
    key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict[str, str])
    schema: Schema | None = None
    pairs: bool = False

    def value(self, payload: bytes) -> object:
        """What a producer with the schema takes."""
        return (self.key, payload) if self.pairs else payload

    @property
    def message_key(self) -> str | None:
        """The key of the message itself. Raises InvalidConfiguration for one that is no text."""
        if self.pairs or self.key is None:
            return None
        try:
            return self.key.decode()
        except UnicodeDecodeError:
            raise InvalidConfiguration("the key is no text in UTF-8: pass --key-value-encoding-type") from None


def payloads(texts: Iterable[str], files: Iterable[str], separator: str, value_schema: str) -> list[bytes]:
    """The texts, split at the separator, then the files. Raises InvalidConfiguration, OSError."""
    encode = _encoder(value_schema)
    parts = [part for text in texts for part in (text.split(separator) if separator else [text])]
    paths = [path for given in files for path in given.split(",")]
    return [encode(part) for part in parts] + [_file(path) for path in paths]


def properties_of(given: Iterable[str]) -> dict[str, str]:
    """`name=value`, several of them with commas. Raises InvalidConfiguration."""
    found: dict[str, str] = {}
    for pair in (pair for text in given for pair in text.split(",")):
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidConfiguration(f"{pair!r} is not a property: write NAME=VALUE")
        found[name] = value
    return found


def schema_of(value: str, key: str, encoding: str | None) -> Schema | None:
    """The schema of a producer. Raises InvalidConfiguration."""
    found = _info(value)
    if encoding is None:
        return None if found is None else ProducedBytes(found)
    try:
        where = KeyValueEncodingType[encoding.upper()]
    except KeyError:
        raise InvalidConfiguration(
            f"--key-value-encoding-type is separated or inline, not {encoding!r}: choose one"
        ) from None
    return KeyValueSchema(ProducedBytes(_info(key)), ProducedBytes(found), where)


def _encoder(schema: str) -> "_Encode":
    name, _, definition = schema.partition(":")
    return _Encode(AvroSchema(None, _definition(schema, definition)) if name.lower() == "avro" else None)


@dataclass(frozen=True)
class _Encode:
    schema: Schema | None

    def __call__(self, text: str) -> bytes:
        if self.schema is None:
            return text.encode("utf-8", "surrogateescape")  # bytes of the command line that are no text
        try:
            return self.schema.encode(json.loads(text))
        except ValueError as error:
            raise InvalidConfiguration(f"a message for an Avro schema is its value as JSON: {error}") from None


def _info(schema: str) -> SchemaInfo | None:
    """What is registered; None for bytes."""
    name, _, definition = schema.partition(":")
    match name.lower():
        case "bytes":
            return None
        case "string":
            return StringSchema().info
        case "avro" | "json" as kind:
            _definition(schema, definition)
            return SchemaInfo("client", SchemaType[kind.upper()], definition.encode())
        case _:
            raise InvalidConfiguration(
                f"there is no schema {schema[:40]!r}: write bytes, string, avro:DEFINITION or json:DEFINITION"
            )


def _definition(schema: str, text: str) -> dict[str, object]:
    try:
        found = cast("object", json.loads(text))
    except ValueError as error:
        raise InvalidConfiguration(f"the definition in {schema[:40]!r} is no JSON: {error}") from None
    if not is_text_map(found):
        raise InvalidConfiguration(f"the definition in {schema[:40]!r} is no object: write an Avro record")
    return dict(found)


def _file(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
