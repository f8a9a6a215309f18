"""Ledger ids are given out once, also when the metadata, and its counter with it, goes back."""

from typing import Any

import pytest

from magnetar.protocol.errors import MetadataError, MetadataUnavailable, OutcomeUnknown, ProtocolError
from magnetar.runtime.environment import Environment, SeededChance, SystemClock
from magnetar.runtime.files import RealFiles
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_ids import (
    GAP,
    LEDGER_IDS_MAX,
    RANGES_MAX,
    LedgerIds,
    RestoredIds,
    counter_of,
    mark_restored,
)
from magnetar.storage.metadata.store import Versioned, pack
from support.fakes.inline_offload import InlineOffload
from support.stores.memory_store import MemoryMetadataStore

ENV = Environment(SystemClock(), SeededChance(1), InlineOffload(), RealFiles())


class Store(MemoryMetadataStore):
    """`on_allocate` is awaited before each allocation, which it may fail."""

    on_allocate: Any = None

    async def allocate(self, counter, count, guard=None):
        if self.on_allocate is not None:
            await self.on_allocate()
        return await super().allocate(counter, count, guard)


@pytest.fixture
def store():
    return Store()


async def marked(store):
    return RestoredIds.unpack(await store.get(metadata_keys.RESTORED_LEDGERS))


async def test_nothing_is_given_out_before_a_bookie_has_said_what_it_knows(store):
    ids = LedgerIds(ENV, store)
    with pytest.raises(MetadataUnavailable):
        await ids.allocate(10)
    await ids.known(0, "bookie-1")
    assert [await ids.allocate(10), await ids.allocate(1), await ids.allocate(1)] == [1, 11, 12]
    assert await marked(store) == RestoredIds(), "a cluster that never lost anything has no mark"


async def test_the_counter_jumps_over_what_bookies_know_and_the_ids_between_are_marked(store):
    ids = LedgerIds(ENV, store)
    await ids.known(0, "bookie-1")
    assert await ids.allocate(10) == 1
    again = LedgerIds(ENV, store)
    await again.known(11, "bookie-1")
    assert await marked(store) == RestoredIds(), "all ids that are known were given out"
    await again.known(500, "bookie-2")
    assert (await marked(store)).ranges == ((0, 500 + GAP),)
    assert await again.allocate(10) == 500 + GAP
    await again.known(400, "bookie-3")
    assert await again.allocate(10) == 510 + GAP, "the counter only rises"
    await again.known(GAP + 10_000, "bookie-4")  # it registers after ids were given out
    assert (await marked(store)).ranges == ((0, 2 * GAP + 10_000),)
    assert await again.allocate(1) == 2 * GAP + 10_000
    loaded = LedgerIds(ENV, store)
    await loaded.load()
    assert loaded.restored == await marked(store)


async def test_the_mark_is_stored_before_the_counter_is_raised(store):
    ids = LedgerIds(ENV, store)
    seen = []

    async def look():
        seen.append((await marked(store)).ranges)
        raise OutcomeUnknown("lost")

    store.on_allocate = look
    with pytest.raises(OutcomeUnknown):
        await ids.known(500, "bookie-1")
    assert seen == [((0, 500 + GAP),)]
    store.on_allocate = None
    with pytest.raises(MetadataUnavailable):
        await ids.allocate(1)  # the bookie is not listed, and registers again
    await ids.known(500, "bookie-1")
    assert await ids.allocate(1) >= 500 + GAP


async def test_a_counter_that_goes_back_under_an_active_coordinator_gives_no_id_twice(store):
    ids = LedgerIds(ENV, store)
    await ids.known(0, "bookie-1")
    given = [await ids.allocate(10) for _ in range(3)]
    key = metadata_keys.counter(metadata_keys.LEDGER_COUNTER)
    version = (await store.get(key)).version
    await store.put(key, pack({"next": 11}), version)  # a replica that had not heard of the last two blocks
    given.append(await ids.allocate(10))
    assert given == [1, 11, 21, 31 + GAP + 10]
    assert (await marked(store)).ranges == ((0, 31 + GAP),)


async def test_accepting_the_loss_ends_the_marks_and_later_ones_begin_again(store):
    ids = LedgerIds(ENV, store)
    await ids.known(500, "bookie-1")
    assert (await ids.accept()).ranges == ((0, 500 + GAP),)
    assert await marked(store) == ids.restored == RestoredIds((), 500 + GAP, 1)
    await ids.known(2 * GAP, "bookie-1")
    assert (await marked(store)).ranges == ((500, 3 * GAP),) and ids.restored.accepted_end == 500 + GAP


async def test_what_the_operator_says_puts_older_ledgers_in_doubt_permanently(store):
    await LedgerIds(ENV, store).known(0, "bookie-1")
    assert await store.allocate("ledger", 40) == 1
    restored = await mark_restored(ENV, store)
    assert restored == await marked(store) == RestoredIds(((0, 41),), 0, 41)
    ids = LedgerIds(ENV, store)
    told = []
    ids.on_restored = lambda: told.append(ids.restored.doubtful_end)
    await ids.known(30, "bookie-1")
    assert not told and await ids.allocate(1) == 41, "no bookie knows more: nothing is jumped over"
    await ids.known(500, "bookie-2")
    assert told == [42]
    await ids.accept()
    assert ids.restored == await marked(store) == RestoredIds((), 500 + GAP, 42)


def test_a_record_without_the_doubtful_end_puts_all_that_it_marks_in_doubt():
    older = pack({"ranges": [[3, 90]], "accepted_end": 7})
    assert RestoredIds.unpack(Versioned(older, 0)) == RestoredIds(((3, 90),), 7, 90)


async def test_an_impossible_id_is_refused_and_changes_nothing(store):
    ids = LedgerIds(ENV, store)
    for end in (-1, LEDGER_IDS_MAX):
        with pytest.raises(ProtocolError):
            await ids.known(end, "bookie-1")
    assert await store.list("") == []


def test_ranges_are_joined_where_they_touch_and_bounded():
    ids = RestoredIds().joined(10, 20).joined(30, 40).joined(20, 25)
    assert ids.ranges == ((10, 25), (30, 40)) and ids.first == 10
    assert [one in ids for one in (9, 10, 24, 25, 30, 39, 40)] == [False, True, True, False, True, True, False]
    for number in range(RANGES_MAX + 10):
        ids = ids.joined(100 + 10 * number, 105 + 10 * number)
    assert len(ids.ranges) == RANGES_MAX and 104 + 10 * (RANGES_MAX + 9) in ids
    assert RestoredIds.unpack(Versioned(ids.pack(), 0)) == ids


@pytest.mark.parametrize(
    "value", [b"", b"?", pack([]), pack({"ranges": [[1]], "accepted_end": 0}), pack({"next": "x"})]
)
def test_records_that_are_none_are_refused(value):
    with pytest.raises(MetadataError):
        RestoredIds.unpack(Versioned(value, 0))
    with pytest.raises(MetadataError):
        counter_of(Versioned(value, 0))
