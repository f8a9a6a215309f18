"""Values in Avro's binary form, by fastavro. Old data is read by the definition that it was written with.

Avro of records without plain dicts in between: the way of usual values.

`writer_of` makes what turns a value of a shape into its bytes, and `decoder_of` what finds a value in bytes. Both
return None for a shape that they do not know. What they make returns None for what is not usual. That may be a value
of another type, a number that is too large, or bytes that are cut off. Then `AvroSchema` takes its slow way by
fastavro, which decides, and says what is wrong. So both ways agree on every value.

A record has one function for each direction. It is made when the shape is first used, with the fields written out.
Bytes may come from anywhere: nothing is allocated for a count before it was held against the bytes that are left.
"""

import functools
import io
import json
import keyword
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from types import ModuleType
from typing import cast

from ...protocol.commands import varint
from ...protocol.errors import InvalidConfiguration, OperationNotSupported, SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .fields import FieldsShape
from .json_schema import definition_text
from .models import shape_of
from .schema import Schema, SchemaInfo
from .shapes import MISSING, Items, Logical, Mapped, Members, Optional, RecordField, Scalar, Unfit, ValueShape

AvroWriter = Callable[[object], bytes | None]
"""None: the slow way has to be taken."""
AvroReader = Callable[[bytes, int], tuple[object, int]]
"""The value that begins at a place, and where it ends. Whatever it raises: the slow way has to be taken."""
AvroDecoder = Callable[[bytes], object]
"""The value of a whole payload; None: the slow way has to be taken."""

_BOUNDS = {"int": 1 << 31, "long": 1 << 63}
_FORMS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_SIZES = tuple([varint(2 * size) for size in range(256)])


class _Unusual(Exception):
    """The slow way has to be taken."""


def writer_of(shape: ValueShape) -> AvroWriter | None:
    """What writes values of a shape; None if the shape is not known here."""
    try:
        return _Compiler().writer(shape)
    except _Unusual:
        return None


def decoder_of(shape: ValueShape) -> AvroDecoder | None:
    """What reads whole payloads of a shape; None if the shape is not known here."""
    try:
        read = _Compiler().reader(shape)
    except _Unusual:
        return None

    def decode(data: bytes) -> object:
        try:
            value, end = read(data, 0)
        except Exception:  # the slow way says what is wrong
            return None
        return value if end <= len(data) else None

    return decode


class _Compiler:
    """Makes the functions of one record and what it contains; raises _Unusual for a shape that it does not know."""

    def __init__(self) -> None:
        self._writers: dict[FieldsShape, AvroWriter] = {}
        self._readers: dict[FieldsShape, AvroReader] = {}
        self._names: dict[str, type] = {}

    def _check(self, kind: type) -> None:
        """Raise if another class has the name: a definition then means the first one."""
        if self._names.setdefault(kind.__name__, kind) is not kind:
            raise _Unusual

    def _fields(self, shape: FieldsShape) -> list[RecordField]:
        """As they are written. Raises for a name that cannot stand in a function."""
        self._check(shape.kind)
        fields = shape.fields_in_order()
        if not all(field.name.isidentifier() and not keyword.iskeyword(field.name) for field in fields):
            raise _Unusual
        return fields

    # ---- Writing ----

    def writer(self, shape: ValueShape) -> AvroWriter:
        """What writes values of a shape."""
        if isinstance(shape, FieldsShape):
            return self._record_writer(shape)
        if isinstance(shape, Items):
            return _items_writer(self.writer(shape.item))
        if isinstance(shape, Mapped):
            return _map_writer(self.writer(shape.item))
        if isinstance(shape, Members):
            self._check(shape.kind)
            return _members_writer(shape.kind)
        if isinstance(shape, Scalar | Logical | Optional):
            lines, known = self._write_lines([RecordField("value", shape)], lambda field: "value")
            return cast(AvroWriter, _function("value", lines, known))
        raise _Unusual

    def _record_writer(self, shape: FieldsShape) -> AvroWriter:
        if shape not in self._writers:
            made: list[AvroWriter] = []
            self._writers[shape] = lambda value: made[0](value)  # for a record that contains itself
            lines, known = self._write_lines(self._fields(shape), lambda field: f"value.{field.name}")
            known["kind"] = shape.kind
            made.append(
                cast(AvroWriter, _function("value", ["if value.__class__ is not kind: return None", *lines], known))
            )
            self._writers[shape] = made[0]
        return self._writers[shape]

    def _write_lines(
        self, fields: list[RecordField], source: Callable[[RecordField], str]
    ) -> tuple[list[str], dict[str, object]]:
        known: dict[str, object] = {"varint": varint, "sizes": _SIZES}
        lines: list[str] = ["try:"]
        parts: list[str] = []
        for number, field in enumerate(fields):
            inner = _inner(field)
            pieces = [f"a{number}"]
            body = self._value_lines(number, inner, known, pieces)
            lines.append(f" f{number} = {source(field)}")
            if isinstance(field.shape, Optional):
                null, there = _branches(field)
                absent = " = ".join(pieces)
                lines += [f" if f{number} is None: u{number} = {null!r}; {absent} = b''", " else:"]
                lines += [f"  u{number} = {there!r}", *[f" {line}" for line in body]]
                parts.append(f"u{number}")
            else:
                lines += body
            parts += pieces
        joined = f"b''.join(({', '.join(parts)},))" if parts else "b''"
        lines += [f" return {joined}", "except Exception: return None"]
        return lines, known

    def _value_lines(self, number: int, shape: ValueShape, known: dict[str, object], pieces: list[str]) -> list[str]:
        """Lines that make the pieces of a field, named in `pieces`, or return None."""
        name, piece = f"f{number}", f"a{number}"
        scalar = shape.name if isinstance(shape, Scalar) else ""
        lines: list[str] = []
        if isinstance(shape, Logical):
            known[f"c{number}"] = shape.to_plain
            lines.append(f" {name} = c{number}({name}, False)")
            scalar = shape.name
        if scalar in _BOUNDS:
            limit = _BOUNDS[scalar]
            lines.append(f" if {name}.__class__ is not int or not {-limit} <= {name} < {limit}: return None")
            return [*lines, f" {piece} = varint({name} << 1 ^ {name} >> 63)"]
        if scalar in _FORMS:
            known[f"c{number}"] = _FORMS[scalar].pack
            return [f" if {name}.__class__ is not float: return None", f" {piece} = c{number}({name})"]
        if scalar == "boolean":
            return [f" if {name}.__class__ is not bool: return None", f" {piece} = b'\\1' if {name} else b'\\0'"]
        if scalar in ("string", "bytes"):
            pieces[:] = [f"s{number}", piece]
            kind, value = ("str", f"{name}.encode()") if scalar == "string" else ("bytes", name)
            size = f"n{number}"
            return [
                f" if {name}.__class__ is not {kind}: return None",
                f" {piece} = {value}; {size} = len({piece})",
                f" s{number} = sizes[{size}] if {size} < 256 else varint(2 * {size})",
            ]
        known[f"c{number}"] = self.writer(shape)
        return [f" {piece} = c{number}({name})", f" if {piece} is None: return None"]

    # ---- Reading ----

    def reader(self, shape: ValueShape) -> AvroReader:
        """What reads values of a shape."""
        if isinstance(shape, FieldsShape):
            return self._record_reader(shape)
        if isinstance(shape, Items):
            return _items_reader(self.reader(shape.item))
        if isinstance(shape, Mapped):
            return _map_reader(self.reader(shape.item))
        if isinstance(shape, Members):
            self._check(shape.kind)
            return _members_reader(shape.kind)
        if isinstance(shape, Scalar | Logical | Optional):
            lines, known = self._read_lines([RecordField("value", shape)])
            return cast(AvroReader, _function("data, at", [*lines, "return f0, at"], known))
        raise _Unusual

    def _record_reader(self, shape: FieldsShape) -> AvroReader:
        if shape not in self._readers:
            made: list[AvroReader] = []
            self._readers[shape] = lambda data, at: made[0](data, at)
            fields = self._fields(shape)
            lines, known = self._read_lines(fields)
            if shape.maker is None:
                named = ", ".join(f"{field.name}=f{number}" for number, field in enumerate(fields))
                lines.append(f"return kind({named}), at")
            else:
                pairs = ", ".join(f"{field.name!r}: f{number}" for number, field in enumerate(fields))
                lines.append(f"return make({{{pairs}}}), at")
            known |= {"kind": shape.kind, "make": shape.maker}
            made.append(cast(AvroReader, _function("data, at", lines, known)))
            self._readers[shape] = made[0]
        return self._readers[shape]

    def _read_lines(self, fields: list[RecordField]) -> tuple[list[str], dict[str, object]]:
        known: dict[str, object] = {"long_at": _long_at, "Unusual": _Unusual}
        lines: list[str] = []
        for number, field in enumerate(fields):
            body = self._found_lines(number, _inner(field), known)
            if isinstance(field.shape, Optional):
                null, there = _branches(field)
                lines += ["u = data[at]; at += 1", f"if u == {null[0]}: f{number} = None"]
                lines += [f"elif u == {there[0]}:", *[f" {line}" for line in body], "else: raise Unusual"]
            else:
                lines += body
        return lines, known

    def _found_lines(self, number: int, shape: ValueShape, known: dict[str, object]) -> list[str]:
        """Lines that put the value at `at` into `f<number>`, and move on."""
        name = f"f{number}"
        scalar = shape.name if isinstance(shape, Scalar | Logical) else ""
        if scalar in _FORMS:
            form = _FORMS[scalar]
            known[f"c{number}"] = form.unpack_from
            return [f"{name} = c{number}(data, at)[0]; at += {form.size}"]
        if scalar == "boolean":
            return ["u = data[at]; at += 1", "if u > 1: raise Unusual", f"{name} = u == 1"]
        if scalar:
            lines = [
                "u = data[at]; at += 1",
                f"if u < 128: {name} = u >> 1 ^ -(u & 1)",
                f"else: {name}, at = long_at(data, at - 1)",
            ]
            if scalar in ("string", "bytes"):
                value = f"data[at - {name}:at]" + (".decode()" if scalar == "string" else "")
                return [*lines, f"if {name} < 0: raise Unusual", f"at += {name}", f"{name} = {value}"]
            if scalar == "int":
                limit = _BOUNDS[scalar]
                lines.append(f"if not {-limit} <= {name} < {limit}: raise Unusual")
            if isinstance(shape, Logical):
                known[f"c{number}"] = shape.of_number
                lines.append(f"{name} = c{number}({name})")
            return lines
        known[f"c{number}"] = self.reader(shape)
        return [f"{name}, at = c{number}(data, at)"]


def _inner(field: RecordField) -> ValueShape:
    return field.shape.shape if isinstance(field.shape, Optional) else field.shape


def _branches(field: RecordField) -> tuple[bytes, bytes]:
    """What an optional field has in front if it is None, and if it is not: as `RecordField.definition` orders them."""
    return (b"\2", b"\0") if field.default is not MISSING and field.default is not None else (b"\0", b"\2")


def _function(arguments: str, lines: list[str], known: dict[str, object]) -> object:
    source = f"def made({arguments}):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(source, "<avro of a record>", "exec"), known)  # of outside it has names of fields, checked before
    return known["made"]


# ---- Lists, maps and members ----


def _items_writer(item: AvroWriter) -> AvroWriter:
    def write(values: object) -> bytes | None:
        if values.__class__ is not list:
            return None
        given = cast("list[object]", values)
        parts = [item(one) for one in given]
        if None in parts:
            return None
        return varint(2 * len(parts)) + b"".join(cast("list[bytes]", parts)) + b"\0" if parts else b"\0"

    return write


def _map_writer(item: AvroWriter) -> AvroWriter:
    def write(values: object) -> bytes | None:
        if values.__class__ is not dict:
            return None
        given = cast("dict[object, object]", values)
        parts: list[bytes] = []
        for key, one in given.items():
            written = item(one)
            if key.__class__ is not str or written is None:
                return None
            name = cast(str, key).encode()
            parts += (varint(2 * len(name)), name, written)
        return varint(2 * len(given)) + b"".join(parts) + b"\0" if given else b"\0"

    return write


def _members_writer(kind: type[Enum]) -> AvroWriter:
    numbers = {member.name: varint(2 * index) for index, member in enumerate(kind)}

    def write(value: object) -> bytes | None:
        return numbers[cast(Enum, value).name] if value.__class__ is kind else None

    return write


def _long_at(data: bytes, at: int) -> tuple[int, int]:
    """A number of several bytes."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise _Unusual
    if number >> 64:
        raise _Unusual
    return number >> 1 ^ -(number & 1), at


def _items_reader(item: AvroReader) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[object, int]:
        values: list[object] = []
        while True:
            count, at = _long_at(data, at)
            if not 0 <= count <= len(data) - at:
                raise _Unusual
            if not count:
                return values, at
            for _ in range(count):
                value, at = item(data, at)
                values.append(value)

    return read


def _map_reader(item: AvroReader) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[object, int]:
        values: dict[str, object] = {}
        while True:
            count, at = _long_at(data, at)
            if not 0 <= count <= len(data) - at:
                raise _Unusual
            if not count:
                return values, at
            for _ in range(count):
                size, at = _long_at(data, at)
                if not 0 <= size <= len(data) - at:
                    raise _Unusual
                name = data[at : at + size].decode()
                values[name], at = item(data, at + size)

    return read


def _members_reader(kind: type[Enum]) -> AvroReader:
    members = (*kind,)

    def read(data: bytes, at: int) -> tuple[object, int]:
        index, at = _long_at(data, at)
        if index < 0:
            raise _Unusual
        return members[index], at

    return read


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
