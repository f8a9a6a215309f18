"""I12, seen where a broker hands entries to the consumers of one Shared or Key_Shared subscription.

A message goes out at its delivery time at the earliest, by the clock of the broker. Where the broker is not strict, it
may go out one tick earlier, and while the policy is not active, at any time. What was due by a policy may go out later,
whatever the policy says then. One that was acknowledged before does not go out at all.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.entries import parse_metadata
from magnetar.protocol.message_id import Position

from . import bucket_watch
from .history import History
from .store_watch import is_dead, who

EVER_MS = (1 << 63) - 1


class DelayWatch:
    """See the module. Only subscriptions of this name are looked at."""

    def __init__(self, history: History, subscription: str) -> None:
        self._history = history
        self._subscription = subscription
        self._attached: dict[AttachedConsumer, Subscription] = {}
        self._due: dict[Any, list[tuple[Position, int]]] = {}
        """Of a loaded topic, for each change of policies: entries up to the place were due up to the time."""

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        deliver, attach, use_policies = AttachedConsumer.deliver, Subscription.attach, PersistentTopic.use_policies

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, *others: Any) -> None:
            if subscription.name == self._subscription:
                self._attached[consumer] = subscription
            await attach(subscription, consumer, *others)

        def delivering(consumer: AttachedConsumer, delivery: Delivery, now_ms: int, *others: Any) -> None:
            subscription = self._attached.get(consumer)
            if subscription is not None and not is_dead():
                self.goes_out(subscription, delivery, now_ms)
            deliver(consumer, delivery, now_ms, *others)

        def using(topic: PersistentTopic, policies: EffectivePolicies) -> None:
            due = (topic.ledger.last_confirmed, due_upto_ms(topic, topic.env.clock.now_ms()))
            self._due.setdefault(topic, []).append(due)
            use_policies(topic, policies)

        bucket_watch.install(stack, self._history)
        stack.enter_context(patch.object(PersistentTopic, "use_policies", using))
        stack.enter_context(patch.object(Subscription, "attach", attaching))
        stack.enter_context(patch.object(AttachedConsumer, "deliver", delivering))

    def goes_out(self, subscription: Subscription, delivery: Delivery, now_ms: int) -> None:
        """A consumer of the subscription gets these entries now."""
        host: Any = subscription.host
        upto_ms = due_upto_ms(host, now_ms)
        for position, body, _, _ in delivery.entries:
            at_ms = parse_metadata(body).deliver_at_time
            if not at_ms:
                continue
            self._history.counts["delayed entries delivered"] += 1
            was_due = any(position <= end and at_ms <= due_ms for end, due_ms in self._due.get(host, ()))
            if at_ms > upto_ms and not was_due:
                self._history.violated(
                    f"I12: {who()} gives {position} of {host.name.full} {at_ms - now_ms} ms before its time, "
                    f"of which {upto_ms - now_ms} ms are allowed"
                )
            if subscription.cursor.is_acknowledged(position):
                self._history.violated(f"I12: {who()} gives {position} of {host.name.full}, which is acknowledged")


def due_upto_ms(topic: Any, now_ms: int) -> int:
    """Up to which delivery time messages are due by the policy of a topic."""
    policy = topic.policies.delayed_delivery
    if not policy.active:
        return EVER_MS
    return now_ms if topic.settings.delayed_delivery_strict else now_ms + policy.tick_ms
