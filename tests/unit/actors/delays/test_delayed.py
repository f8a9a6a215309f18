"""The time index of delayed entries."""

import random

import pytest

from magnetar.actors.delays.delayed import RUN_ENTRY_BYTES, YOUNG_MAX, DelayedEntries


def test_entries_come_in_the_order_of_their_times_across_many_runs() -> None:
    chance, index = random.Random(5), DelayedEntries()
    times = [chance.randrange(50_000) for _ in range(5 * YOUNG_MAX + 17)]
    for number, at_ms in enumerate(times):
        index.add(at_ms, (number // 1000, number % 1000), number % 65_536)
    assert len(index) == len(times)
    found = []
    for upto_ms in range(0, 50_000, 997):
        found += index.take(upto_ms, 10**9)
        assert index.first_ms is None or index.first_ms > upto_ms
    found += index.take(50_000, 10**9)
    assert [at_ms for at_ms, _, _ in found] == sorted(times)
    assert {(a * 1000 + b, slot) for _, (a, b), slot in found} == {(n, n) for n in range(len(times))}
    assert (len(index), index.first_ms, index.size_bytes) == (0, None, 0)


def test_a_count_bounds_what_is_taken_and_nothing_early_is() -> None:
    index = DelayedEntries()
    for number in range(10):
        index.add(100 + number, (1, number))
    assert index.take(99, 5) == []
    assert [at_ms for at_ms, _, _ in index.take(104, 3)] == [100, 101, 102]
    assert [at_ms for at_ms, _, _ in index.take(104, 3)] == [103, 104]
    assert (len(index), index.first_ms) == (5, 105)
    index.clear()
    assert (len(index), index.first_ms) == (0, None)


@pytest.mark.promise("28.7")
def test_a_hundred_thousand_entries_take_few_bytes_each() -> None:
    index = DelayedEntries()
    for number in range(100_000):
        index.add(number * 7919 % 1_000_003, (1, number))
    assert index.size_bytes / len(index) < RUN_ENTRY_BYTES + 3
