"""Payloads of protobuf into columns, by the protobuf library: each payload is parsed, then field after field is taken.

Fields go by their numbers, so messages of every version are read with the reader's descriptor. A field that can be
absent is null then; one that cannot has its default. Numbers without a sign become the next larger type, because
Spark has none. Enums are text. `google.protobuf.Timestamp` is a timestamp.

The schema PROTOBUF describes a message in Avro, and lists the numbers of its own fields in a property. Those of
messages inside it are nowhere, nor the numbers of enums. So such a message is left as bytes, and an enum is a number.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from ...actors.schemas.definition import SchemaDefinition
from ...client.schemas.protobuf_schema import DescribedMessages
from ...protocol.errors import SchemaSerializationError
from ...protocol.plain_values import is_list, is_text_map
from .arrow_building import TIMESTAMP
from .payloads import PayloadDecoder, PayloadMisfit, Payloads, no_columns

PARSING_INFO = "__PARSING_INFO__"
"""The property in which Java's clients list the fields of a message."""
MOMENT = "google.protobuf.Timestamp"
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_LEFT_AS: dict[int, int] = {
    FieldDescriptorProto.TYPE_MESSAGE: FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_ENUM: FieldDescriptorProto.TYPE_INT32,
}
"""Of a PROTOBUF schema: what is not described."""
_PROTO_TYPES: dict[str, int] = {
    name.removeprefix("TYPE_"): number for name, number in FieldDescriptorProto.Type.items()
}


def message_class(definition: SchemaDefinition, listed: bool) -> type[Message]:
    """The class of a schema's messages. `listed` says that it is PROTOBUF. Raises NotAllowedError."""
    if listed:
        return _listed_class(definition)
    try:
        return DescribedMessages(definition.data).kind
    except SchemaSerializationError as error:
        raise no_columns(str(error)) from None


def _listed_class(definition: SchemaDefinition) -> type[Message]:
    """A class with the fields that the property of a PROTOBUF schema lists."""
    try:
        listed = cast("object", json.loads(definition.properties[PARSING_INFO]))
    except (KeyError, ValueError, RecursionError):
        raise no_columns(f"it is PROTOBUF without the property {PARSING_INFO}, which has the fields' numbers") from None
    file = FileDescriptorProto(name="listed.proto", syntax="proto2")
    message = file.message_type.add(name="Listed")
    try:
        for one in listed if is_list(listed) else ():
            if not is_text_map(one):
                raise TypeError(f"{one!r:.60} is no field")
            kind = _PROTO_TYPES[str(one["type"])]
            if kind == FieldDescriptorProto.TYPE_GROUP:
                raise no_columns(f"the field {one['name']} is a group")
            kind = _LEFT_AS.get(kind, kind)
            label = FieldDescriptorProto.LABEL_OPTIONAL
            if one["label"] == "LABEL_REPEATED":
                label = FieldDescriptorProto.LABEL_REPEATED
            message.field.add(name=str(one["name"]), number=cast(int, one["number"]), type=kind, label=label)  # pyright: ignore[reportArgumentType]
        pool = DescriptorPool()
        pool.Add(file)
        return GetMessageClass(pool.FindMessageTypeByName("Listed"))
    except (KeyError, TypeError, ValueError) as error:
        raise no_columns(f"its property {PARSING_INFO} cannot be read: {error!r}") from None


def fields_of(message: type[Message], names: Collection[str] | None = None) -> list[pa.Field]:
    """The columns of a message: its fields, or only those with `names`. Raises NotAllowedError."""
    return [pa.field(one.name, _type(one, ())) for one in _wanted(message, names)]


def _wanted(message: type[Message], names: Collection[str] | None) -> list[FieldDescriptor]:
    fields = cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields)
    return [one for one in fields if names is None or one.name in names]


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        pair = _message_of(field).fields_by_name
        return pa.map_(_type_of_one(pair["key"], inside), _type_of_one(pair["value"], inside))
    kind = _type_of_one(field, inside)
    return pa.list_(kind) if field.is_repeated else kind


def _type_of_one(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]
    message = _message_of(field)
    if message.full_name == MOMENT:
        return TIMESTAMP
    if message.full_name in inside:
        raise no_columns(f"the message {message.full_name} contains itself")
    inside = (*inside, message.full_name)
    return pa.struct([pa.field(one.name, _type(one, inside)) for one in message.fields])


def _message_of(field: FieldDescriptor) -> Descriptor:
    return cast(Descriptor, field.message_type)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


class ProtobufDecoder(PayloadDecoder):
    def __init__(self, message: type[Message], names: Collection[str] | None, listed: bool) -> None:
        """Columns of a message, or only those with `names`. With `listed` absent fields have their defaults."""
        super().__init__(fields_of(message, names))
        self._message = message
        self._wanted = _wanted(message, names)
        self._listed = listed

    def decode(self, payloads: Payloads) -> list[pa.Array]:
        try:
            parsed = [self._message.FromString(data) for data in payloads.listed()]
            return [
                pa.array(_column(one, parsed, self._listed), field.type)
                for one, field in zip(self._wanted, self.fields, strict=True)
            ]
        except (DecodeError, UnicodeDecodeError, pa.ArrowException, OverflowError, RecursionError) as error:
            raise PayloadMisfit(str(error) or type(error).__name__) from None


def _column(field: FieldDescriptor, messages: Sequence[Message], listed: bool) -> list[object]:
    """The values of a field, as Arrow takes them."""
    name = field.name
    if _is_map(field):
        pair = _message_of(field).fields_by_name
        key, value = _converter(pair["key"]), _converter(pair["value"])
        maps = [getattr(message, name) for message in messages]
        return [[(key(one), value(each)) for one, each in found.items()] for found in maps]
    convert = None if _is_plain(field) else _converter(field)
    if field.is_repeated:
        lists = [getattr(message, name) for message in messages]
        return [list(found) if convert is None else list(map(convert, found)) for found in lists]
    is_bytes_of_message = listed and field.type == FieldDescriptor.TYPE_BYTES
    if field.has_presence and (not listed or is_bytes_of_message):
        values: Iterable[object] = [getattr(message, name) if message.HasField(name) else None for message in messages]
    else:
        values = [getattr(message, name) for message in messages]
    return list(values) if convert is None else [None if one is None else convert(one) for one in values]


def _is_plain(field: FieldDescriptor) -> bool:
    return field.cpp_type not in (FieldDescriptor.CPPTYPE_MESSAGE, FieldDescriptor.CPPTYPE_ENUM)


def _converter(field: FieldDescriptor) -> Callable[..., object]:
    """What makes one value of a field what Arrow takes."""
    if _is_plain(field):
        return _same
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        kinds = cast(EnumDescriptor, field.enum_type)
        names = {number: value.name for number, value in kinds.values_by_number.items()}
        return partial(_name_of, names)
    message = _message_of(field)
    if message.full_name == MOMENT:
        return _microseconds
    return partial(_struct_of, message)


def _same(value: object) -> object:
    return value


def _name_of(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))


def _microseconds(moment: Timestamp) -> int:
    return moment.seconds * 1_000_000 + moment.nanos // 1000


def _struct_of(kind: Descriptor, message: Message) -> dict[str, object]:
    return {one.name: _column(one, [message], False)[0] for one in kind.fields}
