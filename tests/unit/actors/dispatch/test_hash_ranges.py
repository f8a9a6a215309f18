"""Who gets a key: consistent hashing, split ranges and sticky ranges, with the vectors of Pulsar's page."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.dispatch.consumer import KeySharedOptions
from magnetar.actors.dispatch.hash_ranges import HashRing, SplitRanges, StickyRanges
from magnetar.protocol.errors import ConsumerAssignError
from magnetar.protocol.hashing import INT31_MASK, murmur3_32

from .test_dispatchers import consumer

ORDER = murmur3_32(b"Order-3459134") & INT31_MASK


def slot(ranges, key):
    return ranges.slot_of(murmur3_32(key.encode()) & INT31_MASK)


def sticky(name, *ranges):
    made = consumer(name)
    made.key_shared = KeySharedOptions(sticky=True, ranges=ranges)
    return made


def owners(ranges):
    """The consumers of many slots, the first and the last among them."""
    return [ranges.select(slot) for slot in [*range(ranges.first_slot, 65536, 61), 65535]]


# -- consistent hashing ------------------------------------------------------------------------------------------------


@pytest.mark.promise("18.12")
def test_the_example_of_the_page_to_the_digit():
    ring, first, second = HashRing(10), consumer("c1"), consumer("c2")
    ring.add(first)
    assert ring.ranges() == {first: [(1, 65535)]}
    ring.add(second)
    assert ring.ranges() == {
        first: [(2960, 5968), (22258, 43033), (49261, 54464), (55155, 61273)],
        second: [(1, 2959), (5969, 22257), (43034, 49260), (54465, 55154), (61274, 65535)],
    }
    slots = [slot(ring, str(key)) for key in range(10)]
    assert slots == [4850, 49322, 58177, 45436, 11707, 35071, 42171, 43539, 15786, 2862]
    assert [key for key, one in enumerate(slots) if ring.select(one) is second] == [3, 4, 7, 8, 9]


def test_the_ring_places_the_order_of_the_page():
    assert HashRing(100).slot_of(ORDER) == 20788


@pytest.mark.promise("18.13")
def test_points_are_made_of_name_index_and_number():
    ring, one = HashRing(3), consumer("orders-aggregator-pod-2345-consumer")
    ring.add(one)
    ring.add(consumer("other"))
    names = [f"{one.name}\0{0}\0{point}" for point in range(3)]
    assert all(ring.select(slot(ring, name)) is one for name in names)


def test_consumers_of_one_name_have_own_points_and_free_indexes_come_again():
    ring, first, second, third = HashRing(100), consumer("c"), consumer("c"), consumer("c")
    ring.add(first)
    ring.add(second)
    before = ring.ranges()
    assert set(before) == {first, second}
    ring.remove(first)
    ring.add(third)
    assert ring.ranges() == {third: before[first], second: before[second]}


@pytest.mark.promise("18.14")
def test_the_first_on_a_point_holds_it_and_the_next_takes_it_over(monkeypatch):
    monkeypatch.setattr(HashRing, "_slots_of", lambda ring, name, index: [100, 200 if name == "a" else 300])
    ring, first, second = HashRing(2), consumer("a"), consumer("b")
    ring.add(first)
    ring.add(second)
    assert ring.select(100) is first
    assert ring.select(300) is second
    ring.remove(first)
    assert ring.select(100) is second
    assert ring.ranges() == {second: [(1, 65535)]}


@pytest.mark.promise("18.12")
def test_many_consumers_share_the_ring_about_evenly():
    ring = HashRing(100)
    members = [consumer(f"consumer-{index}") for index in range(10)]
    for member in members:
        ring.add(member)
    sizes = [sum(end - start + 1 for start, end in ranges) for ranges in ring.ranges().values()]
    assert sum(sizes) == 65535
    assert min(sizes) > 65535 / 10 / 2


# -- split ranges ------------------------------------------------------------------------------------------------------


def order_of(ranges):
    """Names by region, in order."""
    by_start = sorted((mine[0], owner.name) for owner, mine in ranges.ranges().items())
    return " ".join(name for _, name in by_start)


@pytest.mark.promise("18.4", "18.9", "18.10", "18.11")
def test_regions_split_and_join_as_on_the_page():
    ranges, members = SplitRanges(), [consumer(f"C{index}") for index in range(1, 5)]
    steps = []
    for member in members:
        ranges.add(member)
        steps.append(order_of(ranges))
    assert steps == ["C1", "C2 C1", "C3 C2 C1", "C3 C2 C4 C1"]
    assert ranges.ranges()[members[2]] == [(0, 16383)]
    assert ranges.slot_of(ORDER) == 6067
    assert ranges.select(6067) is members[2]
    ranges.remove(members[3])
    assert order_of(ranges) == "C3 C2 C1"
    assert ranges.ranges()[members[0]] == [(32768, 65535)]  # what C4 had joined the region on its right
    ranges.remove(members[0])
    assert order_of(ranges) == "C3 C2"
    assert ranges.ranges()[members[1]] == [(16384, 65535)]  # and the last one that on its left


def test_a_consumer_without_a_region_to_split_is_refused_and_changes_nothing(monkeypatch):
    monkeypatch.setattr("magnetar.actors.dispatch.hash_ranges.SLOTS", 2)
    ranges = SplitRanges()
    ranges.add(consumer("a"))
    ranges.add(consumer("b"))
    with pytest.raises(ConsumerAssignError, match="No more range can assigned to new consumer, assigned consumers 2"):
        ranges.add(consumer("c"))
    assert [owner.name for owner in ranges._owners] == ["b", "a"]


# -- sticky ranges -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("18.16")
def test_the_sticky_example_of_the_page():
    ranges = StickyRanges()
    first, second = sticky("C1", (0, 16383), (32768, 49151)), sticky("C2", (16384, 32767), (49152, 65535))
    ranges.add(first)
    ranges.add(second)
    assert ranges.select(ranges.slot_of(ORDER)) is first
    assert ranges.ranges() == {first: [(0, 16383), (32768, 49151)], second: [(16384, 32767), (49152, 65535)]}


@pytest.mark.promise("18.15")
def test_sticky_slots_that_nobody_brought_belong_to_nobody():
    ranges, one = StickyRanges(), sticky("a", (10, 20), (30, 30))
    ranges.add(one)
    assert [index for index in range(100) if ranges.select(index)] == [*range(10, 21), 30]
    assert ranges.select(65535) is None
    ranges.remove(one)
    assert ranges.select(15) is None
    assert ranges.ranges() == {}


@pytest.mark.promise("18.17")
@pytest.mark.parametrize(
    "wanted, text",
    [
        ((), "a STICKY consumer brings no hash ranges"),
        (((5, 1),), r"the hash range \[5, 1\] ends before it begins"),
        (((10, 30), (0, 10)), r"the hash ranges \[0, 10\] and \[10, 30\] of one consumer overlap"),
        (((0, 99), (100, 100)), "overlap with those of consumer there"),
        (((90, 210),), "overlap with those of consumer there"),
        (((150, 160),), "overlap with those of consumer there"),
        (((-1, 5),), r"is not within \[0, 65535\]"),
        (((5, 65536),), r"is not within \[0, 65535\]"),
    ],
)
def test_impossible_sticky_ranges_are_refused_and_change_nothing(wanted, text):
    ranges, there = StickyRanges(), sticky("there", (100, 200))
    ranges.add(there)
    with pytest.raises(ConsumerAssignError, match=text):
        ranges.add(sticky("new", *wanted))
    assert ranges.ranges() == {there: [(100, 200)]}
    ranges.add(sticky("between", (0, 99), (201, 65535)))


# -- what holds for all ------------------------------------------------------------------------------------------------


@pytest.mark.promise("18.5", "18.6", "20.6")
@pytest.mark.parametrize("make", [lambda: HashRing(7), SplitRanges])
@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=10))
def test_only_slots_of_who_comes_or_goes_change_hands_and_all_are_owned(make, steps):
    ranges, members = make(), []
    before = owners(ranges)
    for joins, index in steps:
        if joins or not members:
            moved = consumer(f"c{index}")
            members.append(moved)
            ranges.add(moved)
        else:
            moved = members.pop(index % len(members))
            ranges.remove(moved)
        after = owners(ranges)
        assert all(old is new or moved in (old, new) for old, new in zip(before, after, strict=True))
        assert (None in after) == (not members)
        covered = sorted(one for mine in ranges.ranges().values() for one in mine)
        assert not members or (covered[0][0], covered[-1][1]) == (ranges.first_slot, 65535)
        assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(covered))
        before = after
