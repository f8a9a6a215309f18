"""The same transition system searched with no reduction at all: what `explorer` has to agree with.

Every request arrives and every answer is heard in a step of its own, in every order; bookies and recoverers keep their
names; nothing is dropped but late requests that change nothing. It reaches far: only small configurations end.
"""

from collections.abc import Iterator
from typing import Any

from .explorer_nodes import CLIENTS, LATE_ANSWER, LOST, Violation
from .explorer_search import Search, Way
from .explorer_system import CHANNEL, LATE, QUIET, State


class PlainExplorer(Search):
    """See the module."""

    def successors(self, state: State) -> Iterator[Way]:
        for i, column_id in enumerate(state[4:]):
            column = self.values[column_id]
            for request in column[LATE]:
                served = self.serve_late(column_id, request)
                yield ((i, "serves late", request),), (*state[: 4 + i], served, *state[5 + i :])
            for client, (requests, replies) in enumerate(column[CHANNEL : CHANNEL + 3]):
                if requests:
                    served = self.serve(column_id, client)
                    yield ((i, "serves", requests[0]),), (*state[: 4 + i], served, *state[5 + i :])
                if replies:
                    yield from self._told(state, client, replies[0], i)
                if (requests or replies) and self.options.breaks:
                    broken = self.with_channel(column, client, QUIET)
                    yield from self._told((*state[: 4 + i], broken, *state[5 + i :]), client, LOST, i)
                    yield from self._told(state, client, LATE_ANSWER, i)
        for client in range(3):
            for choice in self.choices(client, state[client]):
                yield from self._told(state, client, choice, -1)

    def _told(self, state: State, client: int, event: Any, bookie: int) -> Iterator[Way]:
        label = CLIENTS[client], event, bookie
        try:
            for successor in self.step(state, client, event, bookie):
                yield (label,), successor
        except Violation as violation:
            raise Violation(violation.args[0], (label,)) from None
