"""How options of clients, producers, consumers and readers are declared and checked, each in one place.

An option is a field of a frozen dataclass that derives from `Options`: its default, its doc line, and what it may be.
The calls of both public faces keep the official client's long signatures, which `tests/tools/generate_faces.py` writes
from the declarations, in their order. Options behind `KW_ONLY` have no parameter: calls take them among `**options`.
`Options.of` turns the arguments into options. What a call takes besides is declared in its place, too: the client
refuses `unsupported` parameters when they ask for anything, and ignores `without_effect` ones.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, cast, overload

from ...protocol.errors import InvalidConfiguration, OperationNotSupported

T = TypeVar("T")
Choice = TypeVar("Choice", bound=IntEnum)

OFFICIAL_MODULE = "_pulsar"
"""The native module of the official Python client, which its enumerations are of."""

WantedTopics: TypeAlias = str | Sequence[str] | re.Pattern[str]
"""What a consumer may be told to take: one topic, several by name, or all that match a pattern."""


@overload
def option(
    default: T,
    doc: str,
    *,
    minimum: int | None = None,
    choice: type[IntEnum] | None = None,
    text: bool = False,
    unit: str = "",
    given: str = "",
) -> T: ...
@overload
def option(*, doc: str, text: bool = False, texts: bool = False) -> Any: ...
def option(
    default: object = MISSING,
    doc: str = "",
    *,
    minimum: int | None = None,
    choice: type[IntEnum] | None = None,
    text: bool = False,
    texts: bool = False,
    unit: str = "",
    given: str = "",
) -> object:
    """Declare an option. Without a default it must be given.

    Args:
        default: The official client's default. None means that the option may be left out.
        doc: One line for the reference and the docstrings of calls, with the unit.
        minimum: The option is an integer of at least this.
        choice: The option is a member of this enumeration.
        text: The option is a string that is not empty.
        texts: The option is a mapping of strings to strings, by default empty.
        unit: For the reference, where the option's name does not end with it.
        given: The annotation of the calls' parameter, where calls take more than the option's type.
    """
    metadata = {"doc": doc, "minimum": minimum, "choice": choice, "text": text, "texts": texts, "unit": unit}
    if texts:
        return dataclasses.field(default_factory=dict[str, str], metadata=metadata)
    if default is MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Besides(NamedTuple):
    """A parameter of a call that is no option, because nothing here makes use of it."""

    default: object
    refused: bool
    """Whether the call raises OperationNotSupported when the parameter asks for anything."""


def unsupported(default: T) -> T:
    """Declare a parameter of the official client whose feature is missing here."""
    return cast(T, Besides(default, refused=True))  # only `Options` looks at it


def without_effect(default: T) -> T:
    """Declare a parameter of the official client that calls take and ignore."""
    return cast(T, Besides(default, refused=False))  # only `Options` looks at it


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one kind of object; see the module."""

    CALL: ClassVar[str] = ""
    """The call that takes them, for messages."""
    BESIDES: ClassVar[dict[str, Besides]] = {}
    """The other parameters of that call."""

    def __init_subclass__(cls) -> None:
        cls.BESIDES = {name: value for name, value in vars(cls).items() if isinstance(value, Besides)}

    @classmethod
    def of(cls, arguments: Mapping[str, object]) -> Self:
        """The options among a call's arguments, by name, as `locals()` has them at its beginning.

        Raises OperationNotSupported, InvalidConfiguration; TypeError for a name that is not declared.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in arguments:
            if name not in {*names, *cls.BESIDES, "self", "options"}:
                raise TypeError(f"{cls.CALL}() got an unexpected keyword argument {name!r}")
        refused = [name for name, parameter in cls.BESIDES.items() if parameter.refused]
        refuse(cls.CALL, **{name: arguments[name] for name in refused if name in arguments})
        return cls(**{name: arguments[name] for name in names if name in arguments})

    def shared_with(self, kind: "type[Options]") -> dict[str, object]:
        """The values of the options that `kind` declares by the same names."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name in kind.__dataclass_fields__
        }

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata["texts"]:
                object.__setattr__(self, field.name, _checked_texts(field.name, value))
            elif value is None and field.default is None:
                continue
            elif field.metadata["minimum"] is not None:
                _check_range(field.name, value, field.metadata["minimum"])
            elif field.metadata["choice"] is not None:
                object.__setattr__(self, field.name, checked_choice(field.name, value, field.metadata["choice"]))
            elif field.metadata["text"]:
                _check_text(field.name, value)
        self.check()

    def check(self) -> None:
        """Raise InvalidConfiguration when the options do not fit each other."""


def _check_range(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidConfiguration(f"{name} must be an integer of at least {minimum}, not {value!r}")


def checked_choice(name: str, value: object, kind: type[Choice]) -> Choice:
    """The member of `kind` that is meant. A member of the official package's enumeration of that name is taken, too.

    Raises InvalidConfiguration.
    """
    if isinstance(value, kind):
        return value
    if type(value).__module__ == OFFICIAL_MODULE and type(value).__name__ == kind.__name__:
        found = kind.__members__.get(str(getattr(value, "name", "")))
        if found is not None:
            return found
    raise InvalidConfiguration(
        f"{name} must be a magnetar.{kind.__name__}, such as {kind.__name__}.{next(iter(kind)).name}, not {value!r}"
    )


def check_function(name: str, value: object) -> None:
    """Refuse what is neither None nor to be called."""
    if value is not None and not callable(value):
        raise InvalidConfiguration(f"{name} must be a function, not {value!r}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"{name} must be a non-empty string, not {value!r}")


def _checked_texts(name: str, value: Mapping[object, object] | None) -> dict[str, str]:
    checked: dict[str, str] = {}
    for key, text in (value or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidConfiguration(f"{name} must map strings to strings, not {key!r} to {text!r}")
        checked[key] = text
    return checked


def refuse(call: str, **given: object) -> None:
    """Raise OperationNotSupported for the first parameter that asks for a feature which is missing here.

    Such parameters of the official client keep their places and names. A program that moves here fails where it asks
    for the feature, by its name. Values that switch a feature off pass.
    """
    for name, value in given.items():
        if not _is_off(value):
            raise OperationNotSupported(f"{call}: {name}={value!r} is not supported yet: leave it out")


def _is_off(value: object) -> bool:
    """Whether `value` is the official client's default for such a parameter: None, False, empty, an enumeration's first
    member (Shared, PersistentOnly, FAIL), or the bytes schema.
    """
    if value is None or type(value).__name__ == "BytesSchema":
        return True
    try:
        return int(value) == 0  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return not value


def compiled_pattern(text: str) -> re.Pattern[str]:
    """The pattern that `text` says. Raises InvalidConfiguration."""
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidConfiguration(f"{text!r} is not a regular expression: {error}") from None


def checked_topics(topics: object) -> str | tuple[str, ...] | re.Pattern[str]:
    """What a consumer or reader is told to take. Raises InvalidConfiguration for what is none of the three forms."""
    if isinstance(topics, re.Pattern):
        pattern = cast("re.Pattern[str]", topics)
        if not isinstance(pattern.pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidConfiguration("a pattern of topics must be of text, not of bytes")
        return pattern
    if isinstance(topics, str) and topics:
        return topics
    names: list[str] = []
    for name in cast("Sequence[object]", topics) if isinstance(topics, list | tuple) else ():
        if not isinstance(name, str) or not name:
            raise InvalidConfiguration(f"topic must name topics by non-empty strings, not {name!r}")
        names.append(name)
    if not names:
        raise InvalidConfiguration(
            f"topic must be a non-empty string, a list of them, or a compiled pattern, not {topics!r}"
        )
    return tuple(names)
