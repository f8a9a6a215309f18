"""The outbox: limits, order, sequence ids, space, and that the loop is told exactly when it has to be."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client.core.memory_limit import MemoryLimit
from magnetar.client.core.threading_bridge import LoopSignal, NoLock
from magnetar.client.producing.outbox import Batch, KeyedOutbox, MeteredOutbox, Outbox, ignore
from magnetar.client.producing.outgoing import Outgoing
from magnetar.protocol.batches import decode_batch
from magnetar.protocol.errors import AlreadyClosed


class Handover:
    """Counts how often the loop was told."""

    def __init__(self) -> None:
        self.told = 0

    def lock(self) -> NoLock:
        return NoLock()

    def lock_and_signal(self) -> tuple[NoLock, LoopSignal]:
        return NoLock(), LoopSignal()

    def wake(self, function: Callable[..., object], *arguments: object) -> None:
        self.told += 1


def make(
    handover: Handover | None = None,
    kind: type[Outbox] = Outbox,
    *,
    pending_max: int = 1000,
    batching: bool = True,
    messages_max: int = 10,
    bytes_max: int = 10_000,
) -> Outbox:
    return kind(
        handover or Handover(),
        lambda: None,
        pending_max=pending_max,
        batching=batching,
        messages_max=messages_max,
        bytes_max=bytes_max,
    )


def contents(batch: Batch) -> list[bytes]:
    if not batch.batched:
        return batch.payloads
    return [data for _, data in decode_batch(batch.payload(), len(batch.callbacks))]


def drain(outbox: Outbox) -> list[Batch]:
    outbox.seal()
    return outbox.take()[0]


@pytest.mark.promise("11.1")
def test_a_full_batch_is_closed_and_the_rest_waits_for_the_delay() -> None:
    outbox = make(messages_max=3)
    for number in range(7):
        assert outbox.add(b"%d" % number, ignore)
    batches, start_timer = outbox.take()
    assert [contents(batch) for batch in batches] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert [(batch.first_sequence_id, batch.last_sequence_id) for batch in batches] == [(0, 2), (3, 5)]
    assert start_timer
    assert outbox.tick()
    assert [contents(batch) for batch in outbox.take()[0]] == [[b"6"]]
    assert not outbox.tick()


def test_a_batch_closes_before_a_message_that_does_not_fit() -> None:
    outbox = make(bytes_max=100)
    for size in (40, 40, 200, 10):
        outbox.add(b"x" * size, ignore)
    assert [[len(data) for data in contents(batch)] for batch in drain(outbox)] == [[40, 40], [200], [10]]


def test_the_loop_is_told_once_until_it_looks() -> None:
    handover = Handover()
    outbox = make(handover, messages_max=2)
    for _ in range(10):
        outbox.add(b"x", ignore)
    assert handover.told == 1
    outbox.take()
    outbox.add(b"x", ignore)
    assert handover.told == 2, "the delay timer has to be started"
    outbox.take()
    assert outbox.ticking
    outbox.add(b"y", ignore)
    assert handover.told == 3, "the batch is full"
    outbox.take()
    outbox.add(b"z", ignore)
    assert handover.told == 3, "the timer looks after it"


def test_a_batch_closed_by_size_is_told_of_although_the_timer_runs() -> None:
    handover = Handover()
    outbox = make(handover, bytes_max=100)
    outbox.add(b"x" * 60, ignore)
    outbox.take()
    assert outbox.ticking and handover.told == 1
    outbox.add(b"x" * 60, ignore)
    assert handover.told == 2


@pytest.mark.promise("3.3")
def test_no_more_than_may_be_pending() -> None:
    outbox = make(pending_max=3, batching=False)
    assert [outbox.add(b"x", ignore) for _ in range(5)] == [True] * 3 + [False] * 2
    outbox.release(2)
    assert outbox.extend([b"a"] * 5, 1, ignore) == 2
    assert outbox.extend([b"a"] * 5, 3, ignore) == 0


def test_refused_permanently() -> None:
    outbox = make()
    outbox.refuse(AlreadyClosed("closed"))
    assert not outbox.add(b"x", ignore)
    assert not outbox.add_with(Outgoing(b"x"), ignore)
    assert not outbox.extend([b"x"], 0, ignore)
    assert outbox.has_room() and isinstance(outbox.failure, AlreadyClosed)


async def test_waiting_callers_hear_of_space() -> None:
    outbox = make(pending_max=1, batching=False)
    outbox.add(b"x", ignore)
    signal = outbox.space
    assert isinstance(signal, LoopSignal)
    outbox.waiting = 1
    waiter = asyncio.ensure_future(signal.wait())
    await asyncio.sleep(0)
    outbox.release(1)
    await asyncio.wait_for(waiter, 1)


def test_plain_and_other_messages_share_a_batch() -> None:
    outbox = make()
    outbox.add(b"plain 1", ignore)
    outbox.add(b"plain 22", ignore)
    outbox.add_with(Outgoing(b"keyed", {"p": "v"}, "key", "order", None, 77), ignore)
    outbox.add(b"plain 3", ignore)
    assert outbox.extend([b"m1", b"m2"], 0, ignore) == 2
    (batch,) = drain(outbox)
    pieces = decode_batch(batch.payload(), 6)
    assert [data for _, data in pieces] == [b"plain 1", b"plain 22", b"keyed", b"plain 3", b"m1", b"m2"]
    single = pieces[2][0]
    assert single is not None
    assert (single.partition_key, single.ordering_key, single.event_time) == ("key", b"order", 77)
    assert batch.attributes is None, "the key of the first message is shown, and that has none"


@pytest.mark.promise("19.8")
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.tuples(st.binary(max_size=30), st.one_of(st.none(), st.integers(1000, 2000))),
            st.lists(st.binary(max_size=30), min_size=1, max_size=15),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.sampled_from([Outbox, KeyedOutbox]),
)
@settings(max_examples=150)
def test_order_and_sequence_ids_hold_whatever_comes(steps: list[object], batching: bool, kind: type[Outbox]) -> None:
    outbox = make(kind=kind, batching=batching, messages_max=7, bytes_max=120)
    sent: list[tuple[bytes, int]] = []
    own = 0
    for step in steps:
        if isinstance(step, bytes):
            assert outbox.add(step, ignore)
            sent.append((step, own))
            own += 1
        elif isinstance(step, tuple):
            content, number = step
            assert outbox.add_with(Outgoing(content, partition_key="k", sequence_id=number), ignore)
            if number is None:
                sent.append((content, own))
                own += 1
            else:
                sent.append((content, number))
        else:
            assert isinstance(step, list)
            assert outbox.extend(step, 0, ignore) == len(step)
            for content in step:
                sent.append((content, own))
                own += 1
    batches = drain(outbox)
    assert outbox.pending == len(sent) == sum(len(batch.callbacks) for batch in batches)
    assert all(len(batch.callbacks) <= 7 for batch in batches)
    if kind is KeyedOutbox and batching:
        assert sorted(data for batch in batches for data in contents(batch)) == sorted(data for data, _ in sent)
        return
    assert [data for batch in batches for data in contents(batch)] == [data for data, _ in sent]
    position = 0
    for batch in batches:
        last = position + len(batch.callbacks) - 1
        assert batch.first_sequence_id == sent[position][1]
        assert batch.last_sequence_id == sent[last][1]
        position = last + 1


@pytest.mark.promise("19.7")
def test_one_key_in_each_batch() -> None:
    outbox = make(kind=KeyedOutbox, messages_max=100)
    for number in range(9):
        key = ("a", "b", None)[number % 3]
        outbox.add_with(Outgoing(b"%d" % number, partition_key=key), ignore)
    outbox.add(b"9", ignore)
    batches = drain(outbox)
    assert [contents(batch) for batch in batches] == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8", b"9"]]
    assert [batch.attributes and batch.attributes.partition_key for batch in batches] == ["a", "b", None]
    pieces = [piece for batch in batches for piece in decode_batch(batch.payload(), len(batch.callbacks))]
    numbers = [single.sequence_id for single, _ in pieces if single]
    assert sorted(numbers) == list(range(10))


@pytest.mark.parametrize("kind", [Outbox, KeyedOutbox])
def test_without_batching_every_message_is_alone(kind: type[Outbox]) -> None:
    outbox = make(kind=kind, batching=False)
    outbox.add(b"a", ignore)
    outbox.add_with(Outgoing(b"b", partition_key="k", sequence_id=50), ignore)
    outbox.extend([b"c", b"d"], 0, ignore)
    batches = drain(outbox)
    assert [batch.payloads for batch in batches] == [[b"a"], [b"b"], [b"c"], [b"d"]]
    assert [batch.first_sequence_id for batch in batches] == [0, 50, 1, 2]
    assert not any(batch.batched for batch in batches)


def entry(count: int, first: int) -> Batch:
    data = b"".join(Outgoing(b"%d" % number).encode() for number in range(count))
    last = first + count - 1
    return Batch([data], [ignore] * count, first, last, batched=True, encoded=True, attributes=None, size_bytes=count)


def test_a_batch_that_is_encoded_already_goes_behind_what_was_there_and_counts() -> None:
    handover = Handover()
    outbox = make(handover, pending_max=10)
    outbox.add(b"before", ignore)
    assert outbox.add_entry(entry(4, 100))
    outbox.add(b"behind", ignore)
    batches = drain(outbox)
    assert [contents(batch) for batch in batches] == [[b"before"], [b"0", b"1", b"2", b"3"], [b"behind"]]
    assert [(one.first_sequence_id, one.last_sequence_id) for one in batches] == [(0, 0), (100, 103), (104, 104)]
    assert outbox.pending == 6 and handover.told == 1
    assert not outbox.add_entry(entry(5, 200)), "there is space for four"
    assert outbox.add_entry(entry(4, 200))
    outbox.release(10)
    outbox.refuse(AlreadyClosed("closed"))
    assert not outbox.add_entry(entry(1, 300))


def test_a_batch_that_is_encoded_already_counts_for_the_memory_limit() -> None:
    handover = Handover()
    memory = MemoryLimit(handover, 200)
    outbox = MeteredOutbox(
        memory, handover, lambda: None, pending_max=1000, batching=True, messages_max=10, bytes_max=1000
    )
    assert outbox.add_entry(entry(20, 0))
    assert not outbox.add_entry(entry(1, 20)), "the limit is reached"
    (batch,) = drain(outbox)
    outbox.release(20, batch.memory_bytes)
    assert outbox.has_room() and outbox.add_entry(entry(1, 20))
