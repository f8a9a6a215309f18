"""The schemas of topics: reading them, adding a version, deleting them. One record of the metadata store per topic.

All partitions of a topic share its schemas. Any broker reads and writes the record. Two that write at the same time are
put in order by the store's compare-and-set: the second reads again, and decides again. A broker remembers nothing, so
what it answers is never older than the question.

What a write rests on, each tested in the transaction of the write:

- The record is as it was read. So each version follows those that it was compared with, and gets the next number.
- The topic's own record is as it was read, and does not say that the topic is being deleted. The coordinator deletes
  the schemas after it has marked the topic, and before the topic's record goes. So no schema of a deleted topic is
  found in a later topic of that name, however late a write arrives.
- Where the topic has no record, the namespace's record is as it was read. Such a topic does not exist yet, or is kept
  in memory only. A namespace that is created begins without schemas.

The same definition again gives the version that it has. A write whose answer was lost is repeated until it is known
whether it happened (`certain_writes`). A crash leaves the record with the version or without it.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ...protocol.errors import (
    BadVersion,
    ConditionFailed,
    IncompatibleSchema,
    KeyExists,
    NoSuchKey,
    NotAllowedError,
    ServiceUnitNotReady,
    TopicNotFound,
)
from ...protocol.schema_types import SchemaType
from ...protocol.topics import TopicName
from ...runtime import retry
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import Environment
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_writes import delete_certain, put_certain
from ...storage.metadata.schema_record import SIZE_MAX_BYTES, SchemaRecord, StoredSchema
from ...storage.metadata.store import Guard, MetadataStore, Versioned, unpack
from ..policies.schema_strategy import SchemaCompatibilityStrategy as Strategy
from .compatibility import check_consumer, check_new
from .definition import SchemaDefinition
from .validation import check_definition, mark_of

RETRY_INITIAL_S = 0.01
RETRY_MAX_S = 0.5
RETRY_LIMIT_S = 8.0
NOT_FOUND = -1
"""The version of a definition that the topic does not have."""
FORCED_VERSION = -1
"""What Pulsar calls the version of a deletion that leaves nothing."""

A = TypeVar("A")


class SchemaVersion(NamedTuple):
    """A version that a topic has."""

    version: int
    definition: SchemaDefinition
    created_ms: int


class _Found(NamedTuple):
    """What was read for a change."""

    record: SchemaRecord
    version: int | None
    needs: Guard


class SchemaRegistry:
    """See the module. `metadata` gives the present session's store, or raises ServiceUnitNotReady."""

    def __init__(self, env: Environment, metadata: Callable[[], MetadataStore]) -> None:
        self._env = env
        self._metadata = metadata

    # -- reading -------------------------------------------------------------------------------------------------

    async def versions(self, topic: TopicName) -> list[SchemaVersion]:
        """What the topic has since the last deletion, oldest first."""
        found = await self._metadata().get(_key(topic))
        return _versions(SchemaRecord.unpack(found.value)) if found is not None else []

    async def latest(self, topic: TopicName) -> SchemaVersion | None:
        """The latest version."""
        found = await self.versions(topic)
        return found[-1] if found else None

    async def version(self, topic: TopicName, number: int) -> SchemaVersion | None:
        """The version with that number."""
        return next((one for one in await self.versions(topic) if one.version == number), None)

    async def find(self, topic: TopicName, definition: SchemaDefinition) -> int:
        """The version that has exactly this data, or `NOT_FOUND`."""
        for one in await self.versions(topic):
            if (one.definition.type, one.definition.data) == (definition.type, definition.data):
                return one.version
        return NOT_FOUND

    async def check(self, topic: TopicName, definition: SchemaDefinition, strategy: Strategy) -> None:
        """Raise IncompatibleSchema unless the topic may get this schema."""
        check_definition(definition)
        check_new([one.definition for one in await self.versions(topic)], definition, strategy)

    async def check_consumer(self, topic: TopicName, definition: SchemaDefinition, strategy: Strategy) -> None:
        """Raise IncompatibleSchema unless a consumer with this schema may read the topic."""
        if strategy is Strategy.ALWAYS_COMPATIBLE:
            return
        existing = await self.versions(topic)
        if not existing:
            raise IncompatibleSchema(
                "Failed to add schema to an active topic with empty(BYTES) schema: "
                f"new schema type {definition.type.name}"
            )
        check_consumer([one.definition for one in existing], definition, strategy)

    # -- changing ------------------------------------------------------------------------------------------------

    async def put(self, topic: TopicName, definition: SchemaDefinition, strategy: Strategy, *, add: bool = True) -> int:
        """The version of a definition, added if it is new. Without `add` it must be there.

        Raises IncompatibleSchema, TopicNotFound (no such namespace), NotAllowedError (the topic has too many),
        ServiceUnitNotReady, and what the store raises.
        """

        async def attempt() -> int:
            found = await self._read(topic)
            version = _version_of(found.record, definition)
            if version is not None:
                return version
            check_definition(definition)
            mark = mark_of(definition)
            for one in found.record.present:
                if one.type == definition.type and one.mark == mark:
                    return one.version
            if not add:
                raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
            check_new([one.definition for one in _versions(found.record)], definition, strategy)
            added = StoredSchema(
                found.record.next_version,
                int(definition.type),
                definition.data,
                mark,
                self._env.clock.now_ms(),
                definition.properties,
            )
            await self._write(topic, found, found.record.with_version(added))
            return added.version

        return await self._again(attempt)

    async def delete(self, topic: TopicName, *, force: bool) -> int:
        """Delete all schemas of a topic and return the version of the deletion. With `force` nothing is left, and
        versions begin with 0 again. Raises what `put` raises."""

        async def attempt() -> int:
            found = await self._read(topic)
            if force:
                await delete_certain(self._env, self._metadata(), _key(topic))
                return FORCED_VERSION
            tombstone = StoredSchema(
                found.record.next_version, int(SchemaType.NONE), b"", b"", self._env.clock.now_ms(), deleted=True
            )
            await self._write(topic, found, found.record.with_version(tombstone))
            return tombstone.version

        return await self._again(attempt)

    # -- inside --------------------------------------------------------------------------------------------------

    async def _again(self, attempt: Callable[[], Awaitable[A]]) -> A:
        """Change something: again when another writer was faster."""
        return await retry.limited(
            LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, RETRY_LIMIT_S),
            attempt,
            retriable=lambda error: isinstance(error, BadVersion | KeyExists | NoSuchKey | ConditionFailed),
            on_retry=retry.silently,
        )

    async def _read(self, topic: TopicName) -> _Found:
        topic_key = metadata_keys.topic(topic.without_partition().path)
        namespace_key = metadata_keys.namespace(topic.namespace)
        of_topic, of_namespace, record = await self._metadata().get_many([topic_key, namespace_key, _key(topic)])
        if of_namespace is None:
            raise TopicNotFound("Namespace does not exist", namespace=topic.namespace)
        if of_topic is None:
            needs = Guard(namespace_key, of_namespace.version)
        elif unpack(of_topic.value).get("deleting"):
            raise ServiceUnitNotReady(f"{topic.full} is being deleted")
        else:
            needs = Guard(topic_key, of_topic.version)
        return _Found(_unpacked(record), record.version if record is not None else None, needs)

    async def _write(self, topic: TopicName, found: _Found, record: SchemaRecord) -> None:
        value = record.pack()
        if len(value) > SIZE_MAX_BYTES:
            raise NotAllowedError(
                f"the schemas of {topic.full} would take {len(value)} bytes, more than {SIZE_MAX_BYTES}: "
                "delete them and begin again"
            )
        await put_certain(self._env, self._metadata(), _key(topic), value, found.version, needs=found.needs)


def _key(topic: TopicName) -> str:
    return metadata_keys.schema(topic.without_partition().path)


def _unpacked(found: Versioned | None) -> SchemaRecord:
    return SchemaRecord.unpack(found.value) if found is not None else SchemaRecord()


def _versions(record: SchemaRecord) -> list[SchemaVersion]:
    return [
        SchemaVersion(one.version, SchemaDefinition(SchemaType(one.type), one.data, one.properties), one.created_ms)
        for one in record.present
    ]


def _version_of(record: SchemaRecord, definition: SchemaDefinition) -> int | None:
    """The version with the very same data: what was found valid once is not read again."""
    for one in record.present:
        if one.type == definition.type and one.data == definition.data:
            return one.version
    return None
