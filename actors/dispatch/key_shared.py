"""Key_Shared: entries of one key go to one consumer, in order. `hash_ranges` decides to which one. `SlotHoldings`
says what happens when a key changes its consumer.

State of an entry, from here: *unread* (behind `read_position`) → *pending* at the consumer of its slot → *acknowledged*
(gone). An entry that was read and cannot be sent now is *waiting* (`WaitingEntries`), and so is one that was given
back: its consumer asked for redelivery, or left. Waiting ones are read again when their consumer is able, before unread
ones.

While entries wait, later ones are read (look-ahead), so that a key or a consumer that does not go on does not stop the
others. How many may wait is bounded (`Limits.look_ahead_max`).

Invariants:

- An entry in front of `read_position` that is not acknowledged is pending at exactly one consumer, or waiting.
- The entries of a slot that are pending are pending at one consumer (`SlotHoldings`). With `allow_out_of_order` this
  does not hold: a slot that changes its consumer is sent to the new one at once.
- An entry is sent only when no entry of its slot that stands in front of it waits. So the order of a key is broken by
  redelivery only: an entry that was given back comes behind those that its consumer has got meanwhile.
- Unlike a Shared subscription, this one waits for an entry that cannot be read: its key is not known.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from sortedcontainers import SortedSet

from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe, MessageMetadata
from ...protocol.sticky_key import key_hash, sticky_hash
from ...protocol.topic_figures import DrainingFigures, KeySharedFigures
from ...runtime.gone import GONE
from .consumer import AttachedConsumer, Delivered, Delivery, KeySharedOptions
from .dispatcher import CursorView, Entry, Limits, ReadPlan
from .entry_gate import EntryGate
from .hash_ranges import HashRanges
from .shared import SharedDispatcher


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
    """Which consumer holds unacknowledged messages of a slot, and which slots drain.

    States of a slot:

    - *free*: nothing of it is unacknowledged at a consumer.
    - *held*: one consumer holds unacknowledged entries of it, and it is the consumer that the slot belongs to.
    - *draining*: the consumer that holds them is no longer the one that the slot belongs to. Nothing of the slot is
      sent until that consumer holds nothing of it.

    A slot is held from the first entry that is sent (`take`). It is free when as many have been acknowledged, given
    back, or lost with their consumer (`release`). Whether it drains is decided when consumers join or leave
    (`reassign`).

    Invariant: at any time one consumer at most holds unacknowledged entries of a slot. So the order of a key survives a
    change of its consumer.

    A slot that nobody holds is not in `by_slot`.
    """

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


WaitingPlace = AttachedConsumer | int | None
"""Where a slot's entries wait: for a consumer; as a draining slot, for itself; for anybody who takes the slot."""


class WaitingEntries:
    """Entries of a Key_Shared subscription that were read, or given back, and wait for their consumer.

    They are kept in one set for each consumer that they belong to, in order of positions, so that a consumer's next
    ones are found without a look at others. Those of a draining slot are in a set of their own: however many there are,
    they cost the others nothing. All waiting entries of a slot are in one set, its *home*.

    `place` says where a slot's entries wait, `take_back` removes an entry from its consumer and returns its slot.
    """

    def __init__(self, place: Callable[[int], WaitingPlace], take_back: Callable[[Position], int]) -> None:
        self._place = place
        self._take_back = take_back
        self._slots: dict[Position, int] = {}
        self._counts: dict[int, int] = {}
        self._homes: dict[int, SortedSet[Position]] = {}
        self._sets: dict[WaitingPlace, SortedSet[Position]] = {}

    def let_go(self) -> None:
        """The dispatcher has lost its last consumer, so it is not used again: see `runtime.gone`."""
        self._place = self._take_back = GONE

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, position: object) -> bool:
        return position in self._slots

    def __iter__(self) -> Iterator[Position]:
        return iter(sorted(self._slots))

    def has_slot(self, slot: int) -> bool:
        """Whether an entry of the slot waits."""
        return slot in self._homes

    def slot_of(self, position: Position) -> int | None:
        """The slot of an entry that waits."""
        return self._slots.get(position)

    def first(self, consumer: AttachedConsumer, count: int) -> list[Position]:
        """The first entries that wait for that consumer."""
        mine = self._sets.get(consumer)
        return list(islice(mine, count)) if mine else []

    def add(self, position: Position, slot: int) -> None:
        """An entry waits from now on."""
        if position in self._slots:
            return
        self._slots[position] = slot
        home = self._homes.get(slot)
        if home is None:
            home = self._homes[slot] = self._sets.setdefault(self._place(slot), SortedSet())
            self._counts[slot] = 0
        home.add(position)
        self._counts[slot] += 1

    def update(self, positions: Iterable[Position]) -> None:
        """Consumers have given these entries back."""
        back = [(position, self._take_back(position)) for position in positions]
        for position, slot in back:
            self.add(position, slot)

    def discard(self, position: Position) -> None:
        """An entry no longer waits, if it did."""
        slot = self._slots.pop(position, None)
        if slot is None:
            return
        self._homes[slot].discard(position)
        self._counts[slot] -= 1
        if not self._counts[slot]:
            del self._counts[slot], self._homes[slot]

    def difference_update(self, positions: Iterable[Position]) -> None:
        """These entries no longer wait."""
        for position in positions:
            self.discard(position)

    def move(self, slot: int) -> None:
        """The slot's place has changed."""
        old = self._homes.get(slot)
        if old is None:
            return
        place = self._place(slot)
        new = self._sets.setdefault(place, SortedSet())
        if new is old:
            return
        mine = [position for position in old if self._slots[position] == slot]
        old.difference_update(mine)
        new.update(mine)
        self._homes[slot] = new
        if slot in self._sets and not self._sets[slot]:
            del self._sets[slot]

    def place_all(self) -> None:
        """The places of many slots have changed."""
        self._sets = {}
        self._homes = {}
        places: dict[WaitingPlace, list[Position]] = {}
        where = {slot: self._place(slot) for slot in self._counts}
        for position, slot in self._slots.items():
            places.setdefault(where[slot], []).append(position)
        for place, positions in places.items():
            self._sets[place] = SortedSet(positions)
        for slot, place in where.items():
            self._homes[slot] = self._sets[place]

    def clear(self) -> None:
        """Nothing waits."""
        for kept in (self._slots, self._counts, self._homes, self._sets):
            kept.clear()


class KeySharedDispatcher(SharedDispatcher):
    """See the module. All its consumers have the same mode and the same `allow_out_of_order` as the first."""

    subscription_type = CommandSubscribe.Key_Shared

    def __init__(
        self,
        cursor: CursorView,
        limits: Limits,
        count_of: Callable[[Position, bytes], int],
        *,
        options: KeySharedOptions,
        ranges: HashRanges,
    ) -> None:
        super().__init__(cursor, limits, count_of)
        self.options = options._replace(ranges=())
        self._ranges = ranges
        self.slots = ranges.first_slot
        self._holdings: SlotHoldings | None = None if options.allow_out_of_order else SlotHoldings()
        self._waiting = WaitingEntries(self._place, self._take_back)
        self._replay = self._waiting
        self._slots: dict[Position, int] = {}
        """Of pending entries."""
        self._given_back: set[int] = set()
        """Slots of which entries were given back since the last read of waiting ones was planned."""

    # -- consumers -----------------------------------------------------------------------------------------------

    def obstacle(self, consumer: AttachedConsumer) -> AttachedConsumer | None:
        return self._ranges.obstacle(consumer)

    def add(self, consumer: AttachedConsumer) -> None:
        """Raises ConsumerAssignError."""
        self._ranges.add(consumer)
        super().add(consumer)
        self._reassign()

    def remove(self, consumer: AttachedConsumer) -> None:
        if consumer not in self.consumers:
            return
        self._ranges.remove(consumer)
        super().remove(consumer)
        if self._holdings is not None:
            self._holdings.forget(consumer)
        self._reassign()
        if not self.consumers:
            self._waiting.let_go()

    def _reassign(self) -> None:
        """Slots have other owners now."""
        if self._holdings is not None:
            self._holdings.reassign(self._ranges.select)
        self._waiting.place_all()

    def _place(self, slot: int) -> WaitingPlace:
        """Where entries of a slot wait."""
        if self._holdings is not None and self._holdings.is_draining(slot):
            return slot
        return self._ranges.select(slot)

    def _take_back(self, position: Position) -> int:
        """A pending entry has left its consumer, unacknowledged. Returns its slot."""
        slot = self._slots.pop(position)
        self._given_back.add(slot)
        self._release(slot)
        return slot

    def _release(self, slot: int) -> bool:
        """A pending entry of the slot has left its consumer. Returns whether the slot has drained now."""
        if self._holdings is None or not self._holdings.release(slot):
            return False
        self._waiting.move(slot)
        return True

    # -- reading and sending -------------------------------------------------------------------------------------

    def next_read(self, tail: Position) -> ReadPlan | None:
        if self.gate is not None and self.gate.holds and not self._pass_gate(self.gate):
            return None
        waiting = len(self._waiting)
        if not waiting and self.read_position > tail:
            return None
        permits = 0
        able: list[AttachedConsumer] = []
        for consumer in self.consumers:
            if consumer.able:
                permits += consumer.permits
                able.append(consumer)
        if not able or self._block(self._unacked_messages()):
            return None
        if waiting:
            positions: list[Position] = []
            for consumer in able:
                positions += self._waiting.first(consumer, self._entries_for(consumer.permits))
            if positions:
                positions.sort()
                self._given_back.clear()
                entries_max = self._limits.read_entries_max
                return ReadPlan(self.generation, positions[0], entries_max, tuple(positions[:entries_max]))
            if self.read_position > tail or waiting >= self._look_ahead_max():
                return None
        return ReadPlan(self.generation, self.read_position, min(self._entries_for(permits), self._gap))

    def distribute(self, plan: ReadPlan, entries: list[Entry]) -> list[Delivery]:
        if plan.generation != self.generation:
            return []
        bound = self._limits.subscription_unacked_max
        room = bound - self._unacked_messages() if bound else sys.maxsize
        sending = _Sending(self.consumers, self._limits, room, self._count_of, self._redeliveries)
        if plan.positions:
            self._send_waiting(sending, entries)
        else:
            taken = self._send_unread(sending, entries, self._hidden(plan, entries))
            self._move_on(entries, taken)
            if taken and not sending.entries and not len(self._waiting):
                self.read_position = self._cursor.next_unacknowledged(self.read_position)
        self._learn_size(sending.entries, sending.messages)
        return sending.deliveries()

    def receiver(self, metadata: MessageMetadata) -> AttachedConsumer | None:
        return self._ranges.select(self._ranges.slot_of(key_hash(metadata)))

    def _release_due(self, gate: EntryGate) -> None:
        """Entries whose time has come wait for the consumers of their slots, as far as that many may wait.

        When none of a full portion can go out, the next one follows. It may have entries for a consumer that has
        permits, and nothing would wake dispatch for them: their time has come already.
        """
        room = self._look_ahead_max() - len(self._waiting)
        while room > 0:
            count = min(self._limits.read_entries_max, room)
            due = gate.due(count)
            for position, slot in due:
                self._waiting.add(position, slot)
            if len(due) < count:
                return
            able = [consumer for consumer in self.consumers if consumer.able]
            if not able or any(self._waiting.first(consumer, 1) for consumer in able):
                return
            room = self._look_ahead_max() - len(self._waiting)

    def _send_unread(
        self, sending: "_Sending", entries: list[Entry], hidden: Mapping[Position, int] | None = None
    ) -> int:
        """Send entries that were read for the first time, or have them wait. Returns how many; then no consumer is able
        to get more. Entries that are hidden block no other of their slot."""
        is_acknowledged, waiting, holdings = self._cursor.is_acknowledged, self._waiting, self._holdings
        slot_of, select, has_slot, slots = self._ranges.slot_of, self._ranges.select, waiting.has_slot, self._slots
        for index, (position, body) in enumerate(entries):
            if not sending.open:
                return index
            if is_acknowledged(position):
                continue
            slot = slot_of(sticky_hash(body))
            if hidden and position in hidden:
                self._hold(position, hidden[position], slot)
                continue
            consumer = select(slot)
            if (
                consumer is None
                or (holdings is not None and holdings.blocks(slot, consumer))
                or has_slot(slot)
                or not sending.send(consumer, position, body)
            ):
                waiting.add(position, slot)
                continue
            slots[position] = slot
            if holdings is not None:
                holdings.take(slot, consumer)
        return len(entries)

    def _send_waiting(self, sending: "_Sending", entries: list[Entry]) -> None:
        """Send entries that waited, as far as they still do."""
        waiting, holdings = self._waiting, self._holdings
        for position, body in entries:
            slot = waiting.slot_of(position)
            if slot is None:
                continue
            if self._cursor.is_acknowledged(position):
                waiting.discard(position)
                continue
            consumer = self._ranges.select(slot)
            if (
                consumer is not None
                and slot not in self._given_back  # perhaps one in front of this one, which is not in the plan
                and not (holdings is not None and holdings.is_draining(slot))
                and sending.send(consumer, position, body)
            ):
                waiting.discard(position)
                self._slots[position] = slot
                if holdings is not None:
                    holdings.take(slot, consumer)

    def _look_ahead_max(self) -> int:
        """How many entries may wait while unread ones are read."""
        limits = self._limits
        each = limits.look_ahead_max_per_consumer * len(self.consumers)
        bounds = [bound for bound in (each, limits.look_ahead_max) if bound > 0]
        if not bounds:
            bounds = [
                bound for bound in (limits.subscription_unacked_max, limits.unacked_messages_max) if bound > 0
            ] or [sys.maxsize]
        return min(bounds)

    def set_aside(self, plan: ReadPlan, position: Position) -> bool:
        return False

    # -- acknowledgement -----------------------------------------------------------------------------------------

    def acknowledged(self, consumer: AttachedConsumer, positions: list[Position]) -> bool:
        unblocked = super().acknowledged(consumer, positions)
        for position in positions:
            slot = self._slots.pop(position, None)
            if slot is not None and self._release(slot):
                unblocked = True
        return unblocked

    def _wait_no_longer(self, positions: list[Position]) -> bool:
        before, bound = len(self._waiting), self._look_ahead_max()
        self._waiting.difference_update(positions)
        return len(self._waiting) < bound <= before

    def held(self) -> set[Position]:
        return super().held().union(self._slots)

    # -- figures -------------------------------------------------------------------------------------------------

    def key_figures(self) -> dict[AttachedConsumer, KeySharedFigures]:
        """What drains at each consumer, and its slots."""
        ranges = self._ranges.ranges()
        return {
            consumer: KeySharedFigures(
                self.options.mode,
                self.options.allow_out_of_order,
                [(one[0], one[1]) for one in ranges.get(consumer, [])],
                0 if self._holdings is None else self._holdings.cleared(consumer),
                self._draining_at(consumer),
            )
            for consumer in self.consumers
        }

    def _draining_at(self, consumer: AttachedConsumer) -> list[DrainingFigures]:
        draining = [] if self._holdings is None else self._holdings.draining_at(consumer)
        if not draining:
            return []
        messages: dict[int, int] = dict.fromkeys((slot for slot, _ in draining), 0)
        for position, count in consumer.pending.items():
            slot = self._slots[position]
            if slot in messages:
                messages[slot] += count
        return [DrainingFigures(slot, messages[slot], attempts) for slot, attempts in draining]


class _Sending:
    """One round of sending: what each consumer gets, and how much more it can take.

    `open` ends when no consumer can take more, or the subscription's bound of unacknowledged messages is reached.
    """

    def __init__(
        self,
        consumers: list[AttachedConsumer],
        limits: Limits,
        room: int,
        count_of: Callable[[Position, bytes], int],
        redeliveries: dict[Position, int],
    ) -> None:
        self.open = True
        self.entries = 0
        self.messages = 0
        self._unacked_messages_max = limits.unacked_messages_max
        self._room = room
        self._count_of = count_of
        self._redeliveries = redeliveries
        self._left: dict[AttachedConsumer, int] = {}
        self._out: dict[AttachedConsumer, list[Delivered]] = {}
        for consumer in consumers:
            if consumer.able:
                left = consumer.permits
                if self._unacked_messages_max:
                    left = min(left, self._unacked_messages_max - consumer.unacked_messages)
                self._left[consumer] = left
                self._out[consumer] = []

    def send(self, consumer: AttachedConsumer, position: Position, body: bytes) -> bool:
        """Send an entry to a consumer. Returns False if that one can take nothing."""
        left = self._left.get(consumer)
        if left is None or not self.open:
            return False
        count = self._count_of(position, body)
        redeliveries = self._redeliveries.get(position, 0) if self._redeliveries else 0
        self._out[consumer].append((position, body, count, redeliveries))
        self.entries += 1
        self.messages += count
        if left > count:
            self._left[consumer] = left - count
        else:
            del self._left[consumer]
        if not self._left or self.messages >= self._room:
            self.open = False
        return True

    def deliveries(self) -> list[Delivery]:
        """What was sent, charged to the consumers."""
        deliveries: list[Delivery] = []
        for consumer, out in self._out.items():
            if out:
                messages = sum(entry[2] for entry in out)
                consumer.charge(out, messages, self._unacked_messages_max)
                deliveries.append(Delivery(consumer, out, messages))
        return deliveries
