"""The simulator's own parts: time, streams, pauses, crashes, disks."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from faulty_files import FaultyFiles

from simulation.loop import SimLoop, Stuck
from simulation.network import Network
from simulation.process import Process


class World:
    """A loop, a network, and processes by name."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop()
        self.network = Network(self.loop, Random(seed))

    def process(self, name: str, disk: FaultyFiles | None = None) -> Process:
        return Process(self.loop, self.network, name, Random(1), disk)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.loop.run_until_complete(self.loop.create_task(coroutine))
        finally:
            self.loop.abandon()
            self.loop.close()


class Peer(asyncio.Protocol):
    """Collects what comes."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.times: list[float] = []
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.times.append(asyncio.get_running_loop().time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


async def connected(world: World) -> tuple[Process, Process, Peer, Peer]:
    """Two processes with a connection from a to b."""
    first, second = world.process("a"), world.process("b")
    accepted, asking = Peer(), Peer()
    await second.spawn(world.loop.create_server(lambda: accepted, "b", 1), "listen")
    await first.spawn(world.loop.create_connection(lambda: asking, "b", 1), "connect")
    await asyncio.sleep(1)
    return first, second, asking, accepted


def scripted(script: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test whose coroutine runs in virtual time."""

    def test() -> None:
        world = World()
        world.run(script(world))

    test.__doc__ = script.__doc__
    return test


@scripted
async def test_time_jumps(world: World) -> None:
    start = world.loop.time()
    await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
    assert world.loop.time() == start + 7200


def test_waiting_for_nothing_is_an_error() -> None:
    world = World()

    async def wait() -> None:
        await world.loop.create_future()

    with pytest.raises(Stuck):
        world.run(wait())


@scripted
async def test_bytes_arrive_in_order_and_whole(world: World) -> None:
    _, _, asking, accepted = await connected(world)
    parts = [bytes([number]) * number for number in range(1, 200)]
    for part in parts:
        asking.transport.write(part)
        await asyncio.sleep(0.0001)
    asking.transport.close()
    await asyncio.sleep(1)
    assert bytes(accepted.received) == b"".join(parts)
    assert (accepted.lost, asking.lost) == ([None], [None])


@scripted
async def test_a_partition_holds_back_and_lets_go(world: World) -> None:
    _, _, asking, accepted = await connected(world)
    world.network.partition("a", "b")
    asking.transport.write(b"late")
    await asyncio.sleep(5)
    assert not accepted.received
    world.network.heal("a", "b")
    await asyncio.sleep(1)
    assert bytes(accepted.received) == b"late"


def test_a_reset_may_deliver_the_request_and_lose_the_answer() -> None:
    seen: set[tuple[bool, bool]] = set()
    for seed in range(40):
        world = World(seed)

        async def script(world: World = world) -> None:
            _, _, asking, accepted = await connected(world)
            asking.transport.write(b"request")
            accepted.transport.write(b"answer")
            world.network.reset(next(iter(world.network.connections.values())))
            await asyncio.sleep(1)
            assert isinstance(asking.lost[0], ConnectionResetError)
            assert isinstance(accepted.lost[0], ConnectionResetError)
            seen.add((bytes(accepted.received) == b"request", bytes(asking.received) == b"answer"))

        world.run(script())
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


@scripted
async def test_a_paused_process_reads_its_sockets_before_its_timers(world: World) -> None:
    first, second, asking, accepted = await connected(world)
    order: list[str] = []
    accepted.data_received = lambda data: order.append("socket")  # type: ignore[method-assign]

    async def sleep() -> None:
        await asyncio.sleep(1)
        order.append("timer")

    second.spawn(sleep(), "sleep")
    await asyncio.sleep(0)
    second.pause()
    await asyncio.sleep(2)
    asking.transport.write(b"x")
    await asyncio.sleep(2)
    assert order == []
    second.resume()
    await asyncio.sleep(0.1)
    assert order == ["socket", "timer"]
    assert first.alive


@scripted
async def test_a_killed_process_leaves_a_reset_and_only_what_was_synced(world: World) -> None:
    first, second, asking, _ = await connected(world)
    disk = FaultyFiles(3)
    third = world.process("c", disk)

    async def write() -> None:
        files = third.env.files
        file = files.open("/x", create=True)
        files.sync_directory("/")
        file.write_at(0, [b"synced"])
        file.sync()
        file.write_at(6, [b"?" * 2000])
        try:
            await asyncio.sleep(3600)
        finally:
            with pytest.raises(OSError):
                file.write_at(0, [b"ghost"])
            with pytest.raises(OSError):
                files.open("/y", create=True)

    task = third.spawn(write(), "write")
    await asyncio.sleep(1)
    third.kill()
    second.kill()
    await asyncio.sleep(1)
    assert task.cancelled()
    assert isinstance(asking.lost[0], ConnectionResetError)
    assert disk.read_bytes("/x").startswith(b"synced")
    assert not disk.exists("/y")
    with pytest.raises(ConnectionRefusedError):
        await first.spawn(world.loop.create_connection(Peer, "b", 1), "connect")


@scripted
async def test_who_does_not_read_slows_the_writer(world: World) -> None:
    _, _, asking, accepted = await connected(world)
    states: list[str] = []
    asking.pause_writing = lambda: states.append("paused")  # type: ignore[method-assign]
    asking.resume_writing = lambda: states.append("resumed")  # type: ignore[method-assign]
    accepted.transport.pause_reading()
    asking.transport.write(bytes(1 << 20))
    await asyncio.sleep(1)
    assert states == ["paused"]
    accepted.transport.resume_reading()
    await asyncio.sleep(1)
    assert states == ["paused", "resumed"]
    assert len(accepted.received) == 1 << 20
