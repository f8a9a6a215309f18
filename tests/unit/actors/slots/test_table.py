"""Decisions about slots: even counts, neighbours apart, few moves, whatever came before."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.slots.table import SlotTable
from magnetar.protocol.slots import PAGES, slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner, SlotPage

SLOTS = 4096
TOPIC = TopicName.parse("persistent://public/default/t")


def use(table: SlotTable, chosen: dict[int, str], epoch: int = 1) -> None:
    for slot, broker in chosen.items():
        table.set(slot, SlotEntry(SlotOwner(broker, "1"), epoch))


def brokers(count: int) -> list[str]:
    return [f"broker-{number:03}" for number in range(count)]


def table_of(count: int, slots: int = SLOTS) -> SlotTable:
    table = SlotTable(slots)
    use(table, table.place(range(slots), brokers(count)))
    return table


def spread(table: SlotTable, window: int, names: list[str]) -> int:
    """The largest difference between two brokers in any run of so many slots."""
    owners = [table.get(slot).owner.broker for slot in range(table.slots)]  # type: ignore[union-attr]
    worst = 0
    for first in range(table.slots - window):
        counts = Counter(owners[first : first + window])
        worst = max(worst, max(counts.values()) - min(counts[name] for name in names))
    return worst


def even(table: SlotTable, names: list[str]) -> bool:
    counts = table.counts()
    return sum(counts.values()) == table.slots and max(counts.values()) - min(counts[name] for name in names) <= 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 100])
def test_a_fresh_cluster_deals_the_slots_in_turn(count: int) -> None:
    names = brokers(count)
    placed = SlotTable(SLOTS).place(range(SLOTS), names)
    assert [placed[slot] for slot in range(SLOTS)] == [names[slot % count] for slot in range(SLOTS)]


@pytest.mark.promise("23.2")
def test_five_partitions_on_three_brokers() -> None:
    table = table_of(3)
    owners = Counter(table.entry_of(TOPIC.partition_topic(index)).owner for index in range(5))
    assert sorted(owners.values()) == [1, 2, 2]


@pytest.mark.parametrize("count", [2, 3, 5, 20, 100])
def test_a_loss_moves_only_what_was_lost_and_keeps_neighbours_apart(count: int) -> None:
    table, names = table_of(count + 1), brokers(count)
    lost = table.slots_of(f"broker-{count:03}")
    placed = table.place(lost, names)
    assert sorted(placed) == lost and set(placed.values()) <= set(names)
    use(table, placed, 2)
    assert even(table, names)
    assert spread(table, min(count, 8), names) <= 2
    assert table.rebalance(names, SLOTS) == {}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20, 99])
def test_a_newcomer_gets_its_share_and_no_more_in_pieces(count: int) -> None:
    table, names = table_of(count), brokers(count + 1)
    moved: dict[int, str] = {}
    while piece := table.rebalance(names, 50):
        assert len(piece) <= 50 and not piece.keys() & moved.keys()
        moved |= piece
        use(table, piece, 2)
    assert even(table, names)
    assert set(moved.values()) == {names[-1]}
    assert len(moved) == SLOTS // (count + 1)
    assert spread(table, min(count + 1, 8), names) <= 2


def test_only_movable_slots_move() -> None:
    table = table_of(1)
    moves = table.rebalance(brokers(2), SLOTS, lambda slot: slot < 100)
    assert len(moves) == 100 and max(moves) == 99


def test_a_broker_that_comes_back_as_another_incarnation_keeps_its_slots() -> None:
    table = table_of(3)
    own = table.slots_of("broker-001")
    assert table.place(own, brokers(3)) == dict.fromkeys(own, "broker-001")


@pytest.mark.promise("23.2")
@settings(max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.sampled_from([64, 256]))
def test_any_comings_and_goings_end_even_with_few_moves(steps: list[int], slots: int) -> None:
    table, alive, epoch = SlotTable(slots), ["broker-000"], 1
    use(table, table.place(range(slots), alive))
    for step in steps:
        name, epoch = f"broker-{step:03}", epoch + 1
        if name in alive and len(alive) > 1:
            alive.remove(name)
            lost = table.slots_of(name)
            placed = table.place(lost, alive)
            assert sorted(placed) == lost
            use(table, placed, epoch)
        elif name not in alive:
            alive = sorted([*alive, name])
            before = table.counts()
            moves = table.rebalance(alive, slots)
            needed = sum(max(0, before[one] - slots // len(alive) - 1) for one in alive)
            assert needed <= len(moves) <= slots // len(alive) + 1
            use(table, moves, epoch)
        assert even(table, alive)
        assert table.rebalance(alive, slots) == {}


def test_names_spread_over_slots_whatever_they_look_like() -> None:
    for names in ([f"topic-{n}" for n in range(40_000)], [f"sensor/{n:08}".replace("/", "-") for n in range(40_000)]):
        counts = Counter(slot_of(TopicName.of("public", "default", name), SLOTS) % 100 for name in names)
        assert 300 <= min(counts.values()) and max(counts.values()) <= 500


def test_an_exception_counts_until_its_slot_moves() -> None:
    table, other = table_of(2), SlotEntry(SlotOwner("broker-009", "1"), 5)
    slot = slot_of(TOPIC, SLOTS)
    table.set_exception(TOPIC, other)
    assert table.entry_of(TOPIC) == other and table.exceptions_of("broker-009") == [TOPIC.full]
    table.set(slot, SlotEntry(SlotOwner("broker-000", "1"), 6))
    assert table.entry_of(TOPIC).epoch == 6 and not table.exceptions_of("broker-009")


def test_a_page_holds_its_slots_with_the_changes_and_becomes_the_present_one() -> None:
    table, slot = table_of(2), slot_of(TOPIC, SLOTS)
    number = slot * PAGES // SLOTS
    other, owner = SlotEntry(SlotOwner("broker-009", "1"), 9), SlotEntry(SlotOwner("broker-000", "2"), 8)
    page = table.page(number, {slot: owner}, {TOPIC.full: other})
    assert SlotPage.unpack(page.pack(), number, SLOTS) == page
    assert table.exception(TOPIC) is None, "nothing has changed before it is stored"
    changed = table.take(page)
    assert (changed.entries, changed.exceptions) == ({slot: owner}, {TOPIC.full: other})
    assert table.entry_of(TOPIC) == other
    changed = table.take(table.page(number, {}, {TOPIC.full: SlotEntry(None, 10)}))
    assert changed.entries == {} and changed.exceptions[TOPIC.full].owner is None
    assert table.entry_of(TOPIC) == owner
    assert len(table.rows().entries) == SLOTS and not table.rows().exceptions
