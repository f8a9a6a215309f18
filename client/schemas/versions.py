"""The definitions of topics' schemas by version: fetched from a broker once, and kept.

A version of a topic's schema never changes, so what is known stays right. Callers that want the same version wait for
one request. Of a partitioned topic all partitions have the schemas of the topic. Bound: `VERSIONS_MAX` definitions; the
one that was asked for longest ago goes first.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ...protocol.errors import TopicNotFound
from ...protocol.topics import TopicName
from .schema import SchemaInfo

VERSIONS_MAX = 1_000

Key = tuple[str, bytes]


class SchemaVersions:
    """See the module. `known` may be called from any thread, the rest from the loop's."""

    def __init__(self, ask: Callable[[str, bytes], Awaitable[SchemaInfo]]) -> None:
        """`ask` asks a broker for a topic's schema of a version, the latest for an empty one."""
        self._ask = ask
        self._known: dict[Key, SchemaInfo] = {}
        self._asking: dict[Key, asyncio.Task[SchemaInfo]] = {}

    def known(self, topic: str, version: bytes) -> SchemaInfo | None:
        """The schema of that version, if it was fetched before."""
        return self._known.get((_base(topic), version))

    async def get(self, topic: str, version: bytes) -> SchemaInfo:
        """The schema of that version. Raises TopicNotFound if there is none, the broker's error, or Timeout."""
        key = (_base(topic), version)
        found = self._known.get(key)
        if found is not None:
            self._known[key] = self._known.pop(key)  # the latest asked for
            return found
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(key), name=f"schema of {key[0]}"[:200])
            task.add_done_callback(_look_at)
            self._asking[key] = task
        return await asyncio.shield(task)  # others may wait for it, too

    async def latest(self, topic: str) -> SchemaInfo | None:
        """The topic's schema at this moment; None if it has none."""
        try:
            return await self._ask(_base(topic), b"")
        except TopicNotFound:
            return None

    async def _fetch(self, key: Key) -> SchemaInfo:
        try:
            found = await self._ask(*key)
        finally:
            self._asking.pop(key, None)
        while len(self._known) >= VERSIONS_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[key] = found
        return found


def _base(topic: str) -> str:
    return TopicName.parse(topic).without_partition().full


def _look_at(task: "asyncio.Task[SchemaInfo]") -> None:
    """Look at the outcome, so that a failure after all waiters have gone is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
