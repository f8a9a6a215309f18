"""Python calls of one synced 100-byte message with three copies and one consumer, by file and function.

Starts the services of a cluster in this process, without Ray: coordinator, one broker, three bookies, admin. A blocking
client publishes one unbatched message at a time, receives it and acknowledges it. All threads count what they call.
What they call while nobody publishes (timers, heartbeats) is subtracted, in proportion to the time.

A call is what `sys.setprofile` calls one: a Python function begins, or a coroutine or generator goes on. Calls of
functions written in C are not counted.

    python bench/calls.py [--directory DIR] [--messages N] [--callers]

`--callers` also names for each function who calls it.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from measurement import payload
from rows import RESULTS

import magnetar
from magnetar.cluster.embedded import start_embedded
from magnetar.cluster.preparing import StartOptions

ROOT = Path(magnetar.__file__).parent
MESSAGE_SIZE = 100
WARM_UP = 200
SETTLE_S = 10.0
"""The journals are filled with zeros by then."""
IDLE_S = 5.0
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
"""The standard library and installed packages."""


class Call(NamedTuple):
    """A function, and the one that calls it."""

    function: CodeType
    caller: CodeType | None


class CallLog:
    """Notes the calls of all threads that start after it, while `running` is true."""

    def __init__(self) -> None:
        self.running = False
        self._calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and self.running:
            caller = frame.f_back
            self._calls.append(Call(frame.f_code, caller.f_code if caller is not None else None))

    def during(self, act: Callable[[], object]) -> "Counted":
        """What was called while `act` ran."""
        begin = time.perf_counter()
        self.running = True
        sys.setprofile(self)
        act()
        sys.setprofile(None)
        self.running = False
        calls, self._calls = self._calls, []
        return Counted(time.perf_counter() - begin, Counter(calls))


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


def place(code: CodeType) -> str:
    """File and function. Files of ours begin at the root of the package, others lie in `…/`."""
    path = Path(code.co_filename)
    inside = path.is_relative_to(ROOT) and ".venv" not in path.parts and "bench" not in path.parts
    shown = path.relative_to(ROOT).as_posix() if inside else f"…/{path.parent.name}/{path.name}"
    return f"{shown}: {code.co_qualname}"


def part_of(shown: str) -> str:
    """The part that a place belongs to."""
    for part, prefixes in PARTS.items():
        if shown.startswith(prefixes):
            return part
    return OTHERS


def table(busy: Counted, idle: Counted, messages: int) -> list[Line]:
    """The functions that a message calls, the most frequent first, without those that it calls less than `RARE`."""
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


def exchange(client: Any, log: CallLog, messages: int) -> list[Line]:
    """Publish, receive and acknowledge `messages` messages. Returns what each called."""
    consumer = client.subscribe("bench-calls", "counted")
    producer = client.create_producer("bench-calls", batching_enabled=False)
    data = payload(MESSAGE_SIZE)

    def publish(count: int) -> None:
        for _ in range(count):
            producer.send(data)
            consumer.acknowledge(consumer.receive())

    publish(WARM_UP)
    time.sleep(SETTLE_S)
    idle = log.during(lambda: time.sleep(IDLE_S))
    busy = log.during(lambda: publish(messages))
    return table(busy, idle, messages)


def show(lines: list[Line], callers: bool, say: Callable[[str], None] = print) -> None:
    """Print the table and its sums."""
    ours = [line for line in lines if line.part != OTHERS]
    files = {line.place.partition(":")[0] for line in ours}
    total = 0.0
    for line in lines:
        total += line.calls
        say(f"{line.calls:7.2f} {total:8.1f}  {line.part:7} {line.place}")
        if callers:
            for caller, made in line.callers.items():
                say(f"{'':18}{made:7.2f}  from {caller}")
    for part in (*PARTS, OTHERS):
        say(f"{part}: {sum(line.calls for line in lines if line.part == part):.1f}")
    say(f"a message makes {sum(line.calls for line in ours):.1f} Python calls in {len(files)} files of Magnetar")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=RESULTS)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--callers", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    log = CallLog()
    threading.setprofile(log)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="cluster-") as directory:
        cluster = start_embedded(directory, StartOptions(brokers=1, bookies=3, port=0, admin_port=0))
        try:
            with cluster.client() as client:
                lines = exchange(client, log, options.messages)
        finally:
            cluster.stop()
    show(lines, options.callers)


if __name__ == "__main__":
    main()
