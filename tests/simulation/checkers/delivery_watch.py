"""I6, seen where a broker hands entries to its connections: who holds what, within one incarnation of a topic.

A model of its own, fed by the calls that connections make (acknowledge, redeliver, detach) and by what goes out
(`AttachedConsumer.deliver`); it never looks at the dispatcher's books. A `Subscription` object belongs to one epoch
of its topic on one broker, so everything here begins again with each incarnation.

- I6: an entry that a consumer holds goes out to nobody, not even to that consumer again, before it was acknowledged,
  asked for again, or its consumer left. Nobody holds what the cursor has passed over.
- I6, Key_Shared: no two consumers hold entries of one key, and an entry that goes out for the first time is not behind
  one of its key that went out before, unless it waited for its delivery time.
- I6, Failover: entries go to the consumer that was told last that it is active, and no consumer is told twice that it
  became active.
- I7: to an Exclusive or an active consumer entries go out in order from where it began, and nothing in between that the
  cursor does not count as acknowledged is left out. A consumer that becomes active begins with the first of these.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.dispatch.failover import FailoverDispatcher
from magnetar.actors.dispatch.key_shared import KeySharedDispatcher
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.entries import parse_metadata
from magnetar.protocol.message_id import Position
from magnetar.protocol.sticky_key import sticky_hash

from .history import History
from .store_watch import is_dead, who


class _Held:
    """What one subscription has out. `last`: what went to its Exclusive consumer last, None after a rewind."""

    def __init__(self) -> None:
        self.holders: dict[Position, AttachedConsumer] = {}
        self.last: Position | None = None
        self.active: AttachedConsumer | None = None
        """Of a Failover subscription: the consumer that was told last that it is active."""
        self.told: dict[AttachedConsumer, bool] = {}
        self.keys: dict[int, dict[Position, None]] = {}
        """Key_Shared: entries by the hash of their key that went out; some may be held no longer."""
        self.highest: dict[int, Position] = {}
        self.sent: set[Position] = set()

    def begin_again(self) -> None:
        """Key_Shared: nobody is connected, so the order begins again."""
        self.keys.clear()
        self.highest.clear()
        self.sent.clear()

    def let_go(self, consumer: AttachedConsumer) -> None:
        self.holders = {position: one for position, one in self.holders.items() if one is not consumer}
        self.last = None

    def let_go_before(self, first: Position) -> None:
        self.holders = {position: one for position, one in self.holders.items() if position >= first}


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
        passed = Subscription._passed

        tell_active = AttachedConsumer.tell_active

        def telling(consumer: AttachedConsumer, active: bool) -> None:
            self._told(consumer, active)
            tell_active(consumer, active)

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

        def passing(subscription: Subscription) -> None:
            self._of(subscription).let_go_before(subscription.cursor.first_unacknowledged)
            passed(subscription)

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, subscription_type: int) -> None:
            self._attached[consumer] = subscription
            await attach(subscription, consumer, subscription_type)

        def detaching(subscription: Subscription, consumer: AttachedConsumer, **options: Any) -> None:
            held = self._of(subscription)
            held.told.pop(consumer, None)
            if held.active in (None, consumer):
                held.let_go(consumer)
            self._attached.pop(consumer, None)
            detach(subscription, consumer, **options)
            if not subscription.consumers:
                held.begin_again()

        for owner, name, wrapper in (
            (AttachedConsumer, "deliver", delivering),
            (AttachedConsumer, "tell_active", telling),
            (Subscription, "acknowledge", acknowledging),
            (Subscription, "acknowledge_cumulative", acknowledging_up_to),
            (Subscription, "redeliver", redelivering),
            (Subscription, "_passed", passing),
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
            if held.active in (None, consumer):
                held.let_go(consumer)
            return
        for position in positions:
            if held.holders.get(position) is consumer:
                del held.holders[position]

    def _told(self, consumer: AttachedConsumer, active: bool) -> None:
        subscription = self._attached.get(consumer)
        if is_dead() or subscription is None:
            return
        held = self._of(subscription)
        if active and held.told.get(consumer):
            self._history.violated(f"I6: {who()} tells {consumer.name} twice that it is active")
        held.told[consumer] = active
        if active:  # it begins again, behind what is acknowledged
            held.holders.clear()
            held.last = None
            held.active = consumer

    def _check_key(self, held: _Held, consumer: AttachedConsumer, position: Position, body: bytes) -> None:
        key = sticky_hash(body)
        mine = held.keys.setdefault(key, {})
        for other in list(mine):
            holder = held.holders.get(other)
            if holder is None:
                del mine[other]
            elif holder is not consumer:
                self._history.violated(
                    f"I6: {who()} gives {position} to {consumer.name} while {holder.name} holds {other} of its key"
                )
        overtaken = position not in held.sent and position < held.highest.get(key, position)
        if overtaken and not parse_metadata(body).deliver_at_time:
            self._history.violated(f"I6: {who()} gives {position} behind {held.highest[key]} of its key")
        mine[position] = None
        held.sent.add(position)
        held.highest[key] = max(position, held.highest.get(key, position))

    def _goes_out(self, consumer: AttachedConsumer, delivery: Delivery) -> None:
        subscription = self._attached.get(consumer)
        if is_dead() or consumer in self._history.passing:
            return
        if subscription is None:
            self._history.violated(f"I6: {who()} delivers to {consumer.name}, which is attached to nothing")
            return
        held = self._of(subscription)
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, FailoverDispatcher) and consumer is not held.active:
            self._history.violated(f"I6: {who()} gives entries to {consumer.name}, which does not know it is active")
            held.active = consumer
        for position, body, _, _ in delivery.entries:
            holder = held.holders.get(position)
            if holder is not None:
                self._history.violated(
                    f"I6: {who()} gives {position} of {subscription.name} to {consumer.name} while "
                    f"{'it' if holder is consumer else holder.name} holds it"
                )
            held.holders[position] = consumer
            if isinstance(dispatcher, KeySharedDispatcher):
                self._check_key(held, consumer, position, body)
            if isinstance(dispatcher, SharedDispatcher):
                continue
            if held.last is None and isinstance(dispatcher, FailoverDispatcher):
                if subscription.cursor.first_unacknowledged < position:
                    self._history.violated(
                        f"I7: {who()} begins with {position} of {subscription.name}, leaving out "
                        f"{subscription.cursor.first_unacknowledged}"
                    )
            if held.last is not None:
                behind = subscription.host.ledger.next_position(held.last)
                expected = subscription.cursor.next_unacknowledged(behind)
                horizon = subscription.host.ledger.compacted.horizon
                if consumer.read_compacted and expected <= horizon:  # what lies between is perhaps compacted away
                    expected = position if position <= horizon else subscription.host.ledger.next_position(horizon)
                if position <= held.last or expected < position:
                    self._history.violated(
                        f"I7: {who()} gives {position} of {subscription.name} after {held.last}, leaving out {expected}"
                    )
            held.last = position
