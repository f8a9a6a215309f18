"""The table of record kinds is complete, and agrees with the keys and with what brokers may write."""

import pytest

from magnetar.actors.auditor.orphans import RECORD_KINDS
from magnetar.actors.members.permissions import BROKER_RECORDS
from magnetar.protocol.errors import MetadataError
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from magnetar.storage.metadata.schema_record import SchemaRecord, StoredSchema

KIND_OF = {kind.prefix: kind for kind in RECORD_KINDS}
KEYS = {
    name: value
    for name, value in vars(keys).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str) and not name.endswith("_COUNTER")
}
"""By constant: every prefix of `keys`, and every key that there is only one of."""


def test_every_prefix_of_the_keys_has_exactly_one_entry_in_the_table() -> None:
    assert len(KIND_OF) == len(RECORD_KINDS)
    assert sorted(KEYS.values()) == sorted(KIND_OF)


def test_no_prefix_is_the_beginning_of_another() -> None:
    assert [(one, other) for one in KIND_OF for other in KIND_OF if one != other and other.startswith(one)] == []


def test_brokers_may_write_exactly_the_kinds_that_the_table_gives_them() -> None:
    assert sorted(BROKER_RECORDS) == sorted(kind.prefix for kind in RECORD_KINDS if kind.brokers_write)


def test_a_chain_names_its_ledgers_and_those_that_are_still_to_delete() -> None:
    record = ManagedLedgerRecord(1, (LedgerInfo(7, 1), LedgerInfo(8, 2)), (5, 6), 8)
    assert list(KIND_OF[keys.MANAGED_PREFIX].ledgers_named_by("managed/t", record.pack())) == [7, 8, 5, 6]


def test_a_schema_record_keeps_its_versions_and_names_no_ledgers() -> None:
    record = SchemaRecord().with_version(StoredSchema(0, 4, b"data", b"m" * 32, 5, {"a": "b"}))
    record = record.with_version(StoredSchema(1, 1, b"", b"n" * 32, 6))
    assert SchemaRecord.unpack(record.pack()) == record
    assert [one.version for one in record.present] == [0, 1] and record.next_version == 2
    assert list(KIND_OF[keys.SCHEMAS_PREFIX].ledgers_named_by(keys.schema("persistent/t/n/x"), record.pack())) == []


def test_the_deletion_in_a_schema_record_drops_what_was_before_it() -> None:
    record = SchemaRecord().with_version(StoredSchema(0, 4, b"data", b"m" * 32, 5))
    deleted = record.with_version(StoredSchema(1, 0, b"", b"", 6, deleted=True))
    assert (deleted.present, len(deleted.versions), deleted.next_version) == ((), 1, 2)
    assert SchemaRecord.unpack(deleted.pack()) == deleted


@pytest.mark.parametrize(
    "versions",
    [
        None,
        5,
        [[0, 4, b"", b"", 1]],
        [[0, 4, 7, b"", 1, {}, False]],
        [[0, 4, "text", b"", 1, {}, False]],
        [[0, 4, b"", b"", 1, 5, False]],
        [[-1, 4, b"", b"", 1, {}, False]],
        [[1, 4, b"", b"", 1, {}, False], [1, 4, b"", b"", 1, {}, False]],
    ],
)
def test_what_is_no_schema_record_is_refused(versions: object) -> None:
    with pytest.raises(MetadataError):
        SchemaRecord.unpack(pack({"versions": versions}))


def test_a_ledgers_own_record_does_not_keep_the_ledger() -> None:
    record = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("b1",)),))
    assert list(KIND_OF[keys.LEDGERS_PREFIX].ledgers_named_by(keys.ledger(7), record.pack())) == []


@pytest.mark.parametrize("prefix", [kind.prefix for kind in RECORD_KINDS])
def test_no_kind_decodes_nonsense(prefix: str) -> None:
    for nonsense in (b"", b"\x00nonsense", pack([1, 2]), pack("text"), b"\xc1"):
        with pytest.raises(MetadataError):
            KIND_OF[prefix].decode(nonsense)
