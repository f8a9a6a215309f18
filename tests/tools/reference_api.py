"""The page of the Python API: every name of `magnetar.__all__`, with its signature and its docstring.

At its end it has every option of clients, producers, consumers and readers, from where they are declared.
"""

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import magnetar
from magnetar.client.core.absent import Absent
from magnetar.client.core.configuration import (
    ClientConfiguration,
    ConsumerConfiguration,
    ProducerConfiguration,
    ReaderConfiguration,
)
from magnetar.client.core.options import Options

from .markdown import NOTE, table

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$")
_ITEM = re.compile(r"^(\*{0,2}\w[\w, *]*): (.*)$")


INSIDE = {"open_producer", "open_consumer", "open_reader", "close_one", "close_when_forgotten", "inherited"}
"""Public for the client's own other parts only."""

ROOMS = ("spark", "data")
"""Modules whose names are part of the API, too."""

OPTIONS: dict[str, type[Options]] = {
    "client": ClientConfiguration,
    "producer": ProducerConfiguration,
    "consumer": ConsumerConfiguration,
    "reader": ReaderConfiguration,
}
_UNITS = {"ms": "ms", "millis": "ms", "s": "s", "seconds": "s", "bytes": "bytes"}
"""By the last word of an option's name."""


def python_api() -> str:
    """Functions, classes and enumerations. Errors have a page of their own."""
    parts = [
        f"{NOTE}# Python API\n\n"
        "`import magnetar` gives these names. They are loaded on first use. [Errors](errors.md) have a page of\n"
        "their own. The options of [clients](#options-of-a-client), [producers](#options-of-a-producer),\n"
        "[consumers](#options-of-a-consumer) and [readers](#options-of-a-reader) are at the end.\n"
    ]
    for name in magnetar.__all__:
        value = getattr(magnetar, name)
        if inspect.ismodule(value):
            if name in ROOMS:
                parts += [_of_room(f"{name}.{each}", getattr(value, each)) for each in value.__all__]
        elif isinstance(value, Absent):
            continue  # it raises OperationNotSupported, as the migration guide says
        elif inspect.isfunction(value):
            parts.append(_function(name, value))
        elif issubclass(value, enum.Enum):
            members = "\n".join(f"- `{name}.{member.name}`" for member in value)
            parts.append(f"## {name}\n\n{_text(value)}\n{members}\n")
        elif not issubclass(value, BaseException):
            parts.append(_class(name, value))
    parts += [_options(what, declared) for what, declared in OPTIONS.items()]
    return "\n".join(parts)


def _of_room(name: str, value: Any) -> str:
    """A function, or a class. Of one that derives from a class of Ray only the constructor: Ray calls the rest."""
    if inspect.isfunction(value):
        return _function(name, value)
    return _class(name, value) if value.__mro__[1:] == (object,) else _class_alone(name, value)


def _options(what: str, declared: type[Options]) -> str:
    """Every option of one kind of object, in the order of its declaration."""
    titles = ("option", "type", "default", "unit", "what it does")
    rows = [
        (f"`{one.name}`", f"`{_type(one.type)}`", _declared_default(declared, one), unit_of(one), one.metadata["doc"])
        for one in dataclasses.fields(declared)
    ]
    call = declared.CALL if what == "client" else f"Client.{declared.CALL}"
    return (
        f"## Options of a {what}\n\nPass them by name to `{call}` or `Async{call}`.\n"
        f"Impossible values are refused with InvalidConfiguration.\n\n{table(titles, rows)}"
    )


def _declared_default(declared: type[Options], one: "dataclasses.Field[Any]") -> str:
    """That of the declaration; with that of the asynchronous call, if it is another."""
    if one.default is dataclasses.MISSING:
        return "`{}`" if one.default_factory is not dataclasses.MISSING else "none: pass it"
    text = f"`{_default(one.default)}`"
    face = magnetar.AsyncClient if declared is ClientConfiguration else getattr(magnetar.AsyncClient, declared.CALL)
    there = inspect.signature(face).parameters.get(one.name)
    if there is None or there.default in (one.default, there.empty, None):
        return text
    return f"{text}; `{_default(there.default)}` with AsyncClient"


def unit_of(one: "dataclasses.Field[Any]") -> str:
    """The unit of an option, which its declaration says, or the end of its name; empty for counts, texts, switches."""
    return one.metadata["unit"] or _UNITS.get(one.name.rpartition("_")[2], "")


def _class_alone(name: str, kind: type) -> str:
    constructor = kind.__dict__.get("__init__")
    shown = f"{_signature(name, constructor)}{_text(constructor)}" if inspect.isfunction(constructor) else ""
    return f"## {name}\n\n{_text(kind)}{shown}"


def _class(name: str, kind: type) -> str:
    parts = [_class_alone(name, kind)]
    for member, value in members(kind):
        if isinstance(value, property):
            parts.append(f"### {name}.{member}\n\n{_text(value)}")
        else:
            parts.append(f"### {name}.{member}\n\n{_signature(member, value)}{_text(value)}")
    return "\n".join(parts)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, its own and those of bases of ours, in order of their names."""
    for member in sorted({name for base in kind.__mro__ if _is_ours(base) for name in vars(base)}):
        value = inspect.getattr_static(kind, member)
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if (
            not member.startswith("_")
            and member not in INSIDE
            and (inspect.isfunction(value) or isinstance(value, property))
        ):
            yield member, value


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("magnetar.")


def _function(name: str, function: Any) -> str:
    return f"## {name}\n\n{_signature(name, function)}{_text(function)}"


def _signature(name: str, function: Any) -> str:
    """The signature as one would write it, a parameter a line where it is long."""
    signature = inspect.signature(function)
    parameters = [_annotated(each) for each in signature.parameters.values() if each.name != "self"]
    kinds = [each.kind for each in signature.parameters.values() if each.name != "self"]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    if keyword_only in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(keyword_only), "*")
    before = "async def" if inspect.iscoroutinefunction(function) else "def"
    is_class = name.rpartition(".")[2][0].isupper()
    after = "" if is_class else f" -> {_type(signature.return_annotation)}"
    whole = f"{name}({', '.join(parameters)}){after}"
    if len(whole) > 100:
        whole = f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){after}"
    return f"```python\n{whole if is_class else f'{before} {whole}'}\n```\n\n"


def _annotated(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _default(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.strip("'\"")
    return re.sub(r"\b(?:magnetar|collections|typing|os|pyspark)\.(?:[a-z_]\w*\.)*", "", text)


def _text(value: Any) -> str:
    """A docstring as Markdown: sections of Google's style become lists."""
    if isinstance(value, type) and not value.__doc__:
        return ""
    lines = (inspect.getdoc(value) or "").splitlines()
    out: list[str] = []
    section = ""
    for line in lines:
        if found := _SECTION.match(line):
            section = found[1]
            out += [f"**{section}**", ""]
        elif not section or not line.strip():
            out.append(line.rstrip())
            section = section if line.startswith(" ") or not line.strip() else ""
        elif not line.startswith(" "):
            section = ""
            out.append(line)
        elif (
            section != "Returns"
            and line.startswith("    ")
            and not line.startswith("     ")
            and (item := _ITEM.match(line.strip()))
        ):
            out.append(f"- `{item[1]}`: {item[2]}")
        else:
            out.append(("  " if section != "Returns" else "") + line.strip())
    return "\n".join(out).strip() + "\n\n" if out else ""
