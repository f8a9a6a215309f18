"""I21, seen where a broker writes MESSAGEs: what is called a first delivery, and what was sent before.

A model of its own: all that any broker sent of a persistent topic, by subscription name and position, with the epoch
of the owner that sent it. It takes from the broker only what stands in the headers. While it watches, all consumers ask
for the mark.

- I21: an entry that is called a first delivery was sent to no consumer of a subscription of that name before, by this
  owner of the topic or by an earlier one. That holds across the deletion of the subscription, too.
- I21: no entry is called a first delivery twice, by whatever owners.

An owner that was fenced and does not know it may call a delivery the first one after a later owner has sent the entry.
That is counted, and violates nothing.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch import consumer as writing
from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.topics.subscription import Subscription
from magnetar.client.core.configuration import ConsumerConfiguration
from magnetar.protocol.message_id import Position, position_of
from magnetar.protocol.pulsar_pb2 import BaseCommand

from .history import History
from .store_watch import is_dead, who

SIZES = 8
"""Bytes in front of the command."""
SentTo = tuple[str, str, bool]
"""Topic, subscription, whether it is durable."""


class FirstWatch:
    """See the module."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._attached: dict[AttachedConsumer, Subscription] = {}
        self._sent: dict[SentTo, dict[Position, set[int]]] = {}
        """The epochs of the owners that sent each entry."""
        self._firsts: dict[SentTo, dict[Position, str]] = {}
        """Who called a delivery of it the first one."""
        self._called: list[Position] = []
        """What the delivery that is being written calls first."""

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        attach, deliver, header = Subscription.attach, AttachedConsumer.deliver, writing.message_header

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, subscription_type: int) -> None:
            self._attached[consumer] = subscription
            await attach(subscription, consumer, subscription_type)

        def delivering(consumer: AttachedConsumer, delivery: Delivery, *others: Any) -> None:
            self._called = []
            deliver(consumer, delivery, *others)
            self._goes_out(consumer, delivery)

        def heading(*parts: Any, **options: Any) -> bytes:
            made = header(*parts, **options)
            message = BaseCommand.FromString(made[SIZES:]).message
            if message.first_delivery:
                self._called.append(position_of(message.message_id))
            return made

        for owner, name, wrapper in (
            (Subscription, "attach", attaching),
            (AttachedConsumer, "deliver", delivering),
            (writing, "message_header", heading),
            (ConsumerConfiguration, "marks_first_deliveries", True),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def _goes_out(self, consumer: AttachedConsumer, delivery: Delivery) -> None:
        subscription = self._attached.get(consumer)
        if subscription is None or is_dead():
            return
        topic = subscription.host
        of = (topic.name.full, subscription.name, subscription.durable)
        sent, firsts = self._sent.setdefault(of, {}), self._firsts.setdefault(of, {})
        for position in self._called:
            self._history.counts["first deliveries"] += 1
            before = sent.get(position, set())
            if any(epoch <= topic.epoch for epoch in before):
                self._history.violated(
                    f"I21: {who()} (epoch {topic.epoch}) calls it the first delivery of {position} of {of[1]} that "
                    f"{consumer.name} gets, and owners of epochs {sorted(before)} sent it before"
                )
            elif before:
                self._history.counts["first deliveries of fenced owners"] += 1
            if position in firsts:
                self._history.violated(f"I21: {who()} and {firsts[position]} call it the first delivery of {position}")
            firsts[position] = who()
        for position, _, _, _ in delivery.entries:
            sent.setdefault(position, set()).add(topic.epoch)
