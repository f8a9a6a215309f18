"""Values in Avro's binary form, by fastavro. Old data is read by the definition that it was written with."""

import functools
import io
import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import cast

from ...protocol.errors import InvalidConfiguration, OperationNotSupported, SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .avro_compiled import decoder_of, writer_of
from .json_schema import definition_text
from .models import shape_of
from .schema import Schema, SchemaInfo
from .shapes import Unfit

WRITERS_MAX = 100
"""So many definitions of writers are kept parsed."""


class AvroSchema(Schema):
    """Avro of a dataclass, a pydantic model, a `Record` of the official client, or dicts of a definition."""

    needs_writer = True

    def __init__(self, record_cls: type | None, schema_definition: dict[str, object] | None = None) -> None:
        """Make the schema of a class, or of a definition.

        Args:
            record_cls: The class. None takes and gives dicts as `schema_definition` says.
            schema_definition: A definition in Avro, if there is no class.

        Raises:
            InvalidConfiguration: If neither is given, or a field has a type without a definition in Avro.
            OperationNotSupported: If fastavro is not installed.
        """
        if record_cls is None and schema_definition is None:
            raise InvalidConfiguration("AvroSchema needs a class or a schema_definition: pass one")
        self.record_cls = record_cls
        self._given = schema_definition
        self._shape = None if record_cls is None else shape_of(record_cls)
        self._name = "the definition" if record_cls is None else record_cls.__name__
        definition = schema_definition if self._shape is None else self._shape.definition(set())
        self._definition = definition_text(definition)
        self.info = SchemaInfo("AVRO", SchemaType.AVRO, self._definition)
        self._parsed = parse(self._definition)
        self._usual: tuple[Callable[[object], bytes | None], Callable[[bytes], object]] | None = None
        self._writers: dict[bytes, object] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (AvroSchema, (self.record_cls, self._given))

    def __repr__(self) -> str:
        return f"AvroSchema({self._name})"

    def _usual_ways(self) -> tuple[Callable[[object], bytes | None], Callable[[bytes], object]]:
        """Made when the first value comes."""
        found = self._usual
        if found is None:
            write, decode = (None, None) if self._shape is None else (writer_of(self._shape), decoder_of(self._shape))
            found = self._usual = (write or _no_way, decode or _no_way)
        return found

    def _encode(self, value: object) -> bytes:
        data = (self._usual or self._usual_ways())[0](value)
        return self._slowly_encode(value) if data is None else data

    def _encode_many(self, values: Sequence[object]) -> list[bytes]:
        payloads = [*map((self._usual or self._usual_ways())[0], values)]
        return self._one_by_one(values) if None in payloads else cast("list[bytes]", payloads)

    def _slowly_encode(self, value: object) -> bytes:
        try:
            plain = value if self._shape is None else self._shape.to_plain(value, False)
        except Unfit as error:
            raise SchemaSerializationError(error.text(self._name)) from None
        return encode_plain(self._parsed, plain, self._name)

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        if writer is None or writer.definition == self._definition:
            value = (self._usual or self._usual_ways())[1](data)
            if value is not None:
                return value
        return self._slowly_decode(data, writer)

    def _slowly_decode(self, data: bytes, writer: SchemaInfo | None) -> object:
        plain = decode_plain(data, *self._resolution(writer))
        if self._shape is None:
            return plain
        try:
            return self._shape.of_plain(plain)
        except Unfit as error:
            raise SchemaSerializationError(error.text(self._name)) from None

    def _resolution(self, writer: SchemaInfo | None) -> tuple[object, object | None]:
        """The parsed definitions of writer and reader; None for a reader that has the writer's."""
        if writer is None or writer.definition == self._definition:
            return self._parsed, None
        if writer.type is not SchemaType.AVRO:
            raise SchemaSerializationError(
                f"the message was written with a {writer.type.client_name} schema, not with AVRO"
            )
        found = self._writers.get(writer.definition)
        if found is None:
            while len(self._writers) >= WRITERS_MAX:
                self._writers.pop(next(iter(self._writers)), None)
            found = self._writers[writer.definition] = parse(writer.definition, named_as=self._parsed)
        return found, self._parsed


def _no_way(value: object) -> None:
    """Every value takes the slow way."""


@functools.cache
def fastavro() -> ModuleType:
    """The library. Raises OperationNotSupported if it is not installed."""
    try:
        import fastavro
    except ImportError:
        raise OperationNotSupported("Avro needs fastavro: run `pip install fastavro`") from None
    return fastavro


def parse(definition: bytes, named_as: object = None) -> object:
    """A definition, parsed. A record on top takes the name of another one: only names differ between languages."""
    avro = fastavro()
    try:
        found = cast("object", json.loads(definition))
        if isinstance(found, dict) and isinstance(named_as, dict):
            other = cast("dict[str, object]", named_as)
            if "name" in other and "name" in found:
                name = str(other["name"]).rpartition(".")[2]
                found = {**cast("dict[str, object]", found), "name": name}
        return avro.parse_schema(found)
    except Exception as error:  # whatever fastavro makes of it: the definition may come from anywhere
        raise SchemaSerializationError(f"the definition of the schema is no Avro: {error}") from None


def encode_plain(parsed: object, plain: object, name: str) -> bytes:
    """A plain value in Avro. Raises SchemaSerializationError."""
    out = io.BytesIO()
    try:
        fastavro().schemaless_writer(out, parsed, plain)
    except Exception as error:  # fastavro raises what the wrong value happens to lead to
        raise SchemaSerializationError(f"a value does not fit {name}: {error}") from None
    return out.getvalue()


def decode_plain(data: bytes, writer: object, reader: object | None) -> object:
    """The plain value that a payload stands for. Raises SchemaSerializationError."""
    try:
        return fastavro().schemaless_reader(io.BytesIO(data), writer, reader)
    except Exception as error:  # bytes from anywhere
        text = f"{type(error).__name__} {error}".strip()
        raise SchemaSerializationError(f"the payload of {len(data)} bytes does not fit its schema: {text}") from None
