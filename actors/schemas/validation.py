"""Whether a schema is one at all, and by which mark the same definition is known again.

The rules and texts of refusals are Pulsar's. Its allowance for JSON schemas that are no Avro schemas is off there by
default, and missing here.
"""

import base64
import hashlib
import json
from typing import cast

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ...protocol.errors import IncompatibleSchema, InvalidSchema
from ...protocol.plain_values import is_text_map
from ...protocol.schema_types import SchemaType
from .avro_definition import AvroType, InvalidAvro, canonical_text, parse_avro
from .definition import AVRO_TYPES, DATALESS_TYPES, SchemaDefinition, key_and_value

DEFINITION_SIZE_MAX_BYTES = 256 << 10
"""A broker reads definitions on its event loop: one of this size takes some tens of milliseconds."""

PYTHON_NONE = (b"null", b"")
"""What Python clients send as the data of a STRING schema."""

_FREE_TYPES = frozenset({SchemaType.NONE, SchemaType.EXTERNAL})


def check_definition(schema: SchemaDefinition) -> None:
    """Raise IncompatibleSchema (`invalid`) unless a topic may have the schema."""
    size = len(schema.data)
    if size > DEFINITION_SIZE_MAX_BYTES:
        raise _invalid(f"the definition of the schema has {size} bytes, more than {DEFINITION_SIZE_MAX_BYTES}")
    if schema.type is SchemaType.AUTO_CONSUME:
        raise _invalid(f"Schema {schema.type.name} is a client-side schema type")
    if schema.type in AVRO_TYPES:
        root = avro_of(schema)
        if schema.type is SchemaType.AVRO and root.kind == "union":
            raise _invalid("Avro schema typed [UNION] is not supported")
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        root_message(schema)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_and_value(schema):
            check_definition(part)
    elif schema.type is SchemaType.STRING:
        if schema.data not in PYTHON_NONE:
            raise _invalid(f"Invalid schema definition data for string schema : {schema.data[:100]!r}")
    elif schema.type in DATALESS_TYPES - _FREE_TYPES and size:
        raise _invalid(
            "Invalid schema definition data for primitive schemas :length of schema data should be zero, "
            f"but {size} bytes is found"
        )


def mark_of(schema: SchemaDefinition) -> bytes:
    """A digest that two definitions of the same type share exactly if they say the same."""
    if schema.type in AVRO_TYPES:
        try:
            data = canonical_text(avro_of(schema)).encode()
        except InvalidAvro as error:
            raise _invalid(f"Invalid schema definition data for {schema.type.name} schema: {error}") from None
    else:
        data = schema.data
    return hashlib.sha256(data).digest()


def avro_of(schema: SchemaDefinition) -> AvroType:
    """The Avro type of a schema of one of `AVRO_TYPES`. Raises IncompatibleSchema."""
    try:
        return parse_avro(schema.data)
    except InvalidAvro as error:
        raise _invalid(f"Invalid schema definition data for {schema.type.name} schema: {error}") from None


def root_message(schema: SchemaDefinition) -> str:
    """The full name of the message that a PROTOBUF_NATIVE schema is about. Raises IncompatibleSchema."""
    try:
        source = cast("object", json.loads(schema.data))
        assert is_text_map(source)
        name, root = source["rootMessageTypeName"], source["rootFileDescriptorName"]
        files = FileDescriptorSet.FromString(base64.b64decode(cast("str", source["fileDescriptorSet"])))
        assert isinstance(name, str) and isinstance(root, str)
        by_name = {file.name: file for file in files.file}
        _check_dependencies(by_name, root)
        found = _find_message(by_name[root], name)
    except (AssertionError, KeyError, TypeError, ValueError, RecursionError, DecodeError) as error:
        raise _invalid(f"deserialize ProtobufNative Schema failed: {error!r:.200}") from None
    if found is None:
        raise _invalid(
            "protobuf root message descriptor is null, please recheck rootMessageTypeName or rootFileDescriptorName "
            "conf. "
        )
    return found


def _check_dependencies(files: dict[str, FileDescriptorProto], root: str) -> None:
    """Raise KeyError for a file that is imported and missing."""
    waiting, seen = [root], {root: None}
    while waiting:
        for name in files[waiting.pop()].dependency:
            if name not in seen:
                seen[name] = None
                waiting.append(name)


def _find_message(file: FileDescriptorProto, name: str) -> str | None:
    """The full name of a message, nested ones included; None if the file has no such message."""
    local = name.removeprefix(file.package).removeprefix(".")
    messages, nested = list(file.message_type), None
    for part in local.split("."):
        nested: DescriptorProto | None = next((one for one in messages if one.name == part), None)
        if nested is None:
            return None
        messages = list(nested.nested_type)
    return f"{file.package}.{local}" if file.package else local


def _invalid(text: str) -> IncompatibleSchema:
    return InvalidSchema(text)
