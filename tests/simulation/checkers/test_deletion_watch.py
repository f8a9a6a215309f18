"""The checker of deletions finds what its owner has open."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.protocol.slots import page_of, slot_of, slots_of_page
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner, SlotPage, SlotRows
from magnetar.storage.metadata.store import Versioned, pack
from simulation.checkers.deletion_watch import DeletionWatch
from simulation.checkers.history import History
from support.stores.memory_store import MemoryRecords

SLOTS = 64
WHOLE = TopicName.parse("persistent://public/default/t")
PARTITION = WHOLE.partition_topic(1)
OWNER, OTHER = SlotOwner("broker-1", "1"), SlotOwner("broker-2", "1")


class Cluster:
    """A topic with two partitions; broker-1 runs and has the second one open."""

    def __init__(self) -> None:
        self.history = History()
        self.records = MemoryRecords()
        self.loaded: dict[str, object] = {PARTITION.full: object()}
        service: Any = SimpleNamespace(
            broker_id="broker-1",
            topics=SimpleNamespace(loaded=self.loaded),
            ownership=SimpleNamespace(coordinator_epoch=2),
        )
        self.watch = DeletionWatch(self.history, self.records, SLOTS, lambda owner: service if owner == OWNER else None)
        self.owned_by(OWNER)

    def owned_by(self, owner: SlotOwner | None, *, alone: SlotOwner | None = None) -> None:
        """The stored owner of the partition's slot, and of the partition alone."""
        number = page_of(slot_of(PARTITION, SLOTS), SLOTS)
        entries = dict.fromkeys(slots_of_page(number, SLOTS), SlotEntry(owner, 5))
        exceptions = {} if alone is None else {PARTITION.full: SlotEntry(alone, 6)}
        page = SlotPage(number, SLOTS, SlotRows(entries, exceptions))
        self.records.by_key[metadata_keys.slot_page(number)] = Versioned(page.pack(), 1)

    def delete(self) -> list[str]:
        record = Versioned(pack({"partitions": 2, "deleting": True}), 3)
        self.watch.metadata_changed(metadata_keys.topic(WHOLE.path), record, None)
        return [violation.partition(":")[0] for violation in self.history.violations]

    def ask(self, epoch: int) -> list[str]:
        self.watch.asked([WHOLE.partition_topic(0), PARTITION], epoch)
        return [violation.partition(":")[0] for violation in self.history.violations]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_what_its_owner_has_open_may_not_go(cluster: Cluster) -> None:
    assert cluster.delete() == ["I16"]


def test_an_owner_that_was_asked_has_closed_it(cluster: Cluster) -> None:
    assert cluster.ask(2) == ["I16"]


def test_what_a_superseded_coordinator_had_closed_may_be_open_again(cluster: Cluster) -> None:
    assert cluster.ask(1) == []


def test_a_topic_that_was_closed_may_go(cluster: Cluster) -> None:
    cluster.loaded.clear()
    assert cluster.ask(2) == cluster.delete() == []


@pytest.mark.parametrize("owner", [None, OTHER])
def test_only_the_owner_counts(cluster: Cluster, owner: SlotOwner | None) -> None:
    cluster.owned_by(owner)
    assert cluster.ask(2) == cluster.delete() == []
    cluster.records.by_key.clear()
    assert cluster.delete() == []


def test_a_partition_that_moved_alone_has_its_own_owner(cluster: Cluster) -> None:
    cluster.owned_by(OWNER, alone=OTHER)
    assert cluster.delete() == []
    cluster.owned_by(OTHER, alone=OWNER)
    assert cluster.delete() == ["I16"]


def test_a_record_that_changes_is_no_deletion(cluster: Cluster) -> None:
    record = Versioned(pack({"partitions": 2}), 3)
    cluster.watch.metadata_changed(metadata_keys.topic(WHOLE.path), record, record)
    cluster.watch.metadata_changed(metadata_keys.managed_ledger(WHOLE.path), record, None)
    assert cluster.history.violations == []
