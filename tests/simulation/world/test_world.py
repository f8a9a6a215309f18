"""The simulator's own parts: time, streams, pauses, crashes, disks."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from magnetar.protocol.errors import MetadataUnavailable, OutcomeUnknown
from magnetar.storage.metadata.store import Versioned
from simulation.world.harness import tear_down
from simulation.world.loop import SimLoop, Stuck
from simulation.world.metadata import SimMetadataStore, WatchedRecords
from simulation.world.network import Network
from simulation.world.process import Process
from support.files.faulty_files import FaultyFiles


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
    await asyncio.gather(asyncio.sleep(200), asyncio.sleep(400))
    assert world.loop.time() == start + 400


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
async def test_a_killed_process_does_not_wait_for_answers_when_it_is_cancelled(world: World) -> None:
    """Else somebody who waits for its task waits for ever."""
    process = world.process("c")

    async def ask() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.Event().wait()

    task = process.spawn(ask(), "ask")
    await asyncio.sleep(1)
    process.kill()
    with pytest.raises(asyncio.CancelledError):
        await task


@scripted
async def test_the_tasks_of_a_process_that_is_killed_while_it_is_paused_end(world: World) -> None:
    """Also those that had not begun, or that were about to go on."""
    process = world.process("c")
    done = asyncio.Event()
    late: list[str] = []

    async def wait() -> None:
        asyncio.get_running_loop().call_later(2, late.append, "timer")
        await done.wait()
        late.append("went on")

    waiting = process.spawn(wait(), "wait")
    await asyncio.sleep(1)
    process.pause()
    done.set()
    unbegun = process.spawn(asyncio.sleep(3600), "sleep")
    await asyncio.sleep(2)
    process.kill()
    for task in (waiting, unbegun):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not late


def test_a_run_that_does_not_end_is_stuck() -> None:
    loop = SimLoop()
    try:
        with pytest.raises(Stuck, match="does not end"):
            loop.run_until_complete(loop.create_task(asyncio.sleep(1e9)))
    finally:
        loop.abandon()
        loop.close()


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


@scripted
async def test_what_a_connection_is_held_up_with_is_overtaken_by_another(world: World) -> None:
    first, second = world.process("a"), world.process("b")
    order: list[bytes] = []

    def accept() -> Peer:
        peer = Peer()
        peer.data_received = order.append  # type: ignore[method-assign]
        return peer

    await second.spawn(world.loop.create_server(accept, "b", 1), "listen")
    ends = [await first.spawn(world.loop.create_connection(Peer, "b", 1), "connect") for _ in range(2)]
    await asyncio.sleep(1)
    connection = next(iter(world.network.connections.values()))
    world.network.hold(connection, 2.0)
    ends[0][0].write(b"earlier")
    await asyncio.sleep(1)
    ends[1][0].write(b"later")
    await asyncio.sleep(0.9)
    assert b"".join(order) == b"later"
    await asyncio.sleep(1)
    assert b"".join(order) == b"laterearlier"
    for sender, heard in (("b", b"now"), ("a", b"")):  # only what this one writes is held up
        order.clear()
        world.network.hold(connection, 2.0, sender)
        ends[0][0].write(b"now")
        await asyncio.sleep(1)
        assert b"".join(order) == heard


def test_a_slow_host_hears_two_connections_in_any_order() -> None:
    orders: set[bytes] = set()
    for seed in range(20):
        world = World(seed)

        async def script(world: World = world) -> None:
            order: list[bytes] = []
            processes = [world.process(name) for name in "abc"]

            def accept() -> Peer:
                peer = Peer()
                peer.data_received = order.append  # type: ignore[method-assign]
                return peer

            await processes[2].spawn(world.loop.create_server(accept, "c", 1), "listen")
            for process in processes[:2]:
                transport, _ = await process.spawn(world.loop.create_connection(Peer, "c", 1), "connect")
                world.network.slow_s["c"] = 0.5
                transport.write(process.name.encode())
            await asyncio.sleep(2)
            orders.add(b"".join(order))

        world.run(script())
    assert orders == {b"ab", b"ba"}


def test_a_process_may_be_struck_at_any_await() -> None:
    """Each count ends the same coroutine at another of its awaits, none of which takes time."""
    reached: list[int] = []
    for handles in range(1, 7):
        world = World()

        async def script(world: World = world, handles: int = handles) -> None:
            process = world.process("a")
            steps = 0

            async def step() -> None:
                nonlocal steps
                for _ in range(5):
                    steps += 1
                    await asyncio.sleep(0)
                    assert process.alive

            task = process.spawn(step(), "step")
            process.kill_after(handles)
            await asyncio.wait([task])
            assert process.alive == (not task.cancelled())
            reached.append(steps)

        world.run(script())
    assert reached == [0, 1, 2, 3, 4, 5]


@scripted
async def test_a_paused_process_is_struck_when_it_goes_on(world: World) -> None:
    process = world.process("a")
    task = process.spawn(asyncio.sleep(1), "sleep")
    await asyncio.sleep(0)
    process.kill_after(1)
    process.pause()
    await asyncio.sleep(2)
    assert process.alive
    process.resume()
    await asyncio.wait([task])
    assert not process.alive
    assert task.cancelled()


def replace(files: Any) -> None:
    """One piece of a thread's work, in five changes: create, write, sync, rename, sync of the directory."""
    file = files.open("/x.tmp", create=True)
    file.write_at(0, [b"new"])
    file.sync()
    file.close()
    files.rename("/x.tmp", "/x")
    files.sync_directory("/")


def test_a_process_may_die_inside_the_work_of_a_thread() -> None:
    outcomes: set[tuple[int, bool]] = set()
    for changes in range(1, 7):
        for seed in range(10):
            world, disk = World(), FaultyFiles(seed)

            async def script(world: World = world, disk: FaultyFiles = disk, changes: int = changes) -> None:
                process = world.process("a", disk)
                process.kill_amid_writes(changes)

                async def work_() -> None:
                    await process.env.offload.run(replace, process.env.files)

                work = process.spawn(work_(), "work")
                await asyncio.wait([work])
                assert process.alive == (changes == 6) == (not work.cancelled())
                outcomes.add((changes, disk.exists("/x")))

            world.run(script())
    assert (4, True) in outcomes and (4, False) in outcomes, "a name not synced may survive, or not"
    assert not any(there for changes, there in outcomes if changes < 4)
    assert {there for changes, there in outcomes if changes == 6} == {True}


@scripted
async def test_without_a_power_loss_the_next_process_sees_what_was_not_synced(world: World) -> None:
    disk = FaultyFiles(1)
    first = world.process("a", disk)
    file = first.env.files.open("/x", create=True)
    first.env.files.sync_directory("/")
    first.env.files.lock("/lock")
    file.write_at(0, [b"written"])
    first.kill(power_loss=False)
    second = world.process("a", disk)
    second.env.files.lock("/lock")
    assert second.env.files.read_bytes("/x") == b"written"
    with pytest.raises(OSError):
        file.read_at(0, 1)
    lost: set[bytes] = set()
    for seed in range(20):
        other = FaultyFiles(seed)
        file = other.open("/x", create=True)
        other.sync_directory("/")
        file.write_at(0, [b"written"])
        other.process_died()
        other.crash()
        lost.add(other.read_bytes("/x"))
    assert {b"", b"written"} <= lost


def test_an_unknown_outcome_is_carried_out_or_not_or_later() -> None:
    seen: set[tuple[bool, bool]] = set()
    for seed in range(60):
        world, records = World(), WatchedRecords()

        async def script(world: World = world, records: WatchedRecords = records, seed: int = seed) -> None:
            process = world.process("a")
            store = SimMetadataStore(process, records, Random(seed))
            store.trouble = 1.0
            with pytest.raises((OutcomeUnknown, MetadataUnavailable)) as told:
                await store.put("key", b"value", None)
            at_once = "key" in records.by_key
            process.kill()
            await asyncio.sleep(2)
            outcome = (at_once, "key" in records.by_key)
            if told.type is MetadataUnavailable:
                assert outcome == (False, False)
            else:
                seen.add(outcome)

        world.run(script())
    assert seen == {(True, True), (False, False), (False, True)}


def test_what_is_under_way_at_the_end_of_a_run_is_taken_apart_without_a_complaint(monkeypatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    loop = SimLoop()

    async def read() -> None:
        try:
            await asyncio.sleep(1000)  # its timer is all that holds on to it
        finally:
            await asyncio.sleep(0)

    async def begin() -> None:
        for _ in range(3):
            asyncio.get_running_loop().create_task(read())
        await asyncio.sleep(0)

    loop.run_until_complete(loop.create_task(begin()))
    tear_down(loop)
    gc.collect()
    assert told == []


async def test_changes_of_one_transaction_are_told_at_its_end_and_ledgers_last() -> None:
    records = WatchedRecords()
    seen: list[tuple[str, list[str]]] = []
    for key in ("cursors/c", "ledgers/1"):
        records.store(key, Versioned(b"", 1))
    records.watcher = lambda key, before, after: seen.append((key, list(records.by_key)))
    with records.transaction():
        records.remove("ledgers/1")
        records.remove("cursors/c")
        assert not seen
    assert seen == [("cursors/c", []), ("ledgers/1", [])]


@scripted
async def test_the_clock_counts_milliseconds_and_stands_still_within_a_turn(world: World) -> None:
    loop = world.loop
    await loop.passing(0.0004)
    assert loop.now > loop.time()
    start = loop.time()
    await loop.passing(0.0003)
    assert loop.time() == start
    await loop.passing(0.0004)
    assert loop.time() == pytest.approx(start + 0.001)


@scripted
async def test_what_is_sent_and_what_arrives_may_have_the_same_time(world: World) -> None:
    _, _, asking, accepted = await connected(world)
    same = 0
    for _ in range(100):
        began = world.loop.time()
        asking.transport.write(b"ping")
        await asyncio.sleep(0.2)
        same += accepted.times[-1] == began
    assert same > 50


@scripted
async def test_a_delay_is_rounded_to_milliseconds(world: World) -> None:
    loop = world.loop
    await loop.passing(0.0004)
    start = loop.time()
    await asyncio.sleep(0.0104)
    assert loop.time() == pytest.approx(start + 0.010)
    await asyncio.sleep(0.0106)
    assert loop.time() == pytest.approx(start + 0.021)


@scripted
async def test_waiting_for_the_next_tick_ends(world: World) -> None:
    loop = world.loop
    end, looks = loop.time() + 0.0003, 0
    while loop.time() < end:
        looks += 1
        await asyncio.sleep(end - loop.time())
    assert 1 < looks < 20
