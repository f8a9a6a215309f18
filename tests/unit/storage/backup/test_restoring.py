"""What a restore changes in the records of a backup."""

import pytest

from magnetar.protocol.errors import BackupDamaged, MetadataError
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.storage.backup.backup_file import BackupHead, CheckedBackup, MetadataRecord
from magnetar.storage.backup.restoring import (
    EPOCHS,
    NUMBERS,
    VERSIONS,
    is_as_restored,
    is_restored_from,
    restored_floor,
    restored_records,
    version_growth,
)
from magnetar.storage.metadata import keys
from magnetar.storage.metadata.ledger_ids import GAP, RestoredIds
from magnetar.storage.metadata.slot_rows import EPOCH_SHIFT, SlotEntry, SlotOwner, SlotRows, decode_page
from magnetar.storage.metadata.store import Versioned

BACKUP = CheckedBackup("/backup", BackupHead("c", 1, 5, "sqlite"), 0, "digest")
CLUSTER = MetadataRecord(keys.CLUSTER, 0, pack({"id": "c", "created_ms": 1}))
EPOCH = MetadataRecord(keys.COORDINATOR_EPOCH, 3, pack({"epoch": 4}))


def restored(*records: MetadataRecord) -> dict[str, MetadataRecord]:
    found = list(restored_records(BACKUP, [CLUSTER, EPOCH, *records], 99))
    assert len({record.key for record in found}) == len(found)
    return {record.key: record for record in found}


def test_no_version_epoch_or_number_of_the_lost_time_comes_again() -> None:
    producer = keys.counter(keys.PRODUCER_COUNTER)
    found = restored(MetadataRecord(producer, 1, pack({"next": 7})), MetadataRecord("pins/x", 12, b"as it is"))
    assert found["pins/x"] == MetadataRecord("pins/x", 12 + VERSIONS, b"as it is")
    assert unpack(found[keys.COORDINATOR_EPOCH].value) == {"epoch": 4 + EPOCHS}
    assert unpack(found[producer].value) == {"next": 7 + NUMBERS}
    assert restored_floor(BACKUP, 99) == 5 + VERSIONS


def test_two_restores_of_one_backup_share_no_version() -> None:
    first, second = (
        {record.key: record for record in restored_records(BACKUP, [CLUSTER, EPOCH], now_ms)}
        for now_ms in (1 + 60_000, 1 + 61_000)
    )
    assert first.keys() == second.keys()
    for key, record in first.items():
        assert second[key].version - record.version >= VERSIONS, "more than a record changes in that time"
    assert restored_floor(BACKUP, 1 + 61_000) == second[keys.RESTORED_FROM].version
    for now_ms in (0, 1 << 60):  # a clock that is wrong
        assert VERSIONS <= version_growth(BACKUP, now_ms) < 1 << 63


def test_ids_of_ledgers_around_the_counter_are_marked_and_skipped() -> None:
    ledger = keys.counter(keys.LEDGER_COUNTER)
    found = restored(MetadataRecord(ledger, 1, pack({"next": 2 * GAP})))
    assert unpack(found[ledger].value) == {"next": 3 * GAP}
    marked = RestoredIds.unpack(Versioned(found[keys.RESTORED_LEDGERS].value, 0))
    assert marked == RestoredIds(((GAP, 3 * GAP),), 0, 2 * GAP)
    older = RestoredIds(((5, 9),), accepted_end=4, doubtful_end=3).pack()
    found = restored(
        MetadataRecord(ledger, 1, pack({"next": 2 * GAP})), MetadataRecord(keys.RESTORED_LEDGERS, 8, older)
    )
    marked = RestoredIds.unpack(Versioned(found[keys.RESTORED_LEDGERS].value, 0))
    assert marked == RestoredIds(((5, 9), (GAP, 3 * GAP)), 4, 2 * GAP)
    assert found[keys.RESTORED_LEDGERS].version == 8 + VERSIONS


def test_the_restored_store_names_its_backup_and_forgets_moves() -> None:
    moves = [MetadataRecord(key, 1, b"") for key in (keys.MOVED_FROM, keys.MOVED_TO, keys.RESTORED_FROM)]
    found = restored(*moves)
    assert keys.MOVED_TO not in found and keys.MOVED_FROM not in found
    note = found[keys.RESTORED_FROM]
    assert unpack(note.value) == {"digest": "digest", "backup_ms": 1, "restored_ms": 99, "epoch": EPOCHS + 4}
    assert is_restored_from(BACKUP, note)
    assert not is_restored_from(BACKUP, None)
    epoch = found[keys.COORDINATOR_EPOCH]
    assert is_as_restored(note, epoch)
    assert not is_as_restored(note, None)
    assert not is_as_restored(note, epoch._replace(value=pack({"epoch": EPOCHS + 5})))


def test_a_backup_without_a_cluster_or_with_a_broken_counter_is_refused() -> None:
    for records in ([CLUSTER], [EPOCH], []):
        with pytest.raises(BackupDamaged, match="lacks the records of a cluster"):
            list(restored_records(BACKUP, records, 0))
    with pytest.raises(MetadataError, match="counters/ledger"):
        restored(MetadataRecord(keys.counter(keys.LEDGER_COUNTER), 0, pack({"other": 1})))


def test_epochs_of_slots_and_topics_rise_above_those_of_the_lost_time() -> None:
    topic, owner = "persistent://public/default/t", SlotOwner("b", "1")
    rows = SlotRows({3: SlotEntry(owner, 9), 4: SlotEntry(None, 0)}, {topic: SlotEntry(owner, 12)})
    found = restored(
        MetadataRecord(keys.slot_page(0), 1, rows.pack()),
        MetadataRecord("topics/old", 1, pack({"partitions": 3})),
        MetadataRecord("topics/new", 1, pack({"partitions": 3, "epoch": 11})),
    )
    more = EPOCHS << EPOCH_SHIFT
    assert decode_page(found[keys.slot_page(0)].value) == SlotRows(
        {3: SlotEntry(owner, 9 + more), 4: SlotEntry(None, more)}, {topic: SlotEntry(owner, 12 + more)}
    )
    assert unpack(found["topics/old"].value) == {"partitions": 3}
    assert unpack(found["topics/new"].value) == {"partitions": 3, "epoch": 11 + more}
