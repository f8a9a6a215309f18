"""Ledgers of one topic in memory, for bulk reads without bookies: the reader of ranges runs over them."""

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from magnetar.bulk.access import ClusterAccess
from magnetar.bulk.decryption import NO_KEYS, ReadKeys
from magnetar.bulk.range_reader import RangeReader
from magnetar.bulk.read_plan import ReadSplit
from magnetar.bulk.typed.choice import RowShape
from magnetar.bulk.typed.columns import COLUMNS
from magnetar.protocol.bookie_wire import LedgerEntry
from magnetar.protocol.message_id import Position
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState

ACCESS = ClusterAccess("cluster", RootKeys(b"s" * 32), ("127.0.0.1", 1))


class LedgersInMemory:
    """The entries of ledgers, and how often each was read."""

    def __init__(self) -> None:
        self.bodies: dict[Position, bytes] = {}
        self.reads: dict[Position, int] = {}

    def store(self, ledger_id: int, bodies: Sequence[bytes], *, closed: bool = True) -> LedgerMetadata:
        """A ledger of these entries."""
        self.bodies |= {(ledger_id, entry_id): body for entry_id, body in enumerate(bodies)}
        state = LedgerState.CLOSED if closed else LedgerState.OPEN
        length = sum(map(len, bodies)) if closed else 0
        fragment = Fragment(0, ("bookie-1",))
        return LedgerMetadata(ledger_id, 1, 1, 1, (fragment,), state, len(bodies) - 1 if closed else -1, length)


class _LedgerInMemory:
    """Reads one ledger as `LedgerReader` does."""

    def __init__(self, ledgers: LedgersInMemory, ledger_id: int) -> None:
        self._ledgers = ledgers
        self._ledger_id = ledger_id

    def _entry(self, entry_id: int) -> LedgerEntry:
        place = (self._ledger_id, entry_id)
        self._ledgers.reads[place] = self._ledgers.reads.get(place, 0) + 1
        return LedgerEntry(self._ledger_id, 1, entry_id, entry_id - 1, 0, self._ledgers.bodies[place])

    async def read(self, first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        entries = [self._entry(first)]
        while entries[-1].entry_id < last and sum(len(entry.body) for entry in entries) < bytes_max:
            entries.append(self._entry(entries[-1].entry_id + 1))
        return entries

    async def read_all(self, first: int, last: int) -> list[LedgerEntry]:
        return [self._entry(entry_id) for entry_id in range(first, last + 1)]

    async def stream(self, first: int, last: int, *, entries_per_read: int = 500) -> AsyncIterator[list[LedgerEntry]]:
        for start in range(first, last + 1, entries_per_read):
            yield await self.read_all(start, min(start + entries_per_read - 1, last))


class RangeReaderInMemory(RangeReader):
    """The range reader, over ledgers in memory."""

    def __init__(self, env: Environment, ledgers: LedgersInMemory) -> None:
        super().__init__(env, ACCESS)
        self._ledgers = ledgers

    def _reader_of(self, ledger: LedgerMetadata) -> _LedgerInMemory:  # type: ignore[override]
        return _LedgerInMemory(self._ledgers, ledger.ledger_id)

    async def table(
        self, splits: Sequence[ReadSplit], columns: Sequence[str] = COLUMNS, keys: ReadKeys = NO_KEYS
    ) -> list[dict[str, object]]:
        """The rows of several splits, one after the other."""
        rows: list[dict[str, object]] = []
        for split in splits:
            async for batch in self.read(split, [], RowShape(tuple(columns)), keys):
                assert isinstance(batch, pa.RecordBatch)
                batch.validate(full=True)
                rows += batch.to_pylist(maps_as_pydicts="strict")
        return rows
