"""Messages of protobuf. The definition has the descriptors of all files that the message needs."""

import base64
import json
from graphlib import TopologicalSorter
from typing import cast

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ...protocol.errors import InvalidConfiguration, SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .schema import Schema, SchemaInfo


class ProtobufNativeSchema(Schema):
    """Messages of one generated class of protobuf."""

    def __init__(self, record_cls: type[Message]) -> None:
        """Make the schema of a class.

        Args:
            record_cls: The generated class.

        Raises:
            InvalidConfiguration: If it is none.
        """
        if not isinstance(record_cls, type) or not issubclass(record_cls, Message):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration(f"ProtobufNativeSchema takes a generated class of protobuf, not {record_cls!r}")
        self.record_cls = record_cls
        self.info = SchemaInfo("PROTOBUF_NATIVE", SchemaType.PROTOBUF_NATIVE, _definition(record_cls))

    def __reduce__(self) -> tuple[object, ...]:
        return (ProtobufNativeSchema, (self.record_cls,))

    def __repr__(self) -> str:
        return f"ProtobufNativeSchema({self.record_cls.__name__})"

    def _encode(self, value: object) -> bytes:
        if not isinstance(value, self.record_cls):
            raise SchemaSerializationError(
                f"{self!r} takes {self.record_cls.__name__}, not {type(value).__name__} {value!r:.60}"
            )
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise SchemaSerializationError(f"{self.record_cls.__name__} cannot be encoded: {error}") from None

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        return _parsed(self.record_cls, data)


def _parsed(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise SchemaSerializationError(f"the payload is no {kind.__name__}: {error}") from None


def _definition(kind: type[Message]) -> bytes:
    """As the official Python client writes it."""
    files = FileDescriptorSet()
    root = cast(FileDescriptor, kind.DESCRIPTOR.file)
    _collect(root, set(), files)
    definition = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": kind.DESCRIPTOR.full_name,
        "rootFileDescriptorName": root.name,
    }
    return json.dumps(definition, indent=True).encode()


def _collect(file: FileDescriptor, seen: set[str], files: FileDescriptorSet) -> None:
    """Add a file, what it needs first."""
    if file.name in seen:
        return
    seen.add(file.name)
    for needed in file.dependencies:
        _collect(needed, seen, files)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    files.file.append(proto)


def _needed_first(files: FileDescriptorSet) -> list[FileDescriptorProto]:
    """Files in an order in which the pool takes them. Pulsar's Java client writes them in any order.

    Raises ValueError for files that need each other.
    """
    by_name = {file.name: file for file in files.file}
    order = TopologicalSorter({name: file.dependency for name, file in by_name.items()}).static_order()
    return [by_name[name] for name in order if name in by_name]


class DescribedMessages:
    """Decodes messages of which only the registered definition is known."""

    def __init__(self, definition: bytes) -> None:
        try:
            found = json.loads(definition)
            files = FileDescriptorSet.FromString(base64.b64decode(found["fileDescriptorSet"]))
            pool = DescriptorPool()
            for file in _needed_first(files):
                pool.Add(file)
            self.kind = GetMessageClass(pool.FindMessageTypeByName(found["rootMessageTypeName"]))
        except (ValueError, KeyError, TypeError, DecodeError) as error:
            raise SchemaSerializationError(f"the definition of the schema is no PROTOBUF_NATIVE: {error!r}") from None

    def decode(self, data: bytes) -> Message:
        """The message. Raises SchemaSerializationError."""
        return _parsed(self.kind, data)
