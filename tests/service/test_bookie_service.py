"""The bookie as others meet it: over real sockets, on a real disk."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from magnetar.actors.bookie.service import BookieService, BookieState
from magnetar.actors.members.contracts_coordinator import LedgerChanges
from magnetar.protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    decode_entry,
    decode_ledger_end,
    decode_read_answer,
    encode_ledger,
    encode_read,
)
from magnetar.protocol.errors import CookieMismatch, DirectoryLocked, EntryUnknown, HandshakeRefused, ProtocolError
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import STATUS_DISCONNECTED, Identity, rpc_connect
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from magnetar.storage.metadata.ledger_records import renew
from magnetar.storage.metadata.store import pack
from support.stores.bookie_kit import add_payload, bodies, body_of
from support.stores.memory_store import MemoryMetadataStore

KEYS = RootKeys(b"s" * 32)
CLUSTER = "cluster-1"
FRAME_MAX = 64 << 20
SETTINGS = Settings(segment_size_bytes=1 << 20, compaction_bytes_per_s=1 << 30)


class LocalCoordinator:
    """The metadata without a coordinator process."""

    def __init__(self, metadata):
        self.metadata = metadata
        self.ask = self
        self.report = {}
        self.on_session_lost = []
        self.registered = None
        self.closed = False

    async def start(self):
        return None

    async def register(self, host, port, data):
        self.registered = (host, port, data())

    async def renew_ledger(self, *, ledger, version):
        return await renew(self.metadata, ledger, version)

    async def ledger_changes(self, *, epoch, since):
        return LedgerChanges(1, 0, 0, [], complete=False)

    async def unnamed_ledgers(self, *, ledgers):
        raise ProtocolError("an older coordinator does not have this method")

    async def close(self):
        self.closed = True


async def nowhere():
    raise AssertionError("these tests have no coordinator")


class Cluster:
    """One metadata store, bookies on directories of it, and a client of them."""

    def __init__(self, directory):
        self.directory = directory
        self.metadata = MemoryMetadataStore()
        self.env = Environment.real()
        self.running = []
        self.connections = []

    async def prepare(self):
        await self.metadata.put(metadata_keys.CLUSTER, pack({"id": CLUSTER, "created_ms": 1}), None)

    async def bookie(self, name="bookie-1", *, directory=None, cluster=CLUSTER, settings=SETTINGS, **options):
        service = BookieService(
            self.env,
            str(self.directory / (directory or name)),
            name,
            cluster,
            KEYS,
            settings,
            "127.0.0.1",
            0,
            nowhere,
            coordinator=LocalCoordinator(self.metadata),
            **options,
        )
        self.running.append(service)
        await service.start()
        return service

    async def connect(self, service, *, keys=KEYS, cluster=CLUSTER):
        identity = Identity(cluster, "coordinator", "test", "1")
        connection = await rpc_connect(
            self.env,
            service.address[0],
            service.address[1],
            identity,
            keys,
            expected_node_id=service.identity.node_id,
            frame_size_max=FRAME_MAX,
        )
        self.connections.append(connection)
        return Asker(connection)

    async def close(self):
        for connection in self.connections:
            connection.close()
            await connection.wait_closed()
        for service in self.running:
            await service.close()
        self.env.close()


class Asker:
    def __init__(self, connection):
        self.connection = connection

    async def ask(self, op, payload):
        answer = asyncio.get_running_loop().create_future()
        self.connection.request(op, (payload,), lambda status, data: answer.set_result((status, data)))
        async with asyncio.timeout(10):
            return await answer

    async def add_many(self, ledger_id, entry_ids, size=100):
        payloads = [add_payload(ledger_id, n, body_of(ledger_id, n, size)) for n in entry_ids]
        answers = await asyncio.gather(*(self.ask(BookieOp.ADD, payload) for payload in payloads))
        assert {status for status, _ in answers} == {BookieStatus.OK}

    async def read_all(self, ledger_id, first, last):
        found = {}
        while first <= last:
            status, data = await self.ask(BookieOp.READ, encode_read(ledger_id, 0, first, last, 1 << 20))
            if status == BookieStatus.NO_SUCH_ENTRY:
                break
            assert status == BookieStatus.OK
            first, entries = decode_read_answer(data)
            found |= {entry.entry_id: entry.body for entry in map(decode_entry, entries)}
        return found


@pytest.fixture
async def cluster(tmp_path):
    made = Cluster(tmp_path)
    await made.prepare()
    yield made
    await made.close()


async def test_adds_reads_and_fences_over_the_wire_and_again_after_a_restart(cluster):
    service = await cluster.bookie()
    assert service._coordinator.registered[:2] == service.address
    client = await cluster.connect(service)
    await client.add_many(1, range(2000))
    await client.add_many(2, range(30), size=60_000)
    assert await client.read_all(1, 0, 1999) == bodies(1, range(2000))
    status, data = await client.ask(BookieOp.FENCE, encode_ledger(2, 0))
    assert (status, decode_ledger_end(data)) == (BookieStatus.OK, (28, 29))
    assert (await client.ask(BookieOp.ADD, add_payload(2, 30)))[0] == BookieStatus.FENCED
    await service.close()
    again = await cluster.bookie()
    client = await cluster.connect(again)
    assert await client.read_all(2, 0, 29) == bodies(2, range(30), 60_000)
    assert (await client.ask(BookieOp.ADD, add_payload(2, 30)))[0] == BookieStatus.FENCED
    await client.add_many(1, [2000])
    parts = [[1, 0, 5, 2000, 0, 3, 3], [1, 0, 5, 2001, 0, 3, 3], [1, 7, 5, 9, 0, 3, 3], [99, 0, 0, 9, 0, 3, 3]]
    assert await client.connection.call("lacking", parts=parts) == {"found": [1, 2, 3], "examined": 4}
    with pytest.raises(ProtocolError, match="no part of a ledger"):
        await client.connection.call("lacking", parts=[[1, 0, 5, 4, 0, 3, 3]])
    with pytest.raises(EntryUnknown, match="no bookie that should hold it is alive"):
        await client.connection.call("copy_entries", part=[99, 0, 0, 9, 0, 3, 3], sources=[])
    assert await client.connection.call("ledgers") == [1, 2]
    status = await client.connection.call("status")
    assert (status["ledgers"], status["limbo"], status["read_only"]) == (2, False, False)
    assert status["disk_total_bytes"] > status["disk_used_bytes"] > 0


async def test_one_directory_serves_one_process_and_only_its_own_cluster_and_bookie(cluster):
    service = await cluster.bookie()
    with pytest.raises(DirectoryLocked):
        await cluster.bookie()
    with pytest.raises(HandshakeRefused):
        await cluster.connect(service, keys=RootKeys(b"x" * 32))
    with pytest.raises(HandshakeRefused):
        await cluster.connect(service, cluster="cluster-2")
    await service.close()
    with pytest.raises(CookieMismatch):
        await cluster.bookie("bookie-2", directory="bookie-1")
    with pytest.raises(CookieMismatch):
        await cluster.bookie(cluster="cluster-2")
    assert await (await cluster.connect(await cluster.bookie())).connection.call("ledgers") == []


async def test_a_wiped_disk_is_refused_and_begins_in_limbo_when_the_loss_is_accepted(cluster, tmp_path):
    service = await cluster.bookie()
    client = await cluster.connect(service)
    await client.add_many(1, range(10))
    await service.close()
    shutil.rmtree(tmp_path / "bookie-1")
    with pytest.raises(CookieMismatch, match="lost its disk"):
        await cluster.bookie()
    service = await cluster.bookie(accept_lost_disk=True)
    client = await cluster.connect(service)
    assert service._coordinator.report["limbo"] and not service._coordinator.report["writable"]
    assert (await client.ask(BookieOp.READ, encode_read(1, 0, 0, 9, 1000)))[0] == BookieStatus.UNKNOWN
    assert (await client.ask(BookieOp.ADD, add_payload(1, 10)))[0] == BookieStatus.READ_ONLY
    for n in range(10):
        assert (await client.ask(BookieOp.ADD, add_payload(1, n, recovery=True)))[0] == BookieStatus.OK
    await service.close()
    service = await cluster.bookie()
    client = await cluster.connect(service)
    assert (await client.connection.call("status"))["limbo"], "limbo lasts until somebody clears it"
    await cluster.metadata.allocate("ledger", 100)
    for floor in (1.5, -1, "100", 1 << 63):  # what is stored here is read by the next start
        with pytest.raises(ProtocolError):
            await client.connection.call("clear_limbo", fence_floor=floor)
    await client.connection.call("clear_limbo")
    assert service._coordinator.report["writable"]
    assert (await client.ask(BookieOp.READ, encode_read(1, 0, 20, 20, 1000)))[0] == BookieStatus.NO_SUCH_ENTRY
    assert (await client.ask(BookieOp.ADD, add_payload(100, 0)))[0] == BookieStatus.READ_ONLY
    assert (await client.ask(BookieOp.ADD, add_payload(102, 0)))[0] == BookieStatus.OK


@pytest.mark.parametrize("missing", ["cookie", "checkpoint"])
async def test_a_partly_lost_directory_is_refused(cluster, tmp_path, missing):
    service = await cluster.bookie()
    await (await cluster.connect(service)).add_many(1, range(10))
    await service.close()
    os.remove(tmp_path / "bookie-1" / missing)
    with pytest.raises(CookieMismatch):
        await cluster.bookie()


async def test_garbage_goes_when_its_ledger_is_deleted_and_only_then(cluster, tmp_path):
    service = await cluster.bookie()
    client = await cluster.connect(service)
    await cluster.metadata.allocate(metadata_keys.LEDGER_COUNTER, 100)
    for ledger_id in (1, 2, 3):
        record = LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("bookie-1",)),))
        await cluster.metadata.put(metadata_keys.ledger(ledger_id), record.pack(), None)
        await client.add_many(ledger_id, range(60), size=40_000)
    kept = set((tmp_path / "bookie-1").glob("*.journal"))
    done = await client.connection.call("collect_garbage", major=True)
    assert done["ledgers_deleted"] == 0 and set((tmp_path / "bookie-1").glob("*.journal")) >= kept
    await cluster.metadata.delete(metadata_keys.ledger(1), None)
    await cluster.metadata.delete(metadata_keys.ledger(2), None)
    await service.store.entries.seal_pending()  # on a busy machine the last full journals may still be open
    done = await client.connection.call("collect_garbage", major=True)
    assert done["ledgers_deleted"] == 2 and done["bytes_freed"] > 2_000_000
    assert await client.read_all(3, 0, 59) == bodies(3, range(60), 40_000)
    assert (await client.ask(BookieOp.ADD, add_payload(1, 60)))[0] == BookieStatus.FENCED
    await service.close()
    client = await cluster.connect(await cluster.bookie())
    assert await client.read_all(3, 0, 59) == bodies(3, range(60), 40_000)
    assert (await client.ask(BookieOp.ADD, add_payload(1, 60)))[0] == BookieStatus.FENCED


async def test_a_failing_disk_ends_the_service_at_once(cluster, monkeypatch):
    service = await cluster.bookie()
    assert service.state is BookieState.SERVING
    ended = asyncio.Event()
    service.on_fatal = lambda error: ended.set()
    client = await cluster.connect(service)
    await client.add_many(1, range(3))

    def broken(self, offset, parts, *, sync=False):
        raise OSError(5, "input/output error")

    monkeypatch.setattr("magnetar.runtime.files.RealFile.write_at", broken)
    status, _ = await client.ask(BookieOp.ADD, add_payload(1, 3))
    assert status in (BookieStatus.IO_ERROR, STATUS_DISCONNECTED)
    async with asyncio.timeout(5):
        await ended.wait()
        await client.connection.wait_closed()
    monkeypatch.undo()
    assert service.state is BookieState.FAILED
    await service.close()
    assert service.state is BookieState.CLOSED
    client = await cluster.connect(await cluster.bookie())
    assert sorted(await client.read_all(1, 0, 9))[:3] == [0, 1, 2]


OK_ANSWER = r"(write|writev|sendto|sendmsg)\(\d+<(socket|TCP).*?\"" + re.escape(r"\0\0\0\6\1\0")
"""An answer frame on a socket, as strace shows it: 6 bytes follow, a response, status OK."""

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOOKIE_PROGRAM = """
import asyncio, sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from service.test_bookie_service import Cluster

async def main():
    cluster = Cluster(Path({directory!r}))
    await cluster.prepare()
    service = await cluster.bookie()
    print("PORT", service.address[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await cluster.close()

asyncio.run(main())
"""


async def _traced_bookie(cluster, tmp_path, command):
    program = BOOKIE_PROGRAM.format(
        tests=TESTS,
        directory=str(tmp_path),
    )
    process = await asyncio.create_subprocess_exec(
        *command, sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    return process, int(line.split()[1])


async def _connect(cluster, port):
    identity = Identity(CLUSTER, "broker", "test", "1")
    connection = await rpc_connect(
        cluster.env, "127.0.0.1", port, identity, KEYS, expected_node_id="bookie-1", frame_size_max=FRAME_MAX
    )
    cluster.connections.append(connection)
    return Asker(connection)


@pytest.mark.promise("2.9")
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_a_system_call_trace_shows_the_sync_before_the_answer(cluster, tmp_path):
    """For every add: its bytes are written to a journal, that journal is synced, and only then the socket is."""
    trace = tmp_path / "trace"
    calls = "trace=pwrite64,pwritev,pwritev2,fdatasync,fsync,write,writev,sendto,sendmsg"
    command = ["strace", "-f", "-y", "-s", "256", "-e", calls, "-o", str(trace)]
    process, port = await _traced_bookie(cluster, tmp_path, command)
    client = await _connect(cluster, port)
    for n in range(20):
        marker = f"MARK{n:04d}.".encode() * 4
        status, _ = await client.ask(BookieOp.ADD, add_payload(7, n, marker))
        assert status == BookieStatus.OK
    client.connection.close()
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 30) == 0
    events = _finished_calls(trace.read_text(errors="replace"))
    position = 0
    for n in range(20):
        written = _index(events, position, lambda call, n=n: "pwrite" in call and f"MARK{n:04d}." in call)
        synced = _index(events, written, _syncs_a_journal)
        answered = _index(events, written, lambda call: re.match(OK_ANSWER, call))
        assert written <= synced < answered, events[written : answered + 1]
        position = answered


def _syncs_a_journal(call):
    """A synced write, whole: it is durable when it returns. Or fdatasync, where the kernel has no such writes."""
    if not re.search(r"\.journal", call):
        return False
    return call.startswith("fdatasync") or (
        call.startswith("pwritev2") and re.search(r"RWF_DSYNC\) += ", call) is not None
    )


def _finished_calls(text):
    """System calls in the order in which they returned, interrupted ones put together."""
    begun, done = {}, []
    for line in text.splitlines():
        thread, rest = line.split(maxsplit=1)
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>").rstrip()
        elif rest.startswith("<..."):
            done.append(begun.pop(thread, "") + re.sub(r"^<\.\.\. \w+ resumed>", "", rest))
        else:
            done.append(rest)
    return done


def test_a_synced_write_that_another_thread_interrupts_in_the_trace_is_seen_as_one() -> None:
    text = """
7 pwritev2(5</b/1.journal>, [{"MARK0001.", 9}], 1, 0, RWF_DSYNC <unfinished ...>
8 sendto(9<socket:[1]>, "\\0", 1, 0, NULL, 0) = 1
7 <... pwritev2 resumed>)           = 9
7 fdatasync(5</b/1.journal> <unfinished ...>
7 <... fdatasync resumed>)          = 0"""
    _, synced, also = _finished_calls(text.strip())
    assert _syncs_a_journal(synced) and "MARK0001." in synced and _syncs_a_journal(also)


def _index(events, start, matches):
    return next(at for at in range(start, len(events)) if matches(events[at]))


@pytest.mark.promise("15.3")
async def test_a_killed_bookie_keeps_everything_that_it_answered(cluster, tmp_path):
    process, port = await _traced_bookie(cluster, tmp_path, [])
    client = await _connect(cluster, port)
    await client.add_many(1, range(500))
    pending = [asyncio.ensure_future(client.ask(BookieOp.ADD, add_payload(1, n))) for n in range(500, 3000)]
    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    process.kill()
    await process.wait()
    answers = await asyncio.gather(*pending)
    acknowledged = [500 + n for n, (status, _) in enumerate(answers) if status == BookieStatus.OK]
    cookie = json.loads((tmp_path / "bookie-1" / "cookie").read_text())
    await cluster.metadata.put(metadata_keys.bookie("bookie-1"), pack(cookie), None)
    client = await cluster.connect(await cluster.bookie())
    found = await client.read_all(1, 0, 2999)
    assert set(range(500)) | set(acknowledged) <= set(found)
    assert found == bodies(1, sorted(found)) and sorted(found) == list(range(len(found)))
