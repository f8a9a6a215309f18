"""Which schemas may follow which, by the eight strategies of Pulsar.

BACKWARD: the new schema reads what the latest one wrote. FORWARD: the latest one reads what the new one writes. FULL:
both. With _TRANSITIVE this holds for all versions that the topic has, not only for the latest.

As in Pulsar, only AVRO, JSON and KEY_VALUE schemas are compared by their content. Of PROTOBUF_NATIVE schemas the full
name of the root message must stay. All other types go with themselves, PROTOBUF too. No strategy but ALWAYS_COMPATIBLE
lets a topic change its type of schema.
"""

from collections.abc import Sequence

from ...protocol.errors import IncompatibleSchema
from ...protocol.schema_types import SchemaType
from ..policies.schema_strategy import SchemaCompatibilityStrategy as Strategy
from .avro_resolution import obstacle
from .definition import SchemaDefinition, key_and_value
from .validation import avro_of, root_message

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
