"""Messages that stay together: opened batches, what `receive_many` hands over, runs in what is acknowledged."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client.consuming.message import Message, Opened, ReceivedEntry
from magnetar.client.consuming.messages import Messages, run_at
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.batches import encode_batch
from magnetar.protocol.pulsar_pb2 import MessageMetadata


def entry(number: int, count: int) -> ReceivedEntry:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=count)
    payload = encode_batch([b"%06d" % index for index in range(count)])
    return ReceivedEntry("t", -1, 1, number, metadata, payload)


def opened(number: int, count: int) -> Opened:
    found = entry(number, count).open(1 << 20)
    assert isinstance(found, Opened)
    return found


@pytest.mark.parametrize("count", [1, 7, 1000, 1500])
def test_an_opened_batch_is_a_sequence_of_its_messages(count: int) -> None:
    batch = opened(3, count)
    messages = [*batch]
    assert [message.data() for message in messages] == [b"%06d" % index for index in range(count)]
    assert [message.message_id() for message in messages] == [
        MessageId(-1, 1, 3, index, count) for index in range(count)
    ]
    assert [batch[index] for index in range(count)] == messages == [*batch]
    assert batch[-1].message_id().batch_index() == count - 1
    assert batch[1:3] == messages[1:3] and len(batch) == count
    with pytest.raises(IndexError):
        batch[count]
    first, rest = batch.split(count // 2)
    assert [*first, *rest] == messages
    assert (first.run.first, first.run.end, rest.run.first, rest.run.end) == (0, count // 2, count // 2, count)


def test_a_message_equals_itself_at_another_look_only() -> None:
    batch, other = opened(3, 2), opened(3, 2)
    assert batch[0] == batch[0] and hash(batch[0]) == hash(batch[0])
    assert batch[0] != batch[1] and batch[0] != other[0] and batch[0] != copy.copy(batch[0])
    assert batch[0] != tuple(batch[0])


def test_what_receive_many_hands_over_is_like_a_list() -> None:
    messages = Messages()
    one, two = opened(1, 3), opened(2, 2)
    messages.add([*one][1:])
    messages.add(two)
    expected = [one[1], one[2], *two]
    assert [*messages] == expected and len(messages) == 4 and messages == expected and messages
    assert messages[0] == expected[0] and messages[-1] == expected[-1] and messages[1:3] == expected[1:3]
    other = [one[0]]
    assert messages + other == [*expected, one[0]] and other + messages == [one[0], *expected]
    assert not Messages() and repr(messages) == repr(expected)
    gathered = [one[0]]
    gathered += messages
    assert len(gathered) == 5


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=25),
    st.lists(st.sampled_from([1, 3, 5]), min_size=3, max_size=3),
)
@settings(max_examples=300)
def test_runs_cover_each_message_once(chosen: list[tuple[int, int]], sizes: list[int]) -> None:
    batches = [opened(number, size) for number, size in enumerate(sizes)]
    items = [batches[which][index % sizes[which]] for which, index in chosen]
    place, found = 0, list[Message]()
    while place < len(items):
        run = run_at(items, place)
        assert run is not None and run.end > run.first
        found += [batches[run.entry.entry_id][index] for index in range(run.first, run.end)]
        place += run.end - run.first
    assert found == items


def test_a_whole_batch_is_one_run_whatever_stands_around_it() -> None:
    batch = opened(1, 1200)
    alone = ReceivedEntry("t", -1, 1, 2, MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x").open(
        100
    )[0]
    items: list[object] = [alone, MessageId(-1, 1, 9), *batch, MessageId(-1, 1, 9), [alone]]
    assert run_at(items, 0) is None and run_at(items, 1) is None and run_at(items, len(items) - 1) is None
    assert run_at(items, 2) == batch.run
    assert run_at([*batch][5:], 0) == (batch.entry, 5, 1200)
    swapped = [*batch]
    swapped[4], swapped[5] = swapped[5], swapped[4]
    assert run_at(swapped, 0) == (batch.entry, 0, 4)
    doubled = [*batch]
    doubled[7] = doubled[6]
    assert run_at(doubled, 0) == (batch.entry, 0, 7)
