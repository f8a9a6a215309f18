"""How near one bookie comes to its disk: `python bench/bookie.py [directory] [seconds a measurement]`.

A bookie runs in a process of its own (uvloop, real sockets, fdatasync before every answer); this process asks it. Raw
disk and bookie take turns in every round, so that each ratio compares the same minutes of the same machine:

- one at a time, 1 KB: p50 of an add ÷ p50 of pwrite + fdatasync of 1 KB into a pre-allocated file
- pipelined, 100 B: entries a second with 2,000 adds under way
- large, 1 MB: bytes a second ÷ bytes a second of 1 MiB blocks, each with fdatasync, into a pre-allocated file
- reading back: entries and bytes a second in range reads
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from magnetar.actors.bookie.service import BookieService
from magnetar.actors.members.contracts_coordinator import CoordinatorContract
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.bookie_wire import (
    BookieOp,
    decode_read_answer,
    encode_add,
    encode_entry_header,
    encode_read,
)
from magnetar.protocol.cluster_status import MemberData, MemberReport
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import Identity, RpcConnection, rpc_connect
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack
from support.stores.memory_store import MemoryMetadataStore

KEYS = RootKeys(b"bench" * 8)
CLUSTER = "bench"
ROUNDS = 3
FILE_BYTES = 64 << 20
WINDOW = 2000


class StandIn:
    """The coordinator's place: metadata in memory."""

    def __init__(self, metadata: MemoryMetadataStore) -> None:
        self.metadata = metadata
        self.report: MemberReport = {}
        self.on_session_lost: list = []

    async def start(self) -> None:
        return None

    async def register(self, host: str, port: int, data: Callable[[], MemberData]) -> None:
        print(port, flush=True)

    @property
    def ask(self) -> CoordinatorContract:
        raise RuntimeError("the benchmark collects no garbage")

    async def close(self) -> None:
        return None


async def nowhere() -> tuple[str, int]:
    raise RuntimeError("the benchmark has no coordinator")


async def serve(directory: str) -> None:
    """The bookie's process: ends with its standard input."""
    env = Environment.real()
    metadata = MemoryMetadataStore()
    await metadata.put(metadata_keys.CLUSTER, pack({"id": CLUSTER, "created_ms": 0}), None)
    coordinator = cast(CoordinatorClient, StandIn(metadata))
    service = BookieService(
        env, directory, "bookie-1", CLUSTER, KEYS, Settings(), "127.0.0.1", 0, nowhere, coordinator=coordinator
    )
    await service.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await service.close()
    env.close()


class RawFile:
    """A pre-allocated, zero-filled file: pwrite and fdatasync, nothing else."""

    def __init__(self, directory: str, block_bytes: int) -> None:
        self._path = os.path.join(directory, "raw")
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        for offset in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(self._descriptor, bytes(1 << 20), offset)
        os.fsync(self._descriptor)
        self._block = os.urandom(block_bytes)
        self._offset = 0

    def write(self) -> float:
        """Seconds that one block took."""
        if self._offset + len(self._block) > FILE_BYTES:
            self._offset = 0
        started = time.perf_counter()
        os.pwrite(self._descriptor, self._block, self._offset)
        os.fdatasync(self._descriptor)
        self._offset += len(self._block)
        return time.perf_counter() - started

    def close(self) -> None:
        os.close(self._descriptor)
        os.remove(self._path)


def raw_bandwidth(directory: str, seconds: float) -> float:
    """Bytes a second of 1 MiB blocks."""
    file, blocks = RawFile(directory, 1 << 20), 0
    try:
        started = time.perf_counter()
        while (passed := time.perf_counter() - started) < seconds:
            file.write()
            blocks += 1
    finally:
        file.close()
    return blocks * (1 << 20) / passed


def add_parts(ledger_id: int, entry_id: int, body: bytes) -> tuple[bytes, ...]:
    return encode_add(encode_entry_header(ledger_id, 0, entry_id, entry_id - 1, 0, body), body)


async def one_at_a_time(
    connection: RpcConnection, raw: RawFile, ledger_id: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of each add and of each raw write, taken in turns."""
    loop, times, raw_times, body = asyncio.get_running_loop(), [], [], os.urandom(1024)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        raw_times.append(raw.write())
        answered = loop.create_future()
        parts = add_parts(ledger_id, len(times), body)
        started = time.perf_counter()
        connection.request(BookieOp.ADD, parts, lambda status, _, done=answered: done.set_result(status))
        assert await answered == 0
        times.append(time.perf_counter() - started)
    return sorted(times), sorted(raw_times)


async def pipelined(connection: RpcConnection, ledger_id: int, size: int, window: int, seconds: float) -> float:
    """Entries a second with `window` adds under way."""
    body = os.urandom(size)
    done = asyncio.get_running_loop().create_future()
    following = under_way = answered = 0
    started = time.perf_counter()

    def fill() -> None:
        nonlocal following, under_way
        while under_way < window:
            connection.request(BookieOp.ADD, add_parts(ledger_id, following, body), on_answer)
            following += 1
            under_way += 1

    def on_answer(status: int, _: bytes) -> None:
        nonlocal under_way, answered
        assert status == 0, status
        under_way -= 1
        answered += 1
        if time.perf_counter() - started < seconds:
            if under_way <= window * 3 // 4:
                fill()
        elif not under_way and not done.done():
            done.set_result(None)

    fill()
    await done
    return answered / (time.perf_counter() - started)


async def read_back(connection: RpcConnection, ledger_id: int) -> tuple[float, float]:
    """(entries, bytes) a second, one range read after the other."""
    loop, following, entries, size = asyncio.get_running_loop(), 0, 0, 0
    started = time.perf_counter()
    while time.perf_counter() - started < 2:
        answered = loop.create_future()
        request = encode_read(ledger_id, 0, following, following + 5000, 4 << 20)
        connection.request(
            BookieOp.READ, (request,), lambda status, data, done=answered: done.set_result((status, data))
        )
        status, data = await answered
        if status != 0:
            break
        following, found = decode_read_answer(data)
        entries += len(found)
        size += len(data)
    seconds = time.perf_counter() - started
    return entries / seconds, size / seconds


async def measure(directory: str, seconds: float) -> dict[str, list[float]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--serve",
        f"{directory}/bookie-1",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    port = int(await process.stdout.readline())
    env = Environment.real()
    connection = await rpc_connect(
        env,
        "127.0.0.1",
        port,
        Identity(CLUSTER, "broker", "bench", "1"),
        KEYS,
        expected_node_id="bookie-1",
        frame_size_max=64 << 20,
    )
    samples: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    loop = asyncio.get_running_loop()
    for number in range(ROUNDS):
        ledger_id = 10 * number
        raw = RawFile(directory, 1100)
        times, raw_times = await one_at_a_time(connection, raw, ledger_id + 1, seconds)
        raw.close()
        raw_p50 = raw_times[len(raw_times) // 2]
        note("raw append + fdatasync of 1 KB, p50 ms", raw_p50 * 1e3)
        note("add of 1 KB one at a time, p50 ms", times[len(times) // 2] * 1e3)
        note("add of 1 KB one at a time, p99 ms", times[len(times) * 99 // 100] * 1e3)
        note("add ÷ raw, 1 KB, p50", times[len(times) // 2] / raw_p50)
        note("100 B pipelined, entries/s", await pipelined(connection, ledger_id + 2, 100, WINDOW, seconds))
        raw_bytes = await loop.run_in_executor(None, raw_bandwidth, directory, seconds)
        large = 1e6 * await pipelined(connection, ledger_id + 3, 1_000_000, 16, seconds)
        note("raw 1 MiB blocks, MB/s", raw_bytes / 1e6)
        note("entries of 1 MB, MB/s", large / 1e6)
        note("entries of 1 MB ÷ raw blocks", large / raw_bytes)
        entries, _ = await read_back(connection, ledger_id + 2)
        _, size = await read_back(connection, ledger_id + 3)
        note("range reads of 100 B, entries/s", entries)
        note("range reads of 1 MB, MB/s", size / 1e6)
    connection.close()
    await connection.wait_closed()
    process.stdin.close()
    await process.wait()
    env.close()
    return samples


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(serve(sys.argv[2]))
        return
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    directory = tempfile.mkdtemp(prefix="magnetar-bench-", dir=parent)
    try:
        samples = uvloop.run(measure(directory, float(sys.argv[2]) if len(sys.argv) > 2 else 1.0))
    finally:
        shutil.rmtree(directory)
    for name, values in samples.items():
        print(f"{name:42} {statistics.median(values):12.3f}   {json.dumps([round(value, 3) for value in values])}")


if __name__ == "__main__":
    main()
