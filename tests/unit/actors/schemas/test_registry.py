"""The registry of schemas: versions, deletions, and writers that meet."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from magnetar.actors.policies.schema_strategy import SchemaCompatibilityStrategy as Strategy
from magnetar.actors.schemas import registry as registry_module
from magnetar.actors.schemas.definition import SchemaDefinition
from magnetar.actors.schemas.registry import FORCED_VERSION, NOT_FOUND, SchemaRegistry
from magnetar.protocol.errors import (
    IncompatibleSchema,
    InvalidSchema,
    NotAllowedError,
    OutcomeUnknown,
    ServiceUnitNotReady,
    TopicNotFound,
)
from magnetar.protocol.schema_types import SchemaType
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata import keys
from magnetar.storage.metadata.store import Guard, Write, WriteResult, pack
from support.stores.memory_store import MemoryMetadataStore

TOPIC = TopicName.parse("persistent://t/n/topic")
STRING = SchemaDefinition(SchemaType.STRING, b"")


def avro(*fields: str, doc: str = "") -> SchemaDefinition:
    """A record with these fields of type int; those in capitals have a default."""
    listed = [{"name": one, "type": "int", **({"default": 0} if one.isupper() else {})} for one in fields]
    return SchemaDefinition(
        SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "doc": doc, "fields": listed}).encode()
    )


class Bench:
    """A registry over a store in memory that has the namespace `t/n`."""

    def __init__(self, store: MemoryMetadataStore | None = None) -> None:
        self.store = store or MemoryMetadataStore()
        self.env = Environment.real(1)
        self.registry = SchemaRegistry(self.env, lambda: self.store)

    async def __aenter__(self) -> "Bench":
        await self.store.put(keys.namespace("t/n"), pack({"policies": {}}), None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.env.close()

    async def put(self, definition: SchemaDefinition, strategy: Strategy = Strategy.FULL, **options: bool) -> int:
        return await self.registry.put(TOPIC, definition, strategy, **options)

    async def numbers(self) -> list[int]:
        return [one.version for one in await self.registry.versions(TOPIC)]


async def test_versions_count_from_zero_and_the_same_definition_keeps_its_version():
    async with Bench() as bench:
        assert await bench.put(avro("a")) == 0
        assert await bench.put(avro("a", "B")) == 1
        assert [await bench.put(avro("a")), await bench.put(avro("a", doc="other words"))] == [0, 0]
        latest = await bench.registry.latest(TOPIC)
        assert latest is not None and (latest.version, latest.definition) == (1, avro("a", "B"))
        assert (await bench.registry.version(TOPIC, 7)) is None
        assert await bench.registry.find(TOPIC, avro("a", "B")) == 1
        assert await bench.registry.find(TOPIC, avro("x")) == NOT_FOUND


async def test_all_partitions_and_both_domains_share_one_schema():
    async with Bench() as bench:
        assert await bench.registry.put(TOPIC.partition_topic(3), avro("a"), Strategy.FULL) == 0
        for other in ("persistent://t/n/topic-partition-1", "non-persistent://t/n/topic"):
            assert len(await bench.registry.versions(TopicName.parse(other))) == 1


async def test_an_incompatible_schema_is_refused_with_the_reason_and_nothing_changes():
    async with Bench() as bench:
        await bench.put(avro("a"))
        with pytest.raises(IncompatibleSchema, match=r"strategy FULL.*lacks field b of R") as refused:
            await bench.put(avro("a", "b"))
        assert not isinstance(refused.value, InvalidSchema)
        with pytest.raises(IncompatibleSchema, match="exists schema type AVRO, new schema type STRING"):
            await bench.put(STRING)
        assert await bench.numbers() == [0]
        assert await bench.put(STRING, Strategy.ALWAYS_COMPATIBLE) == 1


async def test_a_schema_that_is_none_is_refused_as_invalid():
    async with Bench() as bench:
        for wrong in (
            SchemaDefinition(SchemaType.AVRO, b"{"),
            SchemaDefinition(SchemaType.AVRO, b'["null"]'),
            SchemaDefinition(SchemaType.STRING, b"x"),
            SchemaDefinition(SchemaType.INT32, b"x"),
            SchemaDefinition(SchemaType.AUTO_CONSUME, b""),
            SchemaDefinition(SchemaType.KEY_VALUE, b"\0\0\0\5"),
            SchemaDefinition(SchemaType.PROTOBUF_NATIVE, b"{}"),
            SchemaDefinition(SchemaType.JSON, b" " * (1 << 20)),
        ):
            with pytest.raises(InvalidSchema):
                await bench.put(wrong)
        assert await bench.numbers() == []


async def test_without_leave_to_add_only_known_schemas_are_taken():
    async with Bench() as bench:
        await bench.put(avro("a"))
        assert await bench.put(avro("a"), add=False) == 0
        with pytest.raises(IncompatibleSchema, match="schema auto updating is disabled"):
            await bench.put(avro("a", "B"), add=False)


async def test_a_deletion_hides_all_versions_and_numbers_go_on():
    async with Bench() as bench:
        await bench.put(avro("a"))
        assert await bench.registry.delete(TOPIC, force=False) == 1
        assert await bench.numbers() == [] and await bench.registry.version(TOPIC, 0) is None
        assert await bench.put(STRING) == 2
        assert await bench.registry.delete(TOPIC, force=True) == FORCED_VERSION
        assert await bench.registry.delete(TOPIC, force=True) == FORCED_VERSION
        assert await bench.put(avro("a")) == 0


async def test_two_writers_at_the_same_time_get_two_versions_that_fit_each_other():
    class Slow(MemoryMetadataStore):
        """Lets everybody read before anybody writes."""

        async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
            await asyncio.sleep(0.001)
            return await super().write_many(writes, guard)

    async with Bench(Slow()) as bench:
        await bench.put(avro("a"))
        found = await asyncio.gather(bench.put(avro("a", "B")), bench.put(avro("a", "C")), bench.put(avro("a", "B")))
        assert sorted(dict.fromkeys(found)) == [1, 2] and found[0] == found[2]
        # Alone, each would follow version 0. Together the second does not: version 1 lacks a default that it needs.
        outcomes = await asyncio.gather(
            *(bench.put(avro("a", name), Strategy.FORWARD) for name in ("d", "e")), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in outcomes) == ["IncompatibleSchema", "int"]


async def test_a_lost_answer_does_not_make_a_second_version():
    class Forgetful(MemoryMetadataStore):
        lost = 0

        async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
            results = await super().write_many(writes, guard)
            if self.lost:
                self.lost -= 1
                raise OutcomeUnknown("the answer was lost")
            return results

    store = Forgetful()
    async with Bench(store) as bench:
        store.lost = 1
        assert await bench.put(avro("a")) == 0
        store.lost = 1
        assert await bench.put(avro("a", "B")) == 1
        assert await bench.numbers() == [0, 1]


async def test_no_schema_is_written_for_a_topic_that_is_being_deleted():
    async with Bench() as bench:
        key = keys.topic(TOPIC.path)
        version = await bench.store.put(key, pack({"partitions": 0}), None)
        await bench.put(avro("a"))
        await bench.store.put(key, pack({"partitions": 0, "deleting": True}), version)
        with pytest.raises(ServiceUnitNotReady, match="being deleted"):
            await bench.put(avro("a", "B"))


async def test_a_write_that_comes_after_the_mark_of_deletion_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry_module, "RETRY_LIMIT_S", 0.05)

    class Marked(MemoryMetadataStore):
        """Marks the topic just before a schema would be written."""

        async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
            if writes[0].key.startswith(keys.SCHEMAS_PREFIX):
                found = await self.get(keys.topic(TOPIC.path))
                assert found is not None
                await self.put(keys.topic(TOPIC.path), pack({"partitions": 0, "deleting": True}), found.version)
            return await super().write_many(writes, guard)

    async with Bench(Marked()) as bench:
        await bench.store.put(keys.topic(TOPIC.path), pack({"partitions": 0}), None)
        with pytest.raises(ServiceUnitNotReady):
            await bench.put(avro("a"))
        assert await bench.numbers() == []


async def test_a_missing_namespace_has_no_schemas_and_takes_none():
    async with Bench() as bench:
        nowhere = TopicName.parse("persistent://t/none/x")
        assert await bench.registry.versions(nowhere) == []
        with pytest.raises(TopicNotFound, match="Namespace does not exist"):
            await bench.registry.put(nowhere, STRING, Strategy.FULL)


async def test_a_topic_has_no_more_schemas_than_its_record_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry_module, "SIZE_MAX_BYTES", 1000)
    async with Bench() as bench:
        with pytest.raises(NotAllowedError, match="delete them"):
            for number in range(20):
                await bench.put(avro("a", *(f"F{one}" for one in range(number))), Strategy.ALWAYS_COMPATIBLE)
        assert 0 < len(await bench.numbers()) < 20
