"""Bugs of our own choosing in what is called a first delivery."""

from contextlib import ExitStack
from typing import Any

from magnetar.actors.dispatch.first_deliveries import FirstDeliveries
from magnetar.actors.topics.subscription import Subscription

from .mutant import Mutant, replace


def _begin_at_the_read_position(stack: ExitStack) -> None:
    initialize = Subscription.__init__

    def initializing(self: Any, host: Any, name: str, cursor: Any, **options: Any) -> None:
        initialize(self, host, name, cursor, **options)
        ledger_id, entry_id = cursor.first_unacknowledged
        self.pump.firsts = FirstDeliveries((ledger_id, entry_id - 1))

    replace(stack, Subscription, "__init__", initializing)


def _begin_before_the_recovery(stack: ExitStack) -> None:
    """A ledger that was not closed had no entries then, as far as its record said."""
    initialize = Subscription.__init__

    def initializing(self: Any, host: Any, name: str, cursor: Any, **options: Any) -> None:
        initialize(self, host, name, cursor, **options)
        self.pump.firsts = FirstDeliveries((host.ledger.last_confirmed[0], -1))

    replace(stack, Subscription, "__init__", initializing)


def _go_back_with_each_dispatcher(stack: ExitStack) -> None:
    """The mark ends with the last consumer, and begins again where the next one does."""
    use_dispatcher = Subscription.use_dispatcher

    def using(self: Any, dispatcher: Any) -> None:
        use_dispatcher(self, dispatcher)
        if dispatcher is not None:
            ledger_id, entry_id = dispatcher.read_position
            self.pump.firsts = FirstDeliveries((ledger_id, entry_id - 1))

    replace(stack, Subscription, "use_dispatcher", using)


def _follow_what_was_sent_last(stack: ExitStack) -> None:
    """The mark is the last entry that was sent, also when that was a redelivery."""

    def moving(self: Any, deliveries: Any) -> Any:
        mark = self._mark
        for delivery in deliveries:
            self._mark = delivery.entries[-1][0]
        return mark

    replace(stack, FirstDeliveries, "move", moving)


FIRSTS = (
    Mutant(
        "first unread",
        "all behind the place where a new owner reads counts as never sent",
        "I21",
        _begin_at_the_read_position,
        "cluster",
    ),
    Mutant(
        "first unrecovered",
        "what was sent is taken from before the recovery of the last ledger",
        "I21",
        _begin_before_the_recovery,
        "cluster",
    ),
    Mutant(
        "first again",
        "what was sent is forgotten when the last consumer leaves",
        "I21",
        _go_back_with_each_dispatcher,
        "cluster",
    ),
    Mutant(
        "first redelivered",
        "a redelivery lowers the mark of what was sent",
        "I21",
        _follow_what_was_sent_last,
        "cluster",
    ),
)
