"""The bound on pending messages of a partitioned producer: partitions borrow from one pool what they need.

To split the bound evenly would make batches small: of 30,000 messages 64 partitions would have 468 each, less than half
of a batch. So each partition borrows room when it has none left, and gives back what its receipts free. One partition
alone, whose broker does not answer, can hold no more than its own limit.

Single messages borrow a few at a time (`step`). All partitions together leave at most an eighth of the total unused so.

Invariant: what is free here and what the outboxes have borrowed add up to `total`. Locks are taken in one order only:
an outbox's, then the pool's.
"""

from collections.abc import Callable
from typing import Protocol

from .threading_bridge import Handover

STEP_MAX = 32


class Borrower(Protocol):
    """An outbox, as the pool sees it."""

    def look_again(self) -> None:
        """There is something to borrow."""
        ...


class PendingPool:
    """See the module. All methods may be called from any thread."""

    def __init__(self, handover: Handover, total: int, borrowers: int) -> None:
        self.step = max(1, min(STEP_MAX, total // (8 * borrowers)))
        self._lock = handover.lock()
        self._free = total
        self._starving: dict[Borrower, None] = {}

    def borrow(self, borrower: Borrower, wanted: int) -> int:
        """Room for at most `wanted` messages. With 0 the borrower is told when there is some again."""
        with self._lock:
            given = min(wanted, self._free)
            self._free -= given
            if not given:
                self._starving[borrower] = None
            return given

    def give_back(self, messages: int) -> Callable[[], None] | None:
        """Take room back. Returns what to call, without holding a lock, for those who wait for it."""
        with self._lock:
            self._free += messages
            if not messages or not self._starving:
                return None
            starving, self._starving = self._starving, {}

        def tell() -> None:
            for borrower in starving:
                borrower.look_again()

        return tell
