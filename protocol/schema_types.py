"""The types of schemas, with the numbers of Pulsar's protocol (`Schema.Type` in `PulsarApi.proto`)."""

import enum


class SchemaType(enum.IntEnum):
    """Pulsar's types of schemas. NONE is also the schema of bytes."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22

    @property
    def client_name(self) -> str:
        """The name that Pulsar's clients use: they call NONE by the name BYTES."""
        return "BYTES" if self is SchemaType.NONE else self.name
