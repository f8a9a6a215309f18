"""Records of the right shape with impossible numbers in them. Found by `tests/fuzz` (target records)."""

import pytest

from magnetar.protocol.bookie_wire import LedgerEntry
from magnetar.protocol.errors import MetadataError
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.managed.cursor_storage import CursorRecord, read_last, split
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata


def test_infinity_is_no_number_of_a_record():
    record = {"epoch": float("inf"), "ledgers": [], "deleting": [], "highest_ledger_id": 0}
    with pytest.raises(MetadataError):
        ManagedLedgerRecord.unpack(pack(record))
    with pytest.raises(MetadataError):
        LedgerMetadata.unpack(pack({"ledger_id": float("inf")}))


@pytest.mark.parametrize("field, value", [("ledger", "seven"), ("ledger", [7]), ("state", 5), ("state", "text")])
def test_a_cursor_names_a_ledger_by_number_and_has_its_state_in_bytes(field, value):
    with pytest.raises(MetadataError):
        CursorRecord.unpack(pack({"epoch": 1, "ledger": None, "state": None, field: value}))


async def test_a_whole_snapshot_is_found_behind_pieces_that_belong_to_nothing():
    """A broken-off snapshot's own part number says nothing about what lies before it."""
    bodies = [*split(b"a" * 70, 20), split(b"b" * 70, 20)[1], split(b"c" * 70, 20)[0]]

    class Reader:
        ledger_id = 5

        async def read(self, first: int, last: int, entries_max: int) -> list[LedgerEntry]:
            return await self.read_all(first, last)

        async def read_all(self, first: int, last: int) -> list[LedgerEntry]:
            return [LedgerEntry(5, 0, number, -1, 0, bodies[number]) for number in range(first, last + 1)]

    assert await read_last(Reader(), len(bodies) - 1) == (b"a" * 70, [])  # type: ignore[arg-type]
