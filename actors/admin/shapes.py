"""Schemas of the admin's answers, taken from the code that makes the answers.

Figures become JSON in `topic_figures`. `shape_of` takes such a function, lets it write an example, and reads the schema
off it. The example is made from the types of the figures, so a new field is in the schema without further ado. A name
of something (`{name}`) as the only key of an object says that its names are free.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .routes import ANYTHING, FLAG, TEXT, WHOLE, ValueSchema

NAME = "{name}"

T = TypeVar("T")


def object_of(**properties: ValueSchema) -> ValueSchema:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def with_optional(shape: ValueSchema, **properties: ValueSchema) -> ValueSchema:
    """The same object, which may have these, too."""
    return {**shape, "properties": {**cast("dict[str, ValueSchema]", shape["properties"]), **properties}}


def list_of(items: ValueSchema) -> ValueSchema:
    """A list."""
    return {"type": "array", "items": items}


def map_of(values: ValueSchema) -> ValueSchema:
    """An object with free names."""
    return {"type": "object", "additionalProperties": values}


def example_of(kind: type[T]) -> T:
    """A value of a type: of a dataclass with values in all of its fields, of a list with one item."""
    return cast("T", _example(kind))


def _example(kind: object) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _example(next(one for one in arguments if one is not types.NoneType))
    if origin is tuple:
        return tuple(_example(one) for one in arguments)
    if origin is not None:
        is_mapping = issubclass(origin, Mapping)
        return {NAME: _example(arguments[1])} if is_mapping else [_example(arguments[0])]
    make = cast("Callable[..., object]", kind)
    if dataclasses.is_dataclass(kind):
        return make(**{name: _example(hint) for name, hint in get_type_hints(make).items()})
    return NAME if kind is str else make(True)


def shape_of(value: object) -> ValueSchema:
    """The schema of values like this one. Properties that need not be there are not told from the others."""
    if isinstance(value, bool):
        return FLAG
    if isinstance(value, int):
        return WHOLE
    if isinstance(value, float):
        return {"type": "number"}
    if isinstance(value, str):
        return TEXT
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        if [*fields] == [NAME]:
            return map_of(shape_of(fields[NAME]))
        return {"type": "object", "properties": {name: shape_of(item) for name, item in fields.items()}}
    if isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        return list_of(shape_of(items[0])) if items else {"type": "array"}
    return ANYTHING
