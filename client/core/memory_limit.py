"""The bound on what all producers of one client keep in memory until it has a receipt, in bytes.

Producers count whole batches, when these are closed. As in Pulsar the batch that crosses the limit is still taken, so
memory may exceed the limit by one batch of each partition, or by one message.

Locks are taken in one order only: an outbox's, then this one.
"""

from .pending_pool import Borrower
from .threading_bridge import Handover


class MemoryLimit:
    """See the module. All methods may be called from any thread."""

    def __init__(self, handover: Handover, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lock = handover.lock()
        self._starving: dict[Borrower, None] = {}

    def take(self, size_bytes: int) -> bool:
        """Count a batch. False when there is no room for another one."""
        with self._lock:
            self.used_bytes += size_bytes
            return self.used_bytes < self.limit_bytes

    def has_room(self, borrower: Borrower) -> bool:
        """Whether a batch may be begun. If not, the borrower is told when there is room again."""
        with self._lock:
            if self.used_bytes < self.limit_bytes:
                return True
            self._starving[borrower] = None
            return False

    def give_back(self, size_bytes: int) -> None:
        """A batch has its outcome. To be called without a lock."""
        with self._lock:
            self.used_bytes -= size_bytes
            if self.used_bytes >= self.limit_bytes or not self._starving:
                return
            starving, self._starving = self._starving, {}
        for borrower in starving:
            borrower.look_again()
