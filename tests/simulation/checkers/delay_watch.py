"""I12, seen where a broker hands entries to the consumers of one Shared or Key_Shared subscription.

A message goes out at its delivery time at the earliest, by the clock of the broker. Where the broker is not strict, it
may go out one tick earlier. One that was acknowledged before does not go out at all.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.entries import parse_metadata

from .history import History
from .store_watch import is_dead, who


class DelayWatch:
    """See the module. Only subscriptions of this name are looked at."""

    def __init__(self, history: History, subscription: str) -> None:
        self._history = history
        self._subscription = subscription
        self._attached: dict[AttachedConsumer, Subscription] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        deliver, attach = AttachedConsumer.deliver, Subscription.attach

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, *others: Any) -> None:
            if subscription.name == self._subscription:
                self._attached[consumer] = subscription
            await attach(subscription, consumer, *others)

        def delivering(consumer: AttachedConsumer, delivery: Delivery, now_ms: int, *others: Any) -> None:
            subscription = self._attached.get(consumer)
            if subscription is not None and not is_dead():
                self.goes_out(subscription, delivery, now_ms)
            deliver(consumer, delivery, now_ms, *others)

        stack.enter_context(patch.object(Subscription, "attach", attaching))
        stack.enter_context(patch.object(AttachedConsumer, "deliver", delivering))

    def goes_out(self, subscription: Subscription, delivery: Delivery, now_ms: int) -> None:
        """A consumer of the subscription gets these entries now."""
        host: Any = subscription.host
        early_ms = 0 if host.settings.delayed_delivery_strict else host.policies.delayed_delivery.tick_ms
        for position, body, _, _ in delivery.entries:
            at_ms = parse_metadata(body).deliver_at_time
            if not at_ms:
                continue
            self._history.counts["delayed entries delivered"] += 1
            if at_ms > now_ms + early_ms:
                self._history.violated(
                    f"I12: {who()} gives {position} of {host.name.full} {at_ms - now_ms} ms before its time, "
                    f"of which {early_ms} ms are allowed"
                )
            if subscription.cursor.is_acknowledged(position):
                self._history.violated(f"I12: {who()} gives {position} of {host.name.full}, which is acknowledged")
