"""I20: looks at the live objects of every process after its events: after each in some runs, after every k-th in most.

`k` is drawn for the run, so that on average a run gets little dearer. A look costs time for every ledger that the
process knows, so a drawn `k` is multiplied where there are many: a run with hundreds of ledgers would else take half a
minute. A run that fails can be repeated with k = 1 (`--validate 1`, which nothing multiplies), because looking changes
nothing. A problem ends the run at the event that made it.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from magnetar.actors.bookie.service import BookieService
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.errors import AlreadyClosed
from support.stores.memory_store import MemoryRecords

from ..world.cluster import BOOKIE, BROKER, CLIENT, COORDINATOR
from ..world.process import Process
from .validate_services import validate_broker, validate_client, validate_coordinator
from .validate_storage import validate_store

EVERY = {0: 24, 1: 1, 10: 2, 50: 20, 200: 33}
"""What k is drawn from, with weights; 0 is never. k = 1 makes a run four times as dear, 10 by half, 50 by a tenth."""
LEDGERS_PER_EVENT = 4
"""With so many ledgers a drawn k is doubled, with twice as many it is tripled, and so on."""


def _is_open(bookie: BookieService) -> bool:
    """Whether its store is there."""
    try:
        return bool(bookie.store)
    except AlreadyClosed:
        return False


class Invalid(AssertionError):
    """A live object is in a state that it must never be in."""


class Validation:
    """See the module. `every` is k."""

    def __init__(self, random: Random, records: MemoryRecords, every: int | None = None) -> None:
        drawn = random.choices(list(EVERY), list(EVERY.values()))[0]
        self.every = drawn if every is None else every
        self._stretches = every is None
        self._records = records

    def watch(self, process: Process, kind: str, service: Any) -> None:
        """Look at a service, or a client, after the events of its process."""
        find: Callable[[], Iterator[str]] | None = {
            BOOKIE: lambda: validate_store(service.store) if _is_open(service) else iter(()),
            BROKER: lambda: validate_broker(service, self._records),
            COORDINATOR: lambda: validate_coordinator(service, self._records),
            CLIENT: lambda: validate_client(service),
        }.get(kind)
        ledgers: dict[str, Callable[[], int]] = {
            BOOKIE: lambda: len(service.store.entries.ledgers) if _is_open(service) else 0,
            BROKER: lambda: sum(
                len(topic.ledger.chain.infos)
                for topic in service.topics.loaded.values()
                if isinstance(topic, PersistentTopic)
            ),
        }
        if self.every and find is not None:
            size = ledgers.get(kind, lambda: 0) if self._stretches else lambda: 0
            process.after_event = _Countdown(process.name, self.every, find, size)


class _Countdown:
    def __init__(self, name: str, every: int, find: Callable[[], Iterator[str]], ledgers: Callable[[], int]) -> None:
        self._name = name
        self._every = self._left = every
        self._find = find
        self._ledgers = ledgers

    def __call__(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._left = self._every * (1 + self._ledgers() // LEDGERS_PER_EVENT)
        for problem in self._find():
            raise Invalid(f"I20: {self._name}: {problem}")
