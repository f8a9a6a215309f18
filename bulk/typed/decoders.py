"""Which columns a schema has, and what decodes payloads of one version into those of another."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Collection

import pyarrow as pa

from ...actors.schemas.definition import SchemaDefinition
from ...protocol.schema_types import SchemaType
from . import avro_types, json_columns, protobuf_columns
from .avro_resolution import Unresolvable, avro_decoder
from .avro_types import parsed
from .columns import VALUE
from .json_columns import JsonDecoder
from .key_value_columns import KEY, PartDecoder, parts_of
from .payloads import PayloadDecoder, no_columns
from .primitive_columns import PrimitiveDecoder, primitive_type
from .protobuf_columns import ProtobufDecoder, message_class

PROTOBUF = (SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE)


def column_names(definition: SchemaDefinition) -> list[str]:
    """The names of a schema's columns. Raises NotAllowedError."""
    kind = definition.type
    if kind is SchemaType.KEY_VALUE:
        return [KEY, VALUE]
    if kind in PROTOBUF:
        return [field.name for field in message_class(definition, kind is SchemaType.PROTOBUF).DESCRIPTOR.fields]
    if kind in (SchemaType.AVRO, SchemaType.JSON):
        avro = parsed(definition.data)
        return [field.name for field in avro.fields] if avro.kind == "record" else [VALUE]
    if primitive_type(kind) is None:
        raise no_columns(f"its type is {kind.client_name}")
    return [VALUE]


def typed_fields(definition: SchemaDefinition, names: Collection[str] | None = None) -> list[pa.Field]:
    """The columns of a schema, or only those with `names`. Raises NotAllowedError."""
    try:
        return _fields(definition, names)
    except RecursionError:
        raise no_columns("it is nested too deeply") from None


def _fields(definition: SchemaDefinition, names: Collection[str] | None) -> list[pa.Field]:
    kind = definition.type
    if kind is SchemaType.KEY_VALUE:
        parts = parts_of(definition)
        pairs = [(KEY, parts.key), (VALUE, parts.value)]
        return [pa.field(name, _part_type(part)) for name, part in pairs if names is None or name in names]
    if kind in PROTOBUF:
        return protobuf_columns.fields_of(message_class(definition, kind is SchemaType.PROTOBUF), names)
    if kind is SchemaType.AVRO:
        return avro_types.fields_of(parsed(definition.data), names)
    if kind is SchemaType.JSON:
        return json_columns.fields_of(parsed(definition.data), names)
    found = primitive_type(kind)
    if found is None:
        raise no_columns(f"its type is {kind.client_name}")
    return [pa.field(VALUE, found)] if names is None or VALUE in names else []


def _part_type(part: SchemaDefinition) -> pa.DataType:
    fields = typed_fields(part)
    return pa.struct(fields) if is_record(part) else fields[0].type


def is_record(definition: SchemaDefinition) -> bool:
    """Whether a schema has fields, rather than one value."""
    if definition.type is SchemaType.AVRO:
        return parsed(definition.data).kind == "record"
    return definition.type in (SchemaType.JSON, *PROTOBUF)


def decoder_of(
    reader: SchemaDefinition, writer: SchemaDefinition, names: Collection[str] | None = None
) -> PayloadDecoder:
    """What decodes payloads of the writer's schema into columns of the reader's; not for pairs.

    Raises NotAllowedError, and Unresolvable if one cannot be read as the other.
    """
    kind = reader.type
    if writer.type is not kind:
        raise Unresolvable(f"it is {writer.type.client_name}, not {kind.client_name}")
    if kind in PROTOBUF:
        listed = kind is SchemaType.PROTOBUF
        return ProtobufDecoder(message_class(reader, listed), names, listed)
    if kind is SchemaType.AVRO:
        return avro_decoder(parsed(reader.data), parsed(writer.data), names)
    if kind is SchemaType.JSON:
        return JsonDecoder(parsed(reader.data), parsed(writer.data), names)
    return PrimitiveDecoder(kind)


def part_decoders(reader: SchemaDefinition, writer: SchemaDefinition) -> dict[str, PartDecoder]:
    """What decodes the two parts of pairs, by column. Raises what `decoder_of` raises."""
    if writer.type is not SchemaType.KEY_VALUE:
        raise Unresolvable(f"it is {writer.type.client_name}, not KEY_VALUE")
    wanted, written = parts_of(reader), parts_of(writer)
    pairs = ((KEY, wanted.key, written.key), (VALUE, wanted.value, written.value))
    return {
        name: PartDecoder(name, decoder_of(part, source), is_record(part), written.separated)
        for name, part, source in pairs
    }
