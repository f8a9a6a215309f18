"""I1, seen where a cursor's state is stored: an acknowledged write is where the next owner of the cursor looks.

When a write to a cursor's ledger is acknowledged, the *stored* record names that ledger, or another owner has the
cursor by now. Otherwise a restart would go back to what the ledger in the record says, and positions that were
acknowledged would come again. `LedgerHistory` judges what owners really find. This names the write that went astray.

An owner that closes puts a small state into the record. If the answer is lost it writes the same state to the ledger.
Then the record may have that very state, and names no ledger: the next owner finds what was written.
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
            self.stored(storage, state)

        stack.enter_context(patch.object(CursorStorage, "write", writing))

    def stored(self, storage: CursorStorage, state: CursorState) -> None:
        """A write of this state was acknowledged."""
        found, writer = self._records.by_key.get(storage._key), storage.ledger_writer
        if found is None or writer is None or is_dead():
            return
        record = CursorRecord.unpack(found.value)
        if record.epoch != storage._home.epoch or record.ledger_id == writer.ledger_id:
            return
        if record.ledger_id is not None or record.state != state.pack():
            self._history.violated(
                f"I1: {who()} stored cursor {storage.name} in ledger {writer.ledger_id}, and its record names "
                f"{record.ledger_id}: a restart would go back"
            )
