"""What a measured run shows: a line for each interval, a line for the whole run, and what a plot needs."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

from ..terminal.pacing import beside
from .latencies import LatencyFigures, LatencyRecorder

MEGABIT_BYTES = 1e6 / 8


@dataclass(frozen=True)
class LoadInterval:
    """One interval of a run."""

    end_s: float
    messages_per_s: float
    failures_per_s: float
    megabits_per_s: float
    latencies: LatencyFigures


class Report:
    """Counts messages and latencies of all producers or consumers of a run."""

    def __init__(self, word: str, interval_s: float, warmup_s: float = 0.0, log: IO[str] | None = None) -> None:
        self.word = word
        """`produced` or `received`."""
        self.messages = 0
        self.size_bytes = 0
        self.failures = 0
        self.intervals: list[LoadInterval] = []
        self.latencies = LatencyRecorder(log, time.time())
        self._interval_s = interval_s
        self._warmup_s = warmup_s
        self._warm_at_s = time.monotonic() + warmup_s
        self._begin_s = time.monotonic()
        self._seen = (0, 0, 0)
        self._seen_s = self._begin_s

    def add(self, messages: int, size_bytes: int) -> None:
        """So many more messages, of this size together."""
        self.messages += messages
        self.size_bytes += size_bytes

    def record(self, latency_s: float, messages: int) -> None:
        """So many messages had this latency; left out while the run warms up."""
        if time.monotonic() >= self._warm_at_s:
            self.latencies.record(latency_s, messages)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin_s

    @asynccontextmanager
    async def live(self) -> AsyncGenerator[None]:
        """Print a line for each interval while the block runs, and one for the whole run at its end. The run begins
        with the block."""
        self._begin_s = self._seen_s = time.monotonic()
        self._warm_at_s = self._begin_s + self._warmup_s
        try:
            async with beside(self._print_intervals()):
                yield
        finally:
            self._end_interval()
            self._print_whole()

    async def _print_intervals(self) -> None:
        turn = 0
        while True:
            turn += 1
            await asyncio.sleep(max(0.0, turn * self._interval_s - self.elapsed_s))
            print(self._end_interval(), flush=True)

    def _end_interval(self) -> str:
        """Close the interval; returns its line."""
        now_s = time.monotonic()
        seconds = max(now_s - self._seen_s, 1e-9)
        messages, size_bytes, failures = self._seen
        self._seen, self._seen_s = (self.messages, self.size_bytes, self.failures), now_s
        latencies = self.latencies.interval(now_s - self._begin_s)
        found = LoadInterval(
            now_s - self._begin_s,
            (self.messages - messages) / seconds,
            (self.failures - failures) / seconds,
            (self.size_bytes - size_bytes) / seconds / MEGABIT_BYTES,
            latencies,
        )
        self.intervals.append(found)
        failed = f" --- failure {found.failures_per_s:.3f} msg/s" if self.word == "produced" else ""
        return (
            f"Throughput {self.word}: {self.messages} msg --- {found.messages_per_s:.3f} msg/s --- "
            f"{found.megabits_per_s:.3f} Mbit/s{failed} --- {latencies.text}"
        )

    def _print_whole(self) -> None:
        seconds = max(self._seen_s - self._begin_s, 1e-9)
        did = "sent" if self.word == "produced" else "received"
        megabits = self.size_bytes / seconds / MEGABIT_BYTES
        rate = f"{self.messages / seconds:.3f} msg/s --- {megabits:.3f} Mbit/s"
        print(f"Aggregated throughput stats --- {self.messages} records {did} --- {rate}")
        print(f"Aggregated latency stats --- {self.latencies.whole().text}", flush=True)
