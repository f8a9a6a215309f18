"""When negatively acknowledged entries are asked for again, on a loop whose clock the test moves."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.client.acknowledging.negative_acks import NegativeAcks
from magnetar.client.core.redelivery_backoff import MultiplierRedeliveryBackoff, RedeliveryBackoff
from magnetar.protocol.message_id import Position

ENTRY = (1, 5)


class Timer:
    def __init__(self, when_s: float, function: Callable[[], None]) -> None:
        self.when_s = when_s
        self.function = function
        self.cancelled = False

    def when(self) -> float:
        return self.when_s

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """As much of a loop as timers need."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, function: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when_s, function))
        return self.timers[-1]

    def advance(self) -> None:
        """To the next timer."""
        timer = min((one for one in self.timers if not one.cancelled), key=Timer.when)
        self.timers.remove(timer)
        self.now_s = timer.when_s
        timer.function()


class Bench:
    def __init__(self, delay_s: float = 60.0, backoff: RedeliveryBackoff | None = None) -> None:
        self.clock: Any = Clock()
        self.asked: list[tuple[float, list[Position]]] = []
        self.flushed = 0
        self.acks = NegativeAcks(self.clock, delay_s, backoff, self.flush, self.ask)

    def flush(self) -> None:
        self.flushed += 1

    def ask(self, positions: list[Position]) -> None:
        self.asked.append((self.clock.now_s, positions))


@pytest.mark.promise("6.3")
def test_the_table_of_the_page() -> None:
    """The message is negatively acknowledged at once, each time that it comes."""
    bench = Bench(backoff=MultiplierRedeliveryBackoff(1_000, 60_000, 2))
    waited = []
    for redelivery_count in range(8):
        given_s = bench.clock.now_s
        bench.acks.add([ENTRY], redelivery_count)
        bench.clock.advance()
        assert bench.asked[-1] == (bench.clock.now_s, [ENTRY])
        waited.append(bench.clock.now_s - given_s)
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]


def test_without_a_back_off_the_delay_is_always_the_same() -> None:
    bench = Bench(2.0)
    bench.acks.add([ENTRY], 7)
    bench.clock.advance()
    assert bench.asked == [(2.0, [ENTRY])] and bench.flushed == 1


def test_a_message_that_is_due_earlier_does_not_wait_for_the_others() -> None:
    bench = Bench(backoff=MultiplierRedeliveryBackoff(1_000, 60_000, 2))
    bench.acks.add([(1, 1)], 5)
    bench.acks.add([(1, 2)], 0)
    bench.clock.advance()
    bench.clock.advance()
    assert bench.asked == [(1.0, [(1, 2)]), (32.0, [(1, 1)])]


@pytest.mark.parametrize("withdraw", ["one", "up to", "clear"])
def test_what_was_acknowledged_meanwhile_is_not_asked_for(withdraw: str) -> None:
    bench = Bench(2.0)
    bench.acks.add([ENTRY], 0)
    if withdraw == "one":
        bench.acks.withdraw(ENTRY)
    elif withdraw == "up to":
        bench.acks.withdraw_up_to((1, 9), lambda position: False)
    else:
        bench.acks.clear()
    bench.clock.advance()
    assert bench.asked == []
