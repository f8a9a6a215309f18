"""The receiver queue while several threads use it: every message goes to one of them, in order, or to nobody."""

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.consuming.receive_queue import ReceiveQueue
from magnetar.protocol.errors import AlreadyClosed
from magnetar.protocol.pulsar_pb2 import MessageMetadata


class Partition:
    """A source of entries that hold one number each."""

    generation = 0

    def open_entry(self, entry: ReceivedEntry) -> Sequence[Message]:
        return entry.open(1 << 20)


class RealLocks:
    """What the threads of a test share."""

    def lock(self) -> threading.Lock:
        return threading.Lock()

    def lock_and_signal(self) -> tuple[threading.Lock, threading.Condition]:
        lock = threading.Lock()
        return lock, threading.Condition(lock)

    def wake(self, function: object, *arguments: object) -> None:
        raise AssertionError("a receive queue wakes nobody on the loop")


class Watched(deque[Message]):
    """Messages of which somebody else takes one, without the lock as receivers do, at the worst moments."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_by_another: list[Message] = []

    def clear(self) -> None:
        self._let_another_take()
        super().clear()

    def copy(self) -> deque[Message]:
        return deque(super().__iter__())

    def __iter__(self) -> Iterator[Message]:
        for message in super().__iter__():
            self._let_another_take()
            yield message

    def _let_another_take(self) -> None:
        if self and not self.taken_by_another:
            self.taken_by_another.append(self.popleft())


def filled(source: Partition, count: int, other: Partition | None = None) -> ReceiveQueue:
    """A receive queue with so many opened messages, of two sources by turns if there is another."""
    queue = ReceiveQueue(RealLocks())
    queue.messages = Watched()
    for number in range(count):
        owner = other if other is not None and number % 2 else source
        queue.messages.extend(owner.open_entry(entry(owner, number)))
    return queue


def entry(source: Partition, number: int) -> ReceivedEntry:
    return ReceivedEntry("t", -1, 1, number, MessageMetadata(), b"%d" % number, source=source)


def numbers(messages: object) -> list[int]:
    return [int(message.data()) for message in messages]  # type: ignore[attr-defined]


def rest(queue: ReceiveQueue) -> list[int]:
    return numbers(iter(queue.take, None))


def test_what_another_thread_takes_during_a_discard_is_not_handed_over_again() -> None:
    one, two = Partition(), Partition()
    queue = filled(one, 6, two)
    assert queue.discard(one) == 0
    taken = numbers(queue.messages.taken_by_another)  # type: ignore[attr-defined]
    assert rest(queue) == [number for number in (1, 3, 5) if number not in taken]


@pytest.mark.parametrize("messages_max", [3, 6, 100])
def test_what_another_thread_takes_during_take_many_is_not_handed_over_again(messages_max: int) -> None:
    queue = filled(Partition(), 6)
    many = numbers(queue.take_many(messages_max))
    assert len(many) == min(messages_max, 6)
    everything = [*many, *numbers(queue.messages.taken_by_another), *rest(queue)]  # type: ignore[attr-defined]
    assert sorted(everything) == list(range(6))


def test_the_first_of_a_source_is_found_while_another_thread_takes() -> None:
    one, two = Partition(), Partition()
    queue = filled(one, 6, two)
    first = queue.first(two)
    assert isinstance(first, Message) and first.data() == b"1"


def test_threads_and_a_discarding_loop_hand_over_each_message_once_in_order() -> None:
    kept, voided = Partition(), Partition()
    queue = ReceiveQueue(RealLocks())
    count, done = 20_000, threading.Event()
    found: list[list[int]] = [[], [], []]

    def take(mine: list[int], many: bool) -> None:
        while True:
            ending = done.is_set()
            if many:
                messages = queue.take_many(7)
            else:
                message = queue.take()
                messages = [] if message is None else [message]
            mine.extend(numbers(message for message in messages if message.source is kept))
            if ending and not messages:
                return

    threads = [threading.Thread(target=take, args=(mine, index == 2)) for index, mine in enumerate(found)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for number in range(count):
            queue.arrive(entry(kept, number))
            queue.arrive(entry(voided, number))
            if number % 50 == 0:
                queue.discard(voided)
        done.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(number for mine in found for number in mine) == list(range(count))
    for mine in found:
        assert all(before < after for before, after in pairwise(mine))


# ---- Calls that do not hand over what they took ----


def test_what_is_put_back_is_next_and_in_order() -> None:
    source = Partition()
    queue = filled(source, 6)
    taken = queue.take_many(4)
    queue.put_back(taken)
    assert rest(queue) == [0, 1, 2, 3, 4, 5]


def test_what_became_void_is_not_put_back() -> None:
    one, two = Partition(), Partition()
    queue = filled(one, 6, two)
    taken = queue.take_many(4)
    one.generation += 1
    queue.put_back(taken)
    assert rest(queue) == [1, 3, 4, 5]


def test_nothing_is_put_back_into_a_queue_that_has_failed() -> None:
    queue = filled(Partition(), 4)
    taken = queue.take_many(2)
    queue.fail(AlreadyClosed("the test closes it"))
    queue.put_back(taken)
    assert not queue.messages


def test_putting_back_wakes_those_who_wait() -> None:
    queue = filled(Partition(), 2)
    taken = queue.take_many(2)
    waits = threading.Event()

    def wait() -> bool:
        assert isinstance(queue.arrival, threading.Condition)
        with queue.arrival:
            queue.waiting += 1
            waits.set()
            return queue.arrival.wait(20)

    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(wait)
        assert waits.wait(20)
        queue.put_back(taken)
        assert woken.result()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("where", ["opening", "screening"])
def test_an_interrupt_leaves_an_entry_to_the_next_call(where: str, many: bool) -> None:
    source, queue = Partition(), ReceiveQueue(RealLocks())
    interrupted: list[int] = []

    def interrupts(number: int) -> None:
        if number == 2 and not interrupted:
            interrupted.append(number)
            raise KeyboardInterrupt

    if where == "screening":

        def screen(messages: Sequence[Message]) -> Sequence[Message]:
            interrupts(int(messages[0].data()))
            return messages

        queue.screen = screen
    else:

        def open_entry(one: ReceivedEntry) -> Sequence[Message]:
            interrupts(one.entry_id)
            return one.open(1 << 20)

        source.open_entry = open_entry  # type: ignore[method-assign]
    for number in range(5):
        queue.arrive(entry(source, number))
    found: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        if many:
            queue.take_many(5)
        while True:
            found += numbers([queue.take()])
    assert interrupted and [*found, *rest(queue)] == [0, 1, 2, 3, 4]
