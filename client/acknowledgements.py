"""Which entries can be acknowledged: messages become entries, and entries are collected for one command.

The broker knows entries only. An entry of a batch counts when all of its messages do; until then the bits of the
missing ones are kept here. Cumulative acknowledgement of a message in the middle of a batch acknowledges the entry
before it, and the part of the batch up to the message.

Pure state, no I/O and no clock. Invariants: `_missing` holds entries of which some but not all messages are
acknowledged; nothing at or below the cumulative position is held anywhere.
"""

from collections.abc import Iterable

from ..protocol.errors import OperationNotSupported
from .message_id import MessageId

Position = tuple[int, int]

LEDGERS_MAX = 256
"""Of so many ledgers the position before their first entry is remembered."""


class Acknowledgements:
    """See the module."""

    def __init__(self) -> None:
        self._complete: dict[Position, None] = {}
        self._missing: dict[Position, int] = {}
        self._cumulative: Position | None = None
        self._cumulative_sent = True
        self._last_received: Position | None = None
        self._before_ledger: dict[int, Position] = {}

    def __len__(self) -> int:
        """Entries that wait to be sent, the cumulative position counted as one."""
        return len(self._complete) + (not self._cumulative_sent)

    def received(self, position: Position) -> None:
        """An entry came. Remembers what lies before each ledger, for cumulative acknowledgement in a first entry."""
        last = self._last_received
        if last is not None and last[0] != position[0] and position > last:
            self._before_ledger[position[0]] = last
            if len(self._before_ledger) > LEDGERS_MAX:
                del self._before_ledger[next(iter(self._before_ledger))]
        self._last_received = position

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
        if size <= 0 or index >= size:
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
            return None
        self._finish(position)
        return position

    def acknowledge_run(self, position: Position, size: int, indexes: Iterable[int]) -> bool:
        """Many messages of one batch are done. True if the entry is complete by them."""
        if position in self._complete or (self._cumulative is not None and position <= self._cumulative):
            return True
        done = 0
        for index in indexes:
            done |= 1 << index
        missing = self._missing.get(position, (1 << size) - 1) & ~done
        if missing:
            self._missing[position] = missing
            return False
        self._finish(position)
        return True

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Everything up to and including this message is done."""
        ledger_id, entry_id, index, _, size = message_id
        position: Position | None = (ledger_id, entry_id)
        if 0 <= index < size - 1:
            # The bits below and at the index; the rest of the batch is still to come.
            self.acknowledge_run((ledger_id, entry_id), size, range(index + 1))
            position = (ledger_id, entry_id - 1) if entry_id > 0 else self._before_ledger.get(ledger_id)
        elif index >= 0 and size <= 0:
            raise OperationNotSupported(
                f"message {message_id.text} is part of a batch of unknown size; use an id that a consumer gave"
            )
        if position is None or (self._cumulative is not None and position <= self._cumulative):
            return
        self._cumulative = position
        self._cumulative_sent = False
        self._complete = {other: None for other in self._complete if other > position}
        self._missing = {other: missing for other, missing in self._missing.items() if other > position}

    def take(self) -> tuple[Position | None, list[Position]]:
        """What is to be sent now: the cumulative position if it is new, and single entries."""
        cumulative = None if self._cumulative_sent else self._cumulative
        self._cumulative_sent = True
        complete = list(self._complete)
        self._complete.clear()
        return cumulative, complete

    def forget_sent(self) -> None:
        """A subscription begins: somebody else may have set the cursor back, so what was sent swallows nothing more."""
        if self._cumulative_sent:
            self._cumulative = None

    def reset(self) -> None:
        """The application sought elsewhere: forget everything, acknowledged entries may come again."""
        self._complete.clear()
        self._missing.clear()
        self._before_ledger.clear()
        self._last_received = None
        self._cumulative = None
        self._cumulative_sent = True

    def _finish(self, position: Position) -> None:
        self._missing.pop(position, None)
        self._complete[position] = None
