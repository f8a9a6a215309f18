"""The checker of first deliveries finds what it is there for, and nothing else."""

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.client.core.configuration import ConsumerConfiguration
from magnetar.protocol.message_id import Position
from simulation.checkers.first_watch import FirstWatch
from simulation.checkers.history import History

NOBODY = (0, -1)


class Outlet:
    """A connection that takes everything."""

    def write_all(self, parts: list[bytes], size: int) -> None:
        assert sum(map(len, parts)) == size


class Watched:
    """A subscription with one consumer at each of some owners, by epoch."""

    def __init__(self) -> None:
        self.history = History()
        self.watch = FirstWatch(self.history)

    def send(self, epoch: int, position: Position, *, first_behind: Position | None, subscription: str = "s") -> None:
        outlet: Any = Outlet()
        consumer = AttachedConsumer(outlet, 1, "c")
        consumer.marks_first_deliveries = True
        host = SimpleNamespace(name=SimpleNamespace(full="t"), epoch=epoch)
        attached: Any = SimpleNamespace(host=host, name=subscription, durable=True)
        self.watch._attached[consumer] = attached
        consumer.deliver(Delivery(consumer, [(position, b"", 1, 0)], 1), 0, None, first_behind)

    @property
    def broken(self) -> list[str]:
        return [violation.partition(":")[0] for violation in self.history.violations]


@pytest.fixture
def watched() -> Iterator[Watched]:
    with ExitStack() as stack:
        found = Watched()
        found.watch.install(stack)
        yield found


def test_all_consumers_ask_while_it_watches(watched: Watched) -> None:
    assert ConsumerConfiguration.marks_first_deliveries
    assert watched.broken == []


def test_a_first_delivery_and_redeliveries_break_nothing(watched: Watched) -> None:
    watched.send(1, (1, 0), first_behind=NOBODY)
    watched.send(1, (1, 0), first_behind=(1, 0))
    watched.send(2, (1, 0), first_behind=(1, 0))
    watched.send(2, (1, 0), first_behind=NOBODY, subscription="another")
    assert watched.broken == []
    assert watched.history.counts["first deliveries"] == 2


@pytest.mark.parametrize("epoch", [1, 2])
def test_what_an_owner_sent_before_is_no_first_delivery(watched: Watched, epoch: int) -> None:
    watched.send(1, (1, 0), first_behind=None)
    watched.send(epoch, (1, 0), first_behind=NOBODY)
    assert watched.broken == ["I21"]


def test_a_fenced_owner_is_counted_but_no_two_may_call_it_first(watched: Watched) -> None:
    watched.send(2, (1, 0), first_behind=None)
    watched.send(1, (1, 0), first_behind=NOBODY)
    assert watched.broken == []
    assert watched.history.counts["first deliveries of fenced owners"] == 1
    watched.send(1, (2, 0), first_behind=NOBODY)
    watched.send(0, (2, 0), first_behind=NOBODY)
    assert watched.broken == ["I21"]
