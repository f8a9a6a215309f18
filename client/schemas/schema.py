"""What all schemas have in common: a definition for the broker, and a way from values to payloads and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from ...protocol.errors import SchemaSerializationError
from ...protocol.pulsar_pb2 import Schema as WireSchema
from ...protocol.schema_types import SchemaType

DecodedValue: TypeAlias = Any
"""What a payload stands for: the schema, which an application chooses when it runs, knows its type."""


@dataclass(frozen=True)
class SchemaInfo:
    """A schema as the broker keeps it."""

    name: str
    type: SchemaType
    definition: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_wire(self) -> WireSchema:
        """As it is sent to a broker."""
        schema = WireSchema(name=self.name, schema_data=self.definition, type=cast("WireSchema.Type", int(self.type)))
        for key, value in self.properties.items():
            schema.properties.add(key=key, value=value)
        return schema

    @staticmethod
    def of_wire(schema: WireSchema) -> "SchemaInfo":
        """What a broker sent. Raises SchemaSerializationError for a type that this client does not know."""
        try:
            kind = SchemaType(schema.type)
        except ValueError:
            raise SchemaSerializationError(f"this client does not know schemas of type {schema.type}") from None
        return SchemaInfo(schema.name, kind, schema.schema_data, {pair.key: pair.value for pair in schema.properties})


class EncodedKey(str):
    """A message key that stands for bytes: it is their base64, and the message says so."""

    __slots__ = ()


class Schema:
    """How one kind of value is encoded, decoded and registered.

    `info` is what producers and consumers register; None registers nothing.
    """

    info: SchemaInfo | None = None
    needs_writer = False
    """Whether decoding needs the definition that the message was written with."""
    learns = False
    """Whether it learns from the topic what it is."""
    separates_key = False
    """Whether a part of the value travels as the message's key."""

    def encode(self, value: object) -> bytes:
        """Return the payload that stands for a value.

        Args:
            value: The value.

        Returns:
            The payload.

        Raises:
            SchemaSerializationError: If the value does not fit the schema.
        """
        return self._encode(value)

    def encode_many(self, values: Sequence[object]) -> list[bytes]:
        """Return the payloads that stand for values, in their order.

        Args:
            values: The values.

        Returns:
            The payloads.

        Raises:
            SchemaSerializationError: If a value does not fit the schema. It names the first one by its index.
        """
        if type(self).encode is not Schema.encode:
            return self._one_by_one(values)  # an application's schema says there how values are encoded
        return self._encode_many(values)

    def decode(self, data: bytes, writer: SchemaInfo | None = None) -> DecodedValue:
        """Return the value that a payload stands for.

        Args:
            data: The payload.
            writer: The schema that it was written with; None if that is not known.

        Returns:
            The value.

        Raises:
            SchemaSerializationError: If the payload does not fit the schema.
        """
        return self._decode(data, writer)

    def encode_key(self, value: object) -> EncodedKey | None:
        """Return the key that the message of a value gets, for schemas that separate it.

        Args:
            value: The value.

        Returns:
            The key; None for a value whose key is None.

        Raises:
            SchemaSerializationError: If the key does not fit the schema.
        """
        return self._encode_key(value)

    def decode_with_key(self, key: bytes | None, data: bytes, writer: SchemaInfo | None = None) -> DecodedValue:
        """Return the value of a message whose key is a part of it.

        Args:
            key: The bytes of the message's key; None if it has none.
            data: The payload.
            writer: The schema that it was written with; None if that is not known.

        Returns:
            The value.

        Raises:
            SchemaSerializationError: If key or payload do not fit the schema.
        """
        return self._decode_with_key(key, data, writer)

    def _encode(self, value: object) -> bytes:
        raise NotImplementedError

    def _encode_many(self, values: Sequence[object]) -> list[bytes]:
        """A schema may have a faster way. It leaves to this one what is unusual, and what does not fit."""
        return self._one_by_one(values)

    def _one_by_one(self, values: Sequence[object]) -> list[bytes]:
        payloads: list[bytes] = []
        try:
            for value in values:
                payloads.append(self.encode(value))
        except SchemaSerializationError as error:
            raise SchemaSerializationError(f"value {len(payloads)} of {len(values)}: {error}") from None
        return payloads

    def _decode(self, data: bytes, writer: SchemaInfo | None) -> object:
        raise NotImplementedError

    def _encode_key(self, value: object) -> EncodedKey | None:
        raise NotImplementedError

    def _decode_with_key(self, key: bytes | None, data: bytes, writer: SchemaInfo | None) -> object:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
