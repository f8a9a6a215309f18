"""When entries arrived, as a broker brackets it, and searches by publish time where producers' clocks are wrong."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.storage.managed.chain import LedgerChain, LedgerInfo
from magnetar.storage.managed.publish_times import NOTES_MAX, PROBE_ENTRIES, SPACING_MS, Arrivals, first_published


class Topic:
    """A chain that grows as time goes on, and what its broker notes."""

    def __init__(self, infos: list[LedgerInfo], now_ms: int) -> None:
        self.now_ms = now_ms
        self.chain = LedgerChain(infos)
        clock: Any = SimpleNamespace(now_ms=lambda: self.now_ms)
        self.arrivals = Arrivals(self.chain, clock)

    def append(self, entries: int = 1) -> tuple[int, int]:
        info = self.chain.infos[-1]
        self.chain.grow(info, info.entries + entries - 1, 0)
        self.arrivals.appended()
        return self.chain.last_confirmed


def test_the_ledgers_of_earlier_owners_bracket_their_entries() -> None:
    old, last = LedgerInfo(1, 1_000, 5, 0, True, 2_000), LedgerInfo(2, 2_000, 5, 0, True, 9_000)
    arrivals = Topic([old, last], 9_500).arrivals
    assert (arrivals.earliest_ms((1, 2)), arrivals.latest_ms((1, 2))) == (1_000, 2_000)
    assert (arrivals.earliest_ms((2, 0)), arrivals.latest_ms((2, 0))) == (2_000, 9_000)
    assert [arrivals.before(time_ms) for time_ms in (2_000, 2_001, 9_000, 9_001)] == [(-1, -1), (1, 4), (1, 4), (2, 4)]
    assert arrivals.arrived_ms((2, 0), 5_000) == 5_000
    assert arrivals.arrived_ms((2, 0), 10_000) == 9_000, "later than the end of its ledger"
    assert arrivals.arrived_ms((2, 0), -90_000) == 9_000, "long before its ledger was made"
    assert arrivals.arrived_ms((2, 0), None) == 9_000


def test_a_ledger_without_a_time_of_its_end_was_there_when_the_topic_was_loaded() -> None:
    topic = Topic([LedgerInfo(1, 1_000, 5, 0, True, 0)], 7_000)
    topic.now_ms = 9_000
    assert topic.arrivals.latest_ms((1, 4)) == 7_000 and topic.arrivals.before(7_001) == (1, 4)
    assert topic.arrivals.before(7_000) == (-1, -1)


def test_what_the_broker_sees_arrive_is_known_to_the_second() -> None:
    topic = Topic([LedgerInfo(1, 0)], 100_000)
    for _ in range(30):
        topic.now_ms += 300
        topic.append()
    for entry_id in range(30):
        arrived = 100_300 + 300 * entry_id
        earliest, latest = topic.arrivals.earliest_ms((1, entry_id)), topic.arrivals.latest_ms((1, entry_id))
        assert earliest <= arrived <= latest <= earliest + SPACING_MS + 300
    topic.now_ms += 3_600_000
    assert topic.arrivals.latest_ms((1, 29)) == 109_000 and topic.arrivals.before(109_001) == (1, 29)


def test_what_came_before_a_pause_did_not_arrive_with_what_came_after_it() -> None:
    topic = Topic([LedgerInfo(1, 0)], 100_000)
    for _ in range(3):
        topic.now_ms += 10
        topic.append()
    topic.now_ms += 60_000
    topic.append()
    assert [topic.arrivals.latest_ms((1, entry_id)) for entry_id in range(4)] == [100_030] * 3 + [160_030]
    assert topic.arrivals.before(100_031) == (1, 2)


def test_notes_are_bounded_and_stay_true() -> None:
    topic = Topic([LedgerInfo(1, 0)], 0)
    for _ in range(20_000):
        topic.now_ms += 1_000
        topic.append()
    notes = len(topic.arrivals._times_ms)
    assert notes <= NOTES_MAX
    for entry_id in range(0, 20_000, 97):
        arrived = 1_000 * (entry_id + 1)
        assert topic.arrivals.earliest_ms((1, entry_id)) <= arrived <= topic.arrivals.latest_ms((1, entry_id))
        before = topic.arrivals.before(arrived)
        assert before < (1, entry_id) and before[1] >= entry_id - 20_000 * 4 // notes


def test_notes_become_finer_again_when_what_they_tell_is_trimmed() -> None:
    topic = Topic([LedgerInfo(1, 0)], 0)
    for ledger_id in range(2, 200):
        for _ in range(100):
            topic.now_ms += 1_000
            topic.append()
        topic.chain.append(LedgerInfo(ledger_id, topic.now_ms))
        topic.chain.remove([ledger_id - 2])
    assert topic.arrivals._spacing_ms <= 16 * SPACING_MS and len(topic.arrivals._times_ms) <= NOTES_MAX


def test_a_clock_that_is_set_back_gives_no_bracket_that_is_upside_down() -> None:
    topic = Topic([LedgerInfo(1, 0)], 50_000)
    first = topic.append()
    topic.now_ms = 10_000
    second = topic.append()
    for position in (first, second):
        assert topic.arrivals.earliest_ms(position) <= topic.arrivals.latest_ms(position)


async def search(times: list[int], publish_time_ms: int) -> int:
    async def stamps(index: int, most: int) -> list[int]:
        return times[index : index + min(most, 20)]  # a read may give fewer

    return await first_published(len(times), stamps, publish_time_ms)


async def test_a_search_is_exact_where_publish_times_ascend() -> None:
    times = sorted(random.Random(3).choices(range(5_000), k=1_000))
    for wanted in range(-1, 5_001, 7):
        assert await search(times, wanted) == sum(time < wanted for time in times)


@pytest.mark.parametrize("seed", range(20))
async def test_a_search_skips_nothing_when_some_producers_are_an_hour_behind(seed: int) -> None:
    chance = random.Random(seed)
    times = [1_000 * number - (3_600_000 if chance.random() < 0.41 else 0) for number in range(20_000)]
    for wanted in chance.choices(range(4_000_000, 19_000_000), k=20):
        found = await search(times, wanted)
        assert all(time < wanted for time in times[:found]) and times[found] >= wanted


async def test_a_search_steps_back_over_messages_that_came_out_of_order() -> None:
    times = [number + (500 if number % 10 == 3 else 0) for number in range(1_000)]
    found = await search(times, 600)
    assert times[found] >= 600 and all(time < 600 for time in times[max(found - PROBE_ENTRIES, 0) : found])
    assert await search([], 5) == 0 and await search([7, 3], 5) == 0 and await search([3, 4], 5) == 2
