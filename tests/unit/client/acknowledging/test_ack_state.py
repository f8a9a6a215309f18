"""From messages to entries: batches count when whole, cumulative positions never overtake a batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client.acknowledging.ack_state import Acknowledgements
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import OperationNotSupported


def single(ledger: int, entry: int) -> MessageId:
    return MessageId(-1, ledger, entry)


def in_batch(ledger: int, entry: int, index: int, size: int) -> MessageId:
    return MessageId(-1, ledger, entry, index, size)


def test_a_batch_counts_when_all_its_messages_are_done() -> None:
    state = Acknowledgements()
    assert state.acknowledge(in_batch(1, 5, 2, 3)) is None
    assert state.acknowledge(in_batch(1, 5, 0, 3)) is None
    assert not state
    assert state.acknowledge(in_batch(1, 5, 1, 3)) == (1, 5)
    assert state.take() == (None, [(1, 5)])
    assert state.take() == (None, [])


def test_a_message_of_a_batch_of_unknown_size_is_refused() -> None:
    with pytest.raises(OperationNotSupported):
        Acknowledgements().acknowledge(MessageId(-1, 1, 2, 3))
    with pytest.raises(OperationNotSupported):
        Acknowledgements().acknowledge_cumulative(MessageId(-1, 1, 2, 3))


def test_cumulative_within_a_batch_acknowledges_the_entry_before() -> None:
    state = Acknowledgements()
    state.acknowledge_cumulative(in_batch(1, 7, 1, 4))
    assert state.take() == ((1, 6), [])
    state.acknowledge(in_batch(1, 7, 2, 4))
    assert state.acknowledge(in_batch(1, 7, 3, 4)) == (1, 7)
    assert state.take() == (None, [(1, 7)])


def test_a_cumulative_ack_in_a_ledgers_first_entry_reaches_into_the_ledger_before() -> None:
    state = Acknowledgements()
    for position in ((1, 8), (1, 9), (4, 0)):
        state.received(position)
    state.acknowledge_cumulative(in_batch(4, 0, 0, 2))
    assert state.take() == ((1, 9), [])


def test_cumulative_in_the_very_first_entry_has_nothing_to_send() -> None:
    state = Acknowledgements()
    state.received((1, 0))
    state.acknowledge_cumulative(in_batch(1, 0, 0, 2))
    assert state.take() == (None, [])
    assert state.acknowledge(in_batch(1, 0, 1, 2)) == (1, 0)


def test_cumulative_never_goes_back_and_swallows_what_is_below() -> None:
    state = Acknowledgements()
    state.acknowledge(single(1, 3))
    state.acknowledge(single(1, 9))
    state.acknowledge(in_batch(1, 4, 0, 2))
    state.acknowledge_cumulative(single(1, 5))
    state.acknowledge_cumulative(single(1, 2))
    assert state.take() == ((1, 5), [(1, 9)])
    assert state.acknowledge(single(1, 5)) == (1, 5)
    assert not state


def test_seeking_forgets_everything() -> None:
    state = Acknowledgements()
    state.acknowledge_cumulative(single(5, 5))
    state.reset()
    assert not state
    state.acknowledge(single(1, 1))
    assert state.take() == (None, [(1, 1)])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3)), max_size=60),
    st.lists(st.integers(1, 4), min_size=10, max_size=10),
)
@settings(max_examples=300)
def test_an_entry_is_sent_only_if_all_its_messages_were_acknowledged(
    steps: list[tuple[bool, int, int]], sizes: list[int]
) -> None:
    state = Acknowledgements()
    done: set[tuple[int, int]] = set()
    sent: set[int] = set()
    for cumulative, entry, index in steps:
        size = sizes[entry]
        index %= size
        message_id = in_batch(1, entry, index, size) if size > 1 else single(1, entry)
        if cumulative:
            state.acknowledge_cumulative(message_id)
            done |= {(before, place) for before in range(entry) for place in range(sizes[before])}
            done |= {(entry, place) for place in range(index + 1)}
        else:
            state.acknowledge(message_id)
            done.add((entry, index))
        up_to, single_entries = state.take()
        if up_to is not None:
            sent |= set(range(up_to[1] + 1))
        sent |= {position[1] for position in single_entries}
        complete = {entry for entry in range(10) if all((entry, place) in done for place in range(sizes[entry]))}
        assert sent == complete


def test_cumulative_goes_round_what_was_not_delivered() -> None:
    state = Acknowledgements()
    state.undelivered((1, 3))
    for entry in (4, 5, 6):
        state.opened((1, entry))
    state.acknowledge_cumulative(in_batch(1, 5, 3, 4))
    assert state.take() == ((1, 2), [(1, 4), (1, 5)])
    state.acknowledge_cumulative(in_batch(1, 6, 1, 4))
    assert state.take() == (None, []), "the batch is not complete, and its part is remembered"
    state.acknowledge(in_batch(1, 6, 2, 4))
    assert state.acknowledge(in_batch(1, 6, 3, 4)) == (1, 6)
    state.acknowledge(single(1, 3))
    state.acknowledge_cumulative(single(1, 9))
    assert state.take() == ((1, 9), [])


def test_an_entry_below_the_cumulative_position_that_comes_again_is_not_held() -> None:
    state = Acknowledgements()
    state.received((1, 0))
    state.acknowledge_cumulative(single(1, 0))
    assert state.take() == ((1, 0), [])
    for position in ((1, 0), (1, 1), (1, 2)):  # again, before the broker has heeded the acknowledgement
        state.received(position)
    state.undelivered((1, 1))
    state.opened((1, 0))
    state.opened((1, 2))
    state.acknowledge_cumulative(single(1, 2))
    assert state.take() == (None, [(1, 2)])


def test_what_was_not_delivered_is_done_when_it_comes_again_and_is_opened() -> None:
    state = Acknowledgements()
    state.undelivered((1, 3))
    state.opened((1, 4))
    for entry in (3, 4):
        state.opened((1, entry))
    state.acknowledge_cumulative(single(1, 4))
    assert state.take() == ((1, 4), [])


def test_what_was_not_delivered_is_forgotten_when_a_subscription_begins_behind_it() -> None:
    state = Acknowledgements()
    state.undelivered((1, 3))
    state.forget_sent()
    state.acknowledge_cumulative(single(1, 5))
    assert state.take() == ((1, 2), []), "nobody knows yet"
    state.received((1, 6))
    state.acknowledge_cumulative(single(1, 7))
    assert state.take() == ((1, 7), [])


@given(st.lists(st.tuples(st.sampled_from(["open", "refuse", "up to", "one"]), st.integers(0, 9)), max_size=60))
@settings(max_examples=300)
def test_nothing_is_sent_that_was_not_delivered(steps: list[tuple[str, int]]) -> None:
    """Entries come in order; each is opened or refused; what came is acknowledged one by one or up to a message."""
    state, delivered, sent, following = Acknowledgements(), set[int](), set[int](), 0
    for step, number in steps:
        if step in ("open", "refuse"):
            if step == "open":
                state.opened((1, following))
                delivered.add(following)
            else:
                state.undelivered((1, following))
            following += 1
        elif delivered:
            chosen = sorted(delivered)[number % len(delivered)]
            if step == "one":
                state.acknowledge(single(1, chosen))
            else:
                state.acknowledge_cumulative(single(1, chosen))
                done = {entry for entry in delivered if entry <= chosen}
                up_to, entries = state.take()
                sent |= set(range(0 if up_to is None else up_to[1] + 1)) | {entry for _, entry in entries}
                assert done <= sent
        up_to, entries = state.take()
        sent |= set(range(0 if up_to is None else up_to[1] + 1)) | {entry for _, entry in entries}
        assert sent <= delivered


# ---- Batch-index acknowledgement ----


def test_single_messages_are_sent_once_each_time_more_are_done() -> None:
    state = Acknowledgements(index_acks=True)
    state.acknowledge(in_batch(1, 5, 0, 3))
    assert len(state) == 1 and state.take() == (None, [])
    assert state.take_parts() == [(1, 5, [0b110], 3)]
    assert not state and state.take_parts() == []
    state.acknowledge(in_batch(1, 5, 2, 3))
    assert state.take_parts() == [(1, 5, [0b010], 3)]
    state.acknowledge(in_batch(1, 5, 1, 3))
    assert state.take() == (None, [(1, 5)]) and state.take_parts() == []


@pytest.mark.promise("12.4")
def test_a_batch_that_comes_again_leaves_out_what_is_acknowledged_and_not_sent() -> None:
    state = Acknowledgements(index_acks=True)
    state.acknowledge(in_batch(1, 5, 0, 3))
    assert state.came((1, 5), 3, ()) == [0b110]
    assert state.came((1, 5), 3, (0b011,)) == [0b010]
    assert state.take_parts() == [(1, 5, [0b010], 3)]


def test_what_was_sent_is_for_the_broker_to_say() -> None:
    """It may be that its switch is off, or that somebody has set the cursor back."""
    state = Acknowledgements(index_acks=True)
    state.acknowledge(in_batch(1, 5, 0, 3))
    state.take_parts()
    assert state.came((1, 5), 3, ()) == ()
    state.acknowledge(in_batch(1, 5, 1, 3))
    assert state.take_parts() == [(1, 5, [0b101], 3)]


@pytest.mark.parametrize("index_acks", [False, True])
def test_open_messages_alone_complete_a_batch_of_which_the_broker_knows_the_rest(index_acks: bool) -> None:
    state = Acknowledgements(index_acks)
    assert state.came((1, 5), 4, (0b1001,)) == (0b1001,)
    assert state.acknowledge(in_batch(1, 5, 0, 4)) is None
    assert state.acknowledge(in_batch(1, 5, 3, 4)) == (1, 5)
    assert state.take() == (None, [(1, 5)]) and state.take_parts() == []


def test_when_all_that_is_open_is_acknowledged_already_nothing_is_delivered() -> None:
    state = Acknowledgements(index_acks=True)
    state.acknowledge(in_batch(1, 5, 0, 2))
    assert state.came((1, 5), 2, (0b01,)) == [0]


def test_a_cumulative_acknowledgement_inside_a_batch_sends_the_rest_of_it() -> None:
    state = Acknowledgements(index_acks=True)
    state.acknowledge(in_batch(1, 3, 1, 2))
    state.acknowledge_cumulative(in_batch(1, 7, 1, 4))
    assert state.take() == ((1, 6), []) and state.take_parts() == [(1, 7, [0b1100], 4)]
