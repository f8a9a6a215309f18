"""Which schemas may follow which, by the eight strategies of Pulsar.

BACKWARD: the new schema reads what the latest one wrote. FORWARD: the latest one reads what the new one writes. FULL:
both. With _TRANSITIVE this holds for all versions that the topic has, not only for the latest.

As in Pulsar, only AVRO, JSON and KEY_VALUE schemas are compared by their content. Of PROTOBUF_NATIVE schemas the full
name of the root message must stay. All other types go with themselves, PROTOBUF too. No strategy but ALWAYS_COMPATIBLE
lets a topic change its type of schema.

Whether data written with one Avro schema can be read with another: Avro's schema resolution, before there is data.

The verdicts are those of Avro 1.12 for Java as Pulsar asks it. They are stricter or milder than Avro's specification in
some places:

- A record is matched by its fields; its name counts only in a union. Fixed types and enums need the same short name.
- A symbol that the reader's enum lacks is no obstacle: only reading a message with that symbol fails.
- Each branch of the writer's union must be readable. A branch of the reader's union is chosen by the kind and full name
  first, then by fields, then by promotion. Only the chosen branch counts.
- A field that the writer lacks needs a default that fits its type.
- The reader's aliases rename what the writer has.

A schema may refer to itself, so a pair of records that is being resolved counts as resolved within.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...protocol.errors import IncompatibleSchema
from ...protocol.plain_values import is_list, is_text_map
from ...protocol.schema_types import SchemaType
from ..policies.schema_strategy import SchemaCompatibilityStrategy as Strategy
from .avro_definition import NAMED, NO_DEFAULT, AvroField, AvroType, canonical_text
from .definition import SchemaDefinition, key_and_value
from .validation import avro_of, root_message

STEPS_MAX = 50_000
"""Pairs of types that one question may compare: it runs on a broker's event loop. Real schemas need some hundreds."""

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Kind of the writer → kinds of a reader that take it, too."""


def obstacle(writer: AvroType, reader: AvroType) -> str:
    """Why data written with `writer` cannot be read with `reader`, and where; empty if all of it can be."""
    try:
        if canonical_text(writer) == canonical_text(reader):
            return ""
        return _Resolution(reader).obstacle(writer, reader)
    except _TooComplex:
        return f"the schemas are too complex: comparing them takes more than {STEPS_MAX} steps"
    except (RecursionError, ValueError):
        return "the schemas are nested too deeply"


class _TooComplex(Exception):
    pass


@dataclass(eq=False)
class _Match:
    """What became of a pair of types: an obstacle between the two themselves, or matches of their parts."""

    error: str = ""
    parts: list[tuple[str, "_Match"]] = field(default_factory=list[tuple[str, "_Match"]])

    def first_error(self) -> str:
        """The obstacle that is nearest to the root, and where it is."""
        level: list[tuple[str, _Match]] = [("", self)]
        seen: dict[int, None] = {}
        while level:
            below: list[tuple[str, _Match]] = []
            for where, match in level:
                if match.error:
                    return f"{match.error} (at {where})" if where else match.error
                if id(match) not in seen:
                    seen[id(match)] = None
                    below += [(f"{where}.{part}" if where else part, found) for part, found in match.parts]
            level = below
        return ""


_FINE = _Match()


class _Resolution:
    """One question. `reader` is the root: its aliases hold everywhere."""

    def __init__(self, reader: AvroType) -> None:
        self._steps = 0
        self._records: dict[tuple[int, int], _Match] = {}
        self._aliases: dict[str, str] = {}
        self._field_aliases: dict[str, dict[str, str]] = {}
        self._collect_aliases(reader, {})

    def obstacle(self, writer: AvroType, reader: AvroType) -> str:
        return self._match(writer, reader).first_error()

    # -- aliases -------------------------------------------------------------------------------------------------

    def _collect_aliases(self, one: AvroType, seen: dict[int, None]) -> None:
        if id(one) in seen:
            return
        seen[id(one)] = None
        for alias in one.aliases:
            self._aliases[alias] = one.name
        own = {alias: item.name for item in one.fields for alias in item.aliases}
        if own:
            for name in (one.name, *one.aliases):
                self._field_aliases.setdefault(name, {}).update(own)
        for item in one.fields:
            self._collect_aliases(item.type, seen)
        for branch in one.branches:
            self._collect_aliases(branch, seen)

    def _name(self, writer: AvroType) -> str:
        return self._aliases.get(writer.name, writer.name)

    def _short_name(self, writer: AvroType) -> str:
        return self._name(writer).rpartition(".")[2]

    def _fields(self, writer: AvroType) -> list[tuple[str, AvroType]]:
        """The fields of the writer's record, under the names that the reader has for them."""
        renamed = self._field_aliases.get(self._name(writer), {})
        return [(renamed.get(item.name, item.name), item.type) for item in writer.fields]

    # -- matching ------------------------------------------------------------------------------------------------

    def _match(self, writer: AvroType, reader: AvroType) -> _Match:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _TooComplex
        if writer.kind == "union":
            return self._match_writer_union(writer, reader)
        if writer.kind != reader.kind:
            if reader.kind == "union":
                return self._match_reader_union(writer, reader)
            if reader.kind in PROMOTIONS.get(writer.kind, ()):
                return _FINE
            return _Match(f"{_described(writer)} cannot be read as {_described(reader)}")
        if writer.kind == "record":
            return self._match_records(writer, reader)
        if writer.kind in ("array", "map"):
            return _Match(parts=[("items" if writer.kind == "array" else "values", self._items(writer, reader))])
        if writer.kind in NAMED and self._short_name(writer) != reader.short_name:
            return _Match(f"{_described(writer)} cannot be read as {_described(reader)}: their names differ")
        if writer.kind == "fixed" and writer.size_bytes != reader.size_bytes:
            return _Match(f"{_described(writer)} has {writer.size_bytes} bytes, not {reader.size_bytes}")
        return _FINE

    def _items(self, writer: AvroType, reader: AvroType) -> _Match:
        return self._match(writer.items, reader.items)

    def _match_writer_union(self, writer: AvroType, reader: AvroType) -> _Match:
        if self._alike(writer, reader, {}):
            return _FINE
        return _Match(parts=[(f"[{branch.full_name}]", self._match(branch, reader)) for branch in writer.branches])

    def _match_reader_union(self, writer: AvroType, reader: AvroType) -> _Match:
        chosen = self._chosen_branch(writer, reader)
        if chosen is None:
            names = ", ".join(branch.full_name for branch in reader.branches)
            return _Match(f"{_described(writer)} cannot be read as any of {names}")
        return _Match(parts=[(f"[{chosen.full_name}]", self._match(writer, chosen))])

    def _chosen_branch(self, writer: AvroType, reader: AvroType) -> AvroType | None:
        alike: AvroType | None = None
        for branch in reader.branches:
            if branch.kind != writer.kind:
                continue
            if branch.kind not in NAMED or branch.name == self._name(writer):
                return branch
            if branch.kind == "record" and self._fields_match(writer, branch):
                if alike is None or branch.short_name == self._short_name(writer):
                    alike = branch
        if alike is not None:
            return alike
        promoted = PROMOTIONS.get(writer.kind, ())
        return next((branch for branch in reader.branches if branch.kind in promoted), None)

    def _fields_match(self, writer: AvroType, reader: AvroType) -> bool:
        """Whether two records match as far as the kinds of their fields go."""
        match = self._match_records(writer, reader)
        return not match.error and not any(part.error for _, part in match.parts)

    def _match_records(self, writer: AvroType, reader: AvroType) -> _Match:
        pair = (id(writer), id(reader))
        known = self._records.get(pair)
        if known is not None:
            return known
        match = self._records[pair] = _Match()
        fields = self._fields(writer)
        written = dict(fields)
        if len(written) < len(fields):
            match.error = f"two fields of {writer.name} have the same name in {reader.name}: see its aliases"
            return match
        for name, of in fields:
            wanted = reader.by_name.get(name)
            if wanted is not None:
                match.parts.append((name, self._match(of, wanted.type)))
        for wanted in reader.fields:
            if wanted.name not in written:
                match.error = match.error or _default_error(wanted, reader)
        return match

    def _alike(self, writer: AvroType, reader: AvroType, seen: dict[tuple[int, int], bool]) -> bool:
        """Whether a union needs no resolution, since both are built of the same parts in the same order."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _TooComplex
        if writer.kind != reader.kind:
            return False
        if writer.kind in NAMED and self._short_name(writer) != reader.short_name:
            return False
        if writer.kind == "fixed":
            return writer.size_bytes == reader.size_bytes
        if writer.kind == "enum":
            return writer.symbols == reader.symbols
        if writer.kind != "record":
            return len(writer.branches) == len(reader.branches) and all(
                self._alike(one, other, seen) for one, other in zip(writer.branches, reader.branches, strict=True)
            )
        pair = (id(writer), id(reader))
        if pair not in seen:
            seen[pair] = True
            fields = self._fields(writer)
            seen[pair] = len(fields) == len(reader.fields) and all(
                name == other.name and self._alike(of, other.type, seen)
                for (name, of), other in zip(fields, reader.fields, strict=True)
            )
        return seen[pair]


def _described(one: AvroType) -> str:
    return f"{one.kind} {one.name}" if one.name else one.kind


def _default_error(wanted: AvroField, record: AvroType) -> str:
    if wanted.default is NO_DEFAULT:
        return f"the writer lacks field {wanted.name} of {record.name}, which has no default"
    if not fits(wanted.type, wanted.default):
        return f"the default of field {wanted.name} of {record.name} does not fit its type"
    return ""


def fits(of: AvroType, value: object) -> bool:
    """Whether a default can be written as a value of a type. As in Avro for Java, a value without items is taken for
    an empty array or map. One without fields is taken for a record whose fields all have defaults."""
    named = value if is_text_map(value) else {}
    if value is NO_DEFAULT:
        return False
    if of.kind == "record":
        return all(fits(item.type, named.get(item.name, item.default)) for item in of.fields)
    if of.kind == "enum":
        return value in of.symbols
    if of.kind == "array":
        return all(fits(of.items, item) for item in (value if is_list(value) else named.values()))
    if of.kind == "map":
        return all(fits(of.items, item) for item in named.values())
    if of.kind == "union":
        chosen = next((branch for branch in of.branches if _may_hold(branch, value)), None)
        return chosen is not None and fits(chosen, value)
    return _may_hold(of, value)


def _may_hold(of: AvroType, value: object) -> bool:
    """Whether a value looks like one of a type: this chooses the branch of a union that a default is written as."""
    if of.kind in ("bytes", "string", "fixed"):
        return isinstance(value, str)
    if of.kind in ("int", "long", "float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if of.kind == "boolean":
        return isinstance(value, bool)
    if of.kind == "null":
        return value is None
    return True


_COMPARED_AS_AVRO = frozenset({SchemaType.AVRO, SchemaType.JSON})
_TRANSITIVE = frozenset({Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE})
_NEW_READS_OLD = frozenset(
    {Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE},
)
_OLD_READS_NEW = frozenset({Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE})
_LATEST_FOR_CONSUMERS = frozenset(
    {Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL},
)


def check_new(existing: Sequence[SchemaDefinition], new: SchemaDefinition, strategy: Strategy) -> None:
    """Raise IncompatibleSchema unless a topic with these schemas, oldest first, may get the new one."""
    if strategy is Strategy.ALWAYS_COMPATIBLE or not existing:
        return
    if strategy in _TRANSITIVE:
        _check(existing, new, strategy)
    else:
        _check_latest(existing[-1], new, strategy)


def check_consumer(existing: Sequence[SchemaDefinition], own: SchemaDefinition, strategy: Strategy) -> None:
    """Raise IncompatibleSchema unless a consumer with this schema may read a topic with these schemas (≥ 1)."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if strategy in _LATEST_FOR_CONSUMERS:
        _check_latest(existing[-1], own, Strategy.BACKWARD)
    else:
        _check(existing, own, strategy)


def _check_latest(latest: SchemaDefinition, new: SchemaDefinition, strategy: Strategy) -> None:
    if latest.type is not new.type or latest.data != new.data:
        _check((latest,), new, strategy)


def _check(existing: Sequence[SchemaDefinition], new: SchemaDefinition, strategy: Strategy) -> None:
    for old in existing:
        if old.type is not new.type:
            raise IncompatibleSchema(
                f"Incompatible schema: exists schema type {old.type.name}, new schema type {new.type.name}"
            )
    for old in reversed(existing):
        _check_pair(old, new, strategy)


def _check_pair(old: SchemaDefinition, new: SchemaDefinition, strategy: Strategy) -> None:
    """Both are of the same type."""
    if new.type is SchemaType.KEY_VALUE:
        _check_key_value(old, new, strategy)
    elif new.type is SchemaType.EXTERNAL:
        pass  # as in Pulsar, under every strategy
    elif strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")
    elif new.type in _COMPARED_AS_AVRO:
        _check_avro(old, new, strategy)
    elif new.type is SchemaType.PROTOBUF_NATIVE:
        before, after = root_message(old), root_message(new)
        if before != after:
            raise IncompatibleSchema(
                f"Protobuf root message change is not allowed under the '{strategy.name}' strategy. "
                f"Original message name: '{before}', new message name: '{after}'."
            )


def _check_key_value(old: SchemaDefinition, new: SchemaDefinition, strategy: Strategy) -> None:
    before, after = key_and_value(old), key_and_value(new)
    if [part.type for part in before] != [part.type for part in after]:
        raise IncompatibleSchema(
            "Key schemas or Value schemas are different schema type, "
            f"from key schema type is {before[0].type.name} and to key schema is {after[0].type.name}, "
            f"from value schema is {before[1].type.name} and to value schema is {after[1].type.name}"
        )
    for one, other in zip(before, after, strict=True):
        _check_pair(one, other, strategy)


def _check_avro(old: SchemaDefinition, new: SchemaDefinition, strategy: Strategy) -> None:
    before, after = avro_of(old), avro_of(new)
    found = obstacle(before, after) if strategy in _NEW_READS_OLD else ""
    if found:
        raise _refusal(strategy, "the new schema cannot read what an existing one wrote", found)
    found = obstacle(after, before) if strategy in _OLD_READS_NEW else ""
    if found:
        raise _refusal(strategy, "an existing schema cannot read what the new one writes", found)


def _refusal(strategy: Strategy, what: str, found: str) -> IncompatibleSchema:
    return IncompatibleSchema(f"Error during schema compatibility check with strategy {strategy.name}: {what}: {found}")
