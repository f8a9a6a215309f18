"""The topics of a watched namespace that match one pattern, for all watchers of that namespace and pattern.

Names are those of Pulsar's lists: full, partitions one by one. They are kept sorted, and their hash is calculated when
somebody asks for it after a change. A change costs the matching of the topics that it names.

States: *preparing* (the namespace is being listed, or its names are being matched, a few at a time) → *ready*. What
changes while names are being matched is applied when they are. Watchers attach when the list is ready. A watcher that
takes `names` and attaches in one step misses no change: `changed` then tells each, once and in order.

Watchers are told together, up to once in `UPDATE_INTERVAL_S`. Each update carries a hash over all names. A thousand
topics that are created in a row must not cost a thousand hashes.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Protocol

from ...protocol.errors import ServiceUnitNotReady
from ...protocol.topic_lists import topics_hash
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import CALL_TIMEOUT_S
from ...runtime.tasks import Tasks
from .topic_filter import MATCHED_AT_ONCE, TopicFilter
from .topic_watch import TopicWatch

UPDATE_INTERVAL_S = 0.1


class Watcher(Protocol):
    """Somebody who is kept informed of a list."""

    def changed(self, gone: Iterable[str], new: Iterable[str]) -> None:
        """Names that left the list, and names that joined it."""
        ...

    def tell(self) -> None:
        """It is time to tell what has changed."""
        ...


class MatchedTopics:
    """See the module. Made by `MatchedLists`."""

    def __init__(self, watch: TopicWatch, tasks: Tasks, namespace: str, taken: TopicFilter) -> None:
        self.names: list[str] = []
        """Sorted. Complete once it is ready."""
        self.holders = 0
        """Watchers, and those who want to become one."""
        self._watch = watch
        self._tasks = tasks
        self._namespace = namespace
        self._filter = taken
        self._watchers: dict[Watcher, None] = {}
        self._ready = asyncio.Event()
        self._missed: list[tuple[Mapping[str, int], Mapping[str, int]]] | None = None
        """Changes since matching began; None while nothing is being matched."""
        self._hash: str | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._watched = watch.join(namespace, self)
        if self._watched.known:
            self.listed()

    async def ready(self) -> None:
        """Wait for the list. Raises ServiceUnitNotReady when it takes long."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise ServiceUnitNotReady(
                f"the topics of {self._namespace} are not known: the coordinator did not list them in time"
            ) from None

    def hash(self) -> str:
        """Of the names now."""
        if self._hash is None:
            self._hash = topics_hash(self.names)
        return self._hash

    def attach(self, watcher: Watcher) -> None:
        """Keep a watcher informed from now on."""
        self._watchers[watcher] = None

    def detach(self, watcher: Watcher) -> None:
        """Tell a watcher nothing more."""
        self._watchers.pop(watcher, None)

    def close(self) -> None:
        """Nobody holds the list: let go of the namespace."""
        self._watch.leave(self._namespace, self)
        if self._timer is not None:
            self._timer.cancel()

    # -- from the watch ------------------------------------------------------------------------------------------

    def listed(self) -> None:
        """The namespace is known: match its topics."""
        if not self._tasks.closed:
            self._missed = []
            self._tasks.spawn(self._match(dict(self._watched.topics)), f"match topics of {self._namespace}"[:200])

    def changed(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Topics of the namespace are gone, new, or have other partitions."""
        if self._missed is not None:
            self._missed.append((before, after))
        elif self._ready.is_set():
            self._apply(before, after)

    # -- inside --------------------------------------------------------------------------------------------------

    async def _match(self, topics: Mapping[str, int]) -> None:
        found: list[str] = []
        wanted = list(topics)
        for first in range(0, len(wanted), MATCHED_AT_ONCE):
            for topic in self._filter.among(wanted[first : first + MATCHED_AT_ONCE]):
                found += names_of(topic, topics[topic])
            await asyncio.sleep(0)
        self.names = sorted(found)
        missed, self._missed = self._missed or [], None
        for before, after in missed:
            self._apply(before, after)
        self._ready.set()

    def _apply(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        taken = dict.fromkeys(self._filter.among(dict.fromkeys((*before, *after))))
        old = dict.fromkeys(
            name for topic, count in before.items() if topic in taken for name in names_of(topic, count)
        )
        new = dict.fromkeys(name for topic, count in after.items() if topic in taken for name in names_of(topic, count))
        gone = [name for name in old if name not in new and self._remove(name)]
        joined = [name for name in new if name not in old and self._insert(name)]
        if gone or joined:
            self._hash = None
            for watcher in list(self._watchers):
                watcher.changed(gone, joined)
            if self._watchers and self._timer is None:
                self._timer = self._loop.call_at(max(self._loop.time(), self._next_at), self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._next_at = self._loop.time() + UPDATE_INTERVAL_S
        for watcher in list(self._watchers):
            watcher.tell()

    def _insert(self, name: str) -> bool:
        place = bisect_left(self.names, name)
        there = place < len(self.names) and self.names[place] == name
        if not there:
            self.names.insert(place, name)
        return not there

    def _remove(self, name: str) -> bool:
        place = bisect_left(self.names, name)
        there = place < len(self.names) and self.names[place] == name
        if there:
            del self.names[place]
        return there


class MatchedLists:
    """The lists that somebody watches, by namespace and pattern."""

    def __init__(self, watch: TopicWatch) -> None:
        self.watch = watch
        self._lists: dict[tuple[str, str], MatchedTopics] = {}
        self._tasks = Tasks()

    async def close(self) -> None:
        """End what is under way, the watch included."""
        await self._tasks.close()
        await self.watch.close()

    def hold(self, namespace: str, taken: TopicFilter) -> MatchedTopics:
        """The list of a namespace and a pattern, which lasts until it is `released` as often as it was held."""
        key = (namespace, taken.pattern)
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = MatchedTopics(self.watch, self._tasks, namespace, taken)
        found.holders += 1
        return found

    def release(self, namespace: str, taken: TopicFilter) -> None:
        """One holder less."""
        key = (namespace, taken.pattern)
        found = self._lists[key]
        found.holders -= 1
        if not found.holders:
            del self._lists[key]
            found.close()


def names_of(topic: str, partitions: int) -> list[str]:
    """The names of a topic in lists: those of its partitions, or its own."""
    if not partitions:
        return [topic]
    name = TopicName.parse(topic)
    return [name.partition_name(index) for index in range(partitions)]
