"""The acknowledgement state against a model that is a plain set of positions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol.ack_sets import bits_to_words, words_to_bits
from magnetar.protocol.errors import MetadataError, NotAllowedError
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.managed import acknowledged
from magnetar.storage.managed.acknowledged import EntryRanges
from magnetar.storage.managed.chain import LedgerChain, LedgerInfo
from magnetar.storage.managed.cursor_state import CursorState


def chain(*entries: int) -> LedgerChain:
    """Ledgers 3, 6, 9 … with so many entries; all closed but the last."""
    infos = [LedgerInfo(3 * (number + 1), 0, count, count * 10, True) for number, count in enumerate(entries)]
    if infos:
        infos[-1].closed = False
    return LedgerChain(infos)


def positions(one: LedgerChain) -> list[tuple[int, int]]:
    return [(info.ledger_id, entry) for info in one.infos for entry in range(info.entries)]


def at_start(one: LedgerChain) -> CursorState:
    state = CursorState(one, (-1, -1))
    state.reset(one.first_position)
    return state


def check(state: CursorState, one: LedgerChain, acknowledged: set[tuple[int, int]]) -> None:
    everything = positions(one)
    assert [item for item in everything if state.is_acknowledged(item)] == sorted(acknowledged)
    unacknowledged = [item for item in everything if item not in acknowledged]
    assert state.backlog_entries() == len(unacknowledged)
    first = unacknowledged[0] if unacknowledged else one.next_position(one.last_confirmed)
    assert state.first_unacknowledged == first
    assert all(item in acknowledged for item in everything if item <= state.mark_delete)
    for item in everything:
        following = next((other for other in unacknowledged if other >= item), None)
        assert state.next_unacknowledged(item) == (following or one.next_position(one.last_confirmed))


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.sampled_from(["one", "many", "any", "cumulative", "pack"]),
            st.integers(0, 40),
            st.lists(st.integers(0, 9), max_size=6),
        ),
        max_size=25,
    ),
)
def test_any_sequence_of_acknowledgements(entries, steps):
    one = chain(*entries)
    everything = positions(one)
    state = at_start(one)
    acknowledged: set[tuple[int, int]] = set()
    for kind, index, ahead in steps:
        chosen = everything[index : index + 1 + len(ahead)]
        if kind == "one":
            state.acknowledge(chosen[:1])
            acknowledged.update(chosen[:1])
        elif kind == "many":
            state.acknowledge(reversed(chosen))
            acknowledged.update(chosen)
        elif kind == "any":  # in any order, some twice
            chosen = [everything[index + step] for step in ahead if index + step < len(everything)]
            state.acknowledge(chosen)
            acknowledged.update(chosen)
        elif kind == "cumulative" and chosen:
            state.acknowledge_cumulative(chosen[0])
            acknowledged.update(item for item in everything if item <= chosen[0])
        elif kind == "pack":
            state = CursorState.unpack(state.pack(), one)
        check(state, one, acknowledged)


def test_an_entry_that_one_acknowledgement_names_twice():
    """Found by seed 106: its range stayed behind the mark, and the backlog was one too small for ever."""
    one = chain(9)
    state, named = at_start(one), positions(one)
    assert state.acknowledge([named[index] for index in (0, 2, 1, 2, 3, 4)])
    check(state, one, set(named[:5]))


@settings(max_examples=150)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 5)), max_size=30))
def test_ranges_behave_like_a_set(steps):
    ranges, model = EntryRanges(), set()
    for add, first, size in steps:
        if add:
            new = set(range(first, first + size + 1))
            assert ranges.add(first, first + size) == (not new <= model)
            model |= new
        else:
            ranges.remove_up_to(first)
            model = {entry for entry in model if entry > first}
        assert [entry for low, high in ranges for entry in range(low, high + 1)] == sorted(model)
        assert ranges.count == len(model)
        assert all(before[1] + 1 < after[0] for before, after in zip(list(ranges), list(ranges)[1:], strict=False))
        for entry in range(36):
            end = ranges.end_of(entry)
            assert (end is not None) == (entry in model)
            assert end is None or (end + 1 not in model and set(range(entry, end + 1)) <= model)


def test_what_does_not_exist_cannot_be_acknowledged():
    one = chain(3, 2)
    state = at_start(one)
    assert not state.acknowledge([(3, 3), (4, 0), (6, 2), (99, 0), (-1, -1), (3, -1)])
    assert not state.acknowledge_cumulative((99, 0))
    assert not state.acknowledge_batch_index((6, 2), [0], 4)
    check(state, one, set())


def test_the_mark_crosses_ledgers_and_empty_ones():
    one = chain(2, 0, 2)
    state = at_start(one)
    state.acknowledge([(9, 0), (3, 1)])
    assert state.mark_delete < (3, 0)
    state.acknowledge([(3, 0)])
    assert state.mark_delete == (9, 0) and state.range_count == 0


def test_ranges_in_ledgers_that_were_trimmed_go_and_the_mark_moves_on():
    one = chain(4, 4)
    state = at_start(one)
    state.acknowledge([(3, 2), (6, 0)])
    one.remove([3])
    assert state.skip_missing()
    assert state.mark_delete == (6, 0) and state.backlog_entries() == 3


def test_it_grows_with_the_chain():
    one = chain(2)
    state = at_start(one)
    state.acknowledge([(3, 0), (3, 1)])
    assert state.backlog_entries() == 0 and state.first_unacknowledged == (3, 2)
    one.infos[-1].closed = True
    info = LedgerInfo(6, 0)
    one.append(info)
    assert state.first_unacknowledged == (6, 0)
    one.grow(info, 0, 10)
    assert state.backlog_entries() == 1 and not state.is_acknowledged((6, 0))
    state.acknowledge([(6, 0)])
    assert state.mark_delete == (6, 0)


def test_batch_indexes_add_up_to_an_entry():
    one = chain(3)
    state = at_start(one)
    assert state.batches.ack_set((3, 0)) is None
    assert state.acknowledge_batch_index((3, 0), [0b110], 3)
    assert not state.acknowledge_batch_index((3, 0), [0b110], 3)
    assert state.batches.ack_set((3, 0)) == [0b110] and not state.is_acknowledged((3, 0))
    state = CursorState.unpack(state.pack(), one)
    assert state.acknowledge_batch_index((3, 0), [0b001], 3)
    assert state.mark_delete == (3, 0) and state.batches.ack_set((3, 0)) is None
    state.acknowledge_batch_index((3, 1), [1], 2)
    state.acknowledge_cumulative((3, 2))
    assert state.batches.ack_set((3, 1)) is None


@given(st.integers(1, 200), st.data())
def test_ack_set_words_are_pulsars(size, data):
    bits = data.draw(st.integers(0, (1 << size) - 1))
    words = bits_to_words(bits)
    assert len(words) == (bits.bit_length() + 63) // 64 and all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert words_to_bits(words) == bits


def test_reset_starts_again():
    one = chain(5)
    state = at_start(one)
    state.acknowledge([(3, 0), (3, 3)])
    state.acknowledge_batch_index((3, 4), [1], 2)
    state.reset((3, 2))
    check(state, one, {(3, 0), (3, 1)})
    assert state.batches.ack_set((3, 4)) is None


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\x81\xa4mark\x90", bytes(40)])
def test_other_bytes_are_refused(value):
    with pytest.raises(MetadataError):
        CursorState.unpack(value, chain(1))


def test_packing_keeps_properties_and_is_compact():
    one = chain(20_000)
    state = CursorState(one, (3, -1), {"a": "b"})
    state.acknowledge([(3, entry) for entry in range(1, 20_000, 2)])
    assert state.range_count == 10_000
    packed = state.pack()
    assert len(packed) < 60_000
    again = CursorState.unpack(packed, one)
    assert again.range_count == 10_000 and again.properties == {"a": "b"} and again.pack() == packed


def packed(**changes) -> bytes:
    return pack({"mark": [3, 0], "ranges": [], "batches": [], "props": {}, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"mark": [4, -32]},
        {"mark": [3]},
        {"mark": [1e20, 0]},
        {"ranges": [[3, [2, -3]]]},
        {"ranges": [[3, [-1, 2]]]},
        {"ranges": [[3, [2]]]},
        {"batches": [[3, 2, 1 << 62, b"\1"]]},
        {"batches": [[3, 2, 3, b"\xff"]]},
        {"batches": [[3, 2, 3, b"\0"]]},
        {"batches": [[3, 2, 3, 7]]},
    ],
)
def test_impossible_numbers_in_a_state_are_refused(changes):
    """Found by `tests/fuzz` (target cursors): a range of negative length made the count of the backlog wrong."""
    with pytest.raises(MetadataError):
        CursorState.unpack(packed(**changes), chain(5))


def test_what_is_not_there_is_not_acknowledged_by_a_stored_state_either():
    one = chain(5, 0, 3)
    state = CursorState.unpack(packed(ranges=[[3, [2, 0, 4, 1 << 40]], [6, [0, 2]], [9, [3, 2]]]), one)
    check(state, one, {(3, 0), (3, 2), (3, 4)})
    one.grow(one.infos[-1], 5, 60)
    check(state, one, {(3, 0), (3, 2), (3, 4)})


def test_a_place_far_before_a_ledger_is_followed_by_the_first_entry_that_exists():
    assert chain(0, 2).next_position((3, -32)) == (6, 0)


def test_sets_beyond_the_bounds_are_refused_and_nothing_is_dropped(monkeypatch):
    state = at_start(chain(8))
    with pytest.raises(NotAllowedError, match="as a whole"):
        state.acknowledge_batch_index((3, 0), [1], acknowledged.BATCH_MESSAGES_MAX + 1)
    monkeypatch.setattr(acknowledged, "BATCHES_SIZE_MAX_BYTES", 2)
    state.acknowledge_batch_index((3, 1), [1], 4)
    state.acknowledge_batch_index((3, 2), [1], 4)
    with pytest.raises(NotAllowedError, match="too many batches"):
        state.acknowledge_batch_index((3, 3), [1], 4)
    assert list(state.batches) == [(3, 1), (3, 2)] and state.batches.size_bytes == 2
    state.acknowledge_batch_index((3, 1), [0b1110], 4)  # what is there may go on, and makes room when it is complete
    assert state.acknowledge_batch_index((3, 3), [1], 4) and state.is_acknowledged((3, 1))
    assert CursorState.unpack(state.pack(), chain(8)).batches.copy() == {(3, 2): (4, 1), (3, 3): (4, 1)}


def test_partly_acknowledged_batches_count_as_ranges_and_go_with_the_mark():
    state = at_start(chain(8))
    for entry_id in (1, 3, 5):
        state.acknowledge_batch_index((3, entry_id), [0b10], 2)
    state.acknowledge([(3, 2)])
    assert state.ranges_before((3, 0)) == 0 and state.ranges_before((3, 4)) == 3 and state.part_count == 4
    state.acknowledge_cumulative((3, 3))
    assert list(state.batches) == [(3, 5)] and state.batches.size_bytes == 1
    state.reset((3, 0))
    assert not state.batches and state.batches.size_bytes == 0


def test_a_state_that_was_written_without_indexes_is_read():
    """As owners wrote it that knew no batch-index acknowledgement."""
    state = CursorState.unpack(packed(), chain(8))
    assert state.mark_delete == (3, 0) and not state.batches
