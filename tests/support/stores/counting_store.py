"""A metadata store that counts what is asked of it."""

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.storage.metadata.store import Guard, Versioned, Write, WriteResult
from support.stores.memory_store import MemoryMetadataStore


class Operations(NamedTuple):
    """Questions (however many keys each has), transactions that write, and records that these name."""

    questions: int = 0
    transactions: int = 0
    records: int = 0


class CountingStore(MemoryMetadataStore):
    """See the module."""

    operations = Operations()

    def take(self) -> Operations:
        """What was asked since the last call."""
        taken, self.operations = self.operations, Operations()
        return taken

    async def get(self, key: str) -> Versioned | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        self._count(questions=1)
        return await super().get_many(keys)

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        self._count(transactions=1, records=len(writes))
        return await super().write_many(writes, guard)

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        self._count(transactions=1, records=1)
        return await super().allocate(counter, count, guard)

    def _count(self, questions: int = 0, transactions: int = 0, records: int = 0) -> None:
        known = self.operations
        self.operations = Operations(
            known.questions + questions, known.transactions + transactions, known.records + records
        )

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        self._count(questions=1)
        return await super().list(prefix, after=after, limit=limit)
