"""The official client's module of schemas: `magnetar.schema` is `pulsar.schema`.

The classes that define records field by field do not exist here. They raise OperationNotSupported when they are used.
"""

from .client.core.absent import Absent, absent
from .client.schemas.avro_schema import AvroSchema
from .client.schemas.json_schema import JsonSchema
from .client.schemas.primitives import BytesSchema, StringSchema
from .client.schemas.protobuf_schema import ProtobufNativeSchema
from .client.schemas.schema import Schema

Array: Absent = absent("Array")
Boolean: Absent = absent("Boolean")
Bytes: Absent = absent("Bytes")
CustomEnum: Absent = absent("CustomEnum")
Double: Absent = absent("Double")
Field: Absent = absent("Field")
Float: Absent = absent("Float")
Integer: Absent = absent("Integer")
Long: Absent = absent("Long")
Map: Absent = absent("Map")
Null: Absent = absent("Null")
Record: Absent = absent("Record")
String: Absent = absent("String")

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "String",
    "StringSchema",
]
