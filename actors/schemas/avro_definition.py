"""Avro schemas: from their JSON text to a tree of types, and when two texts define the same type.

Pulsar keeps the definitions of AVRO, JSON and PROTOBUF schemas as Avro schemas. It takes what Avro 1.12 for Java takes,
with these rules for names: a letter, `_` or `$` first, then also digits. Defaults are not checked here.

Two definitions are the same if only documentation, aliases, the order of attributes, or the way of writing names
differ. All other attributes count, such as `logicalType`. So does the order of fields and symbols.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from ...protocol.plain_values import is_list, is_text_map

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})

_ORDERS = ("ascending", "descending", "ignore")
_SCHEMA_WORDS = frozenset(
    {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
)
_ENUM_WORDS = _SCHEMA_WORDS | {"default"}
_FIELD_WORDS = frozenset({"default", "doc", "name", "order", "type", "aliases"})
_INT_MAX = (1 << 31) - 1


class InvalidAvro(ValueError):
    """The text does not define an Avro type."""


class NoDefault:
    """The type of `NO_DEFAULT`."""


NO_DEFAULT = NoDefault()
"""The field has no default: null is one."""


@dataclass(eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: "AvroType"
    default: object
    order: str
    aliases: tuple[str, ...]
    attributes: Mapping[str, object]


@dataclass(eq=False)
class AvroType:
    """A type. `kind` says which of the other attributes it has. A recursive type refers to itself.

    `name` is the name in full, of named kinds only.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    by_name: Mapping[str, AvroField] = field(default_factory=dict[str, AvroField])
    symbols: tuple[str, ...] = ()
    symbol_default: str | None = None
    """Of an enum: what a reader takes for a symbol that it does not have."""
    size_bytes: int = 0
    branches: tuple["AvroType", ...] = ()
    """Of a union. Of an array or a map, the type of its items is the only one."""
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def short_name(self) -> str:
        """Without the namespace. Of a kind without names, the kind."""
        return self.name.rpartition(".")[2] or self.kind

    @property
    def full_name(self) -> str:
        """The name, or the kind where there are no names."""
        return self.name or self.kind

    @property
    def items(self) -> "AvroType":
        """The type of the items of an array or a map."""
        return self.branches[0]


def parse_avro(data: bytes) -> AvroType:
    """The type that a text defines. Raises InvalidAvro."""
    try:
        found = json.loads(data.decode(errors="replace"), parse_constant=_no_constant)
        parser = _Parser()
        return parser.finished(parser.parse(found, ""))
    except InvalidAvro:
        raise
    except RecursionError:
        raise InvalidAvro("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidAvro(f"it is not JSON: {error}") from None


def canonical_text(root: AvroType) -> str:
    """A text that two definitions share exactly if they define the same type. Raises InvalidAvro: too deep."""
    try:
        return _json(_canonical(root, {}))
    except RecursionError:
        raise InvalidAvro("it is nested too deeply") from None


def _no_constant(text: str) -> object:
    raise InvalidAvro(f"it is not JSON: it holds {text}")


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _canonical(one: AvroType, seen: dict[int, None]) -> object:
    if one.kind in NAMED:
        if id(one) in seen:
            return one.name
        seen[id(one)] = None
    fields = [
        {
            "name": item.name,
            "type": _canonical(item.type, seen),
            "order": item.order,
            "attributes": item.attributes,
            **({} if item.default is NO_DEFAULT else {"default": item.default}),
        }
        for item in one.fields
    ]
    return {
        "kind": one.kind,
        "name": one.name,
        "fields": fields,
        "symbols": one.symbols,
        "size": one.size_bytes,
        "branches": [_canonical(branch, seen) for branch in one.branches],
        "attributes": one.attributes,
    }


class _Reference(AvroType):
    """A name that may be defined later in the text."""

    def __init__(self, name: str, plain_name: str) -> None:
        super().__init__("reference", name)
        self.plain_name = plain_name


class _Parser:
    """Reads one text. Names are looked up when all of it has been read: Avro for Java lets them come first."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._sources: dict[str, object] = {}
        self._open: dict[str, None] = {}
        """Records whose fields are being read."""
        self._made: list[AvroType] = []

    def finished(self, root: AvroType) -> AvroType:
        """The type, with names replaced by what they name."""
        for one in self._made:
            one.branches = tuple(self._resolved(branch) for branch in one.branches)
            for item in one.fields:
                item.type = self._resolved(item.type)
            if one.kind == "union":
                _check_union(one)
        return self._resolved(root)

    def parse(self, source: object, namespace: str) -> AvroType:
        if isinstance(source, str):
            return self._find(source, namespace)
        if is_list(source):
            return self._new("union", branches=tuple(self.parse(item, namespace) for item in source))
        if not is_text_map(source):
            raise InvalidAvro(f"{_shown(source)} is no type")
        kind = _text(source, "type")
        if kind is None:
            raise InvalidAvro(f"{_shown(source)} has no type")
        if kind in PRIMITIVES:
            return self._new(kind, attributes=_others(source, _SCHEMA_WORDS))
        if kind in ("record", "error"):
            return self._record(source, namespace)
        if kind == "enum":
            return self._enum(source, namespace)
        if kind == "fixed":
            return self._fixed(source, namespace)
        if kind in ("array", "map"):
            word = "items" if kind == "array" else "values"
            if word not in source:
                raise InvalidAvro(f"{_shown(source)} has no {word}")
            items = self.parse(source[word], namespace)
            return self._new(kind, branches=(items,), attributes=_others(source, _SCHEMA_WORDS))
        return self._find(kind, namespace)

    def _record(self, source: dict[str, object], namespace: str) -> AvroType:
        name, space = _name_of(source, namespace)
        made = self._new("record", name=name)
        self._define(made, source)
        listed = source.get("fields")
        if not is_list(listed):
            raise InvalidAvro(f"the record {name} has no fields")
        outermost = name not in self._open
        self._open[name] = None
        by_name: dict[str, AvroField] = {}
        for item in listed:
            found = self._field(item, space)
            if found.name in by_name:
                raise InvalidAvro(f"the record {name} has two fields {found.name}")
            by_name[found.name] = found
        if outermost:
            del self._open[name]
        made.fields, made.by_name = tuple(by_name.values()), by_name
        made.attributes = _others(source, _SCHEMA_WORDS)
        made.aliases = _aliases(source, space)
        return made

    def _field(self, source: object, namespace: str) -> AvroField:
        if not is_text_map(source):
            raise InvalidAvro(f"{_shown(source)} is no field")
        name = _text(source, "name")
        if name is None:
            raise InvalidAvro(f"{_shown(source)} has no name")
        if "type" not in source:
            raise InvalidAvro(f"the field {_shown(name)} has no type")
        of = self.parse(source["type"], namespace)
        order = source.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise InvalidAvro(f"the order of the field {_shown(name)} is {_shown(order)}")
        default = source.get("default", NO_DEFAULT)
        if of.kind in ("float", "double") and isinstance(default, str):
            default = float(default)
        listed = source.get("aliases", [])
        return AvroField(
            _checked(name), of, default, order.lower(), tuple(_texts(listed)), _others(source, _FIELD_WORDS)
        )

    def _enum(self, source: dict[str, object], namespace: str) -> AvroType:
        name, space = _name_of(source, namespace)
        symbols = tuple(_checked(symbol) for symbol in _texts(source.get("symbols")))
        if len(dict.fromkeys(symbols)) < len(symbols):
            raise InvalidAvro(f"the enum {name} has a symbol twice")
        default = _text(source, "default")
        if default is not None and default not in symbols:
            raise InvalidAvro(f"the default of the enum {name} is no symbol of it")
        made = self._new("enum", name=name, symbols=symbols, attributes=_others(source, _ENUM_WORDS))
        made.aliases = _aliases(source, space)
        made.symbol_default = default
        self._define(made, source)
        return made

    def _fixed(self, source: dict[str, object], namespace: str) -> AvroType:
        name, space = _name_of(source, namespace)
        size = source.get("size")
        if type(size) is not int or not 0 <= size <= _INT_MAX:
            raise InvalidAvro(f"the size of {name} is {_shown(size)}")
        made = self._new("fixed", name=name, size_bytes=size, attributes=_others(source, _SCHEMA_WORDS))
        made.aliases = _aliases(source, space)
        self._define(made, source)
        return made

    def _new(
        self,
        kind: str,
        *,
        name: str = "",
        symbols: tuple[str, ...] = (),
        size_bytes: int = 0,
        branches: tuple[AvroType, ...] = (),
        attributes: Mapping[str, object] | None = None,
    ) -> AvroType:
        made = AvroType(
            kind, name, symbols=symbols, size_bytes=size_bytes, branches=branches, attributes=attributes or {}
        )
        self._made.append(made)
        return made

    def _define(self, made: AvroType, source: object) -> None:
        """Enter a named type.

        As in Avro for Java, an enum or a fixed type may be defined twice in the same way. A record may be defined
        again within its own fields. The first definition counts for what refers to the name.
        """
        earlier = self._named.setdefault(made.name, made)
        if earlier is made:
            self._sources[made.name] = source
        else:
            same = made.name in self._open if made.kind == "record" else self._sources[made.name] == source
            if earlier.kind != made.kind or not same:
                raise InvalidAvro(f"{made.name} is defined twice")
        self._sources[made.name] = source

    def _find(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return self._new(name)
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        found = self._named.get(full) or self._named.get(name)
        return found if found is not None else _Reference(full, name)

    def _resolved(self, one: AvroType) -> AvroType:
        if not isinstance(one, _Reference):
            return one
        found = self._named.get(one.name)
        if found is None:
            raise InvalidAvro(f"{_shown(one.name)} is not defined")
        return found


def _check_union(union: AvroType) -> None:
    names = [branch.full_name for branch in union.branches]
    if any(branch.kind == "union" for branch in union.branches):
        raise InvalidAvro("a union holds a union")
    if len(dict.fromkeys(names)) < len(names):
        raise InvalidAvro(f"a union holds a type twice: {_shown(names)}")


def _name_of(source: Mapping[str, object], namespace: str) -> tuple[str, str]:
    """The name in full, and its namespace."""
    name = _text(source, "name")
    if name is None:
        raise InvalidAvro(f"{_shown(source)} has no name")
    given = _text(source, "namespace")
    return _full_name(name, namespace if given is None else given)


def _full_name(name: str, namespace: str) -> tuple[str, str]:
    if "." in name:
        namespace, _, name = name.rpartition(".")
    for part in filter(None, namespace.split(".")):
        _checked(part)
    _checked(name)
    return (f"{namespace}.{name}" if namespace else name), namespace


def _aliases(source: Mapping[str, object], namespace: str) -> tuple[str, ...]:
    return tuple(_full_name(alias, namespace)[0] for alias in _texts(source.get("aliases", [])))


def _checked(name: str) -> str:
    first = name[:1]
    if not (first.isalpha() or first in ("_", "$")) or not all(
        one.isalpha() or one.isdecimal() or one in "_$" for one in name
    ):
        raise InvalidAvro(f"{_shown(name)} is no name")
    return name


def _text(source: Mapping[str, object], word: str) -> str | None:
    found = source.get(word)
    return found if isinstance(found, str) else None


def _texts(value: object) -> Iterator[str]:
    if not is_list(value) or not all(isinstance(item, str) for item in value):
        raise InvalidAvro(f"{_shown(value)} is no list of names")
    yield from cast("list[str]", value)


def _others(source: Mapping[str, object], words: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in source.items() if name not in words}


def _shown(value: object) -> str:
    return ascii(value)[:100]
