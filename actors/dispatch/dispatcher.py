"""The pure core of dispatch: who gets which entry, and what to read next. No sockets, no clock, no awaiting.

A dispatcher belongs to one subscription and one subscription type; it lives from the first consumer's arrival to the
last one's leaving. The subscription drives it: it asks `next_read`, reads what the plan says, hands the entries to
`distribute`, and sends what that returns. One read is under way at a time, so `read_position` moves in one place.

Guarantees of every dispatcher:

- Entries go out in the order of positions, except where a redelivery brings one back.
- An entry that the cursor counts as acknowledged is never sent.
- Nothing is held of an entry that the cursor has passed, however it did (`passed`). No consumer has it unacknowledged,
  it waits for no redelivery, and its redeliveries are not counted. Only a gate may forget it later, at its time.
- A consumer gets entries only while it is able (`able`): permits left, not blocked by unacknowledged messages, its
  connection writable. Permits count messages; a batch that is larger than what is left goes out whole and leaves the
  permits below zero until the next FLOW.
- A plan made before a rewind is void after it: `generation` tells them apart.
- The cursor's memory is bounded: a dispatcher that is `blocked` reads nothing. It continues when the count that blocks
  it has fallen to half of `subscription_unacked_max`. On a Shared subscription that counts the messages that consumers
  hold. On an Exclusive one it counts the acknowledged ranges in front of the read position. Each of those needs a
  message that was delivered and not acknowledged. A consumer that acknowledges in order, or cumulatively at any
  distance, leaves none and is never blocked. Nor is one that connects again, since it begins in front of all of them.

What is left to others: reading (subscription), writing frames (consumer), what is acknowledged (cursor).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import ceil
from typing import ClassVar, NamedTuple, Protocol

from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topic_figures import KeySharedFigures
from .consumer import AttachedConsumer, Delivery
from .entry_gate import EntryGate

Entry = tuple[Position, bytes]

AVERAGE_WEIGHT = 0.1  # of the newest read in the running average of messages per entry


class CursorView(Protocol):
    """What dispatch needs to know of a cursor."""

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the entry there needs no delivery."""
        ...

    def next_unacknowledged(self, position: Position) -> Position:
        """The first position at or behind `position` that is not acknowledged."""
        ...

    def ranges_before(self, position: Position) -> int:
        """How many acknowledged ranges behind the first unacknowledged entry begin in front of `position`."""
        ...

    @property
    def first_unacknowledged(self) -> Position:
        """Where a subscription without consumers goes on."""
        ...


class Limits(NamedTuple):
    """Bounds of one dispatcher, from settings and policies; 0 for no bound of unacknowledged messages."""

    read_entries_max: int
    turn_messages_max: int
    unacked_messages_max: int
    subscription_unacked_max: int = 0
    look_ahead_max_per_consumer: int = 0
    """Entries for each consumer that may wait while later ones are read (Key_Shared); 0: no such bound."""
    look_ahead_max: int = 0
    """The same for the whole subscription."""


class ReadPlan(NamedTuple):
    """What to read next: either up to `entries_max` entries from `start` on, or exactly `positions` (a redelivery)."""

    generation: int
    start: Position
    entries_max: int
    positions: tuple[Position, ...] = ()


class Dispatcher(ABC):
    """What all subscription types share. Subclasses decide about consumers, order and redelivery."""

    subscription_type: ClassVar[int]
    tracks_pending: ClassVar[bool] = False
    """Whether each consumer's unacknowledged entries are tracked, so that they can be delivered again one by one."""

    def __init__(self, cursor: CursorView, limits: Limits, count_of: Callable[[Position, bytes], int]) -> None:
        self.consumers: list[AttachedConsumer] = []
        self.active: AttachedConsumer | None = None
        """The consumer that gets everything, where one does. A method that changes it rewinds, too."""
        self.gate: EntryGate | None = None
        """What holds entries back, where something does."""
        self.generation = 0
        self.blocked = False
        """Whether too much is unacknowledged; see the module. Kept by `next_read`."""
        self.read_position: Position = cursor.first_unacknowledged
        self._cursor = cursor
        self._limits = limits
        self._count_of = count_of
        self._messages_per_entry = 1.0

    # -- consumers -----------------------------------------------------------------------------------------------

    @property
    def reads_compacted(self) -> bool:
        """Whether the consumer that gets everything reads the compacted topic."""
        return self.active is not None and self.active.read_compacted

    @abstractmethod
    def add(self, consumer: AttachedConsumer) -> None:
        """Take a consumer in. Raises ConsumerBusy if the type allows no further one."""

    def obstacle(self, consumer: AttachedConsumer) -> AttachedConsumer | None:
        """A consumer that is there already, because of which `add` would refuse this one."""
        return None

    @abstractmethod
    def remove(self, consumer: AttachedConsumer) -> None:
        """A consumer left: what it had and did not acknowledge goes to the others, in order."""

    # -- reading and sending -------------------------------------------------------------------------------------

    @abstractmethod
    def next_read(self, tail: Position) -> ReadPlan | None:
        """The next read, or None when no consumer is able or nothing up to `tail` (the last entry) is left."""

    @abstractmethod
    def distribute(self, plan: ReadPlan, entries: list[Entry]) -> list[Delivery]:
        """Give the entries that were read to consumers. Entries that no consumer can take are planned again."""

    def nothing_left(self, plan: ReadPlan, upto: Position) -> None:
        """A read from the start of a plan gave nothing: nothing is left up to that position. Else the entries there
        would count as unread, and dispatch as stalled."""
        if plan.generation == self.generation and self.read_position <= upto:
            self.read_position = (upto[0], upto[1] + 1)

    def receiver(self, metadata: MessageMetadata) -> AttachedConsumer | None:
        """Who gets an entry that is not stored and comes now: perhaps one that is not able to. Such an entry passes by
        everything else here."""
        return self.active

    # -- acknowledgement and redelivery --------------------------------------------------------------------------

    @abstractmethod
    def acknowledged(self, consumer: AttachedConsumer, positions: list[Position]) -> bool:
        """Entries were acknowledged one by one. Returns whether a blocked consumer may go on."""

    def acknowledged_in_part(self, consumer: AttachedConsumer, position: Position, left: int) -> bool:
        """Messages of an entry were acknowledged, and `left` of it are not. Returns whether a blocked consumer may go
        on."""
        for owner in (consumer, *self.consumers):
            held = owner.pending.get(position)
            if held is not None:
                if held <= left:
                    return False
                owner.pending[position] = left
                return owner.settle(held - left, self._limits.unacked_messages_max)
        return False

    def passed(self) -> bool:
        """Entries in front of the cursor's first unacknowledged one may not have been acknowledged one by one: hold
        nothing of them. Returns whether dispatch may go on because of that."""
        first = self._cursor.first_unacknowledged
        moved = self.read_position < first
        if moved:
            self.generation += 1  # a read that is under way begins in front of it
            self.read_position = first
        return self._let_go_before(first) or moved or self.blocked

    def _let_go_before(self, first: Position) -> bool:
        """Hold nothing of the entries in front of that place. Returns whether a consumer or a key may go on."""
        return False

    @abstractmethod
    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        """Deliver again: these entries, or (None) all that the consumer has not acknowledged."""

    def redelivery_count(self, position: Position) -> int:
        """How often the entry was asked for again, as far as this dispatcher remembers."""
        return 0

    def forget(self, positions: list[Position]) -> None:
        """Entries that were to be delivered again no longer exist."""
        return  # only some types keep them beside the cursor

    def set_aside(self, plan: ReadPlan, position: Position) -> bool:
        """The first entry of a plan, which stands at `position`, cannot be read: go on without it. Returns False, and
        changes nothing, when the subscription has to wait for it."""
        return False

    def recall(self, entries_max: int) -> bool:
        """The entries that have been set aside for the longest time are to be read again. Returns whether others are
        left aside."""
        return False

    @property
    def set_aside_size(self) -> int:
        """Entries that are set aside."""
        return 0

    @property
    def replay_size(self) -> int:
        """Entries that wait for redelivery."""
        return 0

    def held(self) -> set[Position]:
        """The entries of which anything is held here, gates left aside: for checks."""
        return {position for consumer in self.consumers for position in consumer.pending}

    # -- figures -------------------------------------------------------------------------------------------------

    def key_figures(self) -> dict[AttachedConsumer, KeySharedFigures]:
        """What each consumer has of a Key_Shared subscription; empty for other types."""
        return {}

    # -- shared by subclasses ------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Start again at the first unacknowledged entry; a read that is under way is void."""
        self.generation += 1
        self.read_position = self._cursor.first_unacknowledged

    def use_limits(self, limits: Limits) -> None:
        """These hold from now on. Whether the dispatcher and its consumers are blocked is decided again."""
        self._limits = limits
        self.blocked = False
        for consumer in self.consumers:
            consumer.reconsider(limits.unacked_messages_max)

    def entries_for(self, messages: float) -> int:
        """How many entries hold no more than about so many messages, at least one, and what one read may give."""
        entries_max = self._limits.read_entries_max
        return entries_max if messages >= entries_max * self._messages_per_entry else self._entries_for(int(messages))

    def _block(self, unacknowledged: int) -> bool:
        """Decide about `blocked`, and return it."""
        bound = self._limits.subscription_unacked_max
        self.blocked = bool(bound) and unacknowledged > (bound // 2 if self.blocked else bound - 1)
        return self.blocked

    def _entries_for(self, permits: int) -> int:
        """How many entries hold about `permits` messages, at least one. None too many: it would be read again."""
        wanted = ceil(permits / self._messages_per_entry)
        return min(max(wanted, 1), self._limits.read_entries_max)

    def _learn_size(self, entries: int, messages: int) -> None:
        if entries:
            self._messages_per_entry += AVERAGE_WEIGHT * (messages / entries - self._messages_per_entry)

    def _move_on(self, entries: list[Entry], taken: int) -> None:
        """Set the read position behind the `taken` first of the entries that were read from it."""
        if taken < len(entries):
            self.read_position = entries[taken][0]
        elif entries:
            ledger_id, entry_id = entries[-1][0]
            self.read_position = (ledger_id, entry_id + 1)
