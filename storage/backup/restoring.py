"""What a restore changes in the records of a backup.

Between the backup and the restore the cluster went on. It gave out numbers, and processes of that time may still run.
Bookies hold what it stored. So the restore makes sure that nothing is used twice, and that nothing of that time counts:

| record | change | why |
| --- | --- | --- |
| every record | its version grows by `version_growth` | a write of that time names a version that never comes again |
| the floor of versions | the same | records that are created later |
| `coordinator/epoch` | grows by `EPOCHS` | epochs of coordinators, and those of slots and topics, which begin with it |
| `slots/<page>` | its epochs grow by as much | members never go back to an owner with a lower epoch |
| `topics/<topic>` | the epoch of its creation grows by as much | a deletion of that time must not touch it |
| `counters/<name>` | grows by `NUMBERS` | numbers in the names of producers |
| `counters/ledger` | grows by `GAP` | ids of ledgers that the backup does not know |
| `restored/ledgers` | ids around the counter join it | bookies keep their ledgers; see `metadata.ledger_ids` |
| `restored/from` | is written | which backup it was, and the epoch: the store is as restored until that has grown |

The same backup may be restored again later. Processes of the time in between may still run, too. So versions grow with
the age of the backup, and are others after each restore of it.

Records of a move to another database are left out: they are of the store, not of the cluster.
"""

from collections.abc import Iterable, Iterator

from ...protocol.errors import BackupDamaged, MetadataError, ProtocolError
from ...runtime.rpc.messages import pack, unpack
from ..metadata import keys as metadata_keys
from ..metadata.ledger_ids import GAP, RestoredIds
from ..metadata.slot_rows import EPOCH_SHIFT, SlotEntry, SlotRows, decode_page
from ..metadata.store import Versioned
from .backup_file import CheckedBackup, MetadataRecord

VERSIONS = 1 << 32
"""More than the changes of one record in a second. A version has 63 bits."""
BACKUP_AGE_MAX_S = 1 << 30
EPOCHS = 1 << 16
"""More than the coordinators between two restores. An epoch has 31 bits."""
NUMBERS = 1 << 24

LEFT_OUT = (metadata_keys.MOVED_TO, metadata_keys.MOVED_FROM, metadata_keys.MOVED_PROBE, metadata_keys.RESTORED_FROM)


def version_growth(backup: CheckedBackup, now_ms: int) -> int:
    """How much versions grow in a restore at this moment: `VERSIONS`, and as much for each second since the backup."""
    age_s = max(0, now_ms - backup.head.created_ms) // 1000
    return VERSIONS * (1 + min(age_s, BACKUP_AGE_MAX_S))


def restored_floor(backup: CheckedBackup, now_ms: int) -> int:
    return backup.head.floor + version_growth(backup, now_ms)


def restored_records(backup: CheckedBackup, records: Iterable[MetadataRecord], now_ms: int) -> Iterator[MetadataRecord]:
    """The records of the restored store. Raises BackupDamaged if those of a cluster are not among them."""
    ledger_counter = metadata_keys.counter(metadata_keys.LEDGER_COUNTER)
    counter, epoch = 1, 0
    restored: MetadataRecord | None = None
    has_cluster = False
    growth = version_growth(backup, now_ms)
    for record in records:
        key, version, value = record
        if key in LEFT_OUT:
            continue
        if key == metadata_keys.RESTORED_LEDGERS:
            restored = record
            continue
        if key == ledger_counter:
            counter = _number(record, "next")
            value = pack({"next": counter + GAP})
        elif key.startswith(metadata_keys.COUNTERS_PREFIX):
            value = pack({"next": _number(record, "next") + NUMBERS})
        elif key == metadata_keys.COORDINATOR_EPOCH:
            epoch = _number(record, "epoch") + EPOCHS
            value = pack({"epoch": epoch})
        elif key.startswith(metadata_keys.SLOTS_PREFIX):
            value = _raised(decode_page(value)).pack()
        elif key.startswith(metadata_keys.TOPICS_PREFIX):
            fields = unpack(value)
            if "epoch" in fields:
                value = pack({**fields, "epoch": _number(record, "epoch") + (EPOCHS << EPOCH_SHIFT)})
        elif key == metadata_keys.CLUSTER:
            has_cluster = True
        yield MetadataRecord(key, version + growth, value)
    if not has_cluster or not epoch:
        raise BackupDamaged(f"the backup {backup.path} lacks the records of a cluster: use another backup")
    known = RestoredIds.unpack(Versioned(restored.value, restored.version) if restored is not None else None)
    floor = restored_floor(backup, now_ms)
    ids = known.restored(counter, counter + GAP).pack()
    yield MetadataRecord(metadata_keys.RESTORED_LEDGERS, floor if restored is None else restored.version + growth, ids)
    yield MetadataRecord(metadata_keys.RESTORED_FROM, floor, restore_note(backup, now_ms, epoch))


def restore_note(backup: CheckedBackup, now_ms: int, epoch: int) -> bytes:
    """The record that says which backup was restored, and what the coordinator's epoch was then."""
    created_ms = backup.head.created_ms
    return pack({"digest": backup.digest, "backup_ms": created_ms, "restored_ms": now_ms, "epoch": epoch})


def is_restored_from(backup: CheckedBackup, note: MetadataRecord | None) -> bool:
    """Whether a store's note names this backup."""
    return note is not None and unpack(note.value).get("digest") == backup.digest


def is_as_restored(note: MetadataRecord, epoch: MetadataRecord | None) -> bool:
    """Whether no coordinator has been active since: the record of its epoch is the one that the note names."""
    return epoch is not None and unpack(note.value).get("epoch") == unpack(epoch.value).get("epoch")


def _raised(rows: SlotRows) -> SlotRows:
    def higher(one: SlotEntry) -> SlotEntry:
        return SlotEntry(one.owner, one.epoch + (EPOCHS << EPOCH_SHIFT))

    return SlotRows(
        {slot: higher(one) for slot, one in rows.entries.items()},
        {topic: higher(one) for topic, one in rows.exceptions.items()},
    )


def _number(record: MetadataRecord, field: str) -> int:
    try:
        return int(unpack(record.value)[field])
    except (KeyError, TypeError, ValueError, ProtocolError) as error:
        raise MetadataError(f"the record {record.key} of the backup cannot be decoded: {error!r}") from error
