"""The same transition system searched with no reduction at all: what `reduced` has to agree with.

Every request arrives and every answer is heard in a step of its own, in every order; bookies and recoverers keep their
names; nothing is dropped but late requests that change nothing. It reaches far: only small configurations end. Of
larger ones random schedules can be had.
"""

import random
from collections.abc import Iterator
from typing import Any

from .nodes import CLIENTS, LATE_ANSWER, LOST, Violation
from .search import Search, Way
from .system import CHANNEL, LATE, QUIET, State

RARE = LOST, LATE_ANSWER, "cas times out", "close"


class PlainExplorer(Search):
    """See the module."""

    def wander(self, schedules: int, seed: int) -> set[Any]:
        """The outcomes (`Report.outcomes`) of random schedules to their end. Raises Violation.

        Some are calm, in some much fails; in some the writer is quick, in some slow.
        """
        chance, found = random.Random(seed), set[Any]()
        for _ in range(schedules):
            rare, quick = chance.choice((0.0, 0.1, 0.3)), chance.choice((0.0, 0.5, 0.95))
            state = self.initial()
            while ways := list(self.successors(state)):
                calm = [way for way in ways if way[0][0][1] not in RARE]
                ways = calm if calm and chance.random() >= rare else ways
                near = [way for way in ways if way[0][0][0] == CLIENTS[0] or way[0][0][1] == "serves"]
                _, state = chance.choice(near if near and chance.random() < quick else ways)
                reason = self.check(state)
                if reason:
                    raise Violation(reason, ())
                found.add(self.outcome(state))
        return found

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
