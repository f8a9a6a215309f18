"""What an application may pass as `schema=`: a schema of ours, or one of the official Python client's."""

from collections.abc import Callable
from typing import cast

from ...protocol.errors import InvalidConfiguration
from .avro_schema import AvroSchema
from .json_schema import JsonSchema
from .primitives import BytesSchema, StringSchema
from .protobuf_schema import ProtobufNativeSchema
from .schema import Schema


def as_schema(given: object) -> Schema | None:
    """The schema; None for that of bytes, which is none. Raises InvalidConfiguration."""
    if given is None or isinstance(given, BytesSchema):
        return None
    if isinstance(given, Schema):
        return given
    if type(given).__module__.startswith("pulsar.schema"):
        name = type(given).__name__
        if name == "BytesSchema":
            return None
        if name in _OFFICIAL:
            return _OFFICIAL[name](given)
    raise InvalidConfiguration(f"schema must be a schema such as magnetar.JsonSchema(Order), not {given!r}")


def _record(given: object) -> type:
    return cast(type, getattr(given, "_record_cls", None))


_OFFICIAL: dict[str, Callable[[object], Schema]] = {
    "StringSchema": lambda given: StringSchema(),
    "JsonSchema": lambda given: JsonSchema(_record(given)),
    "AvroSchema": lambda given: AvroSchema(
        _record(given), cast("dict[str, object] | None", getattr(given, "_schema", None))
    ),
    "ProtobufNativeSchema": lambda given: ProtobufNativeSchema(_record(given)),
}
