"""The kinds of values that policies have. Each is a class that says what a value looks like, and which one counts.

A value has two forms. The *plain* form is Pulsar's JSON: it is what records store, what travels, and what the admin
shows. The other form is what topics read: immutable, with a type of its own where a number or a text does not do.

A kind answers for both. `fits` and `fault` test a value that came from outside. `read` and `write` go from one form to
the other. `over` says what holds when two levels have a value. A level that does not say anything has no value at
all: "not set" is no value of any kind.
"""

import dataclasses
import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar, cast

from ...protocol.lenient_values import as_flag, as_real, as_text, as_whole
from ...protocol.plain_values import is_list, is_text_map

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=enum.Enum)
R = TypeVar("R", bound="FieldRecord")

_PART = "part"


class Kind(Generic[T], ABC):
    """See the module."""

    nothing: object = None
    """The plain value that says the same as none. To set it is to take the value away."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What a value is, for refusals and the reference."""

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, object]:
        """The JSON schema of plain values of the right type."""

    def meant(self, value: object) -> object:
        """The plain value that a request means, as Pulsar takes it; the value itself if it is none."""
        return value

    @abstractmethod
    def fits(self, value: object) -> bool:
        """Whether a plain value has the right type."""

    @abstractmethod
    def read(self, value: object) -> T:
        """The value of a plain one that fits."""

    def write(self, value: T) -> object:
        """The plain form."""
        return value

    def fault(self, value: T, name: str) -> str:
        """What is wrong with a value of the right type, as a sentence; empty if nothing is. `name` is what has it."""
        return ""

    def over(self, wide: T, narrow: T) -> T:
        """What holds where two levels have a value."""
        return narrow

    def known(self, value: object) -> object | None:
        """The part of a stored value that this release understands, None for nothing."""
        return value if self.fits(value) and not self.fault(self.read(value), "") else None

    def unknown_words(self, value: object) -> Mapping[str, object]:
        """What a stored map has under words that this release does not understand."""
        return {}


@dataclasses.dataclass(frozen=True)
class WholeNumber(Kind[int]):
    """A whole number of Java's type int, or with `long` of the type long."""

    minimum: int = 0
    maximum: int = LONG_MAX
    long: bool = False

    @property
    def _end(self) -> int:
        return LONG_MAX if self.long else INT_MAX

    @property
    def text(self) -> str:
        return f"a whole number up to {min(self._end, self.maximum)}"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "integer", "minimum": -self._end - 1, "maximum": self._end}

    def meant(self, value: object) -> object:
        return as_whole(value)

    def fits(self, value: object) -> bool:
        return type(value) is int and -self._end - 1 <= value <= self._end

    def read(self, value: object) -> int:
        return cast("int", value)

    def fault(self, value: int, name: str) -> str:
        if value < self.minimum:
            return f"{name} must be {self.minimum} or more"
        return "" if value <= self.maximum else f"{name} must be {self.maximum} or less"


class Real(Kind[float]):
    """A number, of Java's type double."""

    @property
    def text(self) -> str:
        return "a number"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "number"}

    def meant(self, value: object) -> object:
        return as_real(value)

    def fits(self, value: object) -> bool:
        return type(value) in (int, float) and math.isfinite(cast("float", value))

    def read(self, value: object) -> float:
        return float(cast("float", value))


class Flag(Kind[bool]):
    """True or false. The narrowest level counts."""

    @property
    def text(self) -> str:
        return "true or false"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "boolean"}

    def meant(self, value: object) -> object:
        return as_flag(value)

    def fits(self, value: object) -> bool:
        return type(value) is bool

    def read(self, value: object) -> bool:
        return value is True


class Demand(Flag):
    """Something that holds where any level asks for it. A narrower level cannot take back what a wider one asks for."""

    nothing = False

    def over(self, wide: bool, narrow: bool) -> bool:
        return wide or narrow


@dataclasses.dataclass(frozen=True)
class Choice(Kind[E]):
    """One of a set of words: the values of an enum."""

    words: type[E]

    @property
    def text(self) -> str:
        return "one of " + ", ".join(str(one.value) for one in self.words)

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "string", "enum": [one.value for one in self.words]}

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and any(value == one.value for one in self.words)

    def read(self, value: object) -> E:
        return self.words(value)

    def write(self, value: E) -> object:
        return cast("object", value.value)


class WordSet(Kind[frozenset[E]]):
    """A list of words: values of an enum, in the enum's order. An empty one says nothing."""

    nothing: object = []

    def __init__(self, words: type[E]) -> None:
        self._words = words
        self._word = Choice(words)

    @property
    def text(self) -> str:
        return f"a list, each item {self._word.text}"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "array", "items": self._word.schema}

    def fits(self, value: object) -> bool:
        return is_list(value) and all(self._word.fits(item) for item in value)

    def read(self, value: object) -> frozenset[E]:
        return frozenset(self._word.read(item) for item in cast("list[object]", value))

    def known(self, value: object) -> object | None:
        return [item for item in value if self._word.fits(item)] or None if is_list(value) else None

    def write(self, value: frozenset[E]) -> object:
        return [one.value for one in self._words if one in value]


class Text(Kind[str]):
    """Any text."""

    @property
    def text(self) -> str:
        return "a text"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "string"}

    def meant(self, value: object) -> object:
        return as_text(value)

    def fits(self, value: object) -> bool:
        return isinstance(value, str)

    def read(self, value: object) -> str:
        return cast("str", value)


class TextSet(Kind[frozenset[str]]):
    """A list of any texts."""

    @property
    def text(self) -> str:
        return "a list of texts"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "array", "items": {"type": "string"}}

    def fits(self, value: object) -> bool:
        return is_list(value) and all(isinstance(item, str) for item in value)

    def read(self, value: object) -> frozenset[str]:
        return frozenset(cast("list[str]", value))

    def write(self, value: frozenset[str]) -> object:
        return sorted(value)


class FreeMapOf(Kind[Mapping[str, T]]):
    """Values by names that nobody fixes. The narrowest level counts as a whole."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind

    @property
    def text(self) -> str:
        return f"an object, each value {self._kind.text}"

    @property
    def schema(self) -> Mapping[str, object]:
        return {"type": "object", "additionalProperties": self._kind.schema}

    def meant(self, value: object) -> object:
        return {name: self._kind.meant(item) for name, item in value.items()} if is_text_map(value) else value

    def fits(self, value: object) -> bool:
        return is_text_map(value) and all(self._kind.fits(item) for item in value.values())

    def read(self, value: object) -> Mapping[str, T]:
        given = cast("Mapping[str, object]", value)
        return MappingProxyType({name: self._kind.read(item) for name, item in given.items()})

    def write(self, value: Mapping[str, T]) -> object:
        return {name: self._kind.write(item) for name, item in value.items()}


class FieldRecord:
    """A record of named fields: the base of frozen dataclasses whose fields are all declared with `part`."""

    def fault(self) -> str:
        """What is wrong with the fields together, as a sentence; empty if nothing is."""
        return ""


@dataclasses.dataclass(frozen=True)
class _PartOfRecord:
    name: str
    kind: Kind[object]


def part(name: str, kind: Kind[T], default: D) -> T | D:
    """Declare a field of a `FieldRecord`: its name in Pulsar's JSON, and what a value without it has."""
    return dataclasses.field(default=default, metadata={_PART: _PartOfRecord(name, cast("Kind[object]", kind))})


class RecordOf(Kind[R]):
    """A `FieldRecord`. As in Pulsar, a field that is missing or null has its default, and unknown fields are dropped.

    The narrowest level counts as a whole. The plain form of a `sparse` one leaves out fields that say nothing.
    """

    def __init__(self, record: type[R], *, sparse: bool = False) -> None:
        self._record = record
        self._sparse = sparse
        self._parts: dict[str, _PartOfRecord] = {
            field.name: field.metadata[_PART]
            for field in dataclasses.fields(record)  # type: ignore[arg-type]
        }

    @property
    def parts(self) -> Mapping[str, Kind[object]]:
        """The kinds of the fields by their name in Pulsar's JSON."""
        return {one.name: one.kind for one in self._parts.values()}

    @property
    def text(self) -> str:
        return "an object with " + ", ".join(f"{one.name} ({one.kind.text})" for one in self._parts.values())

    @property
    def schema(self) -> Mapping[str, object]:
        properties = {one.name: {"anyOf": [one.kind.schema, {"type": "null"}]} for one in self._parts.values()}
        return {"type": "object", "properties": properties}

    def meant(self, value: object) -> object:
        if not is_text_map(value):
            return value
        return {name: self.parts[name].meant(item) if name in self.parts else item for name, item in value.items()}

    def fits(self, value: object) -> bool:
        return is_text_map(value) and all(
            value.get(one.name) is None or one.kind.fits(value[one.name]) for one in self._parts.values()
        )

    def read(self, value: object) -> R:
        given = cast("Mapping[str, object]", value)
        found = {
            field: one.kind.read(given[one.name])
            for field, one in self._parts.items()
            if given.get(one.name) is not None
        }
        return cast("Callable[..., R]", self._record)(**found)

    def write(self, value: R) -> object:
        plain: dict[str, object] = {}
        for field, one in self._parts.items():
            item = getattr(value, field)
            if item is not None or not self._sparse:
                plain[one.name] = one.kind.write(item) if item is not None else None
        return plain

    def fault(self, value: R, name: str) -> str:
        for field, one in self._parts.items():
            item = getattr(value, field)
            fault = one.kind.fault(item, one.name) if item is not None else ""
            if fault:
                return fault
        return value.fault()


class MapOf(Kind[Mapping[E, T]]):
    """Values by a word each. Each word is a value of its own: the narrowest level that has the word counts for it."""

    def __init__(self, words: type[E], kind: Kind[T]) -> None:
        self._words = Choice(words)
        self._kind = kind

    @property
    def text(self) -> str:
        return f"an object whose names are {self._words.text}, and each value {self._kind.text}"

    @property
    def schema(self) -> Mapping[str, object]:
        names = {"enum": self._words.schema["enum"]}
        return {"type": "object", "propertyNames": names, "additionalProperties": self._kind.schema}

    def meant(self, value: object) -> object:
        return {name: self._kind.meant(item) for name, item in value.items()} if is_text_map(value) else value

    def fits(self, value: object) -> bool:
        return is_text_map(value) and all(
            self._words.fits(name) and self._kind.fits(item) for name, item in value.items()
        )

    def read(self, value: object) -> Mapping[E, T]:
        given = cast("Mapping[str, object]", value)
        return MappingProxyType({self._words.read(name): self._kind.read(item) for name, item in given.items()})

    def write(self, value: Mapping[E, T]) -> object:
        return {str(name.value): self._kind.write(item) for name, item in value.items()}

    def fault(self, value: Mapping[E, T], name: str) -> str:
        faults = (self._kind.fault(item, f"{name}, {word.value},") for word, item in value.items())
        return next((fault for fault in faults if fault), "")

    def known(self, value: object) -> object | None:
        """Each word counts alone."""
        if not is_text_map(value):
            return None
        found = {name: self._kind.known(item) for name, item in value.items() if self._words.fits(name)}
        return {name: item for name, item in found.items() if item is not None} or None

    def unknown_words(self, value: object) -> Mapping[str, object]:
        known = self.known(value)
        known = known if is_text_map(known) else {}
        return {name: item for name, item in value.items() if name not in known} if is_text_map(value) else {}

    def over(self, wide: Mapping[E, T], narrow: Mapping[E, T]) -> Mapping[E, T]:
        both = {name: self._kind.over(wide[name], item) if name in wide else item for name, item in narrow.items()}
        return MappingProxyType({**wide, **both})
