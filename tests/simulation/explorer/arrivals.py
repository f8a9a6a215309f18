"""What can have become of one bookie and its connections by the time that somebody is answered there.

An add changes only what its bookie answers later, so the explorer lets it arrive no sooner than somebody is answered
who could notice: a question (fence, read) at this bookie, or the client that sent it. These are the choices then, as
columns (see `system`) that one column can turn into, each computed once.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus

from .nodes import bookie_step
from .system import BOOKIE, CHANNEL, LATE, System

Lacs = tuple[int, int, int]
"""Of each client, up to which entry it waits for no answers any longer."""
Choice = tuple[Any, int]
"""(labels without the bookie, column)."""


class Arrivals:
    """See the module."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._values = system.values
        self._closures: dict[tuple[int, Lacs], tuple[Choice, ...]] = {}
        self._questions: dict[tuple[int, int, Lacs], tuple[Choice, ...]] = {}
        self._adds: dict[tuple[int, int, int, Lacs], tuple[Choice, ...]] = {}

    def of_question(self, column_id: int, client: int, lacs: Lacs) -> tuple[Choice, ...]:
        """A recoverer's question is answered, unless it is already, after any adds that can arrive."""
        key = column_id, client, lacs
        found = self._questions.get(key)
        if found is None:
            requests, replies = self._values[column_id][CHANNEL + client]
            results: dict[int, Any] = {}
            if replies:
                results[column_id] = ()
            elif requests:
                for labels, at in self._closure(column_id, lacs):
                    if self._values[at][CHANNEL + client][0]:
                        results.setdefault(self._system.serve(at, client), (*labels, ("serves", requests[0])))
            found = self._questions[key] = tuple((labels, at) for at, labels in results.items())
        return found

    def of_add(self, column_id: int, client: int, entry: int, lacs: Lacs) -> tuple[Choice, ...]:
        """A client's adds up to an entry arrive, unless they have, and are accepted; none when they cannot be.

        Questions of others that wait here may be answered before, while an add still makes a difference to them.
        """
        key = column_id, client, entry, lacs
        found = self._adds.get(key)
        if found is None:
            starts: list[Choice] = [((), column_id)]
            if not self._has(column_id, client, entry) and self._waiting(column_id):
                for labels, before in self._closure(column_id, lacs):
                    starts.extend(((*labels, *more), asked) for more, asked in self._answered(before) if more)
            results: dict[int, Any] = {}
            for labels, at in starts:
                while not self._has(at, client, entry):
                    accepted = self._accept(at, client, lacs)
                    if accepted is None:
                        break
                    labels, at = (*labels, *accepted[0]), accepted[1]
                else:
                    results.setdefault(at, labels)
            found = self._adds[key] = tuple((labels, at) for at, labels in results.items())
        return found

    def _has(self, column_id: int, client: int, entry: int) -> bool:
        """Whether the answer about an entry is on the way to its client."""
        return any(reply[1] == entry for reply in self._values[column_id][CHANNEL + client][1])

    def _closure(self, column_id: int, lacs: Lacs) -> tuple[Choice, ...]:
        """All that a column can become by adds that arrive, with itself."""
        key = column_id, lacs
        found = self._closures.get(key)
        if found is None:
            known: dict[int, Any] = {column_id: ()}
            waiting = [column_id]
            for one in waiting:
                for labels, other in self._arrive(one, lacs):
                    if other not in known:
                        known[other] = (*known[one], *labels)
                        waiting.append(other)
            found = self._closures[key] = tuple((labels, other) for other, labels in known.items())
        return found

    def _arrive(self, column_id: int, lacs: Lacs) -> Iterator[Choice]:
        """One more add arrives and is accepted, before or after questions that wait there are answered."""
        for labels, asked in ((), column_id), *self._answered(column_id):
            column = self._values[asked]
            for request in column[LATE]:
                bookie, reply = bookie_step(column[BOOKIE], request)
                if reply[2] == BookieStatus.OK and bookie != column[BOOKIE]:
                    yield (*labels, ("serves late", request)), self._system.serve_late(asked, request)
            for client in range(3):
                accepted = self._accept(asked, client, lacs)
                if accepted is not None:
                    yield (*labels, *accepted[0]), accepted[1]

    def _answered(self, column_id: int) -> Iterator[Choice]:
        """Some of the questions that wait at a bookie are answered; the answers are not heard yet."""
        waiting = self._waiting(column_id)
        for count in range(1, len(waiting) + 1):
            for asking in combinations(waiting, count):
                asked, labels = column_id, ()
                for client in asking:
                    labels += (("serves", self._values[asked][CHANNEL + client][0][0]),)
                    asked = self._system.serve(asked, client)
                yield labels, asked

    def _waiting(self, column_id: int) -> list[int]:
        """Recoverers whose question waits at a bookie."""
        column = self._values[column_id]
        heads = [(client, column[CHANNEL + client][0]) for client in (1, 2)]
        return [client for client, requests in heads if requests and requests[0][0] != "add"]

    def _accept(self, column_id: int, client: int, lacs: Lacs) -> Choice | None:
        """The first add on a connection arrives, if it is accepted."""
        column = self._values[column_id]
        requests, _ = column[CHANNEL + client]
        if not requests or requests[0][0] != "add":
            return None
        served = self._values[self._system.serve(column_id, client)]
        left, replies = served[CHANNEL + client]
        if replies[-1][2] != BookieStatus.OK:
            return None
        if replies[-1][1] <= lacs[client]:
            replies = replies[:-1]
        return (("serves", requests[0]),), self._system.with_channel(served, client, (left, replies))
