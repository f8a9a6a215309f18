"""Columns without what nobody can notice any longer. See `reduced` for when, and why nothing is lost."""

from typing import Any

from .nodes import NEW_BOOKIE
from .recoverer import Recoverer
from .system import BOOKIE, CHANNEL, INFO, LATE, QUIET, RECORD_BITS, System

NO_WRITER = (0, 0), 0, 0, 0, 0
"""What a writer that has ended knows of a bookie."""
UNFENCED, SETTLED, OVER = range(3)
"""How much is left: nobody asks for a LAC; nobody asks for anything, and the writer has ended; the ledger is closed."""


class Endings:
    """See the module. Each answer is computed once."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._values = system.values
        self._no_recoverer: Any = Recoverer.retired(system.bookies)[1][0]
        self._memory: dict[Any, int] = {}

    def strip(self, column_id: int, left: int) -> int:
        """A column when only so much is `left`."""
        key = "strip", column_id, left
        found = self._memory.get(key)
        if found is None:
            column = self._values[column_id]
            known, fenced, entries, _, lac_of_1 = column[BOOKIE]
            nobody = self._no_recoverer
            if left == OVER:
                column = NEW_BOOKIE, (), QUIET, QUIET, QUIET, NO_WRITER, nobody, nobody, column[RECORD_BITS]
            elif left == SETTLED:
                column = (True, True, entries, -1, lac_of_1), (), *column[CHANNEL:]
            else:
                column = (known, fenced, entries, -1, lac_of_1), *column[LATE:]
            found = self._memory[key] = self._system.tidy(column)
        return found

    def for_writer(self, column_id: int) -> int:
        """A column with nothing but what the writer can notice."""
        key = "for writer", column_id
        found = self._memory.get(key)
        if found is None:
            column = self._values[column_id]
            known, fenced, *_ = column[BOOKIE]
            channel, info, nobody = column[CHANNEL], column[INFO], self._no_recoverer
            alone = (known, fenced, 0, -1, -1), (), channel, QUIET, QUIET, info, nobody, nobody, column[RECORD_BITS]
            found = self._memory[key] = self._system.tidy(alone)
        return found

    def without(self, column_id: int, client: int) -> int:
        """A column without a client, whose adds are still on the way."""
        key = "without", column_id, client
        found = self._memory.get(key)
        if found is None:
            column = self._values[column_id]
            adds = [request for request in column[CHANNEL + client][0] if request[0] == "add"]
            channels, infos = list(column[CHANNEL:INFO]), list(column[INFO:RECORD_BITS])
            channels[client], infos[client] = QUIET, self._no_recoverer if client else NO_WRITER
            late = tuple(sorted({*column[LATE], *adds}))
            new = column[BOOKIE], late, *channels, *infos, column[RECORD_BITS]
            found = self._memory[key] = self._system.tidy(new)
        return found

    def without_answers(self, column_id: int, client: int, lac: int) -> int:
        """A column without answers on the way to a client about entries that are acknowledged."""
        key = "without answers", column_id, client, lac
        found = self._memory.get(key)
        if found is None:
            column = self._values[column_id]
            requests, replies = column[CHANNEL + client]
            awaited = tuple([reply for reply in replies if reply[1] > lac])
            found = self._memory[key] = self._system.with_channel(column, client, (requests, awaited))
        return found

    def swapped(self, column_id: int) -> int:
        """A column with the two recoverers swapped."""
        key = "swapped", column_id
        found = self._memory.get(key)
        if found is None:
            c = self._values[column_id]
            found = self._memory[key] = self._system.intern((*c[:3], c[4], c[3], c[5], c[7], c[6], c[8]))
        return found
