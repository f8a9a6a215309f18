"""Garbage collection: deletes what the metadata has deleted, and in every doubtful case nothing."""

from dataclasses import replace
from typing import Any

import pytest

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.protocol.errors import BadVersion, CookieMismatch, MetadataError, MetadataUnavailable
from magnetar.storage.bookie.collection_scope import CollectionScope
from magnetar.storage.bookie.compaction import Compactor
from magnetar.storage.bookie.garbage_collection import Collected
from magnetar.storage.bookie.garbage_collection import collect_garbage as collect_round
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata import ledger_records
from magnetar.storage.metadata.ledger_ids import GAP, LedgerIds, RestoredIds
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from magnetar.storage.metadata.ledger_records import LedgerRecords
from magnetar.storage.metadata.store import pack
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import Bookie, bodies, held_ranges
from support.stores.memory_store import MemoryMetadataStore

S = BookieStatus
CLUSTER = "cluster-1"


ME = "bookie-1"
OPEN = LedgerMetadata(0, 3, 3, 2, (Fragment(0, ("bookie-1", "bookie-2", "bookie-3")),))
ELSEWHERE = (Fragment(0, ("bookie-2", "bookie-3", "bookie-4")),)


def collect_garbage(store: Any, metadata: Any, cluster_id: str) -> Any:
    return collect_round(store, metadata, lambda *record: renewing(metadata, *record), cluster_id, ME)


async def renewing(metadata: Any, ledger_id: int, version: int) -> None:
    await ledger_records.renew(metadata, ledger_id, version)


def record_of(ledger_id: int, **changes: Any) -> bytes:
    return replace(OPEN, ledger_id=ledger_id, **changes).pack()


class Metadata(MemoryMetadataStore):
    """`before_answer` is awaited before each `get_many` answers; `fail` is raised by it; `drop` shortens the answer."""

    before_answer: Any = None
    fail: Any = None
    drop = 0

    async def get_many(self, keys):
        answers = await super().get_many(keys)
        if metadata_keys.CLUSTER in keys:
            return answers
        if self.before_answer is not None:
            await self.before_answer()
        if self.fail is not None:
            raise self.fail
        return answers[self.drop :]


@pytest.fixture
async def metadata():
    store = Metadata()
    await store.put(metadata_keys.CLUSTER, pack({"id": CLUSTER, "created_ms": 1}), None)
    for ledger_id in (1, 2):
        await store.put(metadata_keys.ledger(ledger_id), record_of(ledger_id), None)
    await store.allocate(metadata_keys.LEDGER_COUNTER, 100)
    return store


@pytest.fixture
async def bookie():
    made = await Bookie.started(FaultyFiles())
    for ledger_id in (1, 2, 3):
        await made.add_many(ledger_id, range(3))
    yield made
    await made.store.close()


def kept(bookie):
    return sorted(bookie.store.entries.ledgers)


async def test_only_what_the_metadata_does_not_know_goes(bookie, metadata):
    done = await collect_garbage(bookie.store, metadata, CLUSTER)
    assert (done.ledgers_seen, done.ledgers_deleted) == (3, 1) and kept(bookie) == [1, 2]
    assert await bookie.add(3, 3) == S.FENCED
    await metadata.delete(metadata_keys.ledger(1), None)
    await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [2] and await bookie.read_all(2, 0, 9) == bodies(2, range(3))


async def test_an_empty_or_foreign_store_deletes_nothing(bookie, metadata):
    for store, cluster in ((Metadata(), CLUSTER), (metadata, "another"), (Metadata(), "")):
        with pytest.raises(CookieMismatch):
            await collect_garbage(bookie.store, store, cluster)
    assert kept(bookie) == [1, 2, 3]


async def test_a_store_that_is_emptied_in_the_middle_of_the_question_deletes_nothing(bookie, metadata):
    async def wipe():
        metadata.records.by_key.clear()
        metadata.records.keys.clear()

    metadata.before_answer = wipe
    with pytest.raises(CookieMismatch):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 3]


async def test_an_error_or_a_short_answer_deletes_nothing(bookie, metadata):
    metadata.fail = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    metadata.fail, metadata.drop = None, 1
    with pytest.raises(MetadataError):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 3]


async def test_a_ledger_that_appears_during_the_round_is_not_judged(bookie, metadata):
    async def create():
        await bookie.add_many(9, [0])

    metadata.before_answer = create
    await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 9]


@pytest.mark.parametrize("touch", ["recovery copy", "fence"])
async def test_a_ledger_touched_by_recovery_during_the_round_is_kept_until_the_next(bookie, metadata, touch):
    async def race():
        if touch == "fence":
            await bookie.fence(3)
        else:
            await bookie.add_many(3, [3], recovery=True)

    metadata.before_answer = race
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_deleted == 0
    assert kept(bookie) == [1, 2, 3]
    metadata.before_answer = None
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_deleted == 1


async def test_ledgers_that_were_only_fenced_go_too_and_stay_refused(bookie, metadata):
    assert (await bookie.fence(77))[0] == S.OK
    await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2] and await bookie.add(77, 0) == S.FENCED


# -- the metadata is older than the ledgers ---------------------------------------------------------------------------


async def restored_to(counter: int, *ledger_ids: int) -> Metadata:
    """Metadata as it was when `counter` was the next id and these ledgers existed."""
    store = Metadata()
    await store.put(metadata_keys.CLUSTER, pack({"id": CLUSTER, "created_ms": 1}), None)
    if counter > 1:
        await store.allocate(metadata_keys.LEDGER_COUNTER, counter - 1)
    for ledger_id in ledger_ids:
        await store.put(metadata_keys.ledger(ledger_id), record_of(ledger_id), None)
    return store


async def test_ledgers_newer_than_restored_metadata_are_kept_and_counted(bookie):
    done = await collect_garbage(bookie.store, await restored_to(3, 1), CLUSTER)
    assert done == Collected(3, 0, 0, 2) and kept(bookie) == [1, 2, 3]
    done = await collect_garbage(bookie.store, await restored_to(4, 1), CLUSTER)
    assert done == Collected(3, 2, 0, 0) and kept(bookie) == [1], "a counter above all of them: they were deleted"


async def test_restored_ids_below_the_counter_are_kept_until_their_loss_is_accepted(bookie):
    store = await restored_to(2, 1)
    ids = LedgerIds(bookie.env, store)
    await ids.known(bookie.store.entries.ledgers_end, "bookie-1")
    assert await ids.allocate(10) == 4 + GAP and 2 in ids.restored and 3 in ids.restored
    for _ in range(2):
        assert (await collect_garbage(bookie.store, store, CLUSTER)).ledgers_unknown == 2
    assert kept(bookie) == [1, 2, 3]
    assert (await ids.accept()).ranges == ((0, 4 + GAP),)
    assert (await collect_garbage(bookie.store, store, CLUSTER)).ledgers_deleted == 2
    assert kept(bookie) == [1] and await bookie.read_all(1, 0, 9) == bodies(1, range(3))


async def test_a_counter_that_is_raised_between_answers_and_verdict_deletes_nothing(bookie):
    older = await restored_to(2, 1)

    async def raised():
        await LedgerIds(bookie.env, older).known(4, "another bookie")

    older.before_answer = raised
    done = await collect_garbage(bookie.store, older, CLUSTER)
    assert (done.ledgers_deleted, done.ledgers_unknown) == (0, 2) and kept(bookie) == [1, 2, 3]


async def test_metadata_that_becomes_older_behind_the_answers_keeps_what_it_does_not_know(bookie, metadata):
    older = await restored_to(2, 1)

    async def restore():
        metadata.records = older.records

    metadata.before_answer = restore
    done = await collect_garbage(bookie.store, metadata, CLUSTER)
    assert (done.ledgers_deleted, done.ledgers_unknown) == (0, 1) and kept(bookie) == [1, 2, 3]


async def test_a_ledger_known_with_another_nonce_is_kept_until_its_loss_is_accepted(bookie, metadata):
    version = (await metadata.get(metadata_keys.ledger(2))).version
    await metadata.put(metadata_keys.ledger(2), record_of(2, nonce=77), version)
    done = await collect_garbage(bookie.store, metadata, CLUSTER)
    assert (done.ledgers_deleted, done.ledgers_unknown) == (1, 1) and kept(bookie) == [1, 2]
    await LedgerIds(bookie.env, metadata).accept()
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_deleted == 1
    assert kept(bookie) == [1]


async def test_a_restored_record_that_cannot_be_read_deletes_nothing(bookie, metadata):
    await metadata.put(metadata_keys.RESTORED_LEDGERS, b"?", None)
    with pytest.raises(MetadataError):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 3]


# -- copies that are given up -----------------------------------------------------------------------------------------


async def sealed(bookie: Bookie) -> Bookie:
    """Everything in sealed segments, as after a restart."""
    return await bookie.restarted()


async def moved_away(metadata: Metadata, ledger_id: int, **changes: Any) -> None:
    """The ledger's record names this bookie no longer."""
    found = await metadata.get(metadata_keys.ledger(ledger_id))
    value = LedgerMetadata.unpack(record_of(ledger_id, fragments=ELSEWHERE, **changes)).close(2, 300).pack()
    await metadata.put(metadata_keys.ledger(ledger_id), value, found.version)


async def test_a_closed_ledger_that_lies_elsewhere_is_given_up_and_stays_fenced(bookie, metadata):
    bookie = await sealed(bookie)
    await moved_away(metadata, 1)
    done = await collect_garbage(bookie.store, metadata, CLUSTER)
    assert done.ledgers_given_up == 1 and kept(bookie) == [1, 2]
    for _ in range(2):
        assert await bookie.add(1, 3) == S.FENCED
        assert (await bookie.read(1, 0, 9))[0] == S.UNKNOWN and (await bookie.fence(1))[0] == S.UNKNOWN
        assert (await bookie.read(1, 0, 9, fence=True))[0] == S.UNKNOWN
        assert await held_ranges(bookie.store, 1, 0, 0, 9) == []
        assert await bookie.read_all(2, 0, 9) == bodies(2, range(3))
        compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 30)
        await compactor.run(0.99)
        await compactor.close()
        assert not any(1 in segment.table for segment in bookie.store.entries.segments.values())
        bookie = await bookie.restarted()
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_given_up == 0
    await bookie.add_many(1, range(3), recovery=True)
    assert await held_ranges(bookie.store, 1, 0, 0, 9) == [(0, 2)], "it can be given back"
    assert await bookie.read_all(1, 0, 2) == bodies(1, range(3))


@pytest.mark.parametrize("state", ["named", "open", "in recovery", "older than accepted losses", "restored"])
async def test_what_is_named_open_in_recovery_or_perhaps_restored_is_not_given_up(bookie, metadata, state):
    bookie = await sealed(bookie)
    found = await metadata.get(metadata_keys.ledger(1))
    record = LedgerMetadata.unpack(record_of(1, fragments=ELSEWHERE))
    if state == "named":
        record = LedgerMetadata.unpack(record_of(1)).close(2, 300)
    elif state == "in recovery":
        record = record.in_recovery()
    elif state != "open":
        record = record.close(2, 300)
    if state == "older than accepted losses":
        await metadata.put(metadata_keys.RESTORED_LEDGERS, RestoredIds((), 50).pack(), None)
    elif state == "restored":
        await metadata.put(metadata_keys.RESTORED_LEDGERS, RestoredIds(((40, 60),)).pack(), None)
    await metadata.put(metadata_keys.ledger(1), record.pack(), found.version)
    for _ in range(2):
        assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_given_up == 0
    assert await bookie.read_all(1, 0, 9) == bodies(1, range(3))


@pytest.mark.parametrize("when", ["before the mark", "after the mark"])
async def test_an_auditor_that_copies_here_wins_or_finds_nothing_held(bookie, metadata, when, monkeypatch):
    """Before the record is written again its compare-and-set fails; afterwards what it asked about is not given up."""
    bookie = await sealed(bookie)
    await moved_away(metadata, 1)
    asked: list[Any] = []
    records = LedgerRecords(bookie.env, metadata)

    async def look() -> None:
        record = await records.get(1)
        asked.append((record, await held_ranges(bookie.store, 1, 0, 0, 2)))

    async def marking(*record: Any) -> None:
        if when == "before the mark":
            await look()
            bookie.store.entries.ledgers[1].touched = False  # it asked before this round began
        await mark(*record)
        if when == "after the mark":
            await look()

    mark = ledger_records.renew
    monkeypatch.setattr(ledger_records, "renew", marking)
    done = await collect_garbage(bookie.store, metadata, CLUSTER)
    monkeypatch.setattr(ledger_records, "renew", mark)
    ((record, held),) = asked
    named = replace(record.metadata, fragments=OPEN.fragments)
    assert held == [(0, 2)], "nothing to copy, it thinks"
    if when == "before the mark":
        assert done.ledgers_given_up == 1
        with pytest.raises(BadVersion):
            await records.replace(named, record.version)
    else:
        assert done.ledgers_given_up == 0
        await records.replace(named, record.version)
        await collect_garbage(bookie.store, metadata, CLUSTER)
        assert await bookie.read_all(1, 0, 9) == bodies(1, range(3))


async def test_entries_in_a_journal_that_is_not_full_are_given_up_later(bookie, metadata):
    await moved_away(metadata, 1)
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_given_up == 0
    assert await bookie.read_all(1, 0, 9) == bodies(1, range(3))
    bookie = await sealed(bookie)
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_given_up == 1


async def test_a_crash_after_giving_up_brings_the_entries_back_until_compaction(bookie, metadata):
    bookie = await sealed(bookie)
    await moved_away(metadata, 1)
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_given_up == 1
    bookie.files.process_died()
    again = await Bookie.started(bookie.files)
    assert await again.read_all(1, 0, 9) == bodies(1, range(3))
    assert (await collect_garbage(again.store, metadata, CLUSTER)).ledgers_given_up == 1


class Asked(Metadata):
    """Notes which ledgers it is asked for."""

    def __init__(self, records):
        super().__init__(records)
        self.asked = []

    async def get_many(self, keys):
        if metadata_keys.CLUSTER not in keys:
            self.asked += [metadata_keys.ledger_id_of(key) for key in keys]
        return await super().get_many(keys)


def collect_changed(store: Any, metadata: Any, scope: CollectionScope, changed: Any) -> Any:
    async def renew(*record: int) -> None:
        await renewing(metadata, *record)

    return collect_round(store, metadata, renew, CLUSTER, ME, scope=scope, changed=changed)


async def test_only_ledgers_that_changed_are_asked_for(bookie, metadata):
    asking, scope = Asked(metadata.records), CollectionScope()
    await collect_changed(bookie.store, asking, scope, None)
    assert asking.asked == [1, 2, 3] and kept(bookie) == [1, 2]
    asking.asked.clear()
    done = await collect_changed(bookie.store, asking, scope, [])
    assert asking.asked == [] and done.ledgers_seen == 0
    await bookie.add_many(4, range(2))
    await metadata.delete(metadata_keys.ledger(1), None)
    done = await collect_changed(bookie.store, asking, scope, [1, 77])
    assert asking.asked == [1, 4] and done.ledgers_deleted == 2 and kept(bookie) == [2]


async def test_a_question_about_what_is_held_has_no_ledger_asked_for(bookie, metadata):
    asking, scope = Asked(metadata.records), CollectionScope()
    await collect_changed(bookie.store, asking, scope, None)
    asking.asked.clear()
    await bookie.store.held_ranges(1, 0, 0, 2)
    await collect_changed(bookie.store, asking, scope, [])
    assert asking.asked == []
    await bookie.fence(2)
    await collect_changed(bookie.store, asking, scope, [])
    assert asking.asked == [2]


async def test_what_is_new_when_a_full_collection_fails_stays_in_doubt(bookie, metadata):
    scope = CollectionScope()
    await collect_changed(bookie.store, metadata, scope, None)
    await bookie.add_many(4, range(2))
    metadata.fail = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await collect_changed(bookie.store, metadata, scope, None)
    metadata.fail = None
    assert (await collect_changed(bookie.store, metadata, scope, [])).ledgers_deleted == 1
    assert kept(bookie) == [1, 2]


async def test_a_ledger_that_was_told_and_lives_stays(bookie, metadata):
    scope = CollectionScope()
    await collect_changed(bookie.store, metadata, scope, None)
    done = await collect_changed(bookie.store, metadata, scope, [1, 2])
    assert done == Collected(2, 0) and kept(bookie) == [1, 2]


async def test_what_cannot_be_decided_is_asked_for_again(bookie, metadata):
    asking, scope = Asked(metadata.records), CollectionScope()
    restored = RestoredIds().restored(3, 200)
    await metadata.put(metadata_keys.RESTORED_LEDGERS, restored.pack(), None)
    for changed in (None, [], []):
        done = await collect_changed(bookie.store, asking, scope, changed)
        assert done.ledgers_unknown == 1 and kept(bookie) == [1, 2, 3]
    assert asking.asked == [1, 2, 3, 3, 3]


async def test_a_collection_that_fails_asks_for_the_same_again(bookie, metadata):
    scope = CollectionScope()
    await collect_changed(bookie.store, metadata, scope, None)
    await metadata.delete(metadata_keys.ledger(1), None)
    metadata.fail = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await collect_changed(bookie.store, metadata, scope, [1])
    metadata.fail = None
    await collect_changed(bookie.store, metadata, scope, [])
    assert kept(bookie) == [2]
