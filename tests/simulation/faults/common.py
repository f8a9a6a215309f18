"""What goes wrong in a run, composed from its seed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from random import Random
from typing import Any

from magnetar.storage.bookie.cookie import COOKIE_NAME

from ..checkers.history import History
from ..world.cluster import BOOKIE, BROKER, COORDINATOR, Node, SimCluster

logger = logging.getLogger("magnetar.simulation")

STRIKE_AFTER_MAX = 400
"""Handles of a process, within which it is struck."""
STUTTERS_MAX = 40
STUTTER_MAX_S = 0.03


class Faults:
    """One kind of trouble after the other, some at the same time, until `heal`.

    At most Qa − 1 copies are ever damaged: bits flip, and a disk is lost, on one bookie only.
    """

    down_max_s = 6.0
    pause_max_s = 8.0

    def __init__(self, cluster: SimCluster, history: History, random: Random) -> None:
        self._cluster = cluster
        self._history = history
        self._random = random
        self._tasks: list[asyncio.Task[Any]] = []
        self._undo: dict[int, Callable[[], None]] = {}
        self._numbers = 0
        self._damaged = random.choice(cluster.bookies)
        self._may_lose_disk = random.random() < 0.3
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.crash, self.crash, self.pause, self.partition, self.isolate, self.reset, self.reset, self.slow,
            self.metadata, self.full_disk, self.failing_sync, self.power_loss, self.usurp, self.damage, self.delay,
            self.crash_amid_writes, self.misread,
        ]  # fmt: skip
        self._kinds = [kind for kind in kinds if random.random() < 0.5] or [self.crash]
        self._pace_s = random.choice((0.3, 1.0, 3.0))

    def start(self) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._run(), context=Context()))

    async def heal(self) -> None:
        """End all trouble at once."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):  # a fault that could not be made
                raise outcome
        for undo in list(self._undo.values()):
            undo()
        logger.info("healed")
        for node in self._cluster.nodes:
            if node.process is not None:
                node.process.spare()
            if node.disk is not None:
                node.disk.calm()
            self._cluster.begin(node)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._random.random() * 2 * self._pace_s)
            kind = self._random.choice(self._kinds)
            self._tasks.append(asyncio.get_running_loop().create_task(kind(), name=kind.__name__))

    async def _for_a_while(self, what: str, limit_s: float, undo: Callable[[], None]) -> None:
        """Keep a fault up, then undo it (or let `heal` do so)."""
        self._numbers += 1
        number = self._numbers
        self._undo[number] = undo_once = _once(undo)
        self._history.counts[what.partition(" ")[0]] += 1
        logger.info("fault: %s", what)
        try:
            await asyncio.sleep(self._random.random() ** 2 * limit_s)
        finally:
            self._undo.pop(number, None)
            undo_once()
            logger.info("over: %s", what)

    def _node(self, *kinds: str) -> Node:
        return self._random.choice([node for node in self._cluster.nodes if not kinds or node.kind in kinds])

    # -- the kinds -------------------------------------------------------------------------------------------------

    async def crash(self) -> None:
        """A process dies at any moment, with what its disk had not made durable."""
        node = self._node()
        self._cluster.stop(node)
        await self._for_a_while(f"crash of {node.name}", self.down_max_s, lambda: self._cluster.begin(node))

    async def strike(self) -> None:
        """A process dies between two of its next handles, that is at any await; the supervisor begins it again."""
        node = self._node()
        if node.process is not None and node.process.alive:
            self._history.counts["strike"] += 1
            node.process.kill_after(self._random.randint(1, STRIKE_AFTER_MAX))
            logger.info("fault: %s will be struck", node.name)

    async def power_loss(self) -> None:
        """All bookies, or everything, at once."""
        nodes = self._cluster.nodes if self._random.random() < 0.5 else self._cluster.bookies
        for node in nodes:
            self._cluster.stop(node, power_loss=True)

        def begin() -> None:
            for node in nodes:
                self._cluster.begin(node)

        await self._for_a_while(f"power-loss of {len(nodes)} nodes", 2.0, begin)

    async def pause(self) -> None:
        """SIGSTOP, long enough for a session to end now and then; what wakes up is a zombie."""
        node = self._node()
        process = node.process
        if process is None or not process.alive or process.paused:
            return
        process.pause()
        await self._for_a_while(f"pause of {node.name}", self.pause_max_s, process.resume)

    async def stutter(self, node: Node | None = None) -> None:
        """A process is starved of its processor for moments, and then meets at once what had come one by one."""
        node = node or self._node()
        self._history.counts["stutter"] += 1
        logger.info("fault: %s stutters", node.name)
        for _ in range(self._random.randint(2, STUTTERS_MAX)):
            process = node.process
            if process is not None and process.alive and not process.paused:
                process.pause()
                try:
                    await asyncio.sleep(self._random.random() * STUTTER_MAX_S)
                finally:
                    process.resume()
            await asyncio.sleep(self._random.random() * STUTTER_MAX_S)

    async def partition(self) -> None:
        """Two hosts do not hear each other, or only one the other."""
        names = [node.name for node in self._cluster.nodes] + [process.name for process in self._cluster.clients]
        first, second = self._random.sample(names, 2)
        cuts = [(first, second), (second, first)] if self._random.random() < 0.7 else [(first, second)]
        await self._cut(cuts, f"partition of {first} and {second}")

    async def isolate(self) -> None:
        """One node hears nobody and is not heard."""
        node = self._node()
        others = [other.name for other in self._cluster.nodes if other is not node]
        others += [process.name for process in self._cluster.clients]
        cuts = [cut for other in others for cut in ((node.name, other), (other, node.name))]
        await self._cut(cuts, f"isolation of {node.name}")

    async def _cut(self, cuts: list[tuple[str, str]], what: str, limit_s: float | None = None) -> None:
        for cut in cuts:
            self._cluster.network.partition(*cut)

        def mend() -> None:
            for cut in cuts:
                self._cluster.network.heal(*cut)

        await self._for_a_while(what, limit_s or self.down_max_s, mend)

    async def reset(self) -> None:
        """Connections break in mid-stream; requests may have arrived whose answers are lost."""
        network = self._cluster.network
        connections = list(network.connections.values())
        for connection in self._random.sample(connections, min(len(connections), self._random.randint(1, 4))):
            logger.info("reset between %s and %s", *(end.host for end in connection.ends))
            self._history.counts["reset"] += 1
            network.reset(connection)

    async def delay(self) -> None:
        """A few connections stand still for a moment; what others bring later overtakes what is on them."""
        network = self._cluster.network
        connections = list(network.connections.values())
        for connection in self._random.sample(connections, min(len(connections), self._random.randint(1, 4))):
            seconds = self._random.choice((0.05, 0.5, 3.0)) * self._random.random()
            logger.info("%s and %s wait %.3f s for a packet", *(end.host for end in connection.ends), seconds)
            self._history.counts["delay"] += 1
            network.hold(connection, seconds)

    async def slow(self) -> None:
        """A host's packets take long."""
        node, network = self._node(), self._cluster.network
        network.slow_down(node.name, self._random.choice((0.02, 0.3, 1.5)))
        await self._for_a_while(f"slowness of {node.name}", self.down_max_s, lambda: network.speed_up(node.name))

    async def metadata(self) -> None:
        """The database is away, or does not say what it did."""
        self._cluster.set_metadata_trouble(self._random.choice((0.1, 0.5, 1.0)))
        await self._for_a_while("metadata trouble", 4.0, lambda: self._cluster.set_metadata_trouble(0.0))

    async def full_disk(self) -> None:
        """A bookie's disk has no space left."""
        disk = self._node(BOOKIE).disk
        assert disk is not None
        before, disk.capacity_bytes = disk.capacity_bytes, disk._used_bytes() + self._random.randrange(4096)

        def empty() -> None:
            disk.capacity_bytes = 1 << 40

        assert before
        await self._for_a_while("full-disk", self.down_max_s, empty)

    async def usurp(self) -> None:
        """The coordinator stops, another takes office, and the first one wakes up."""
        node = self._cluster.coordinator
        process = node.process
        if process is None or not process.alive or process.paused:
            return
        process.pause()
        self._cluster.replace(node)

        def wake() -> None:
            process.resume()

        await self._for_a_while("usurpation of the coordinator", self.pause_max_s, wake)

    async def damage(self) -> None:
        """Bits flip on one bookie's disk, or all of it is lost."""
        node = self._damaged
        assert node.disk is not None
        if self._may_lose_disk and self._random.random() < 0.3:
            self._may_lose_disk = False
            self._cluster.stop(node)
            self._cluster.lose_disk(node)
            await self._for_a_while(f"disk-loss of {node.name}", self.down_max_s, lambda: self._cluster.begin(node))
            return
        paths = [path for path in node.disk.list("/data") if path != COOKIE_NAME]  # without it a bookie never starts
        for path in self._random.sample(paths, min(len(paths), self._random.choice((1, 1, 4)))):
            try:
                used = len(node.disk.read_bytes("/data/" + path).rstrip(b"\0"))
            except OSError:  # a failure meant for the bookie has met this look instead
                continue
            if used:
                node.disk.flip_bit("/data/" + path, self._random.randrange(used), self._random.randrange(8))
                self._history.counts["bit-flip"] += 1
                logger.info("a bit of %s flips at %s", path, node.name)

    async def fade(self) -> None:
        """Bits flip at rest: in entries that were sealed or compacted long ago, and stay so whatever restarts."""
        disk = self._damaged.disk
        assert disk is not None
        sealed = [path.removesuffix(".index") for path in disk.list("/data") if path.endswith(".index")]
        for path in self._random.sample(sealed, min(len(sealed), self._random.choice((1, 3)))):
            try:
                used = len(disk.read_bytes("/data/" + path))
            except OSError:  # compacted away, or a failure meant for the bookie
                continue
            for _ in range(self._random.choice((1, 1, 5)) if used else 0):
                disk.flip_bit("/data/" + path, self._random.randrange(used), self._random.randrange(8))
                self._history.counts["bit-flip"] += 1
            logger.info("bits of %s fade at %s", path, self._damaged.name)

    async def crash_amid_writes(self) -> None:
        """A bookie dies inside what a thread of it does to the disk; the supervisor begins it again."""
        node = self._node(BOOKIE)
        if node.process is not None and node.process.alive:
            changes = self._random.choice((1, 4, 30))
            node.process.kill_amid_writes(self._random.randint(1, changes))
            self._history.counts["crash-amid-writes"] += 1
            logger.info("fault: %s will die amid a write", node.name)

    async def misread(self) -> None:
        """A bit flips on the way from the disk of the bookie that may be damaged."""
        assert self._damaged.disk is not None
        self._damaged.disk.flip_next_read("", self._random.randint(1, 3))
        self._history.counts["misread"] += 1
        logger.info("fault: %s will misread", self._damaged.name)

    async def failing_sync(self) -> None:
        """The next fsync or write of a bookie's disk fails."""
        node = self._node(BOOKIE)
        assert node.disk is not None
        operation = self._random.choice(("sync", "write", "read"))
        node.disk.fail_next(operation, "", 1)
        self._history.counts["failing-io"] += 1
        logger.info("the next %s of %s fails", operation, node.name)
        if self._random.random() < 0.3:  # what comes between the failure and the end of the service
            await self.stutter(node)


def _once(function: Callable[[], None]) -> Callable[[], None]:
    done: list[bool] = []

    def call() -> None:
        if not done:
            done.append(True)
            function()

    return call


__all__ = ["BOOKIE", "BROKER", "COORDINATOR", "Faults"]
