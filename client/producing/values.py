"""From values to payloads and keys, by a producer's schema."""

from collections.abc import Sequence

from ...protocol.errors import InvalidMessage
from ..schemas.schema import Schema


def encoded(schema: Schema | None, value: object, key: str | None) -> tuple[object, str | None]:
    """The payload and the key of a message. None is a null value, and stays it.

    Raises SchemaSerializationError, and InvalidMessage for a key beside the one that the schema makes.
    """
    if schema is None or value is None:
        return value, key
    if not schema.separates_key:
        return schema.encode(value), key
    if key is not None:
        raise InvalidMessage("the schema makes the message's key from its value: leave partition_key out")
    return schema.encode(value), schema.encode_key(value)


def encoded_without_key(schema: Schema | None, values: Sequence[object]) -> Sequence[object]:
    """The payloads of plain messages.

    Raises SchemaSerializationError, and InvalidMessage if the schema would give them keys.
    """
    if schema is None:
        return values
    if schema.separates_key:
        raise InvalidMessage("the schema gives each message a key: use send or send_async")
    return schema.encode_many(values if isinstance(values, list | tuple) else [*values])
