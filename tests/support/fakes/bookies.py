"""Bookies in memory behind the BookieClient's seam: the operations of `bookie_wire`, with scripted trouble.

Deterministic: answers come through `call_soon` or, when delayed, `call_later`. A bookie keeps what it stored across a
crash (everything it answered was synced) unless `wipe` is asked for.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from magnetar.protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    decode_add,
    decode_entry_header,
    decode_ledger,
    decode_read,
    encode_ledger_end,
    encode_read_answer,
    entry_intact,
)
from magnetar.protocol.errors import BookieUnavailable
from magnetar.protocol.rpc_frames import STATUS_DISCONNECTED
from magnetar.runtime.environment import Environment, SeededChance, SystemClock
from magnetar.runtime.files import RealFiles
from magnetar.runtime.offload import ThreadOffload
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.bookie_client import BookieClient
from magnetar.storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from magnetar.storage.ledger.ledgers import Ledgers
from support.stores.memory_store import MemoryMetadataStore

Answer = Callable[[int, bytes], None]


@dataclass
class FakeLedger:
    """What one bookie has of one ledger."""

    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    deleted: bool = False
    nonce: int = 0


class FakeBookie:
    """One bookie. Knobs: `delay_s`, `add_delay_s`, `hung`, `alive`, `forced` (op → status), `lose_answers`, `limbo`,
    `fence_floor`."""

    def __init__(self, bookie_id: str) -> None:
        self.id = bookie_id
        self.ledgers: dict[int, FakeLedger] = {}
        self.alive = True
        self.hung = False
        self.delay_s = self.add_delay_s = 0.0
        self.limbo = False
        self.fence_floor = 0
        """It was in limbo: it takes no ledger below that it does not know."""
        self.lose_answers = False
        """Carry requests out, then break the connection instead of answering."""
        self.forced: dict[int, int] = {}
        self.held: list[tuple[int, bytes, Answer]] = []
        self.log: list[tuple[int, bytes]] = []
        self.connections: list[FakeConnection] = []
        self.adds = 0

    # -- trouble -------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process dies: connections break, new ones are refused."""
        self.alive = False
        self.held.clear()
        for connection in list(self.connections):
            connection.close(BookieUnavailable("crashed"))

    def restart(self) -> None:
        self.alive = True
        self.hung = False

    def hang(self) -> None:
        """Requests arrive and stay unanswered."""
        self.hung = True

    def wake(self) -> None:
        """A hung process goes on: what had arrived is carried out now."""
        self.hung = False
        held, self.held = self.held, []
        for op, payload, answer in held:
            self.handle(op, payload, answer)

    def flip_bit(self, ledger_id: int, entry_id: int) -> None:
        """Damage a stored body (or header when there is none) where the disk's own check does not see it."""
        data = bytearray(self.ledgers[ledger_id].entries[entry_id])
        data[-1] ^= 1
        self.ledgers[ledger_id].entries[entry_id] = bytes(data)

    # -- the operations ------------------------------------------------------------------------------------------

    def handle(self, op: int, payload: bytes, answer: Answer) -> None:
        if self.hung:
            self.held.append((op, payload, answer))
            return
        if op == BookieOp.ADD:
            self.adds += 1
            status, parts = self._add(payload), b""
        else:
            self.log.append((op, payload))
            status, parts = self._other(op, payload)
        delay_s = self.delay_s + (self.add_delay_s if op == BookieOp.ADD else 0.0)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, answer, status, parts)
        else:
            answer(status, parts)

    def _add(self, payload: bytes) -> int:
        if BookieOp.ADD in self.forced:
            return self.forced[BookieOp.ADD]
        recovery, entry = decode_add(payload)
        header = decode_entry_header(entry)
        if not recovery and header.ledger_id < self.fence_floor and header.ledger_id not in self.ledgers:
            return BookieStatus.READ_ONLY
        ledger = self._ledger(header.ledger_id, header.nonce)
        if ledger.nonce != header.nonce:
            return BookieStatus.FOREIGN
        if ledger.deleted or (ledger.fenced and not recovery):
            return BookieStatus.FENCED
        data = bytes(entry)
        stored = ledger.entries.get(header.entry_id)
        if stored is not None and stored != data:
            return BookieStatus.CONFLICT
        ledger.entries[header.entry_id] = data
        return BookieStatus.OK

    def _other(self, op: int, payload: bytes) -> tuple[int, bytes]:
        if op == BookieOp.READ:
            return self._read(payload)
        ledger_id, nonce = decode_ledger(payload)
        if ledger_id in self.ledgers and self.ledgers[ledger_id].nonce != nonce:
            return BookieStatus.FOREIGN, b""
        if op == BookieOp.FENCE:
            self._ledger(ledger_id, nonce).fenced = True
        if op in self.forced:
            return self.forced[op], b""
        if self.limbo:
            return BookieStatus.UNKNOWN, b""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return BookieStatus.NO_SUCH_LEDGER, b""
        lac = max((decode_entry_header(entry).lac for entry in ledger.entries.values()), default=-1)
        return BookieStatus.OK, encode_ledger_end(lac, max(ledger.entries, default=-1))

    def _read(self, payload: bytes) -> tuple[int, bytes]:
        request = decode_read(payload)
        if request.ledger_id in self.ledgers and self.ledgers[request.ledger_id].nonce != request.nonce:
            return BookieStatus.FOREIGN, b""
        if request.fence:
            self._ledger(request.ledger_id, request.nonce).fenced = True
        if BookieOp.READ in self.forced:
            return self.forced[BookieOp.READ], b""
        ledger = self.ledgers.get(request.ledger_id)
        found: list[bytes] = []
        size = 0
        next_entry = request.last + 1
        for entry_id in sorted(ledger.entries) if ledger else ():
            if not request.first <= entry_id <= request.last:
                continue
            data = ledger.entries[entry_id] if ledger else b""
            if found and size + len(data) > request.bytes_max:
                next_entry = entry_id
                break
            found.append(data)
            size += len(data)
        if not found:
            if self.limbo:
                return BookieStatus.UNKNOWN, b""
            return (BookieStatus.NO_SUCH_LEDGER if ledger is None else BookieStatus.NO_SUCH_ENTRY), b""
        if self.limbo:
            next_entry = decode_entry_header(found[0]).entry_id + 1
            found = found[:1]
            if decode_entry_header(found[0]).entry_id != request.first:
                return BookieStatus.UNKNOWN, b""
        return BookieStatus.OK, b"".join(encode_read_answer(next_entry, found))

    def _ledger(self, ledger_id: int, nonce: int) -> FakeLedger:
        return self.ledgers.setdefault(ledger_id, FakeLedger(nonce=nonce))

    def intact(self, ledger_id: int) -> list[int]:
        """Ids of the undamaged entries stored of a ledger."""
        ledger = self.ledgers.get(ledger_id, FakeLedger())
        return sorted(entry_id for entry_id, data in ledger.entries.items() if entry_intact(data))


class FakeConnection:
    """One connection of a client to a bookie; requests of one turn of the loop arrive together in the next."""

    def __init__(self, bookie: FakeBookie) -> None:
        self.closed = False
        self.on_close: list[Callable[[FakeConnection], None]] = []
        self._bookie = bookie
        self._pending: dict[int, Answer] = {}
        self._next_id = 0
        self._outgoing: list[tuple[int, int, bytes]] = []
        bookie.connections.append(self)

    def request(self, op: int, parts: Sequence[bytes], callback: Answer) -> None:
        loop = asyncio.get_running_loop()
        if self.closed:
            loop.call_soon(callback, STATUS_DISCONNECTED, b"")
            return
        request_id = self._next_id = self._next_id + 1
        self._pending[request_id] = callback
        if not self._outgoing:
            loop.call_soon(self._deliver)
        self._outgoing.append((op, request_id, b"".join(parts)))

    def _deliver(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for op, request_id, payload in outgoing:
            if self.closed:
                return
            self._bookie.handle(op, payload, lambda status, data, one=request_id: self._answer(one, status, data))

    def _answer(self, request_id: int, status: int, payload: bytes) -> None:
        if self.closed:
            return
        if self._bookie.lose_answers:
            self.close(BookieUnavailable("the answer was lost"))
            return
        callback = self._pending.pop(request_id, None)
        if callback is not None:
            callback(status, payload)

    def close(self, error: BaseException | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        self._bookie.connections.remove(self)
        pending, self._pending = self._pending, {}
        loop = asyncio.get_running_loop()
        for callback in pending.values():
            loop.call_soon(callback, STATUS_DISCONNECTED, b"")
        for listener in self.on_close:
            loop.call_soon(listener, self)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class FakeCluster:
    """Bookies, a directory that lists them, metadata in memory, and what stands on them."""

    def __init__(self, bookies: int = 3, *, seed: int = 1, settings: Settings | None = None, **changes: object) -> None:
        self.env = Environment(SystemClock(), SeededChance(seed), ThreadOffload(1), RealFiles())
        self.settings = settings or Settings(**changes)  # type: ignore[arg-type]
        self.bookies = {f"bookie-{number}": FakeBookie(f"bookie-{number}") for number in range(1, bookies + 1)}
        self.directory = BookieDirectory()
        self.list_all()
        self.metadata = MemoryMetadataStore()
        self._clients: list[BookieClient] = []
        self.client = self.new_client()
        self.ledgers = Ledgers(self.env, self.metadata, self.client, self.settings)

    def new_client(self) -> BookieClient:
        """A client with connections of its own, as another broker has."""

        async def connect(info: BookieInfo) -> FakeConnection:
            await asyncio.sleep(0)
            bookie = self.bookies[info.id]
            if not bookie.alive:
                raise BookieUnavailable(f"{info.id} is down")
            return FakeConnection(bookie)

        client = BookieClient(
            self.env,
            Identity("cluster", "broker", "broker-1", "1"),
            RootKeys(b"secret"),
            self.settings,
            self.directory,
            connect=connect,  # type: ignore[arg-type]
        )
        self._clients.append(client)
        return client

    def new_ledgers(self) -> Ledgers:
        """The ledger side of another broker over the same metadata."""
        return Ledgers(self.env, self.metadata, self.new_client(), self.settings)

    def list_all(self, *, without: Sequence[str] = ()) -> None:
        """What the coordinator says: all bookies but these."""
        self.directory.update(
            BookieInfo(one, "127.0.0.1", 1000 + number) for number, one in enumerate(self.bookies) if one not in without
        )

    def __getitem__(self, number: int) -> FakeBookie:
        return self.bookies[f"bookie-{number}"]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.env.close()


class Adds:
    """Collects the outcomes of adds, in order of their callbacks."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, int] | BaseException | None] = []
        self._changed = asyncio.Event()

    def callback(self, position: tuple[int, int] | None, error: BaseException | None) -> None:
        self.outcomes.append(position if error is None else error)
        self._changed.set()

    @property
    def positions(self) -> list[tuple[int, int]]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, tuple)]

    @property
    def errors(self) -> list[BaseException]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, BaseException)]

    async def wait(self, count: int, timeout_s: float = 5.0) -> None:
        """Until so many adds have ended."""
        async with asyncio.timeout(timeout_s):
            while len(self.outcomes) < count:
                self._changed.clear()
                await self._changed.wait()


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for something that has no event of its own; fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (the conditions are of many objects)
            await asyncio.sleep(0.002)
