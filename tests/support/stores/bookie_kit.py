"""Makes bookie stores for tests, over any files, and asks them things."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from magnetar.protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    decode_entry,
    decode_ledger_end,
    decode_read_answer,
    encode_add,
    encode_entry_header,
    encode_ledger,
    encode_read,
)
from magnetar.runtime.environment import Environment, SeededChance, SystemClock
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie.replay import format_directory
from magnetar.storage.bookie.store import BookieStore

from ..fakes.inline_offload import InlineOffload

DIRECTORY = "/bookie"
INSTANCE = "instance"


def make_env(files: Any, seed: int = 0) -> Environment:
    """Inline lanes and seeded chance over the given files."""
    return Environment(SystemClock(), SeededChance(seed), InlineOffload(), files)


def body_of(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    """Recognisable content without zeros."""
    text = f"<{ledger_id}:{entry_id}>".encode()
    return (text * (size // len(text) + 1))[:size]


def add_payload(
    ledger_id: int,
    entry_id: int,
    body: bytes | None = None,
    *,
    lac: int | None = None,
    recovery: bool = False,
    nonce: int = 0,
) -> bytes:
    body = body_of(ledger_id, entry_id) if body is None else body
    header = encode_entry_header(ledger_id, nonce, entry_id, entry_id - 1 if lac is None else lac, 0, body)
    return b"".join(encode_add(header, body, recovery))


class Bookie:
    """A store and everything that it answered. `answers` maps request ids to (status, payload)."""

    def __init__(
        self,
        files: Any,
        *,
        env: Environment | None = None,
        segment_bytes: int = 16 << 10,
        settings: Settings | None = None,
        directory: str = DIRECTORY,
    ) -> None:
        self.env = env or make_env(files)
        self.files = files
        self.fatal: list[BaseException] = []
        self.answers: dict[int, tuple[int, bytes]] = {}
        self._waiting: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._next_id = 0
        self.store = BookieStore(
            self.env,
            directory,
            INSTANCE,
            settings or Settings(),
            on_fatal=self.fatal.append,
            segment_bytes=segment_bytes,
        )

    @classmethod
    async def started(cls, files: Any, **options: Any) -> "Bookie":
        directory = options.get("directory", DIRECTORY)
        if not files.exists(f"{directory}/checkpoint"):
            format_directory(files, directory, INSTANCE)
        bookie = cls(files, **options)
        await bookie.store.open()
        return bookie

    async def restarted(self, **options: Any) -> "Bookie":
        """Close in good order and start again on the same files."""
        await self.store.close()
        return await Bookie.started(self.files, **options)

    # -- asking

    def respond(self, request_id: int, status: int, parts: Sequence[bytes] = ()) -> None:
        assert request_id not in self.answers, "answered twice"
        answer = self.answers[request_id] = (status, b"".join(parts))
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def respond_all(self, request_ids: Sequence[int], status: int) -> None:
        for request_id in request_ids:
            self.respond(request_id, status)

    def send(self, op: int, payload: bytes) -> int:
        """Ask without waiting; returns the request id."""
        self._next_id += 1
        self.store.request(self, op, self._next_id, payload)
        return self._next_id

    async def ask(self, op: int, payload: bytes) -> tuple[int, bytes]:
        return await self.answer(self.send(op, payload))

    async def answer(self, request_id: int) -> tuple[int, bytes]:
        if request_id in self.answers:
            return self.answers[request_id]
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        return await asyncio.wait_for(future, 5)

    async def add(self, ledger_id: int, entry_id: int, body: bytes | None = None, **options: Any) -> BookieStatus:
        status, _ = await self.ask(BookieOp.ADD, add_payload(ledger_id, entry_id, body, **options))
        return BookieStatus(status)

    async def add_many(self, ledger_id: int, entry_ids: Sequence[int], size: int = 100, recovery: bool = False) -> None:
        """All at once; every one must be accepted."""
        asked = [
            self.send(BookieOp.ADD, add_payload(ledger_id, n, body_of(ledger_id, n, size), recovery=recovery))
            for n in entry_ids
        ]
        for request_id in asked:
            assert (await self.answer(request_id))[0] == BookieStatus.OK

    async def read(
        self, ledger_id: int, first: int, last: int, bytes_max: int = 1 << 20, fence: bool = False, nonce: int = 0
    ) -> tuple[BookieStatus, int, dict[int, bytes]]:
        """(status, next entry id, body by entry id); the entries verified."""
        status, payload = await self.ask(BookieOp.READ, encode_read(ledger_id, nonce, first, last, bytes_max, fence))
        if status != BookieStatus.OK:
            return BookieStatus(status), first, {}
        next_entry_id, raw = decode_read_answer(payload)
        entries = [decode_entry(entry) for entry in raw]
        ids = [entry.entry_id for entry in entries]
        assert ids == sorted(ids) and all(entry.ledger_id == ledger_id for entry in entries)
        return BookieStatus.OK, next_entry_id, {entry.entry_id: entry.body for entry in entries}

    async def read_all(self, ledger_id: int, first: int, last: int) -> dict[int, bytes]:
        """Every entry of a range, in as many answers as it takes; no error may come."""
        found: dict[int, bytes] = {}
        while first <= last:
            status, first, entries = await self.read(ledger_id, first, last)
            if status == BookieStatus.NO_SUCH_ENTRY:
                break
            assert status == BookieStatus.OK, status
            found |= entries
        return found

    async def held(self, ledger_id: int, first: int, last: int, intact_only: bool = False) -> list[tuple[int, int]]:
        """Ranges of entries held, in as many answers as it takes."""
        return await held_ranges(self.store, ledger_id, 0, first, last, intact_only)

    async def fence(self, ledger_id: int, nonce: int = 0) -> tuple[BookieStatus, tuple[int, int] | None]:
        return self._state(await self.ask(BookieOp.FENCE, encode_ledger(ledger_id, nonce)))

    async def read_lac(self, ledger_id: int, nonce: int = 0) -> tuple[BookieStatus, tuple[int, int] | None]:
        return self._state(await self.ask(BookieOp.READ_LAC, encode_ledger(ledger_id, nonce)))

    @staticmethod
    def _state(answer: tuple[int, bytes]) -> tuple[BookieStatus, tuple[int, int] | None]:
        status, payload = answer
        if status != BookieStatus.OK:
            return BookieStatus(status), None
        lac, last_entry = decode_ledger_end(payload)
        return BookieStatus(status), (lac, last_entry)


async def held_ranges(
    store: BookieStore, ledger_id: int, nonce: int, first: int, last: int, intact_only: bool = False
) -> list[tuple[int, int]]:
    """All that a store says it holds of first…last; ranges that follow each other are one."""
    found: list[tuple[int, int]] = []
    while first <= last:
        ranges, first = await store.held_ranges(ledger_id, nonce, first, last, intact_only)
        for low, high in ranges:
            if found and found[-1][1] == low - 1:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
    return found


def bodies(ledger_id: int, entry_ids: Sequence[int], size: int = 100) -> dict[int, bytes]:
    """What `read_all` must return after `add_many`."""
    return {entry_id: body_of(ledger_id, entry_id, size) for entry_id in entry_ids}


async def turns(condition: Callable[[], object]) -> None:
    """Let the loop turn, on inline lanes that is all it takes, until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")
