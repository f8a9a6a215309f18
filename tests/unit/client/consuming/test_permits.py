"""The flow permits of one partition's consumer, also while the application has paused it."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.client.consuming.partition_consumer import Permits
from magnetar.client.consuming.receive_queue import ReceiveQueue
from magnetar.client.core.threading_bridge import NoLock
from magnetar.protocol.commands import flow


class Wire:
    """What a connection was given to write, and a hand-over that calls at once."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, frame: bytes) -> None:
        self.written.append(frame)

    def wake(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)


class Kit:
    def __init__(self, queue_size: int) -> None:
        self.wire = Wire()
        self.queue = SimpleNamespace(lock=NoLock(), paused=False, waiting=0, waits=0, queued=lambda _: self.queue.waits)
        self.registration = SimpleNamespace(id=7, connection=self.wire)
        self.permits = Permits(
            cast(Any, self.registration), cast(ReceiveQueue, self.queue), queue_size, cast(Any, self.wire)
        )

    def sent(self) -> list[int]:
        """The permits of each FLOW since the last call."""
        found = [next(count for count in range(100) if flow(7, count) == frame) for frame in self.wire.written]
        self.wire.written.clear()
        return found


def test_half_an_empty_queue_is_granted_together() -> None:
    kit = Kit(10)
    assert kit.permits.begin(object()) == 10
    for _ in range(12):
        kit.permits.free(1)
    assert kit.sent() == [5, 5]


def test_a_new_subscription_grants_the_free_part_of_the_queue() -> None:
    kit = Kit(10)
    kit.permits.begin(object())
    kit.permits.free(3)
    kit.queue.waits = 4
    assert kit.permits.begin(object()) == 6
    kit.permits.free(4)
    assert kit.sent() == [], "what was freed before the new subscription is part of the six"


def test_permits_of_an_earlier_subscription_are_not_sent() -> None:
    kit = Kit(10)
    late: list[tuple[Callable[..., object], tuple[object, ...]]] = []
    kit.wire.wake = lambda function, *arguments: late.append((function, arguments))
    kit.permits.begin(object())
    kit.permits.free(5)
    kit.permits.begin(object())
    for function, arguments in late:
        function(*arguments)
    assert kit.sent() == []


def test_nothing_is_granted_while_paused_and_all_of_it_on_resuming() -> None:
    kit = Kit(10)
    kit.permits.begin(object())
    kit.queue.paused = True
    kit.permits.free(6)
    kit.permits.free_at_once(3)
    kit.permits.resume()
    assert kit.sent() == [], "it was paused again before the loop came to it"
    kit.queue.paused = False
    kit.permits.resume()
    kit.permits.resume()
    assert kit.sent() == [9]


def test_a_subscription_that_is_made_again_while_paused_grants_nothing() -> None:
    kit = Kit(10)
    kit.permits.begin(object())
    kit.queue.paused = True
    kit.permits.free(6)
    kit.queue.waits = 2
    assert kit.permits.begin(object()) == 0
    kit.queue.paused = False
    kit.permits.resume()
    assert kit.sent() == [8]


@pytest.mark.parametrize("waiting", [0, 1])
def test_without_a_queue_a_waiting_caller_asks_on_resuming(waiting: int) -> None:
    kit = Kit(0)
    assert kit.permits.begin(object()) == 0
    kit.queue.paused = True
    kit.queue.waiting = waiting
    kit.permits.ask_for_one()
    assert kit.sent() == []
    kit.queue.paused = False
    kit.permits.resume()
    kit.permits.resume()
    assert kit.sent() == [1] * waiting


def test_a_larger_queue_is_granted_its_new_room_at_once() -> None:
    kit = Kit(1)
    assert kit.permits.begin(object()) == 1
    kit.permits.resize(10)
    assert kit.sent() == [9]
    for _ in range(5):
        kit.permits.free(1)
    assert kit.sent() == [5]


def test_a_smaller_queue_keeps_back_what_is_freed_until_it_fits() -> None:
    kit = Kit(10)
    kit.permits.begin(object())
    kit.permits.free(3)
    kit.permits.resize(4)
    assert kit.sent() == []
    kit.permits.free(3)  # 10 granted and 6 freed: 4 lie in the queue, or are at the broker
    kit.permits.free(1)
    assert kit.sent() == []
    kit.permits.free(1)
    assert kit.sent() == [2]


def test_a_queue_that_grows_while_paused_is_granted_its_room_on_resuming() -> None:
    kit = Kit(2)
    kit.permits.begin(object())
    kit.queue.paused = True
    kit.permits.resize(8)
    assert kit.sent() == []
    kit.queue.paused = False
    kit.permits.resume()
    assert kit.sent() == [6]


@pytest.mark.parametrize("seed", range(50))
def test_permits_and_messages_always_fill_the_queue(seed: int) -> None:
    random = Random(seed)
    kit = Kit(random.randint(1, 20))
    at_broker, waiting = kit.permits.begin(object()), 0
    for _ in range(300):
        match random.randrange(4):
            case 0 if at_broker:
                at_broker, waiting = at_broker - 1, waiting + 1
            case 1 | 2 if waiting:
                waiting -= 1
                kit.permits.free(1)
            case 3:
                kit.permits.resize(random.randint(1, 20))
            case _:
                pass
        at_broker += sum(kit.sent())
        size = kit.permits.queue_size
        kept_back = size - at_broker - waiting
        assert kept_back < (size // 2 or 1), "more is kept back than half of the queue"
        assert at_broker or waiting, "the broker may send nothing, and nothing is here"
