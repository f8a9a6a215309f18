"""Dispatch to one consumer: everything in order, redelivery by starting again at the first unacknowledged entry.

Exclusive and Failover subscriptions share it. They differ in who the one consumer is: the active one.
"""

from ...protocol.errors import ConsumerBusy
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe
from ...protocol.sticky_key import sticky_hash
from .consumer import AttachedConsumer, Delivered, Delivery
from .dispatcher import Dispatcher, Entry, ReadPlan
from .hash_ranges import StickyRanges


class SingleActiveDispatcher(Dispatcher):
    """One consumer at a time gets everything. It is not tracked what that consumer holds: a redelivery of anything is
    one of everything that is not acknowledged, which keeps the order."""

    _slots: StickyRanges | None = None
    """Where the consumer takes the keys of its hash ranges only. Other entries are passed by. As in Pulsar they stay in
    the backlog, unless the consumer acknowledges cumulatively."""

    def next_read(self, tail: Position) -> ReadPlan | None:
        consumer = self.active
        if consumer is None or self.read_position > tail or not consumer.able:
            return None
        if self._limits.subscription_unacked_max and self._block(self._cursor.ranges_before(self.read_position)):
            return None
        return ReadPlan(self.generation, self.read_position, self._entries_for(consumer.permits))

    def distribute(self, plan: ReadPlan, entries: list[Entry]) -> list[Delivery]:
        consumer = self.active
        if plan.generation != self.generation or consumer is None:
            return []
        is_acknowledged, count_of = self._cursor.is_acknowledged, self._count_of
        permits = consumer.permits if consumer.able else 0
        slots = self._slots
        out: list[Delivered] = []
        taken = messages = 0
        for position, body in entries:
            if not is_acknowledged(position) and (slots is None or slots.has_key(sticky_hash(body))):
                if permits <= 0:
                    break
                count = count_of(position, body)
                permits -= count
                messages += count
                out.append((position, body, count, 0))
            taken += 1
        self._move_on(entries, taken)
        if not out:
            if taken:  # all of it was acknowledged: jump over the rest of such a run
                self.read_position = self._cursor.next_unacknowledged(self.read_position)
            return []
        self._learn_size(len(out), messages)
        consumer.permits = permits
        return [Delivery(consumer, out, messages)]

    def acknowledged(self, consumer: AttachedConsumer, positions: list[Position]) -> bool:
        return False

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        """As in Pulsar, one that is not active asks in vain: it may not take the order from the active one."""
        if consumer is self.active:
            self.rewind()


class ExclusiveDispatcher(SingleActiveDispatcher):
    """Exactly one consumer, which is the active one."""

    subscription_type = CommandSubscribe.Exclusive

    def obstacle(self, consumer: AttachedConsumer) -> AttachedConsumer | None:
        return self.active

    def add(self, consumer: AttachedConsumer) -> None:
        """Raises ConsumerBusy while there is one already, ConsumerAssignError for impossible hash ranges."""
        if self.consumers:
            raise ConsumerBusy("an Exclusive consumer is connected already: close it first, or subscribe as Shared")
        if consumer.key_shared.ranges:
            slots = StickyRanges()
            slots.add(consumer)
            self._slots = slots
        self.consumers.append(consumer)
        self.active = consumer
        self.rewind()

    def remove(self, consumer: AttachedConsumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.active = None
            self._slots = None
            self.rewind()
