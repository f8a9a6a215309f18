"""Planning: what bounds mean, and that splits cover exactly what is wanted, whatever the chain of ledgers."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.bulk.read_plan import (
    SPLIT_SIZE_MAX_BYTES,
    Bounds,
    LedgerRange,
    PartitionPlan,
    ledger_ranges,
    parse_bounds,
    split,
    split_by_entries,
)
from magnetar.protocol.errors import InvalidConfiguration, ProtocolError
from magnetar.protocol.message_id import WireMessageId
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState

TOPIC = "persistent://public/default/t"


def ledger(ledger_id: int, entries: int, length: int = 0, closed: bool = True) -> LedgerMetadata:
    state = LedgerState.CLOSED if closed else LedgerState.OPEN
    last_entry = entries - 1 if closed else -1
    return LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("bookie-1",)),), state, last_entry, length)


def plan(
    ledgers: list[LedgerMetadata],
    last: tuple[int, int],
    bounds: Bounds | None = None,
    first: tuple[int, int] = (0, 0),
    partition: int = -1,
) -> PartitionPlan:
    return PartitionPlan(TOPIC, partition, tuple(ledgers), first, last, bounds or Bounds())


def extents(ranges: list[LedgerRange]) -> list[tuple[int, int, int]]:
    return [(found.ledger.ledger_id, found.first_entry, found.last_entry) for found in ranges]


CHAIN = [ledger(3, 10), ledger(4, 0), ledger(7, 5), ledger(9, 0, closed=False)]


def test_everything_is_every_closed_ledger_and_the_open_one_up_to_the_end() -> None:
    assert extents(ledger_ranges(plan(CHAIN, (9, 1)))) == [(3, 0, 9), (7, 0, 4), (9, 0, 1)]


def test_trimmed_entries_are_not_asked_for() -> None:
    assert extents(ledger_ranges(plan(CHAIN, (9, 1), first=(7, 2)))) == [(7, 2, 4), (9, 0, 1)]


def test_the_end_may_lie_before_the_open_ledger() -> None:
    assert extents(ledger_ranges(plan(CHAIN, (7, 4)))) == [(3, 0, 9), (7, 0, 4)]


@pytest.mark.parametrize("last", [(-1, -1)])
def test_an_empty_topic_has_nothing(last: tuple[int, int]) -> None:
    assert ledger_ranges(plan([], last, first=(-1, -1))) == []
    assert ledger_ranges(plan([ledger(9, 0, closed=False)], last, first=(-1, -1))) == []
    assert split([plan([], last, first=(-1, -1))], 4) == []


def test_message_ids_cut_ledgers_and_batches() -> None:
    bounds = Bounds(WireMessageId(3, 8, -1, 2), WireMessageId(7, 1, -1, 5))
    assert ledger_ranges(plan(CHAIN, (9, 1), bounds)) == [
        LedgerRange(CHAIN[0], 8, 9, first_batch_index=2),
        LedgerRange(CHAIN[2], 0, 1, last_batch_index=5),
    ]


def test_a_compacted_ledger_comes_first_and_whole_and_its_pieces_keep_the_bounds() -> None:
    bounds = Bounds(WireMessageId(1, 2, -1, 3), WireMessageId(9, 0))
    planned = replace(
        plan(CHAIN, (9, 1), bounds, first=(7, 2)), compacted=ledger(5, 6, length=6 * SPLIT_SIZE_MAX_BYTES)
    )
    assert extents(ledger_ranges(planned)) == [(5, 0, 5), (7, 2, 4), (9, 0, 0)]
    pieces = [part for one in split([planned], 1) for part in one.ranges if part.ledger.ledger_id == 5]
    assert len(pieces) == 6 and {part.compacted_between for part in pieces} == {(bounds.first, bounds.last)}
    nothing_behind = replace(planned, first=(9, 2))
    assert extents(ledger_ranges(nothing_behind)) == [(5, 0, 5)]
    assert ledger_ranges(replace(planned, bounds=Bounds(WireMessageId(3, 8), WireMessageId(3, 7)))) == []
    with pytest.raises(ProtocolError, match="not closed"):
        ledger_ranges(replace(planned, compacted=ledger(5, 6, closed=False)))


def test_message_ids_of_ledgers_that_are_gone_mean_what_follows() -> None:
    assert extents(ledger_ranges(plan(CHAIN, (9, 1), Bounds(first=WireMessageId(1, 4, -1, 3))))) == [
        (3, 0, 9),
        (7, 0, 4),
        (9, 0, 1),
    ]
    assert ledger_ranges(plan(CHAIN, (9, 1), Bounds(first=WireMessageId(9, 2)))) == []
    assert ledger_ranges(plan(CHAIN, (9, 1), Bounds(first=WireMessageId(7, 1), last=WireMessageId(7, 0)))) == []


def test_a_chain_that_ends_too_early_or_has_an_open_ledger_inside_is_refused() -> None:
    with pytest.raises(ProtocolError, match="end before"):
        ledger_ranges(plan(CHAIN[:3], (9, 1)))
    with pytest.raises(ProtocolError, match="not closed"):
        ledger_ranges(plan([ledger(3, 0, closed=False), *CHAIN[1:]], (9, 1)))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60 << 20)), min_size=1, max_size=8),
    st.integers(0, 20),
    st.integers(1, 9),
    st.tuples(st.integers(0, 20), st.integers(0, 60), st.integers(-1, 3)),
    st.tuples(st.integers(0, 20), st.integers(0, 60), st.integers(-1, 3)),
)
def test_splits_cover_each_wanted_entry_once_and_in_order(
    chain: list[tuple[int, int]],
    open_entries: int,
    readers: int,
    start: tuple[int, int, int],
    end: tuple[int, int, int],
) -> None:
    ledgers = [ledger(2 * place, entries, length if entries else 0) for place, (entries, length) in enumerate(chain)]
    ledgers.append(ledger(2 * len(chain), 0, closed=False))
    everything = [(found.ledger_id, entry) for found in ledgers for entry in range(found.last_entry + 1)]
    everything += [(2 * len(chain), entry) for entry in range(open_entries)]
    last = everything[-1] if everything else (-1, -1)
    first_id = WireMessageId(start[0], start[1], -1, start[2])
    last_id = WireMessageId(end[0], end[1], -1, end[2])
    splits = split([plan(ledgers, last, Bounds(first_id, last_id))], readers)
    covered: list[tuple[int, int]] = []
    for piece in splits:
        estimate = 0
        for found in piece.ranges:
            covered += [(found.ledger.ledger_id, entry) for entry in range(found.first_entry, found.last_entry + 1)]
            entry_bytes = found.ledger.length // (found.ledger.last_entry + 1) if found.ledger.closed else 32 << 10
            estimate += found.entries * entry_bytes
            expected = first_id.batch_index if (found.ledger.ledger_id, found.first_entry) == start[:2] else -1
            assert found.first_batch_index == expected
            expected = last_id.batch_index if (found.ledger.ledger_id, found.last_entry) == end[:2] else -1
            assert found.last_batch_index == expected
        assert piece.entries == 1 or estimate <= SPLIT_SIZE_MAX_BYTES
    assert covered == [position for position in everything if start[:2] <= position <= end[:2]]


def test_a_topic_without_partitions_is_read_in_parallel() -> None:
    splits = split([plan([ledger(1, 2000, 200 << 20)], (1, 1999))], readers=2)
    assert len(splits) >= 8
    assert sum(piece.entries for piece in splits) == 2000


def test_small_ledgers_share_a_split_but_partitions_do_not() -> None:
    chain = [ledger(number, 1, 100) for number in range(20)]
    plans = [plan(chain, (19, 0), partition=number) for number in range(3)]
    assert [(piece.partition, piece.entries) for piece in split(plans, 2)] == [(0, 20), (1, 20), (2, 20)]


@pytest.mark.parametrize("entries", [1, 4, 7, 100])
def test_splits_by_entries_stay_the_same_when_the_open_ledger_is_closed(entries: int) -> None:
    before = [ledger(5, 10, 1_000), ledger(6, 3, 10), ledger(7, 0, closed=False)]
    after = [*before[:2], ledger(7, 12, 90_000)]
    splits = [split_by_entries(plan(ledgers, (7, 11), first=(5, 0)), entries) for ledgers in (before, after)]
    found = [[extents(list(part.ranges)) for part in some] for some in splits]
    assert found[0] == found[1]
    assert sum(part.entries for part in splits[0]) == 25
    assert all(part.entries <= entries for part in splits[0])


def test_bounds() -> None:
    message_id = WireMessageId(1, 2, -1, 3)
    instant = datetime(2024, 1, 1, tzinfo=UTC)
    assert parse_bounds("earliest", "latest", [-1])[-1] == Bounds()
    assert parse_bounds(message_id, message_id.serialize(), [-1])[-1] == Bounds(message_id, message_id)
    assert parse_bounds(instant, 1_704_067_200_001, [-1])[-1].window == TimeWindow(1_704_067_200_000, 1_704_067_200_001)
    assert parse_bounds("latest", "latest", [-1])[-1].first == WireMessageId.latest
    several = parse_bounds({1: WireMessageId(5, 6, 1)}, instant, [0, 1, 2])
    assert several[0].first == WireMessageId.earliest
    assert several[1].first == WireMessageId(5, 6, 1)
    assert {bounds.window.end_ms for bounds in several.values()} == {1_704_067_200_000}


@pytest.mark.parametrize("nonsense", ["first", True, 1.5, b"\xff", None, object(), WireMessageId(1, 2, 4)])
def test_nonsense_is_no_bound(nonsense: object) -> None:
    with pytest.raises(InvalidConfiguration):
        parse_bounds(nonsense, "latest", [-1])  # type: ignore[arg-type]


def test_an_id_of_one_partition_does_not_bound_a_whole_topic() -> None:
    with pytest.raises(InvalidConfiguration, match="several"):
        parse_bounds(WireMessageId(1, 2, 0), "latest", [0, 1])
    with pytest.raises(InvalidConfiguration, match="no partition 7"):
        parse_bounds("earliest", {7: "latest"}, [0, 1])
    assert parse_bounds(WireMessageId(1, 2, 3), "latest", [3])[3].first == WireMessageId(1, 2, 3)


def test_windows_that_hold_nothing() -> None:
    assert Bounds(window=TimeWindow(5, 5)).empty
    assert not Bounds(window=TimeWindow(5, 6)).empty
    assert Bounds(first=WireMessageId(2, 0), last=WireMessageId(1, 9)).empty


def test_a_split_names_what_the_read_has_before_it() -> None:
    chain = [ledger(3, 10, length=10 * SPLIT_SIZE_MAX_BYTES // 2), ledger(7, 2, length=2 * SPLIT_SIZE_MAX_BYTES)]
    planned = plan(chain, (7, 1), Bounds(WireMessageId(3, 4)))
    splits = split([planned], 1)
    assert [extents(list(one.before)) for one in splits] == [
        [],
        [(3, 4, 5)],
        [(3, 4, 7)],
        [(3, 4, 9)],
        [(3, 4, 9), (7, 0, 0)],
    ]
    assert all(one.reaches_start for one in splits)


def test_what_lies_before_a_split_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [ledger(number, 2, length=2 * SPLIT_SIZE_MAX_BYTES) for number in range(1, 8)]
    planned = plan(chain, (7, 1))
    monkeypatch.setattr("magnetar.bulk.read_plan.LOOK_BACK_MAX_BYTES", 3 * SPLIT_SIZE_MAX_BYTES)
    last = split([planned], 1)[-1]
    assert extents(list(last.before)) == [(6, 0, 1), (7, 0, 0)] and not last.reaches_start
    assert [one.reaches_start for one in split([planned], 1)] == [True] * 4 + [False] * 10
    monkeypatch.setattr("magnetar.bulk.read_plan.LOOK_BACK_RANGES_MAX", 1)
    last = split([planned], 1)[-1]
    assert extents(list(last.before)) == [(7, 0, 0)] and not last.reaches_start


def test_a_read_that_goes_on_has_what_an_earlier_one_read_before_it() -> None:
    going_on = plan(CHAIN, (9, 1), Bounds(WireMessageId(7, 2)), first=(7, 2))
    (found,) = split([replace(going_on, chunks_from=WireMessageId(3, 8))], 1)
    assert extents(list(found.before)) == [(3, 8, 9), (7, 0, 1)] and found.reaches_start
    (found,) = split([replace(going_on, chunks_from=WireMessageId(2, 8))], 1)
    assert extents(list(found.before)) == [(3, 0, 9), (7, 0, 1)] and not found.reaches_start
    (found,) = split([replace(going_on, chunks_from=WireMessageId(2, 8), loss_is_ignored=True)], 1)
    assert found.loss_is_ignored and not found.reaches_start
    (found,) = split([replace(going_on, chunks_from=WireMessageId(7, 2))], 1)
    assert found.before == () and found.reaches_start
