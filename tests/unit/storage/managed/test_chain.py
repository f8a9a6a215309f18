"""Positions across ledgers against a plain list; rollover and trimming rules; the tail cache."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol.errors import LedgerError, MetadataError
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.ensemble import Copies, should_move
from magnetar.storage.ledger.entry_cache import ENTRY_OVERHEAD_BYTES, EntryCache
from magnetar.storage.managed.chain import LEDGERS_BEFORE_MAX, LedgerChain, LedgerInfo, ledgers_before
from magnetar.storage.managed.chain_writer import DEGRADED_ROLLOVER_MIN_S, RolloverRule
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.managed.trimming import Needs, trimmable


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 5), max_size=5),
    st.tuples(st.integers(-1, 12), st.integers(-1, 7)),
    st.tuples(st.integers(-1, 12), st.integers(-1, 7)),
)
def test_arithmetic_agrees_with_a_list_of_positions(entries, one, other):
    infos = [LedgerInfo(2 * number + 1, 0, count, count * 100, True) for number, count in enumerate(entries)]
    chain = LedgerChain(infos)
    everything = [(info.ledger_id, entry) for info in infos for entry in range(info.entries)]
    assert chain.last_confirmed == (everything[-1] if everything else (-1, -1))
    if everything:
        assert chain.first_position == everything[0]
    assert chain.ceiling(one) == next((item for item in everything if item >= one), None)
    following = next((item for item in everything if item > one), None)
    if following is not None:
        assert chain.next_position(one) == following
    else:
        assert chain.next_position(one) > max(one, chain.last_confirmed)
    assert chain.contains(one) == (one in everything)
    assert chain.count_between(one, other) == sum(one < item <= other for item in everything)
    assert chain.bytes_after(one) == 100 * sum(item > one for item in everything)
    assert chain.size_bytes == 100 * len(everything)


def test_the_place_of_the_next_entry_moves_to_the_new_ledger_once_it_is_there():
    chain = LedgerChain([LedgerInfo(3, 0, 5, 50, True)])
    assert chain.next_position(chain.last_confirmed) == (3, 5)
    info = LedgerInfo(8, 0)
    chain.append(info)
    assert chain.next_position(chain.last_confirmed) == (8, 0) == chain.next_position((3, 5))
    chain.grow(info, 0, 10)
    assert chain.ceiling((3, 5)) == (8, 0) and chain.last_confirmed == (8, 0)


@pytest.mark.parametrize(
    ("position", "size_bytes", "found"),
    [
        ((9, 0), 0, []),
        ((9, 0), 1, [7]),
        ((9, 0), 50, [7]),
        ((9, 0), 51, [3, 7]),
        ((9, 0), 1 << 40, [3, 7]),
        ((9, 3), 30, []),
        ((9, 3), 31, [7]),
        ((9, 99), 100, []),
        ((9, 99), 101, [7]),
        ((7, -1), 1, [3]),
        ((3, 4), 1 << 40, []),
    ],
)
def test_ledgers_before_a_position_hold_so_many_bytes(position, size_bytes, found):
    infos = [LedgerInfo(number, 0, 5, 50, True) for number in (3, 7)]
    infos += [LedgerInfo(8, 0, 0, 0, True), LedgerInfo(9, 0, 10, 100)]
    assert ledgers_before(infos, position, size_bytes) == found


def test_ledgers_before_a_position_are_not_too_many():
    infos = [LedgerInfo(number, 0, 1, 1, True) for number in range(1, 200)]
    assert ledgers_before(infos, (199, 0), 1 << 40) == list(range(199 - LEDGERS_BEFORE_MAX, 199))


def test_the_end_survives_trimming():
    chain = LedgerChain([LedgerInfo(3, 0, 5, 50, True)])
    chain.remove([3])
    assert chain.last_confirmed == (3, 4) and chain.first_position == (3, 5)
    assert chain.ceiling((-1, -1)) is None and chain.last_ledger_id == -1


def test_a_chain_only_grows_upwards():
    chain = LedgerChain([LedgerInfo(3, 0, 5, 50, True)])
    with pytest.raises(ValueError):
        chain.append(LedgerInfo(3, 0))


RULE = RolloverRule(100, 1000, 60.0, 600.0)


@pytest.mark.parametrize(
    ("entries", "size", "age", "moves", "due"),
    [
        (0, 0, 9999, False, None),
        (0, 0, 9999, True, 0),
        (1, 1, 0, False, 600),
        (1, 1, 600, False, 0),
        (100, 1, 10, False, 50),
        (100, 1, 60, False, 0),
        (1, 1000, 100, False, 0),
        (1, 1, 1, True, DEGRADED_ROLLOVER_MIN_S - 1),
        (1, 1, 30, True, 0),
    ],
)
def test_when_a_ledger_is_rolled_over(entries, size, age, moves, due):
    assert RULE.due_in_s(entries, size, age, should_move=moves) == due


@pytest.mark.parametrize(
    ("degraded", "limbo", "usable", "moves"),
    [
        (False, False, 9, False),
        (True, False, 2, False),
        (True, False, 3, True),
        (True, True, 2, True),
        (True, True, 1, False),
    ],
)
def test_when_its_copies_are_a_reason_for_a_new_ledger(degraded, limbo, usable, moves):
    found = should_move(Copies.of(Settings()), degraded=degraded, keeps_in_limbo=limbo, usable_bookies=usable)
    assert found is moves


def test_the_rule_comes_from_the_settings():
    rule = RolloverRule.of(Settings())
    assert rule == RolloverRule(50_000, 2048 << 20, 600, 14_400)


def closed(*counts):
    return [LedgerInfo(number + 1, 0, count, count, True) for number, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("marks", "pinned", "current", "gone"),
    [
        ([], set(), None, [1, 2, 3]),
        ([], set(), 3, [1, 2]),
        ([], {2}, 3, [1]),
        ([(1, 4)], set(), 3, [1]),
        ([(1, 3)], set(), 3, []),
        ([(9, 0), (1, 4)], set(), 3, [1]),
        ([(3, 4)], set(), 3, [1, 2]),
        ([(3, 4)], set(), None, [1, 2, 3]),
        ([(3, -1)], set(), None, [1, 2]),
        ([(-1, -1)], set(), None, []),
    ],
)
def test_what_is_trimmed(marks, pinned, current, gone):
    assert trimmable(closed(5, 5, 5), Needs(marks, pinned, current)) == (gone, None)


def test_a_ledger_that_is_not_closed_stops_the_trim():
    infos = closed(5, 5, 5)
    infos[1].closed = False
    assert trimmable(infos, Needs([], set(), None)).gone == [1]


def test_the_cache_is_bounded_and_forgets_what_was_not_used():
    cache = EntryCache(3 * (ENTRY_OVERHEAD_BYTES + 10))
    for entry in range(3):
        cache.put((1, entry), bytes(10))
    assert cache.get((1, 0)) == bytes(10)
    cache.put((2, 0), bytes(10))
    assert (1, 1) not in cache and (1, 0) in cache and len(cache) == 3
    assert cache.size_bytes <= cache.size_max_bytes
    cache.put((2, 1), bytes(10_000))
    assert len(cache) == 0 and cache.size_bytes == 0
    assert cache.get((1, 0)) is None and (cache.hits, cache.misses) == (1, 1)
    cache.put((2, 0), b"x")
    cache.put((2, 0), b"x")
    assert cache.size_bytes == ENTRY_OVERHEAD_BYTES + 1


def test_a_cache_of_nothing_keeps_nothing():
    cache = EntryCache(0)
    cache.put((1, 1), b"x")
    assert len(cache) == 0 and cache.get((1, 1)) is None


def test_the_record_packs():
    record = ManagedLedgerRecord(4, (LedgerInfo(1, 2, 3, 4, True, 5), LedgerInfo(9, 8)), (7, 6), 9, 3, 12)
    assert ManagedLedgerRecord.unpack(record.pack()) == record
    assert ManagedLedgerRecord.unpack(ManagedLedgerRecord(4).pack()).topic_epoch == -1
    assert ManagedLedgerRecord.unpack(ManagedLedgerRecord(4).pack()).created_ms == 0
    for value in (b"", b"\xc0", b"\x80", b"\x81\xa5epoch\xa1x"):
        with pytest.raises(MetadataError):
            ManagedLedgerRecord.unpack(value)


def test_a_recovered_ledger_goes_to_its_place_and_only_an_empty_one_before_others() -> None:
    chain = LedgerChain([LedgerInfo(1, 0, entries=3), LedgerInfo(5, 0, entries=2)])
    chain.add_recovered(LedgerInfo(3, 0), -1)
    chain.add_recovered(LedgerInfo(7, 0), 4)
    assert [info.ledger_id for info in chain.infos] == [1, 3, 5, 7]
    assert chain.get(3) is not None and chain.next_position((1, 2)) == (5, 0)
    with pytest.raises(LedgerError, match="unload the topic"):
        chain.add_recovered(LedgerInfo(4, 0), 0)
