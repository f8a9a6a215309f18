"""I1, seen where a cursor's state is stored: an acknowledged write is where the next owner of the cursor looks.

When a write to a cursor's ledger is acknowledged, the *stored* record names that ledger, or another owner has the
cursor by now. Otherwise a restart would go back to what the ledger in the record says, and positions that were
acknowledged would come again. `LedgerHistory` judges what owners really find. This names the write that went astray.
"""

from contextlib import ExitStack
from typing import Protocol
from unittest.mock import patch

from magnetar.storage.managed.cursor_state import CursorState
from magnetar.storage.managed.cursor_storage import CursorRecord, CursorStorage
from support.stores.memory_store import MemoryRecords

from .store_watch import is_dead, who


class Judge(Protocol):
    """What it tells of violations."""

    def violated(self, sentence: str) -> None: ...


class CursorWatch:
    """See the module. `records` is the metadata as it is."""

    def __init__(self, history: Judge, records: MemoryRecords) -> None:
        self._history = history
        self._records = records

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        write = CursorStorage.write

        async def writing(storage: CursorStorage, state: CursorState) -> None:
            await write(storage, state)
            self.stored(storage)

        stack.enter_context(patch.object(CursorStorage, "write", writing))

    def stored(self, storage: CursorStorage) -> None:
        """A write was acknowledged."""
        found, writer = self._records.by_key.get(storage._key), storage.ledger_writer
        if found is None or writer is None or is_dead():
            return
        record = CursorRecord.unpack(found.value)
        if record.epoch == storage._home.epoch and record.ledger_id != writer.ledger_id:
            self._history.violated(
                f"I1: {who()} stored cursor {storage.name} in ledger {writer.ledger_id}, and its record names "
                f"{record.ledger_id}: a restart would go back"
            )
