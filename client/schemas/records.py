"""Records of the official Python client (`pulsar.schema.Record`), which define and check themselves.

The official client is not imported: its classes are known by what they have.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Protocol, cast

from .shapes import Unfit, ValueShape, plain_member


class _Field(Protocol):
    _required: bool


class _RecordClass(Protocol):
    _fields: Mapping[str, _Field]

    def schema_info(self, defined_names: set[str]) -> object: ...
    def __call__(self, **values: object) -> object: ...


def is_record(kind: type) -> bool:
    """Whether this is a class of records of the official client."""
    return type(kind).__name__ == "RecordMeta" and hasattr(kind, "schema_info")


class RecordShape(ValueShape):
    """One class of records."""

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
