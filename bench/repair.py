"""How fast the ledgers of a lost bookie are restored: `python bench/repair.py [--gb 2] [--entry-kb 64]`.

Three bookies hold closed ledgers (E=3 Qw=3 Qa=2) of `--gb` in all. A fourth is empty. Each runs in its own process,
with real sockets and a synced journal. This process is the coordinator. One bookie is killed. The measured time begins
when the auditor gives it up (`lostBookieRecoveryDelay` is 1 s here). It ends when every record names the spare
instead. `replicationRateByBytes` is −1, no limit.

It is compared with a raw copy of as many bytes of the killed bookie's segment files on the same disk: read, write and
fsync of each file, in blocks of 1 MiB. The page cache is dropped before each (as root; else the output says that it was
warm). The copy is made before and after the repair, and the faster one counts.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvloop
from processes import cpu_seconds
from rows import RESULTS, Report, ratio

from magnetar.actors.bookie.service import BookieService
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.names import ROLE_BROKER
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.bookie_client import BookieClient
from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.sql import SqlMetadataStore
from magnetar.storage.metadata.store import MetadataStore, list_all

KEYS = RootKeys(b"bench" * 8)
CLUSTER = "bench"
LEDGER_BYTES = 64 << 20
IN_FLIGHT_BYTES = 8 << 20
SETTINGS = replace(Settings(), lost_bookie_grace_s=1.0, repair_bytes_per_s=-1)
TARGET = 0.3
ROW = "2 GB of ledgers restored / raw disk copy"


async def serve(directory: str, bookie_id: str, port: int) -> None:
    """A bookie's process: ends with its standard input."""

    async def locate() -> tuple[str, int]:
        return "127.0.0.1", port

    env = Environment.real()
    service = BookieService(env, directory, bookie_id, CLUSTER, KEYS, SETTINGS, "127.0.0.1", 0, locate)
    await service.start()
    print(os.getpid(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await service.close()
    env.close()


class Bookies:
    """The bookies' processes."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.running: dict[int, asyncio.subprocess.Process] = {}
        self._port = port

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            name = f"bookie-{number}"
            process = self.running[number] = await asyncio.create_subprocess_exec(
                sys.executable,
                __file__,
                "--serve",
                str(self.directory / name),
                name,
                str(self._port),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise RuntimeError(f"{name} did not start")

    async def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    def cpu_s(self) -> float:
        """Of all that run."""
        return sum(cpu_seconds(process.pid) for process in self.running.values())

    async def close(self) -> None:
        for number in list(self.running):
            await self.kill(number)


async def write_ledgers(coordinator: CoordinatorService, env: Environment, total: int, entry_bytes: int) -> int:
    """Fill and close ledgers of `LEDGER_BYTES`; returns how many."""
    place = coordinator.address

    async def locate() -> tuple[str, int]:
        return place

    link = CoordinatorClient(env, Identity(CLUSTER, ROLE_BROKER, "writer", "1"), KEYS, SETTINGS, locate)
    await link.start(5)
    await link.register("127.0.0.1", 1, {})
    client = BookieClient(env, link.identity, KEYS, SETTINGS, link.bookies)
    ledgers = Ledgers(env, link.metadata, client, SETTINGS)
    count = max(1, total // LEDGER_BYTES)
    body = os.urandom(entry_bytes)
    for _ in range(count):
        writer = await ledgers.create()
        under_way, room = 0, asyncio.Event()

        def added(_: object, error: BaseException | None) -> None:
            nonlocal under_way
            if error is not None:
                raise error
            under_way -= 1
            room.set()  # noqa: B023

        for _ in range(min(LEDGER_BYTES, total) // entry_bytes):
            while under_way * entry_bytes >= IN_FLIGHT_BYTES:
                room.clear()
                await room.wait()
            under_way += 1
            writer.add(body, added)
        while under_way:
            room.clear()
            await room.wait()
        await writer.close()
    await client.close()
    await link.close()
    return count


def drop_caches() -> bool:
    """Whether the page cache is empty now."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def raw_copy(source: Path, target: Path, total: int) -> tuple[int, float, bool]:
    """Copy files, synced, up to `total` bytes; (bytes, seconds, whether the page cache was empty)."""
    target.mkdir()
    cold = drop_caches()
    size, began = 0, time.perf_counter()
    for file in sorted(source.glob("*.journal")):
        with open(file, "rb", buffering=0) as reading, open(target / file.name, "wb", buffering=0) as writing:
            while size < total and (block := reading.read(1 << 20)):
                writing.write(block)
                size += len(block)
            os.fsync(writing.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return size, seconds, cold


async def names(store: MetadataStore) -> dict[str, None]:
    """All bookies that records of ledgers name."""
    records = await list_all(store, metadata_keys.LEDGERS_PREFIX)
    return {one: None for _, record in records for one in LedgerMetadata.unpack(record.value).bookies}


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def measure(directory: Path, total: int, entry_bytes: int) -> dict[str, float]:
    """Figures by name; sizes in bytes, times in seconds."""
    env = Environment.real()
    loop = asyncio.get_running_loop()
    store = await SqlMetadataStore.open(env, f"sqlite:///{directory}/metadata.sqlite", create=True)
    await create_cluster(store, CLUSTER, 0)
    coordinator = CoordinatorService(env, store, CLUSTER, KEYS, SETTINGS, "127.0.0.1", 0, str(directory))
    await coordinator.start()
    bookies = Bookies(directory, coordinator.address[1])
    found: dict[str, float] = {}
    try:
        await bookies.start(1, 2, 3)
        began = time.perf_counter()
        found["ledgers"] = await write_ledgers(coordinator, env, total, entry_bytes)
        found["written in s"] = time.perf_counter() - began
        await bookies.start(4)
        auditor = coordinator.office.auditor
        await until(lambda: auditor.status()["whole"], 300)
        raw = [await loop.run_in_executor(None, raw_copy, directory / "bookie-3", directory / "raw", total)]
        await loop.run_in_executor(None, drop_caches)
        await bookies.kill(3)
        await until(lambda: bool(auditor.status()["lost_bookies"]), 60)
        began, cpu, own_cpu = time.perf_counter(), bookies.cpu_s(), time.process_time()
        before = auditor.status()["copied_bytes_total"]
        async with asyncio.timeout(1800):
            while "bookie-3" in await names(store):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        found["restored in s"] = time.perf_counter() - began
        found["bookies' CPU s"] = bookies.cpu_s() - cpu
        found["coordinator's CPU s"] = time.process_time() - own_cpu
        found["restored bytes"] = auditor.status()["copied_bytes_total"] - before
        raw.append(await loop.run_in_executor(None, raw_copy, directory / "bookie-3", directory / "raw", total))
        found["raw bytes"] = raw[0][0]
        found["raw copy in s"] = min(seconds for _, seconds, _ in raw)
        found["page cache was empty"] = all(cold for *_, cold in raw)
    finally:
        await bookies.close()
        await coordinator.close()
        await store.close()
        env.close()
    raw_rate = found["raw bytes"] / found["raw copy in s"]
    found["restored / raw"] = found["restored bytes"] / found["restored in s"] / raw_rate
    return found


def run(directory: Path, report: Report) -> None:
    """The row of `make bench`."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="repair-") as place:
        found = uvloop.run(measure(Path(place), 2 << 30, 64 << 10))
    note = f"{found['restored in s']:.1f} s; raw copy {found['raw copy in s']:.1f} s"
    report.rows.append(ratio(ROW, found["restored / raw"], TARGET, better="higher", note=note))
    report.raw.append({"workload": ROW, **found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--entry-kb", type=float, default=64.0)
    parser.add_argument("--directory", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="repair-") as place:
        found = uvloop.run(measure(Path(place), int(options.gb * (1 << 30)), int(options.entry_kb * 1024)))
    for name, value in found.items():
        print(f"{name:24} {value:16,.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(serve(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        main()
