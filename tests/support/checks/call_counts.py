"""How often Python functions are called while something runs, by file and function.

A call is what `sys.setprofile` calls one: a Python function begins, or a coroutine or generator goes on. Calls of
functions written in C are not counted.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import magnetar
from magnetar.client.blocking.client import Client

ROOT = Path(magnetar.__file__).parent
RARE = 0.05
PARTS = {
    "client": ("client/",),
    "bookie": ("storage/bookie/", "actors/bookie/"),
    "broker": ("actors/", "storage/"),
    "rpc": ("runtime/rpc/",),
    "shared": ("runtime/", "protocol/", "exceptions.py", "schema.py"),
}
"""Which files belong to which part. The first that fits counts."""
OTHERS = "others"
"""The standard library, installed packages, tests and benchmarks."""


class Call(NamedTuple):
    """A function, and the one that calls it."""

    function: CodeType
    caller: CodeType | None


class Counted(NamedTuple):
    """How often each function was called within some seconds."""

    seconds: float
    calls: Counter[Call]


class Line(NamedTuple):
    """A line of the table: how often a message calls one function."""

    part: str
    place: str
    calls: float
    callers: dict[str, float]


class CallLog:
    """Notes calls while `during` runs: those of its own thread, and of all threads that start in `watching`."""

    def __init__(self) -> None:
        self._running = False
        self._calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and self._running:
            caller = frame.f_back
            self._calls.append(Call(frame.f_code, caller.f_code if caller is not None else None))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Threads that start within are watched to their end."""
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    def during(self, act: Callable[[], object]) -> Counted:
        """What was called while `act` ran."""
        begin = time.perf_counter()
        self._running = True
        sys.setprofile(self)
        try:
            act()
        finally:
            sys.setprofile(None)
            self._running = False
        calls, self._calls = self._calls, []
        return Counted(time.perf_counter() - begin, Counter(calls))


def place(code: CodeType) -> str:
    """File and function. Files of ours begin at the root of the package, others lie in `…/`."""
    path = Path(code.co_filename)
    inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in (".venv", "bench", "tests")
    shown = path.relative_to(ROOT).as_posix() if inside else f"…/{path.parent.name}/{path.name}"
    return f"{shown}: {code.co_qualname}"


def part_of(shown: str) -> str:
    """The part that a place belongs to."""
    for part, prefixes in PARTS.items():
        if shown.startswith(prefixes):
            return part
    return OTHERS


def table(busy: Counted, idle: Counted, messages: int) -> list[Line]:
    """The functions that a message calls, the most frequent first, without those that it calls less than `RARE`.

    What is called while nobody publishes (timers, heartbeats) is subtracted, in proportion to the time.
    """
    by_function: dict[str, Counter[str]] = {}
    for call, made in busy.calls.items():
        callers = by_function.setdefault(place(call.function), Counter())
        callers[place(call.caller) if call.caller is not None else "C"] += made
    unasked: Counter[str] = Counter()
    for call, made in idle.calls.items():
        unasked[place(call.function)] += made
    lines: list[Line] = []
    for shown, callers in by_function.items():
        calls = (callers.total() - unasked[shown] * busy.seconds / idle.seconds) / messages
        if calls >= RARE:
            lines.append(Line(part_of(shown), shown, calls, {one: n / messages for one, n in callers.most_common()}))
    return sorted(lines, key=lambda line: (-line.calls, line.place))


def of_magnetar(lines: list[Line]) -> float:
    """The calls of all our functions together."""
    return sum(line.calls for line in lines if line.part != OTHERS)


def exchange(
    client: Client, log: CallLog, messages: int, *, warm_up: int, settle_s: float, idle_s: float, payload: bytes
) -> list[Line]:
    """Publish, receive and acknowledge `messages` messages, one after the other. Returns what each called."""
    consumer = client.subscribe("counted-calls", "counted")
    producer = client.create_producer("counted-calls", batching_enabled=False)

    def publish(count: int) -> None:
        for _ in range(count):
            producer.send(payload)
            consumer.acknowledge(consumer.receive())

    publish(warm_up)
    time.sleep(settle_s)
    idle = log.during(lambda: time.sleep(idle_s))
    busy = log.during(lambda: publish(messages))
    return table(busy, idle, messages)
