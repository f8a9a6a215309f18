"""From a class of the application to the shape of its values: dataclasses, pydantic models, official Records.

Python has one type for several of Avro's, and `Annotated` chooses. `Annotated[int, "int"]` has 32 bits, and int alone
64. `Annotated[float, "float"]` has 32 bits, too. `Annotated[datetime, "timestamp-millis"]` has milliseconds, and
datetime alone microseconds. A Decimal needs `Annotated[Decimal, (precision, scale)]`. What has no definition is
refused with InvalidConfiguration when the schema is made.

Records of the official Python client (`pulsar.schema.Record`) define and check themselves. Neither pydantic nor the
official client is imported: their classes are known by what they have.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Protocol, cast

from ...protocol.errors import InvalidConfiguration
from .fields import FieldsShape
from .shapes import (
    LOGICAL,
    MISSING,
    Items,
    Mapped,
    Members,
    Number,
    Optional,
    RecordField,
    Scalar,
    Unfit,
    ValueShape,
    plain_member,
)

if TYPE_CHECKING:
    from pulsar.schema import Field, Record  # pyright: ignore[reportMissingTypeStubs]
    from pydantic import BaseModel


class _RecordClass(Protocol):
    """What this module uses of a class of records of the official client: its metaclass makes `_fields`."""

    _fields: Mapping[str, "Field | Record"]

    def schema_info(self, defined_names: set[str]) -> object: ...
    def __call__(self, **values: object) -> object: ...


def is_record(kind: type) -> bool:
    """Whether this is a class of records of the official client."""
    return type(kind).__name__ == "RecordMeta" and hasattr(kind, "schema_info")


class RecordShape(ValueShape):
    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._class = cast(_RecordClass, kind)

    def definition(self, named: set[str]) -> object:
        return self._class.schema_info(named)

    def to_plain(self, value: object, text: bool) -> object:
        if not isinstance(value, self._kind):
            raise Unfit(self._kind.__name__, value)
        return _plain(value, text)

    def of_plain(self, plain: object) -> object:
        if not isinstance(plain, dict):
            raise Unfit(self._kind.__name__, plain)
        given = {name: one for name, one in cast("dict[str, object]", plain).items() if name in self._class._fields}  # pyright: ignore[reportPrivateUsage] (the official client's)
        try:
            return self._class(**given)
        except (TypeError, ValueError, AttributeError) as error:
            raise Unfit(f"{self._kind.__name__} ({error})", given) from None


_AS_IT_IS = frozenset({str, int, float, bool, type(None)})
"""Values of these types are plain."""


def _plain(value: object, text: bool) -> object:
    if value.__class__ in _AS_IT_IS:
        return value
    if is_record(type(value)):
        return _plain_record(value, text)
    if isinstance(value, Enum):
        return plain_member(value, text)
    if isinstance(value, list):
        return [_plain(one, text) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _plain(one, text) for key, one in cast("dict[str, object]", value).items()}
    if text and isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Unfit("UTF-8, as JSON has no bytes", value) from None
    return value


def _plain_record(record: object, text: bool) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, field in cast(_RecordClass, type(record))._fields.items():  # pyright: ignore[reportPrivateUsage] (the official client's)
        try:
            value = cast("object", getattr(record, name))
            if value is None and field._required:  # pyright: ignore[reportPrivateUsage] (the official client's)
                raise Unfit("set", None)
            plain[name] = _plain(value, text)
        except Unfit as error:
            error.path.append(name)
            raise
    return plain


_SCALARS: dict[object, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("long", "int"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    datetime: ("timestamp-micros", "timestamp-millis"),
    date: ("date",),
    time: ("time-micros", "time-millis"),
}
"""The names that a Python type may have in Avro, its usual one first."""


def shape_of(kind: object) -> ValueShape:
    """The shape of a class's values. Raises InvalidConfiguration."""
    if not isinstance(kind, type) or not _is_known(kind):
        raise InvalidConfiguration(
            f"a schema takes a dataclass, a pydantic model or a Record of pulsar.schema, not {kind!r}"
        )
    return _shape(kind, kind.__name__, {})


def _is_known(kind: type) -> bool:
    return _is_model(kind) or is_record(kind) or dataclasses.is_dataclass(kind)


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_fields") and hasattr(kind, "model_validate")


def _shape(hint: object, where: str, known: dict[type, FieldsShape]) -> ValueShape:
    """The shape of a type as an annotation says it. `where` is for messages."""
    chosen: tuple[object, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *rest = typing.get_args(hint)
        chosen = tuple(rest)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        others = [one for one in arguments if one is not types.NoneType]
        if len(others) == 1 and len(arguments) == 2:
            inner = Annotated[(others[0], *chosen)] if chosen else others[0]  # type: ignore[valid-type]
            return Optional(_shape(inner, where, known))
    elif origin is list and len(arguments) == 1:
        return Items(_shape(arguments[0], where, known))
    elif origin is dict and len(arguments) == 2 and arguments[0] is str:
        return Mapped(_shape(arguments[1], where, known))
    elif hint is Decimal:
        return _decimal(chosen, where)
    elif hint in _SCALARS:
        names = _SCALARS[hint]
        name = next((one for one in chosen if one in names), names[0])
        return LOGICAL[cast(str, name)] if name in LOGICAL else Scalar(cast(str, name))
    elif isinstance(hint, type) and issubclass(hint, Enum):
        return Members(hint)
    elif isinstance(hint, type):
        found = _record(hint, known)
        if found is not None:
            return found
    raise InvalidConfiguration(f"{where} has a type without a definition in Avro: {hint!r}")


def _decimal(chosen: tuple[object, ...], where: str) -> ValueShape:
    for one in chosen:
        if isinstance(one, tuple) and len(cast("tuple[object, ...]", one)) == 2:
            precision, scale = cast("tuple[int, int]", one)
            return Number(precision, scale)
    raise InvalidConfiguration(f"{where} is a Decimal: say Annotated[Decimal, (precision, scale)]")


def _record(kind: type, known: dict[type, FieldsShape]) -> ValueShape | None:
    """The shape of a record; None for another class."""
    if kind in known:
        return known[kind]
    if is_record(kind):
        return RecordShape(kind)
    if _is_model(kind):
        defaults = _defaults_of_model(cast("type[BaseModel]", kind))
        shape = known[kind] = FieldsShape(kind, _maker_of_model(cast("type[BaseModel]", kind)))
    elif dataclasses.is_dataclass(kind):
        defaults = _defaults_of_dataclass(kind)
        shape = known[kind] = FieldsShape(kind)
    else:
        return None
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, default in defaults.items():
        shape.fields.append(RecordField(name, _shape(hints[name], f"{kind.__name__}.{name}", known), default))
    return shape


def _defaults_of_dataclass(kind: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in dataclasses.fields(kind):
        if not one.init:
            continue
        found[one.name] = MISSING
        if one.default is not dataclasses.MISSING:
            found[one.name] = one.default
        elif one.default_factory is not dataclasses.MISSING:
            found[one.name] = one.default_factory()
    return found


def _defaults_of_model(kind: "type[BaseModel]") -> dict[str, object]:
    return {
        name: MISSING if one.is_required() else one.get_default(call_default_factory=True)
        for name, one in kind.model_fields.items()
    }


def _maker_of_model(kind: "type[BaseModel]") -> Callable[[dict[str, object]], object]:
    names = {
        name: one.validation_alias if isinstance(one.validation_alias, str) else one.alias or name
        for name, one in kind.model_fields.items()
    }
    return lambda values: kind.model_validate({names[name]: value for name, value in values.items()})
