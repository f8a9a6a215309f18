"""Dispatch round robin over many consumers, entry by entry, with individual redelivery.

State of an entry, from here: *unread* (behind `read_position`) → *pending* at one consumer → *acknowledged* (gone), or
back through the *replay* set (negative acknowledgement, a consumer that left) → pending at some consumer. Replays go
before unread entries, in order of position. An entry that cannot be read is *set aside*, so that the others go on, and
comes back into the replay set later. An entry whose delivery time has not come is *held* by the gate, and goes into the
replay set when it has. Invariant: an entry in front of `read_position` that is not acknowledged is pending at exactly
one consumer, in the replay set, set aside, or held. So is one behind it that the gate skips.

Consumers of the smallest `priority_level` value go first; others get something only while none of those is able.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from sortedcontainers import SortedSet

from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe, MessageMetadata
from .consumer import AttachedConsumer, Delivered, Delivery
from .dispatcher import CursorView, Dispatcher, Entry, Limits, ReadPlan
from .entry_gate import EntryGate

if TYPE_CHECKING:
    from .key_shared import WaitingEntries

SET_ASIDE_MAX = 1000


class SharedDispatcher(Dispatcher):
    """Round robin, in turns of at most `turn_messages_max` messages."""

    subscription_type = CommandSubscribe.Shared
    tracks_pending = True
    slots = -1
    """How it computes the slots that a gate keeps: −1 where it does not, else the first slot of its hash ranges."""

    def __init__(self, cursor: CursorView, limits: Limits, count_of: Callable[[Position, bytes], int]) -> None:
        super().__init__(cursor, limits, count_of)
        self._replay: SortedSet[Position] | WaitingEntries = SortedSet[Position]()
        self._aside: dict[Position, None] = {}
        """In the order in which they were set aside."""
        self._ungated: dict[Position, None] = {}
        """Of those aside and those recalled: entries that could not be read before the gate had seen them."""
        self._redeliveries: dict[Position, int] = {}
        self._turn = 0  # index of the consumer whose turn is next
        self._gap = sys.maxsize
        """Entries that may be read from the read position on, before the gate wants to skip others."""

    # -- consumers -----------------------------------------------------------------------------------------------

    def add(self, consumer: AttachedConsumer) -> None:
        index = len(self.consumers)
        while index and self.consumers[index - 1].priority_level > consumer.priority_level:
            index -= 1
        self.consumers.insert(index, consumer)

    def remove(self, consumer: AttachedConsumer) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._replay.update(consumer.take_pending())
        if not self.consumers:
            self._replay.clear()
            self._aside.clear()
            self._ungated.clear()
            self._redeliveries.clear()
            if self.gate is not None:
                self.gate.clear()
            self.rewind()

    # -- reading and sending -------------------------------------------------------------------------------------

    def next_read(self, tail: Position) -> ReadPlan | None:
        if self.gate is not None and self.gate.holds and not self._pass_gate(self.gate):
            return None
        if not self._replay and self.read_position > tail:
            return None
        permits = 0
        for consumer in self.consumers:
            if consumer.able:
                permits += consumer.permits
        if permits <= 0 or self._block(self._unacked_messages()):
            return None
        entries_max = self._entries_for(permits)
        if self._replay:
            positions = tuple(islice(self._replay, entries_max))
            return ReadPlan(self.generation, positions[0], entries_max, positions)
        return ReadPlan(self.generation, self.read_position, min(entries_max, self._gap))

    def _pass_gate(self, gate: EntryGate) -> bool:
        """Take what is due, and skip what need not be read. Returns whether anything may be read now."""
        if not gate.ready():
            return False
        self._release_due(gate)
        skipped = gate.skip(self.read_position)
        self.read_position, self._gap = (self.read_position, sys.maxsize) if skipped is None else skipped
        return True

    def _release_due(self, gate: EntryGate) -> None:
        """Entries whose time has come go into the replay set, as far as it has room for a read."""
        room = self._limits.read_entries_max - len(self._replay)
        if room > 0:
            self._replay.update([position for position, _ in gate.due(room)])

    def _hidden(self, plan: ReadPlan, entries: list[Entry]) -> Mapping[Position, int] | None:
        """Those of the entries that the gate holds back. What was sent before, or was due, has passed it already."""
        if self.gate is None:
            return None
        if plan.positions:
            entries = [entry for entry in entries if entry[0] in self._ungated] if self._ungated else []
        return self.gate.hidden(entries) if entries else None

    def _hold(self, position: Position, from_ms: int, slot: int = 0) -> None:
        if self.gate is not None:
            self.gate.hold(position, from_ms, slot)

    def distribute(self, plan: ReadPlan, entries: list[Entry]) -> list[Delivery]:
        if plan.generation != self.generation:
            return []
        hidden = self._hidden(plan, entries)
        is_acknowledged, count_of, redeliveries = self._cursor.is_acknowledged, self._count_of, self._redeliveries
        deliveries: list[Delivery] = []
        bound = self._limits.subscription_unacked_max
        room = bound - self._unacked_messages() if bound else sys.maxsize
        index, size, total, sent = 0, len(entries), 0, 0
        while index < size and room > total:
            consumer = self._take_turn()
            if consumer is None:
                break
            left = min(consumer.permits, self._limits.turn_messages_max, room - total)
            if self._limits.unacked_messages_max:
                left = min(left, self._limits.unacked_messages_max - consumer.unacked_messages)
            out: list[Delivered] = []
            messages = 0
            while index < size and left > 0:
                position, body = entries[index]
                index += 1
                if is_acknowledged(position) or (plan.positions and position not in self._replay):
                    continue
                if hidden and position in hidden:
                    self._hold(position, hidden[position])
                    continue
                count = count_of(position, body)
                left -= count
                messages += count
                out.append((position, body, count, redeliveries.get(position, 0) if redeliveries else 0))
            if out:
                consumer.charge(out, messages, self._limits.unacked_messages_max)
                deliveries.append(Delivery(consumer, out, messages))
                total += messages
                sent += len(out)
        if plan.positions:
            self._replayed(entries[:index])
        else:
            self._move_on(entries, index)
            if index and not sent:
                self.read_position = self._cursor.next_unacknowledged(self.read_position)
        self._learn_size(sent, total)
        return deliveries

    def _replayed(self, entries: list[Entry]) -> None:
        """These entries of a redelivery were sent, are held by the gate, or need no delivery."""
        self._replay.difference_update([position for position, _ in entries])
        if self._ungated:
            for position, _ in entries:
                self._ungated.pop(position, None)

    def forget(self, positions: list[Position]) -> None:
        """Entries that no longer exist leave the replay set."""
        self._replay.difference_update(positions)
        for position in positions:
            self._redeliveries.pop(position, None)
            self._ungated.pop(position, None)

    def set_aside(self, plan: ReadPlan, position: Position) -> bool:
        """The first entry of a plan, which stands at `position`, cannot be read: go on without it. Returns False, and
        changes nothing, when too many are set aside already."""
        if plan.generation != self.generation:
            return True
        if len(self._aside) >= SET_ASIDE_MAX:
            return False
        if not plan.positions:
            self.read_position = (position[0], position[1] + 1)
            if self.gate is not None and self.gate.has(position):
                return True  # it comes by itself, and would come twice
        elif position in self._replay:
            self._replay.discard(position)
        else:
            return True
        if not self._cursor.is_acknowledged(position):
            self._aside[position] = None
            if self.gate is not None and not plan.positions:
                self._ungated[position] = None
        return True

    def recall(self, entries_max: int) -> bool:
        """The entries that have been set aside for the longest time are to be read again. Returns whether others are
        left aside."""
        back = list(islice(self._aside, entries_max))
        for position in back:
            del self._aside[position]
        self._replay.update(back)
        return bool(self._aside)

    @property
    def set_aside_size(self) -> int:
        """Entries that are set aside."""
        return len(self._aside)

    def receiver(self, metadata: MessageMetadata) -> AttachedConsumer | None:
        return self._take_turn()

    def _unacked_messages(self) -> int:
        messages = 0
        for consumer in self.consumers:
            messages += consumer.unacked_messages
        return messages

    def _take_turn(self) -> AttachedConsumer | None:
        """The next consumer in the round robin of the best priority level that has an able one."""
        consumers = self.consumers
        size = len(consumers)
        best: int | None = None
        for offset in range(size):
            index = (self._turn + offset) % size
            if consumers[index].able and (
                best is None or consumers[index].priority_level < consumers[best].priority_level
            ):
                best = index
                if consumers[index].priority_level == consumers[0].priority_level:
                    break
        if best is None:
            return None
        self._turn = (best + 1) % size
        return consumers[best]

    # -- acknowledgement and redelivery --------------------------------------------------------------------------

    def acknowledged(self, consumer: AttachedConsumer, positions: list[Position]) -> bool:
        unblocked = False
        for position in positions:
            owner = consumer
            count = consumer.pending.pop(position, None)
            if count is None:
                for other in self.consumers:
                    if position in other.pending:
                        owner, count = other, other.pending.pop(position)
                        break
                else:
                    if position in self._replay and self._wait_no_longer([position]):
                        unblocked = True
                    if self._aside:
                        self._aside.pop(position, None)
                    if self._ungated:
                        self._ungated.pop(position, None)
            if count is not None and owner.settle(count, self._limits.unacked_messages_max):
                unblocked = True
            if self._redeliveries:
                self._redeliveries.pop(position, None)
        return unblocked

    def passed(self) -> bool:
        if self.gate is not None:
            self.gate.passed(all_held=self.read_position <= self._cursor.first_unacknowledged)
        return super().passed()

    def _let_go_before(self, first: Position) -> bool:
        unblocked = False
        for consumer in self.consumers:
            held = [position for position in consumer.pending if position < first]
            if held:
                unblocked |= self.acknowledged(consumer, held)
        waiting = list(takewhile(lambda position: position < first, self._replay))
        unblocked |= self._wait_no_longer(waiting)
        for kept in (self._aside, self._ungated, self._redeliveries):
            for position in [position for position in kept if position < first]:
                del kept[position]
        return unblocked

    def _wait_no_longer(self, positions: list[Position]) -> bool:
        """These entries need no delivery, so they leave the replay set. Returns whether others may be read for that."""
        self._replay.difference_update(positions)
        return False

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        if positions is None:
            back = consumer.take_pending()
        else:
            back = consumer.give_back(positions, self._limits.unacked_messages_max)
        for position in back:
            self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
        self._replay.update(back)

    def redelivery_count(self, position: Position) -> int:
        return self._redeliveries.get(position, 0)

    @property
    def replay_size(self) -> int:
        return len(self._replay) + len(self._aside)

    def held(self) -> set[Position]:
        return super().held().union(self._replay, self._aside, self._ungated, self._redeliveries)
