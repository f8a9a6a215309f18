"""Plain values, as msgpack carries them, turned into the types that a contract declares, or refused.

A shape is a function: it takes a value from the wire and returns it as the declared type, or raises Misfit. A
NamedTuple travels as an array in the order of its fields, a frozen dataclass as a map by the names of its fields.
Further keys of such a map, which a newer peer may send, are left out. A field with a default may be missing.

A TypedDict travels as the map that it is. Its further keys stay in, because it is handed on to others.
"""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

Shape = Callable[[object], object]

_TEXTS_AND_NUMBERS: tuple[object, ...] = (str, bytes, int, bool)


class Misfit(ValueError):
    """A value is not of the declared type."""


def shape_of(declared: object) -> Shape:
    """The shape of a type. Raises TypeError for a type that cannot travel."""
    if declared is Any or declared is object:
        return _anything
    if declared is None or declared is type(None):
        return _nothing
    if declared is float:
        return _number
    if declared in _TEXTS_AND_NUMBERS:
        return _exact(cast(type, declared))
    origin, parts = get_origin(declared) or declared, get_args(declared)
    if origin in (Union, types.UnionType):
        return _one_of([shape_of(part) for part in parts], declared)
    if origin in (list, Sequence):
        return _list_of(shape_of(parts[0] if parts else object))
    if origin is dict:
        return _map_of(*(shape_of(part) for part in parts or (object, object)))
    if origin is tuple and parts:
        return _record_of(tuple, [shape_of(part) for part in parts], 0)
    if is_typeddict(declared):
        return _typed_map_of(cast(type, declared))
    if isinstance(declared, type):
        kind = cast("type[object]", declared)
        if tuple in kind.__mro__ and hasattr(kind, "_fields"):
            return _named_tuple_of(kind)
        if dataclasses.is_dataclass(kind):
            return _dataclass_of(kind)
    raise TypeError(f"{declared!r} cannot travel over the internal RPC: use plain values, NamedTuples or dataclasses")


def plain(value: object) -> object:
    """What msgpack packs for a value that it does not know: of a dataclass, the map of its fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, int):
        raise OverflowError("a number above 64 bits cannot travel over the internal RPC")
    raise TypeError(f"{type(value).__name__} cannot travel over the internal RPC")


def _misfit(value: object, wanted: object) -> NoReturn:
    raise Misfit(f"{value!r:.100} where {getattr(wanted, '__name__', wanted)} belongs")


def _anything(value: object) -> object:
    return value


def _nothing(value: object) -> object:
    return None if value is None else _misfit(value, "nothing")


def _number(value: object) -> object:
    return value if type(value) in (int, float) else _misfit(value, float)


def _exact(wanted: type) -> Shape:
    """A bool is no int here."""

    def convert(value: object) -> object:
        return value if type(value) is wanted else _misfit(value, wanted)

    return convert


def _one_of(shapes: Sequence[Shape], declared: object) -> Shape:
    def convert(value: object) -> object:
        for shape in shapes:
            try:
                return shape(value)
            except Misfit:
                continue
        _misfit(value, declared)

    return convert


def _list_of(shape: Shape) -> Shape:
    def convert(value: object) -> object:
        return [shape(item) for item in _items(value)]

    return convert


def _map_of(key_shape: Shape, value_shape: Shape) -> Shape:
    def convert(value: object) -> object:
        return {key_shape(key): value_shape(item) for key, item in _pairs(value).items()}

    return convert


def _record_of(make: Callable[[list[object]], object], shapes: Sequence[Shape], optional: int) -> Shape:
    """An array with one shape for each place; the last `optional` of them may be missing."""
    most = len(shapes)

    def convert(value: object) -> object:
        items = _items(value)
        if not most - optional <= len(items) <= most:
            _misfit(value, f"an array of {most}")
        return make([shape(item) for shape, item in zip(shapes, items, strict=False)])

    return convert


def _named_tuple_of(declared: type) -> Shape:
    hints = get_type_hints(declared)
    fields = cast("tuple[str, ...]", getattr(declared, "_fields"))  # noqa: B009 (not every tuple has fields)
    defaults = cast("dict[str, object]", getattr(declared, "_field_defaults"))  # noqa: B009
    return _record_of(lambda items: declared(*items), [shape_of(hints[name]) for name in fields], len(defaults))


def _dataclass_of(declared: type) -> Shape:
    hints = get_type_hints(declared)
    shapes = {field.name: shape_of(hints[field.name]) for field in dataclasses.fields(declared)}
    required = {
        field.name
        for field in dataclasses.fields(declared)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def convert(value: object) -> object:
        pairs = _pairs(value)
        missing = sorted(required - pairs.keys())
        if missing:
            raise Misfit(f"{declared.__name__} without {missing[0]}")
        return declared(**{name: shape(pairs[name]) for name, shape in shapes.items() if name in pairs})

    return convert


def _typed_map_of(declared: type) -> Shape:
    shapes = {name: shape_of(hint) for name, hint in get_type_hints(declared).items()}
    required = cast("frozenset[str]", getattr(declared, "__required_keys__"))  # noqa: B009 (not every type has them)

    def convert(value: object) -> object:
        pairs = _pairs(value)
        missing = sorted(required - pairs.keys())
        if missing:
            raise Misfit(f"{declared.__name__} without {missing[0]}")
        return {
            name: shapes[name](item) if isinstance(name, str) and name in shapes else item
            for name, item in pairs.items()
        }

    return convert


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if type(value) in (list, tuple) else _misfit(value, list)


def _pairs(value: object) -> dict[object, object]:
    return cast("dict[object, object]", value) if type(value) is dict else _misfit(value, dict)
