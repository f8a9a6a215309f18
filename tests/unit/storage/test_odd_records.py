"""Records of the right shape with impossible numbers in them. Found by `tests/fuzz` (target records)."""

import pytest

from magnetar.protocol.errors import MetadataError
from magnetar.runtime.rpc_messages import pack
from magnetar.storage.cursor import CursorRecord
from magnetar.storage.ledger_metadata import LedgerMetadata
from magnetar.storage.managed_ledger_record import ManagedLedgerRecord


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
