"""Counts what an event costs: metadata operations, messages, bytes and processor time."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.storage.metadata.store import Guard, MetadataStore, Versioned, Write, WriteResult
from support.stores.memory_store import MemoryMetadataStore


class Costs(NamedTuple):
    """What happened, as sums."""

    transactions: int = 0
    questions: int = 0
    read: int = 0
    """Records that were asked for, those that do not exist included."""
    written: int = 0
    messages: int = 0
    size_bytes: int = 0
    """Of the messages."""

    def minus(self, before: "Costs") -> "Costs":
        return Costs(*(now - then for now, then in zip(self, before, strict=True)))


class CountingStore(MemoryMetadataStore):
    """Counts what is asked of it."""

    transactions = 0
    questions = 0
    read = 0
    written = 0

    async def get(self, key: str) -> Versioned | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        self.questions += 1
        self.read += len(keys)
        return await super().get_many(keys)

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        self.transactions += 1
        self.written += len(writes)
        return await super().write_many(writes, guard)

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        self.transactions += 1
        self.written += 1
        return await super().allocate(counter, count, guard)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        found = await super().list(prefix, after=after, limit=limit)
        self.questions += 1
        self.read += len(found)
        return found


class Traffic:
    """Counts what goes over the internal RPC."""

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0

    def called(self, arguments: object, answer: object) -> object:
        """A call and its answer. Returns the answer as it arrives."""
        packed = pack(answer)
        self.messages += 2
        self.size_bytes += len(pack(arguments)) + len(packed)
        return unpack(packed)


class RemoteStore:
    """The coordinator's store as a member asks it: each question is a message, and each answer."""

    def __init__(self, store: MetadataStore, traffic: Traffic) -> None:
        self._store = store
        self._traffic = traffic

    async def get(self, key: str) -> Versioned | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        answers = await self._store.get_many(keys)
        self._traffic.called(list(keys), answers)
        return answers


class Event:
    """Prints, and notes in `costs`, what happened within the `with` block."""

    def __init__(self, store: CountingStore, traffic: Traffic, what: str, costs: dict[str, Costs]) -> None:
        self._store, self._traffic, self._what, self._costs = store, traffic, what, costs

    @staticmethod
    def print_head() -> None:
        print(
            f"{'event':52} {'trans.':>7} {'quest.':>7} {'read':>9} {'written':>8} {'messages':>8} {'kB sent':>9} "
            f"{'CPU ms':>9}"
        )

    def __enter__(self) -> None:
        self._before, self._cpu_s = self._now(), time.process_time()

    def __exit__(self, *error: object) -> None:
        cpu_ms = (time.process_time() - self._cpu_s) * 1e3
        costs = self._costs[self._what] = self._now().minus(self._before)
        print(
            f"{self._what:52} {costs.transactions:7} {costs.questions:7} {costs.read:9} {costs.written:8} "
            f"{costs.messages:8} {costs.size_bytes / 1e3:9.1f} {cpu_ms:9.1f}",
            flush=True,
        )

    def _now(self) -> Costs:
        store, traffic = self._store, self._traffic
        return Costs(
            store.transactions, store.questions, store.read, store.written, traffic.messages, traffic.size_bytes
        )
