"""Avro of records without plain dicts in between: the way of usual values.

`writer_of` makes what turns a value of a shape into its bytes, and `decoder_of` what finds a value in bytes. Both
return None for a shape that they do not know. What they make returns None for what is not usual. That may be a value
of another type, a number that is too large, or bytes that are cut off. Then `AvroSchema` takes its slow way by
fastavro, which decides, and says what is wrong. So both ways agree on every value.

A record has one function for each direction. It is made when the shape is first used, with the fields written out.
Bytes may come from anywhere: nothing is allocated for a count before it was held against the bytes that are left.
"""

import keyword
import struct
from collections.abc import Callable
from enum import Enum
from typing import cast

from ...protocol.commands import varint
from .fields import FieldsShape
from .shapes import MISSING, Items, Logical, Mapped, Members, Optional, RecordField, Scalar, ValueShape

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
