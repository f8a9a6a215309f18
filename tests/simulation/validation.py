"""Looks at the live objects of every process after its events: after each in some runs, after every k-th in most.

`k` is drawn for the run, so that on average a run gets little dearer; a run that fails can be repeated with k = 1
(`--validate 1`), because looking changes nothing. A problem ends the run at the event that made it.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from magnetar.storage.metadata_memory import MemoryRecords

from .cluster import BOOKIE, BROKER, CLIENT, COORDINATOR
from .process import Process
from .validate_services import validate_broker, validate_client, validate_coordinator
from .validate_storage import validate_store

EVERY = {0: 12, 1: 1, 10: 1, 50: 10, 200: 16}
"""What k is drawn from, with weights; 0 is never. k = 1 makes a run four times as dear, 10 by half, 50 by a tenth."""


class Invalid(AssertionError):
    """A live object is in a state that it must never be in."""


class Validation:
    """See the module. `every` is k."""

    def __init__(self, random: Random, records: MemoryRecords, every: int | None = None) -> None:
        drawn = random.choices(list(EVERY), list(EVERY.values()))[0]
        self.every = drawn if every is None else every
        self._records = records

    def watch(self, process: Process, kind: str, service: Any) -> None:
        """Look at a service, or a client, after the events of its process."""
        find: Callable[[], Iterator[str]] | None = {
            BOOKIE: lambda: validate_store(service._store) if service._store is not None else iter(()),
            BROKER: lambda: validate_broker(service, self._records),
            COORDINATOR: lambda: validate_coordinator(service, self._records),
            CLIENT: lambda: validate_client(service),
        }.get(kind)
        if self.every and find is not None:
            process.after_event = _Countdown(process.name, self.every, find)


class _Countdown:
    def __init__(self, name: str, every: int, find: Callable[[], Iterator[str]]) -> None:
        self._name = name
        self._every = self._left = every
        self._find = find

    def __call__(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._left = self._every
        for problem in self._find():
            raise Invalid(f"state: {self._name}: {problem}")
