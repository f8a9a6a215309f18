"""What happens to the metadata, checked at every change, whoever made it.

- I2: epochs never fall: of a topic's chain, of its producers' access, of its cursors, of slots and exceptions (there
  each change of the owner raises it); the ids of a chain ascend, and the highest one is never forgotten.
- I2, where topics have records: no chain begins for a topic that does not exist, or is being deleted, and none is left
  when the topic is gone.
- I10: nothing is ever written about a name that clients only asked about.
- I9: no ledger's record is deleted while a chain or a cursor names it, and neither ever names one that is not there.
  Every key that is written belongs to a known kind of record, because the search for orphans walks the known kinds.

I3 is `History`'s.
"""

import re

from magnetar.actors.auditor.orphans import RECORD_KINDS
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import UNOWNED, SlotEntry, decode_page
from magnetar.storage.metadata.store import Versioned, unpack
from support.stores.memory_store import MemoryRecords

from .history import History

ASKED = "only-asked-about"
"""In the names of topics that nobody creates."""

PARTITION_ENDING = re.compile("-partition-[0-9]+$")

KNOWN_PREFIXES = tuple(kind.prefix for kind in RECORD_KINDS)


class MetadataWatch:
    """See the module. `topics`: whether topics have records here."""

    def __init__(self, history: History, records: MemoryRecords, *, topics: bool = False) -> None:
        self._history = history
        self._records = records
        self._topics = topics
        self._named: dict[str, tuple[int, ...]] = {}
        """Key of a chain or cursor → the ledgers that it names."""
        self._owned: dict[int | str, SlotEntry] = {}
        """By slot, and by topic that was moved alone."""
        self.deleted: dict[int, None] = {}
        """Ledgers whose record was deleted once. A creation that is carried out late may bring the record back, but
        nobody names it any longer: the ledger is gone all the same."""

    def changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record was written, or (None) deleted."""
        if ASKED in key:
            self._history.violated(f"I10: {key} is written, and clients only asked about that name")
        if not key.startswith(KNOWN_PREFIXES):
            self._history.violated(f"I9: {key} is of no known kind, and the search for orphans passes over its ledgers")
        if key.startswith(metadata_keys.LEDGERS_PREFIX):
            if after is None:
                self._ledger_deleted(metadata_keys.ledger_id_of(key))
        elif key.startswith(metadata_keys.MANAGED_PREFIX):
            self._chain_changed(key, before, after)
        elif key.startswith(metadata_keys.CURSORS_PREFIX):
            self._cursor_changed(key, before, after)
        elif key.startswith(metadata_keys.TOPICS_PREFIX) and after is None:
            path = key.removeprefix(metadata_keys.TOPICS_PREFIX)
            parts = (metadata_keys.managed_ledger(path), metadata_keys.managed_ledger(f"{path}-partition-0"))
            if self._topics and (left := [one for one in parts if one in self._records.by_key]):
                self._history.violated(f"I2: the topic {path} is deleted, and {left} is left of it")
        elif key.startswith(metadata_keys.SLOTS_PREFIX) and after is not None:
            rows = decode_page(after.value)
            for what, one in (*rows.entries.items(), *rows.exceptions.items()):
                had = self._owned.get(what, UNOWNED)
                if one != had and one.epoch <= had.epoch:
                    self._history.violated(f"I2: {what} belongs to {one} after {had}")
                self._owned[what] = one

    def _exists(self, path: str) -> bool:
        for one in (path, PARTITION_ENDING.sub("", path)):
            found = self._records.by_key.get(metadata_keys.topic(one))
            if found is not None:
                return not unpack(found.value).get("deleting")
        return False

    def _ledger_deleted(self, ledger_id: int) -> None:
        self.deleted[ledger_id] = None
        for key, named in self._named.items():
            if ledger_id in named:
                self._history.violated(f"I9: the record of ledger {ledger_id} is deleted, and {key} names it")

    def _chain_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        old = ManagedLedgerRecord.unpack(before.value) if before is not None else None
        if after is None:
            self._named.pop(key, None)
            if old is not None and old.ledgers:
                left = [info.ledger_id for info in old.ledgers]
                self._history.violated(f"I9: {key} is deleted, and its ledgers {left} are not")
            return
        path = key.removeprefix(metadata_keys.MANAGED_PREFIX)
        if self._topics and before is None and not self._exists(path):
            self._history.violated(f"I2: {key} is made for a topic that does not exist, or is being deleted")
        new = ManagedLedgerRecord.unpack(after.value)
        ids = [info.ledger_id for info in new.ledgers]
        if ids != sorted(dict.fromkeys(ids)):
            self._history.violated(f"I2: the chain {key} is out of order: {ids}")
        if old is not None and any(now < then for now, then in zip(_rising(new), _rising(old), strict=True)):
            self._history.violated(f"I2: {key} goes back from {old} to {new}")
        if old is not None and new.epoch == old.epoch:
            lost = [info.ledger_id for info in old.ledgers if info.ledger_id not in (*ids, *new.deleting)]
            if lost:
                self._history.violated(f"I9: {key} forgets its ledgers {lost} without deleting them")
        self._names(key, tuple(ids))

    def _cursor_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if after is None:
            self._named.pop(key, None)
            return
        new = CursorRecord.unpack(after.value)
        if before is not None and CursorRecord.unpack(before.value).epoch > new.epoch:
            self._history.violated(f"I2: the cursor {key} goes back to epoch {new.epoch}")
        self._names(key, () if new.ledger_id is None else (new.ledger_id,))

    def _names(self, key: str, ledger_ids: tuple[int, ...]) -> None:
        self._named[key] = ledger_ids
        gone = [one for one in ledger_ids if metadata_keys.ledger(one) not in self._records.by_key]
        if gone:
            self._history.violated(f"I9: {key} names ledgers {gone}, which are not there")


def _rising(record: ManagedLedgerRecord) -> tuple[int, int, int]:
    """What may only rise."""
    return record.epoch, record.highest_ledger_id, record.topic_epoch
