"""The outside world of a service: wall clock, chance, threads and files, handed over as one object.

A service takes these from its `Environment`, and time from the running loop. So it runs unchanged in a Ray actor,
embedded in one process, and under the simulator's virtual time.
"""

import secrets
import time
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from .files import Files, RealFiles
from .offload import Offload, ThreadOffload

T = TypeVar("T")


class Clock(Protocol):
    """Wall-clock time, only for what leaves the process: publish times, expiry dates, reports."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def cpu_s(self) -> float:
        """Seconds of processor time that this process has used."""
        ...


class Chance(Protocol):
    """Every random decision of a service."""

    def uniform(self, low: float, high: float) -> float: ...
    def randrange(self, stop: int) -> int: ...
    def token(self, size_bytes: int) -> bytes: ...
    def hex(self, size_bytes: int) -> str: ...
    def choice(self, options: Sequence[T]) -> T: ...
    def shuffle(self, items: MutableSequence[T]) -> None: ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def cpu_s(self) -> float:
        return time.process_time()


class SeededChance:
    """Chance from one seed; `SystemChance` seeds it from the operating system."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def token(self, size_bytes: int) -> bytes:
        return self._random.randbytes(size_bytes)

    def hex(self, size_bytes: int) -> str:
        return self.token(size_bytes).hex()

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def shuffle(self, items: MutableSequence[T]) -> None:
        self._random.shuffle(items)


class SystemChance(SeededChance):
    """Seeded by the operating system; tokens, which secrets are made of, come from it directly."""

    def __init__(self) -> None:
        super().__init__(secrets.randbits(128))

    def token(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)


@dataclass(frozen=True)
class Environment:
    """What a service is given of the world. `close` ends the threads behind `offload`."""

    clock: Clock
    random: Chance
    offload: Offload
    files: Files
    launch: int = 0
    """Which start of its member this process is, on Ray: a later one has a higher number."""

    @classmethod
    def real(cls, threads_max: int = 4) -> "Environment":
        """The operating system's clock, chance, threads (up to `threads_max`, plus one per lane) and files."""
        return cls(SystemClock(), SystemChance(), ThreadOffload(threads_max), RealFiles())

    def close(self) -> None:
        self.offload.close()
