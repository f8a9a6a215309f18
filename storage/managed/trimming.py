"""Which ledgers of a topic may go (`trimmable`), and when the owner looks for them (`TrimTimer`)."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from ...protocol.message_id import Position
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from .chain import LedgerInfo

OPEN_SPREAD_S = 10.0
"""A broker that takes over a thousand topics trims them within this time, not all at once while they are loaded."""
RETRY_INITIAL_S = 5.0
RETRY_MAX_S = 600.0


def trimmable(
    infos: Sequence[LedgerInfo],
    durable_marks: Iterable[Position],
    pinned: Collection[int],
    current_ledger_id: int | None,
) -> list[int]:
    """Ids of the ledgers to delete, in the order of the chain. `durable_marks`: what each durable cursor has stored.

    Oldest first, stopping at the first one to keep. These ledgers are kept: the current one, those that are not closed,
    pinned ones, and those with an entry that a durable cursor has not durably passed. Without any durable cursor
    nothing is kept for anybody. Pure.
    """
    marks = list(durable_marks)
    slowest = min(marks) if marks else None
    gone: list[int] = []
    for info in infos:
        if info.ledger_id == current_ledger_id or not info.closed or info.ledger_id in pinned:
            break
        if slowest is not None and (info.ledger_id, info.entries - 1) > slowest:
            break
        gone.append(info.ledger_id)
    return gone


class TrimTimer:
    """When a topic is trimmed by itself: soon after it was opened, and after a trim that failed or met pins.

    Nothing is periodic: the timer runs only while ledgers wait that could not be trimmed or deleted yet. Of several
    reasons the earliest moment counts. `trim` is called on the loop; `close` ends it.
    """

    def __init__(self, env: Environment, trim: Callable[[], None]) -> None:
        self._env = env
        self._trim = trim
        self._backoff: Backoff | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def within_s(self, delay_s: float) -> None:
        """Trim so much later at the latest."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._closed or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._fire)

    def after_open(self) -> None:
        """The topic was opened, and something can go."""
        self.within_s(self._env.random.uniform(0, OPEN_SPREAD_S))

    def after_failure(self) -> None:
        """Something could not be trimmed or deleted: again, later each time."""
        if self._backoff is None:
            self._backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        self.within_s(self._backoff.next_delay_s())

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        self._backoff = None

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._trim()
