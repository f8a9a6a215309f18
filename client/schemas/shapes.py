"""Types of fields: their definition in Avro, and the way from Python values to plain ones and back.

A plain value is what JSON or Avro encoders take: numbers, text, bytes, lists, dicts. A value that does not fit raises
`Unfit`, which collects the names of the fields on its way up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import cast

from .primitives import day_at, days, microseconds, microseconds_of_day, moment_at, time_at

MISSING = object()
"""Of a field that has no default."""


class Unfit(Exception):
    """A value is not what its type says."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.path: list[str] = []
        """From the innermost field outwards."""

    def text(self, whole: str) -> str:
        """What a user reads. `whole` names the value that has the field."""
        where = f"field {'.'.join(reversed(self.path))!r} of {whole}" if self.path else f"a value of {whole}"
        if self.value is MISSING:
            return f"{where} is missing"
        return f"{where} must be {self.expected}, not {type(self.value).__name__} {self.value!r:.60}"


class ValueShape(ABC):
    """One type. `text` says that the plain value is for JSON."""

    @abstractmethod
    def definition(self, named: set[str]) -> object:
        """The type in Avro. Adds the names that it defines, and refers to those that are defined."""

    @abstractmethod
    def to_plain(self, value: object, text: bool) -> object:
        """The plain value. Raises Unfit."""

    @abstractmethod
    def of_plain(self, plain: object) -> object:
        """The value. Raises Unfit."""


class Scalar(ValueShape):
    """A value that is plain as it is, but for bytes in JSON."""

    def __init__(self, name: str) -> None:
        self.name = name

    def definition(self, named: set[str]) -> object:
        return self.name

    def to_plain(self, value: object, text: bool) -> object:
        name = self.name
        if name == "string":
            if isinstance(value, str):
                return value
        elif name == "boolean":
            if isinstance(value, bool):
                return value
        elif name in ("int", "long"):
            limit = 1 << (31 if name == "int" else 63)
            if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit:
                return value
        elif name in ("float", "double"):
            if isinstance(value, float | int) and not isinstance(value, bool):
                return float(value)
        elif isinstance(value, bytes):
            if not text:
                return value
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise Unfit("UTF-8, as JSON has no bytes", value) from None
        raise Unfit(_EXPECTED[name], value)

    def of_plain(self, plain: object) -> object:
        if self.name == "bytes" and isinstance(plain, str):
            return plain.encode()
        return self.to_plain(plain, False)


_EXPECTED = {
    "string": "str",
    "boolean": "bool",
    "int": "an int of 32 bits",
    "long": "an int of 64 bits",
    "float": "float",
    "double": "float",
    "bytes": "bytes",
}


class Logical(ValueShape):
    """A point in time, a day or a time of day, as a number."""

    def __init__(
        self,
        name: str,
        logical: str,
        kind: type,
        to_number: Callable[[object], int],
        of_number: Callable[[int], object],
    ) -> None:
        self.name = name
        self._definition = {"type": name, "logicalType": logical}
        self._kind = kind
        self._to_number = to_number
        self.of_number = of_number

    def definition(self, named: set[str]) -> object:
        return dict(self._definition)

    def to_plain(self, value: object, text: bool) -> object:
        try:
            return self._to_number(value)
        except TypeError:
            raise Unfit(self._kind.__name__, value) from None

    def of_plain(self, plain: object) -> object:
        if isinstance(plain, self._kind):
            return plain
        if isinstance(plain, int) and not isinstance(plain, bool):
            try:
                return self.of_number(plain)
            except (OverflowError, ValueError):
                pass
        raise Unfit(f"a number that stands for a {self._kind.__name__}", plain)


LOGICAL: dict[str, Logical] = {
    "timestamp-micros": Logical("long", "timestamp-micros", datetime, microseconds, moment_at),
    "timestamp-millis": Logical(
        "long", "timestamp-millis", datetime, lambda v: microseconds(v) // 1000, lambda ms: moment_at(ms * 1000)
    ),
    "date": Logical("int", "date", date, days, day_at),
    "time-micros": Logical("long", "time-micros", time, microseconds_of_day, time_at),
    "time-millis": Logical(
        "int", "time-millis", time, lambda v: microseconds_of_day(v) // 1000, lambda ms: time_at(ms * 1000)
    ),
}
"""By Avro's name."""


class Number(ValueShape):
    """A decimal number with a fixed number of digits, text in JSON."""

    def __init__(self, precision: int, scale: int) -> None:
        self._precision = precision
        self._scale = scale
        self._expected = f"a Decimal of at most {precision} digits, {scale} of them behind the point"

    def definition(self, named: set[str]) -> object:
        return {"type": "bytes", "logicalType": "decimal", "precision": self._precision, "scale": self._scale}

    def to_plain(self, value: object, text: bool) -> object:
        if not isinstance(value, Decimal) or not value.is_finite():
            raise Unfit(self._expected, value)
        _, digits, exponent = value.as_tuple()
        shift = int(exponent) + self._scale
        if shift < 0 or len(digits) + shift > self._precision:
            raise Unfit(self._expected, value)
        return str(value) if text else value

    def of_plain(self, plain: object) -> object:
        if isinstance(plain, Decimal):
            return plain
        if isinstance(plain, str | int) and not isinstance(plain, bool):
            try:
                return Decimal(plain)
            except InvalidOperation:
                pass
        raise Unfit(self._expected, plain)

    def unscaled(self, value: object) -> bytes:
        """The digits as Avro writes them: a big-endian number in two's complement."""
        number = int(cast(Decimal, self.to_plain(value, False)).scaleb(self._scale))
        return number.to_bytes(max(1, (number.bit_length() + 8) // 8), "big", signed=True)


class Members(ValueShape):
    def __init__(self, kind: type[Enum]) -> None:
        self.kind = kind
        self._expected = f"a member of {kind.__name__}"

    def definition(self, named: set[str]) -> object:
        name = self.kind.__name__
        if name in named:
            return name
        named.add(name)
        return {"type": "enum", "name": name, "symbols": [member.name for member in self.kind]}

    def to_plain(self, value: object, text: bool) -> object:
        if not isinstance(value, self.kind):
            raise Unfit(self._expected, value)
        return plain_member(value, text)

    def of_plain(self, plain: object) -> object:
        if isinstance(plain, str) and plain in self.kind.__members__:
            return self.kind[plain]
        try:
            return self.kind(plain)
        except ValueError:
            raise Unfit(self._expected, plain) from None


def plain_member(member: Enum, text: bool) -> object:
    """A member by its name. In JSON a number stands for itself, as in the official Python client."""
    value = cast("object", member.value)
    return value if text and isinstance(value, int) else member.name


class Items(ValueShape):
    def __init__(self, item: ValueShape) -> None:
        self.item = item

    def definition(self, named: set[str]) -> object:
        return {"type": "array", "items": self.item.definition(named)}

    def to_plain(self, value: object, text: bool) -> object:
        if not isinstance(value, list | tuple):
            raise Unfit("list", value)
        return self._each(cast("Sequence[object]", value), lambda one: self.item.to_plain(one, text))

    def of_plain(self, plain: object) -> object:
        if not isinstance(plain, list):
            raise Unfit("list", plain)
        return self._each(cast("list[object]", plain), self.item.of_plain)

    def _each(self, values: Sequence[object], convert: Callable[[object], object]) -> list[object]:
        converted: list[object] = []
        try:
            for value in values:
                converted.append(convert(value))
        except Unfit as error:
            error.path.append(str(len(converted)))
            raise
        return converted


class Mapped(ValueShape):
    """A dict with text as keys."""

    def __init__(self, item: ValueShape) -> None:
        self.item = item

    def definition(self, named: set[str]) -> object:
        return {"type": "map", "values": self.item.definition(named)}

    def to_plain(self, value: object, text: bool) -> object:
        return self._each(value, lambda one: self.item.to_plain(one, text))

    def of_plain(self, plain: object) -> object:
        return self._each(plain, self.item.of_plain)

    def _each(self, value: object, convert: Callable[[object], object]) -> dict[str, object]:
        if not isinstance(value, dict):
            raise Unfit("dict", value)
        converted: dict[str, object] = {}
        for key, one in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                raise Unfit("a dict with str as keys", cast("object", value))
            try:
                converted[key] = convert(one)
            except Unfit as error:
                error.path.append(key)
                raise
        return converted


class Optional(ValueShape):
    """A value or None."""

    def __init__(self, shape: ValueShape) -> None:
        self.shape = shape

    def definition(self, named: set[str]) -> object:
        return ["null", self.shape.definition(named)]

    def to_plain(self, value: object, text: bool) -> object:
        return None if value is None else self.shape.to_plain(value, text)

    def of_plain(self, plain: object) -> object:
        return None if plain is None else self.shape.of_plain(plain)


class RecordField:
    __slots__ = ("default", "name", "shape")

    def __init__(self, name: str, shape: ValueShape, default: object = MISSING) -> None:
        self.name = name
        self.shape = shape
        self.default = default

    def definition(self, named: set[str]) -> dict[str, object]:
        """In Avro. The default of a union is a value of its first type."""
        kind = self.shape.definition(named)
        if self.default is MISSING:
            return {"name": self.name, "type": kind}
        if isinstance(self.shape, Optional) and self.default is not None:
            kind = [*reversed(cast("list[object]", kind))]
        return {"name": self.name, "default": self._plain_default(self.shape), "type": kind}

    def _plain_default(self, shape: ValueShape) -> object:
        if isinstance(shape, Optional) and self.default is not None:
            shape = shape.shape
        if isinstance(shape, Number):
            return shape.unscaled(self.default).decode("latin-1")
        plain = shape.to_plain(self.default, False)
        return plain.decode("latin-1") if isinstance(plain, bytes) else plain
