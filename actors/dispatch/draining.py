"""Which consumer holds unacknowledged messages of a slot, and which slots drain.

States of a slot:

- *free*: nothing of it is unacknowledged at a consumer.
- *held*: one consumer holds unacknowledged entries of it, and it is the consumer that the slot belongs to.
- *draining*: the consumer that holds them is no longer the one that the slot belongs to. Nothing of the slot is sent
  until that consumer holds nothing of it.

A slot is held from the first entry that is sent (`take`). It is free when as many have been acknowledged, given back,
or lost with their consumer (`release`). Whether it drains is decided when consumers join or leave (`reassign`).

Invariant: at any time one consumer at most holds unacknowledged entries of a slot. So the order of a key survives a
change of its consumer.
"""

from collections.abc import Callable

from .consumer import AttachedConsumer


class Holding:
    """What one consumer holds of one slot."""

    __slots__ = ("blocked_attempts", "consumer", "draining", "entries")

    def __init__(self, consumer: AttachedConsumer) -> None:
        self.consumer = consumer
        self.entries = 0
        self.draining = False
        self.blocked_attempts = 0
        """Entries that were not sent because the slot drains, since it does."""


class SlotHoldings:
    """See the module. A slot that nobody holds is not in `by_slot`."""

    def __init__(self) -> None:
        self.by_slot: dict[int, Holding] = {}
        self._cleared: dict[AttachedConsumer, int] = {}

    def take(self, slot: int, consumer: AttachedConsumer) -> None:
        """An entry of the slot is sent to the consumer."""
        holding = self.by_slot.get(slot)
        if holding is None:
            holding = self.by_slot[slot] = Holding(consumer)
        assert holding.consumer is consumer, f"slot {slot} is held by consumer {holding.consumer.name}"
        holding.entries += 1

    def release(self, slot: int) -> bool:
        """An entry of the slot left its consumer. Returns whether that ends its draining."""
        holding = self.by_slot[slot]
        holding.entries -= 1
        if holding.entries:
            return False
        del self.by_slot[slot]
        if holding.draining:
            self._cleared[holding.consumer] = self._cleared.get(holding.consumer, 0) + 1
        return holding.draining

    def blocks(self, slot: int, consumer: AttachedConsumer) -> bool:
        """Whether the slot cannot be sent to that consumer, because another one holds it. Counts the attempt."""
        holding = self.by_slot.get(slot)
        if holding is None or holding.consumer is consumer:
            return False
        holding.blocked_attempts += 1
        return True

    def is_draining(self, slot: int) -> bool:
        """Whether nothing of the slot may be sent."""
        holding = self.by_slot.get(slot)
        return holding is not None and holding.draining

    def reassign(self, select: Callable[[int], AttachedConsumer | None]) -> None:
        """Slots belong to other consumers now."""
        for slot, holding in self.by_slot.items():
            draining = select(slot) is not holding.consumer
            if draining != holding.draining:
                holding.draining = draining
                holding.blocked_attempts = 0

    def forget(self, consumer: AttachedConsumer) -> None:
        """A consumer left, and everything that it held was released."""
        self._cleared.pop(consumer, None)

    def cleared(self, consumer: AttachedConsumer) -> int:
        """How many slots have drained at the consumer since it connected."""
        return self._cleared.get(consumer, 0)

    def draining_at(self, consumer: AttachedConsumer) -> list[tuple[int, int]]:
        """The slots that drain at the consumer, in order, with the attempts that were blocked."""
        return sorted(
            (slot, holding.blocked_attempts)
            for slot, holding in self.by_slot.items()
            if holding.draining and holding.consumer is consumer
        )

    def clear(self) -> None:
        """Nothing is held by anybody."""
        self.by_slot.clear()
        self._cleared.clear()
