"""Records of the application's own classes: their definition, and the way to plain dicts and back.

Functions for one class of records, made when it is first used: the way of usual values.

`plain_maker` makes the plain dict of a record, and `value_maker` makes a record of a plain dict. Both look at the exact
types of the values. For anything else, such as a subclass of str, a missing field or a number that is too large, they
return None. Then `FieldsShape` takes its slow way, which decides, and says what is wrong. So both ways agree on every
value. The slow way looks up each field and its type again for each message; these functions have them written out.
"""

import keyword
from collections.abc import Callable, Sequence, Set
from typing import cast

from .shapes import MISSING, Optional, RecordField, Scalar, Unfit, ValueShape

UsualWay = Callable[[object], object]
"""Returns None where the slow way has to be taken."""

_EXACT = {"string": "str", "boolean": "bool", "bytes": "bytes", "double": "float", "float": "float"}
_BOUNDS = {"int": 1 << 31, "long": 1 << 63}


def plain_maker(kind: type, fields: Sequence[RecordField], text: bool) -> UsualWay:
    """What makes a plain dict of a record. `text` says that it is for JSON."""
    lines = ["if value.__class__ is not kind: return None", "try:"]
    known: dict[str, object] = {"kind": kind}
    exact = _EXACT.keys() - ({"bytes"} if text else set())
    for number, field in enumerate(fields):
        known[f"c{number}"] = _inner(field)[0].to_plain
        lines += _field(number, field, f"value.{field.name}", f", {text}", exact)
    lines += [" pass", "except Exception: return None", f"return {{{_pairs(fields)}}}"]
    return _function(fields, lines, known)


def value_maker(
    kind: type, fields: Sequence[RecordField], make: Callable[[dict[str, object]], object] | None
) -> UsualWay:
    """What makes a record of a plain dict: by `make`, or by the class itself without one."""
    lines = ["if value.__class__ is not dict: return None", "try:"]
    known: dict[str, object] = {"kind": kind, "make": make}
    exact = _EXACT.keys() - {"bytes"}
    for number, field in enumerate(fields):
        known[f"c{number}"] = _inner(field)[0].of_plain
        lines += _field(number, field, f"value[{field.name!r}]", "", exact)
    named = ", ".join(f"{field.name}=f{number}" for number, field in enumerate(fields))
    lines += [f" return kind({named})" if make is None else f" return make({{{_pairs(fields)}}})"]
    lines += ["except Exception: return None"]
    return _function(fields, lines, known)


def _pairs(fields: Sequence[RecordField]) -> str:
    return ", ".join(f"{field.name!r}: f{number}" for number, field in enumerate(fields))


def _inner(field: RecordField) -> tuple[ValueShape, bool]:
    """The shape of a field that is not None, and whether it may be None."""
    shape = field.shape
    return (shape.shape, True) if isinstance(shape, Optional) else (shape, False)


def _field(number: int, field: RecordField, source: str, more: str, exact: Set[str]) -> list[str]:
    """Lines that put a field's value into `f<number>`, or return None."""
    name = f"f{number}"
    shape, optional = _inner(field)
    scalar = shape.name if isinstance(shape, Scalar) else ""
    unless = f"{name} is not None and " if optional else ""
    if scalar in _BOUNDS:
        limit = _BOUNDS[scalar]
        wrong = f"({name}.__class__ is not int or not {-limit} <= {name} < {limit})"
        return [f" {name} = {source}", f" if {unless}{wrong}: return None"]
    if scalar in exact:
        return [f" {name} = {source}", f" if {unless}{name}.__class__ is not {_EXACT[scalar]}: return None"]
    convert = f"{name} = c{number}({name}{more})"
    return [f" {name} = {source}", f" if {name} is not None: {convert}" if optional else f" {convert}"]


def _function(fields: Sequence[RecordField], lines: Sequence[str], known: dict[str, object]) -> UsualWay:
    """The function with these lines. With a name that is a word of Python the slow way is always taken."""
    if not all(field.name.isidentifier() and not keyword.iskeyword(field.name) for field in fields):
        return lambda value: None
    source = "def made(value):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(source, "<a record>", "exec"), known)  # of outside it has the names of fields only, checked above
    return cast(UsualWay, known["made"])


Maker = Callable[[dict[str, object]], object]


class FieldsShape(ValueShape):
    """A record, made of fields: a dataclass or a pydantic model.

    Usual values take the way of the functions that `plain_maker` and `value_maker` make, and all others the way that is
    written down here.
    """

    def __init__(self, kind: type, make: Maker | None = None) -> None:
        """`make` makes one of the values of its fields; without it the class does, which takes them by name.

        The fields are set later: they may refer to the record.
        """
        self.kind = kind
        self.fields: list[RecordField] = []
        self._make: Maker = (lambda values: kind(**values)) if make is None else make
        self.maker = make
        self._plain_makers: dict[bool, UsualWay] = {}
        self._value_maker: UsualWay | None = None

    def definition(self, named: set[str]) -> object:
        namespace = cast("str | None", getattr(self.kind, "_avro_namespace", None))
        name = self.kind.__name__
        full = name if namespace is None else f"{namespace}.{name}"
        if full in named:
            return full
        named.add(full)
        head: dict[str, object] = {"type": "record", "name": name}
        if namespace is not None:
            head["namespace"] = namespace
        return {**head, "fields": [one.definition(named) for one in self.fields_in_order()]}

    def fields_in_order(self) -> list[RecordField]:
        """As the definition has them."""
        is_sorted = getattr(self.kind, "_sorted_fields", False)
        return sorted(self.fields, key=lambda one: one.name) if is_sorted else self.fields

    def to_plain(self, value: object, text: bool) -> object:
        usual = self._plain_makers.get(text)
        if usual is None:
            usual = self._plain_makers[text] = plain_maker(self.kind, self.fields, text)
        found = usual(value)
        return self._slowly_plain(value, text) if found is None else found

    def of_plain(self, plain: object) -> object:
        usual = self._value_maker
        if usual is None:
            usual = self._value_maker = value_maker(self.kind, self.fields, self.maker)
        found = usual(plain)
        return self._slowly_of_plain(plain) if found is None else found

    def _slowly_plain(self, value: object, text: bool) -> object:
        if not isinstance(value, self.kind):
            raise Unfit(self.kind.__name__, value)
        plain: dict[str, object] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                plain[name] = field.shape.to_plain(getattr(value, name), text)
        except Unfit as error:
            error.path.append(name)
            raise
        return plain

    def _slowly_of_plain(self, plain: object) -> object:
        if not isinstance(plain, dict):
            raise Unfit(self.kind.__name__, plain)
        given = cast("dict[str, object]", plain)
        values: dict[str, object] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                if name in given:
                    values[name] = field.shape.of_plain(given[name])
                elif field.default is MISSING and isinstance(field.shape, Optional):
                    values[name] = None
                elif field.default is MISSING:
                    raise Unfit("there", MISSING)
        except Unfit as error:
            error.path.append(name)
            raise
        try:
            return self._make(values)
        except (TypeError, ValueError) as error:
            raise Unfit(f"{self.kind.__name__} ({error})", given) from None
