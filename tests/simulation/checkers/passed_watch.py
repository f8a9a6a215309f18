"""I7, seen where brokers deliver: what a cursor has passed over goes out to nobody. Stands beside the brokers.

Entries that expired, were skipped or were evicted are in front of the first entry that the cursor still has to deliver.
`validate_services` sees that dispatchers hold nothing of them.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.topics.subscription import Subscription

from .history import History
from .store_watch import is_dead, who


class PassedWatch:
    """See the module. Only topics with that text in their names are looked at."""

    def __init__(self, history: History, topic: str) -> None:
        self._history = history
        self._topic = topic
        self._attached: dict[AttachedConsumer, Subscription] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        deliver, attach, passed = AttachedConsumer.deliver, Subscription.attach, Subscription._passed

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, *others: Any) -> None:
            if self._topic in _topic_of(subscription):
                self._attached[consumer] = subscription
            await attach(subscription, consumer, *others)

        def delivering(consumer: AttachedConsumer, delivery: Delivery, *others: Any) -> None:
            subscription = self._attached.get(consumer)
            if subscription is not None and not is_dead():
                self.goes_out(subscription, delivery)
            deliver(consumer, delivery, *others)

        def passing(subscription: Subscription) -> None:
            if subscription.dispatcher is not None and self._topic in _topic_of(subscription):
                first = subscription.cursor.first_unacknowledged
                held = sum(position < first for position in subscription.dispatcher.held())
                self._history.counts["held entries passed over"] += held
            passed(subscription)

        stack.enter_context(patch.object(Subscription, "attach", attaching))
        stack.enter_context(patch.object(Subscription, "_passed", passing))
        stack.enter_context(patch.object(AttachedConsumer, "deliver", delivering))

    def goes_out(self, subscription: Subscription, delivery: Delivery) -> None:
        """A consumer of the subscription gets these entries now."""
        first = subscription.cursor.first_unacknowledged
        passed = [position for position, _, _, _ in delivery.entries if position < first]
        if passed:
            self._history.violated(
                f"I7: {who()} gives {passed[:3]} of {_topic_of(subscription)} to {subscription.name}, which were "
                f"passed over: {first} is the first to deliver"
            )


def _topic_of(subscription: Subscription) -> str:
    host: Any = subscription.host
    full: str = host.name.full
    return full
