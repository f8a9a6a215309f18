"""Which entries can be acknowledged: messages become entries, and entries are collected for one command.

The broker knows entries only. An entry of a batch counts when all of its messages do; until then the bits of the
missing ones are kept here. Cumulative acknowledgement of a message inside a batch acknowledges the entry before it, and
the batch up to the message.

With batch-index acknowledgement (`index_acks`) the broker is told of single messages, too: `take_parts` gives the
batches of which more is acknowledged than the broker knows. What the broker says of a batch that comes again is then
what counts.

An entry that could not be opened was never delivered, and a cumulative acknowledgement of what lies behind it must not
delete it. From the first such entry on, a cumulative acknowledgement is sent as the position before that entry. Entries
that were decoded behind it are sent one by one. Only an acknowledgement that names the entry itself gives it up.

Pure state, no I/O and no clock. Invariants: `_missing` holds entries of which some but not all messages are
acknowledged, and `_parts` those of them with news for the broker. Nothing at or below the cumulative position is held
anywhere. No entry of `_undelivered` is in what `take` returns, nor at or below the cumulative position. Without such
entries `_passed` is empty.

Bound: `_undelivered` and `_passed` hold unacknowledged entries, which the broker limits.
"""

from collections.abc import Sequence

from ...protocol.ack_sets import bits_to_words, words_to_bits
from ...protocol.entries import ENTRY_MESSAGES_MAX
from ...protocol.errors import OperationNotSupported
from ...protocol.message_id import Position
from ..core.message_id import MessageId

LEDGERS_MAX = 256
"""Of so many ledgers the position before their first entry is remembered."""


class Acknowledgements:
    def __init__(self, index_acks: bool = False) -> None:
        self._index_acks = index_acks
        self._parts: dict[Position, int] = {}
        """Batch sizes."""
        self._complete: dict[Position, None] = {}
        self._missing: dict[Position, int] = {}
        self._cumulative: Position | None = None
        self._cumulative_sent = True
        self._last_received: Position | None = None
        self._before_ledger: dict[int, Position] = {}
        self._undelivered: dict[Position, None] = {}
        self._passed: dict[Position, None] = {}
        """Opened since the first of those, and not acknowledged."""
        self._begins = False
        """Whether the next entry to come is the first of a subscription."""

    def __len__(self) -> int:
        """Entries that wait to be sent, the cumulative position counted as one."""
        return len(self._complete) + len(self._parts) + (not self._cumulative_sent)

    def received(self, position: Position) -> None:
        """An entry came. Remembers what lies before each ledger, for cumulative acknowledgement in a first entry."""
        if self._begins:
            # Everything unacknowledged comes, from the first on: what lies before it was given up by somebody else.
            self._begins = False
            for gone in [other for other in self._undelivered if other < position]:
                self._give_up(gone)
        last = self._last_received
        if last is not None and last[0] != position[0] and position > last:
            self._before_ledger[position[0]] = last
            if len(self._before_ledger) > LEDGERS_MAX:
                del self._before_ledger[next(iter(self._before_ledger))]
        self._last_received = position

    def came(self, position: Position, size: int, ack_set: Sequence[int]) -> Sequence[int]:
        """A batch came, with the broker's ack set if parts of it are acknowledged. Returns the ack set without what is
        acknowledged here and not sent yet."""
        if position in self._parts:
            if ack_set:
                self._missing[position] &= words_to_bits(ack_set)
            return bits_to_words(self._missing[position]) or [0]
        if ack_set:
            left = words_to_bits(ack_set) & ((1 << size) - 1)
            if not self._index_acks:
                left &= self._missing.get(position, left)
            if left:
                self._missing[position] = left
        elif self._index_acks:
            self._missing.pop(position, None)
        return ack_set

    def undelivered(self, position: Position) -> None:
        """The application was told that it cannot have this entry."""
        if self._cumulative is None or position > self._cumulative:
            self._undelivered[position] = None
            self._passed.pop(position, None)

    def is_undelivered(self, position: Position) -> bool:
        """Whether the application could not have this entry, and has not given it up."""
        return position in self._undelivered

    def opened(self, position: Position) -> None:
        """The application comes to the messages of this entry."""
        if self._undelivered:
            self._give_up(position)  # it comes again, and this time it could be opened
            if self._undelivered:
                self._passed[position] = None

    def acknowledge(self, message_id: MessageId) -> Position | None:
        """One message is done. Returns its entry's position if that is complete by it.

        Raises OperationNotSupported for a message of a batch whose size is not known.
        """
        ledger_id, entry_id, index, _, size = message_id
        position = (ledger_id, entry_id)
        if self._cumulative is not None and position <= self._cumulative:
            return position
        if index < 0:
            self._finish(position)
            return position
        if not index < size <= ENTRY_MESSAGES_MAX:
            raise OperationNotSupported(
                f"message {message_id.text} is part of a batch of unknown size; use an id that a consumer gave"
            )
        if position in self._complete:
            return position
        missing = self._missing.get(position)
        if missing is None:
            missing = (1 << size) - 1
        missing &= ~(1 << index)
        if missing:
            self._missing[position] = missing
            if self._index_acks:
                self._parts[position] = size
            return None
        self._finish(position)
        return position

    def acknowledge_run(self, position: Position, size: int, done: int) -> bool:
        """Many messages of one batch are done, those whose bits are set. True if the entry is complete by them."""
        if position in self._complete or (self._cumulative is not None and position <= self._cumulative):
            return True
        missing = self._missing.get(position, (1 << size) - 1) & ~done
        if missing:
            self._missing[position] = missing
            if self._index_acks:
                self._parts[position] = size
            return False
        self._finish(position)
        return True

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Everything up to and including this message is done."""
        ledger_id, entry_id, index, _, size = message_id
        position: Position | None = (ledger_id, entry_id)
        if 0 <= index < size - 1:
            # The bits below and at the index; the rest of the batch is still to come.
            self.acknowledge_run((ledger_id, entry_id), size, (1 << index + 1) - 1)
            position = self._before((ledger_id, entry_id))
        elif index >= 0 and size <= 0:
            raise OperationNotSupported(
                f"message {message_id.text} is part of a batch of unknown size; use an id that a consumer gave"
            )
        if self._undelivered and position is not None:
            if position == (ledger_id, entry_id):
                self._give_up(position)
            position = self._leave_out_undelivered(position)
        if position is None or (self._cumulative is not None and position <= self._cumulative):
            return
        self._cumulative = position
        self._cumulative_sent = False
        self._complete = {other: None for other in self._complete if other > position}
        self._missing = {other: missing for other, missing in self._missing.items() if other > position}
        self._parts = {other: size for other, size in self._parts.items() if other > position}

    def take(self) -> tuple[Position | None, list[Position]]:
        """What is to be sent now: the cumulative position if it is new, and single entries."""
        cumulative = None if self._cumulative_sent else self._cumulative
        self._cumulative_sent = True
        complete = list(self._complete)
        self._complete.clear()
        return cumulative, complete

    def take_parts(self) -> list[tuple[int, int, list[int], int]]:
        """Ledger, entry, ack set and size of batches of which messages are to be acknowledged now."""
        parts = [(*position, bits_to_words(self._missing[position]), size) for position, size in self._parts.items()]
        self._parts.clear()
        return parts

    def forget_sent(self) -> None:
        """A subscription begins: somebody else may have set the cursor back, so what was sent swallows nothing more."""
        self._begins = True
        if self._cumulative_sent:
            self._cumulative = None

    def reset(self) -> None:
        """The application sought elsewhere: forget everything, acknowledged entries may come again."""
        self._complete.clear()
        self._missing.clear()
        self._parts.clear()
        self._before_ledger.clear()
        self._last_received = None
        self._cumulative = None
        self._cumulative_sent = True
        self._undelivered.clear()
        self._passed.clear()

    def _finish(self, position: Position) -> None:
        self._missing.pop(position, None)
        self._parts.pop(position, None)
        self._complete[position] = None
        if self._undelivered:
            self._passed.pop(position, None)
            self._give_up(position)

    def _before(self, position: Position) -> Position | None:
        """The position before an entry; None before the first that came."""
        ledger_id, entry_id = position
        return (ledger_id, entry_id - 1) if entry_id > 0 else self._before_ledger.get(ledger_id)

    def _give_up(self, position: Position) -> None:
        self._undelivered.pop(position, None)
        if not self._undelivered:
            self._passed.clear()

    def _leave_out_undelivered(self, position: Position) -> Position | None:
        """How far a cumulative acknowledgement up to `position` may go; what was opened behind that is completed."""
        first = min((other for other in self._undelivered if other <= position), default=None)
        if first is None:
            return position
        before = self._before(first)
        for other in [other for other in self._passed if other <= position]:
            if before is not None and other <= before:
                del self._passed[other]  # the cumulative position stands for it, also one that was sent already
            else:
                self._finish(other)
        return before
