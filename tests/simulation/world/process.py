"""Simulated processes: their world (clock, chance, threads, files), and how they are paused, killed and begun again.

A `Process` is one incarnation. What it does reaches the outside only through its files and the network, and both are
taken from it at the moment it is killed; then its tasks are cancelled, and what they still do has no effect.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any, TypeVar

from magnetar.runtime.environment import Environment, SeededChance
from magnetar.runtime.files import DiskUsage, File, FileLock
from magnetar.runtime.offload import Lane, LaneCallback
from support.files.faulty_files import FaultyFiles

from .loop import PROCESS, TASKS_SWEPT_MIN, SimHandle, SimLoop
from .network import Network

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
CANCEL_AGAIN_S = 1.0
CANCELS_MAX = 10


class Process:
    """One incarnation of a node. Made alive; `kill` is final."""

    def __init__(self, loop: SimLoop, network: Network, name: str, random: Random, disk: FaultyFiles | None) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.hindered = False
        self.strike_in = 0
        self.stalled: list[SimHandle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.tasks_max = TASKS_SWEPT_MIN
        self.after_event: Callable[[], None] | None = None
        self.loop = loop
        self.files = AttachedFiles(self, disk) if disk is not None else None
        self.env = Environment(
            SimClock(loop, random.randrange(-2_000, 2_000)),
            SeededChance(random.getrandbits(64)),
            SimOffload(self, Random(random.getrandbits(64))),
            self.files,  # type: ignore[arg-type]  # who has no disk must not touch files
        )
        self._network = network
        self._chance = Random(random.getrandbits(64))
        loop.owners.append(self)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Start a task in this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return self.loop.create_task(coroutine, name=f"{self.name}:{name}", context=context)

    def pause(self) -> None:
        """SIGSTOP."""
        if not self.paused:
            self._network.disturbances.begin(self.name)
        self.paused = self.hindered = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            self._network.disturbances.end(self.name, self.loop.now)
            self.hindered = not self.alive or self.strike_in > 0
            self.loop.go_on(self)

    def kill_after(self, handles: int) -> None:
        """`kill` before this process runs its `handles`-th handle from now (at least 1).

        A handle ends at an await: with a drawn count it dies at any of them, also amid what happens without time
        passing, which a kill from a timer never meets. Its node, if it is wanted, begins again as after any end.
        """
        self.strike_in = handles
        self.hindered = True

    def kill_amid_writes(self, changes: int) -> None:
        """`kill` when the disk has carried out its `changes`-th change from now (at least 1), before anything follows.

        The other kills come between two pieces of a thread's work; this one comes inside: after a write and before
        its sync, between the steps of an atomic replacement, in the middle of a start.
        """
        if self.alive and self.files is not None:
            self.files.when_changed(changes, lambda: Context().run(self.kill))

    def spare(self) -> None:
        """What was to kill it later does not."""
        self.strike_in = 0
        self.hindered = self.paused or not self.alive

    def kill(self, *, power_loss: bool | None = None) -> None:
        """SIGKILL. With `power_loss` (drawn unless said) what its disk had not made durable is lost for the most part;
        without, the next process sees all that was written, durable or not.
        """
        if not self.alive:
            return
        if self.files is not None:
            self.files.detach(self._chance.random() < 0.5 if power_loss is None else power_loss)
        self.alive = False
        self.hindered = True
        self._network.process_ended(self)
        if self.paused:
            self._network.disturbances.end(self.name, self.loop.now)
        self.paused = False
        self.loop.go_on(self)  # a task whose step was held while the process was paused could not end without it
        for task in self.tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.cancel()
        self.loop.call_later(CANCEL_AGAIN_S, self._cancel_rest, 1, context=Context())

    def _cancel_rest(self, times: int) -> None:
        """Cancel what began to wait for an answer when it was cancelled: none comes, and somebody may wait for it."""
        rest = [task for task in self.tasks if not task.done()]
        for task in rest:
            task.cancel()
        if rest and times < CANCELS_MAX:
            self.loop.call_later(CANCEL_AGAIN_S, self._cancel_rest, times + 1, context=Context())


class SimClock:
    """Virtual wall-clock time, off by this node's error, which a workload may change."""

    def __init__(self, loop: SimLoop, error_ms: int) -> None:
        self._loop = loop
        self.error_ms = error_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.error_ms + int(self._loop.now * 1000)

    def cpu_s(self) -> float:
        return 0.0


class SimLane(Lane):
    """A lane whose thread takes a drawn time for each piece of work."""

    def __init__(self, offload: "SimOffload") -> None:
        self._offload = offload
        self._work: deque[tuple[Callable[..., Any], tuple[Any, ...], LaneCallback]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, function: Callable[..., Any], arguments: tuple[Any, ...], callback: LaneCallback) -> None:
        if self._closed:
            raise RuntimeError("this lane is closed")
        self._work.append((function, arguments, callback))
        if not self._busy:
            self._begin()

    def close(self) -> None:
        self._closed = True

    def _begin(self) -> None:
        self._busy = True
        self._offload.later(self._execute)

    def _execute(self) -> None:
        function, arguments, callback = self._work.popleft()
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as caught:
            error = caught
        self._offload.later(self._finish, callback, result, error)

    def _finish(self, callback: LaneCallback, result: Any, error: BaseException | None) -> None:
        self._busy = False
        if self._work:
            self._begin()
        callback(result, error)


class SimOffload:
    """Threads of one process: work is carried out, and later its outcome is told, each after a drawn time."""

    def __init__(self, process: Process, random: Random) -> None:
        self.delay_s = 0.0005
        self._process = process
        self._random = random
        self._lanes: list[SimLane] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, process)

    def run(self, function: Callable[..., T], *arguments: Any) -> Awaitable[T]:
        return SimLane(self).run(function, *arguments)

    def lane(self, name: str) -> SimLane:
        lane = SimLane(self)
        self._lanes.append(lane)
        return lane

    def later(self, callback: Callable[..., None], *arguments: Any) -> None:
        """After the time that a disk takes; never in a dead process."""
        seconds = self._random.random() * self.delay_s
        if self._random.random() < 0.01:
            seconds += self._random.random() * 0.2
        self._process.loop.happen(seconds, callback, *arguments, context=self._context)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class AttachedFiles:
    """A process's hold on its node's disk. After `detach` every call fails, and held locks are the disk's business."""

    def __init__(self, process: Process, disk: FaultyFiles) -> None:
        self._process = process
        self._disk = disk
        self._attached = True

    def detach(self, power_loss: bool) -> None:
        """The process is gone, its locks are free, its handles closed; with the power goes what was not synced."""
        self._attached = False
        if power_loss:
            self._disk.crash()
        else:
            self._disk.process_died()

    def when_changed(self, changes: int, strike: Callable[[], None]) -> None:
        """Call `strike` when the disk has changed so many times; it has to detach these files."""
        self._disk.power_off_after(changes)
        self._disk.on_power_off = strike

    def _check(self) -> FaultyFiles:
        if not self._attached:
            raise OSError(5, "this process has ended")
        return self._disk

    def make_directory(self, path: str) -> None:
        self._check().make_directory(path)

    def list(self, path: str) -> "list[str]":
        return self._check().list(path)

    def exists(self, path: str) -> bool:
        return self._check().exists(path)

    def open(self, path: str, *, create: bool = False, preallocate: int = 0) -> File:
        return self._check().open(path, create=create, preallocate=preallocate)

    def rename(self, old: str, new: str) -> None:
        self._check().rename(old, new)

    def remove(self, path: str) -> None:
        self._check().remove(path)

    def sync_directory(self, path: str) -> None:
        self._check().sync_directory(path)

    def read_bytes(self, path: str) -> bytes:
        return self._check().read_bytes(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self._check().write_atomic(path, data)

    def disk_usage(self, path: str) -> DiskUsage:
        return self._check().disk_usage(path)

    def lock(self, path: str) -> FileLock:
        return _AttachedLock(self, self._check().lock(path))


class _AttachedLock:
    def __init__(self, files: AttachedFiles, lock: FileLock) -> None:
        self._files = files
        self._lock = lock

    def release(self) -> None:
        if self._files._attached:
            self._lock.release()
