"""A member's copy of the slots: it follows the coordinator's changes, and knows when one is missing."""

import random

import pytest

from magnetar.actors.members.coordinator_link import KEPT_BACK_MAX, SlotView, ViewState
from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner, SlotRows

SLOTS = 64
TOPIC = TopicName.parse("persistent://public/default/t")
SLOT = slot_of(TOPIC, SLOTS)


def owned(broker: str, epoch: int) -> SlotEntry:
    return SlotEntry(SlotOwner(broker, "1"), epoch)


def listing(broker: str = "a", epoch: int = 1, **exceptions: SlotEntry) -> SlotRows:
    return SlotRows({slot: owned(broker, epoch) for slot in range(SLOTS)}, exceptions)


def complete() -> SlotView:
    view = SlotView(SLOTS)
    view.take_listing(5, listing())
    return view


def test_changes_follow_the_listing() -> None:
    view = SlotView(SLOTS)
    assert view.entry_of(TOPIC).owner is None
    assert len(view.take_listing(5, listing()).entries) == SLOTS
    changed = view.take_changes(6, SlotRows({SLOT: owned("b", 2)}))
    assert (dict(changed.entries), view.number, view.state) == ({SLOT: owned("b", 2)}, 6, ViewState.COMPLETE)
    assert view.entry_of(TOPIC) == view.get(SLOT) == owned("b", 2)


def test_changes_that_come_before_the_listing_wait_for_it() -> None:
    view = complete()
    view.listing_began()
    assert not view.take_changes(8, SlotRows({SLOT: owned("c", 9)})).entries
    assert not view.take_changes(7, SlotRows({SLOT: owned("b", 8)})).entries
    changed = view.take_listing(7, listing())
    assert changed.entries == {SLOT: owned("c", 9)} and view.number == 8


def test_a_missing_change_is_noticed_and_nothing_behind_it_is_taken() -> None:
    view = complete()
    assert not view.take_changes(5, SlotRows({SLOT: owned("b", 2)})).entries, "it is in the listing"
    assert not view.take_changes(7, SlotRows({SLOT: owned("b", 2)})).entries
    assert view.state is ViewState.GAPPED
    assert not view.take_changes(6, SlotRows({SLOT: owned("b", 2)})).entries
    view.listing_began()
    assert view.take_listing(9, listing("c", 3)).entries[SLOT] == owned("c", 3)
    assert view.state is ViewState.COMPLETE


def test_more_changes_than_may_wait_need_another_listing() -> None:
    view = complete()
    view.listing_began()
    for number in range(6, 8 + KEPT_BACK_MAX):
        view.take_changes(number, SlotRows({SLOT: owned("b", number)}))
    view.take_listing(5, listing())
    assert view.state is ViewState.COMPLETE and view.number == 5 + KEPT_BACK_MAX
    view.take_changes(8 + KEPT_BACK_MAX, SlotRows())
    assert view.state is ViewState.GAPPED


def test_no_listing_brings_an_older_owner_back() -> None:
    view = complete()
    view.take_changes(6, SlotRows({SLOT: owned("b", 7)}))
    view.listing_began()
    changed = view.take_listing(1, listing("z", 2))
    assert len(changed.entries) == SLOTS - 1 and view.get(SLOT) == owned("b", 7)


def test_an_exception_counts_until_its_slot_moves_or_it_ends() -> None:
    view = complete()
    changed = view.take_changes(6, SlotRows({}, {TOPIC.full: owned("x", 3)}))
    assert changed.exceptions == {TOPIC.full: owned("x", 3)} and view.entry_of(TOPIC) == owned("x", 3)
    changed = view.take_changes(7, SlotRows({SLOT: owned("b", 4)}))
    assert changed.exceptions == {TOPIC.full: SlotEntry(None, 3)} and view.entry_of(TOPIC) == owned("b", 4)
    view.take_changes(8, SlotRows({}, {TOPIC.full: owned("x", 5)}))
    changed = view.take_changes(9, SlotRows({}, {TOPIC.full: SlotEntry(None, 6)}))
    assert changed.exceptions[TOPIC.full].owner is None and view.entry_of(TOPIC) == owned("b", 4)
    view.take_changes(10, SlotRows({}, {TOPIC.full: owned("x", 7)}))
    view.listing_began()
    assert view.take_listing(11, listing("b", 4)).exceptions == {TOPIC.full: SlotEntry(None, 7)}
    assert not view.exceptions


@pytest.mark.parametrize("seed", range(10))
def test_views_that_lose_connections_and_changes_end_with_the_same_table(seed: int) -> None:
    chance = random.Random(seed)
    table: dict[int, SlotEntry] = {slot: owned("a", 1) for slot in range(SLOTS)}
    views = [SlotView(SLOTS) for _ in range(3)]
    for view in views:
        view.take_listing(0, SlotRows(dict(table)))
    for number in range(1, 200):
        change = {chance.randrange(SLOTS): owned(chance.choice("abc"), number + 1) for _ in range(3)}
        table.update(change)
        for view in views:
            if chance.random() < 0.9:
                view.take_changes(number, SlotRows(change))
            if chance.random() < 0.1:
                view.listing_began()
                view.take_listing(number, SlotRows(dict(table)))
    for view in views:
        view.take_changes(200, SlotRows())
        if view.state is ViewState.GAPPED:
            view.listing_began()
            view.take_listing(200, SlotRows(dict(table)))
        assert [view.get(slot) for slot in range(SLOTS)] == [table[slot] for slot in range(SLOTS)]
