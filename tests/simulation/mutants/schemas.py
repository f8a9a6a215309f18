"""Bugs of our own choosing in the registry of schemas."""

from contextlib import ExitStack
from typing import Any

from magnetar.actors.schemas import registry
from magnetar.actors.schemas.registry import SchemaRegistry
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.certain_writes import put_certain
from magnetar.storage.metadata.schema_record import SchemaRecord

from .mutant import Mutant, replace


def _write_over_others(stack: ExitStack) -> None:
    """The record is written on the condition of this moment, not of the moment when it was read."""

    async def writing(self: Any, topic: TopicName, found: Any, record: SchemaRecord) -> None:
        store, key = self._metadata(), registry._key(topic)
        now = await store.get(key)
        await put_certain(self._env, store, key, record.pack(), now.version if now is not None else None)

    replace(stack, SchemaRegistry, "_write", writing)


def _count_what_is_present(stack: ExitStack) -> None:
    replace(stack, SchemaRecord, "next_version", property(lambda self: len(self.present)))


SCHEMAS = (
    Mutant(
        "blind version",
        "a new version is stored over one that it was not compared with",
        "I14",
        _write_over_others,
        "registering",
    ),
    Mutant(
        "version again", "after a deletion versions begin with 0 again", "I14", _count_what_is_present, "registering"
    ),
)
