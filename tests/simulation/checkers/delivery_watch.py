"""I6, seen where a broker hands entries to its connections: who holds what, within one incarnation of a topic.

A model of its own, fed by the calls that connections make (acknowledge, redeliver, detach) and by what goes out
(`AttachedConsumer.deliver`); it never looks at the dispatcher's books. A `Subscription` object belongs to one epoch
of its topic on one broker, so everything here begins again with each incarnation.

- I6: an entry that a consumer holds goes out to nobody, not even to that consumer again, before it was acknowledged,
  asked for again, or its consumer left. (Keys belong to Key_Shared subscriptions, which the product does not have; what
  is tracked here is the entry.)
- I7: to an Exclusive consumer entries go out in order from where it began, and nothing in between that the cursor does
  not count as acknowledged is left out.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.message_id import Position

from .history import History
from .store_watch import is_dead, who


class _Held:
    """What one subscription has out. `last`: what went to its Exclusive consumer last, None after a rewind."""

    def __init__(self) -> None:
        self.holders: dict[Position, AttachedConsumer] = {}
        self.last: Position | None = None

    def let_go(self, consumer: AttachedConsumer) -> None:
        self.holders = {position: one for position, one in self.holders.items() if one is not consumer}
        self.last = None


class DeliveryWatch:
    """See the module."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._held: dict[Subscription, _Held] = {}
        self._attached: dict[AttachedConsumer, Subscription] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        deliver = AttachedConsumer.deliver
        acknowledge, cumulative = Subscription.acknowledge, Subscription.acknowledge_cumulative
        redeliver, attach, detach = Subscription.redeliver, Subscription.attach, Subscription.detach

        def delivering(consumer: AttachedConsumer, delivery: Delivery, now_ms: int, *others: Any) -> None:
            self._goes_out(consumer, delivery)
            deliver(consumer, delivery, now_ms, *others)

        def acknowledging(
            subscription: Subscription, consumer: AttachedConsumer, positions: list[Position], *others: Any
        ) -> None:
            acknowledge(subscription, consumer, positions, *others)
            holders = self._of(subscription).holders
            for position in positions:
                holders.pop(position, None)

        def acknowledging_up_to(
            subscription: Subscription, consumer: AttachedConsumer, position: Position, *others: Any
        ) -> None:
            cumulative(subscription, consumer, position, *others)
            held = self._of(subscription)
            held.holders = {one: holder for one, holder in held.holders.items() if one > position}

        def redelivering(
            subscription: Subscription, consumer: AttachedConsumer, positions: list[Position] | None
        ) -> None:
            self._asked_again(subscription, consumer, positions)
            redeliver(subscription, consumer, positions)

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, subscription_type: int) -> None:
            self._attached[consumer] = subscription
            await attach(subscription, consumer, subscription_type)

        def detaching(subscription: Subscription, consumer: AttachedConsumer, **options: Any) -> None:
            self._of(subscription).let_go(consumer)
            self._attached.pop(consumer, None)
            detach(subscription, consumer, **options)

        for owner, name, wrapper in (
            (AttachedConsumer, "deliver", delivering),
            (Subscription, "acknowledge", acknowledging),
            (Subscription, "acknowledge_cumulative", acknowledging_up_to),
            (Subscription, "redeliver", redelivering),
            (Subscription, "attach", attaching),
            (Subscription, "detach", detaching),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def _of(self, subscription: Subscription) -> _Held:
        held = self._held.get(subscription)
        if held is None:
            held = self._held[subscription] = _Held()
        return held

    def _asked_again(
        self, subscription: Subscription, consumer: AttachedConsumer, positions: list[Position] | None
    ) -> None:
        held = self._of(subscription)
        if positions is None or not isinstance(subscription.dispatcher, SharedDispatcher):
            held.let_go(consumer)
            return
        for position in positions:
            if held.holders.get(position) is consumer:
                del held.holders[position]

    def _goes_out(self, consumer: AttachedConsumer, delivery: Delivery) -> None:
        subscription = self._attached.get(consumer)
        if is_dead():
            return
        if subscription is None:
            self._history.violated(f"I6: {who()} delivers to {consumer.name}, which is attached to nothing")
            return
        held = self._of(subscription)
        for position, _, _, _ in delivery.entries:
            holder = held.holders.get(position)
            if holder is not None:
                self._history.violated(
                    f"I6: {who()} gives {position} of {subscription.name} to {consumer.name} while "
                    f"{'it' if holder is consumer else holder.name} holds it"
                )
            held.holders[position] = consumer
            if isinstance(subscription.dispatcher, SharedDispatcher):
                continue
            if held.last is not None:
                behind = subscription.host.ledger.next_position(held.last)
                expected = subscription.cursor.next_unacknowledged(behind)
                if position <= held.last or expected < position:
                    self._history.violated(
                        f"I7: {who()} gives {position} of {subscription.name} after {held.last}, leaving out {expected}"
                    )
            held.last = position
