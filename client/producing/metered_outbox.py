"""Outboxes of a client that has a memory limit (`core/memory_limit.py`).

A batch is counted when it is closed. When that reaches the limit, the outbox accepts nothing more, as if its queue were
full, until there is room. Other outboxes learn it with their own next batch.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ...protocol.errors import MagnetarError, MemoryBufferIsFull
from ..core.memory_limit import MemoryLimit
from ..core.pending_pool import PendingPool
from ..core.threading_bridge import Handover
from .attributes import Attributes
from .keyed_outbox import KeyedOutbox
from .outbox import MESSAGE_OVERHEAD_BYTES, Outbox, SendCallback


class MeteredOutbox(Outbox):
    """See the module."""

    def __init__(
        self,
        memory: MemoryLimit,
        handover: Handover,
        on_work: Callable[[], object],
        *,
        pending_max: int,
        batching: bool,
        messages_max: int,
        bytes_max: int,
        pool: PendingPool | None = None,
    ) -> None:
        self._memory = memory
        self._stopped = False
        super().__init__(
            handover,
            on_work,
            pending_max=pending_max,
            batching=batching,
            messages_max=messages_max,
            bytes_max=bytes_max,
            pool=pool,
        )

    def extend(self, contents: Sequence[bytes], start: int, callback: SendCallback, one_batch: bool = False) -> int:
        """As in Outbox, batch by batch: each may reach the limit."""
        place, end = start, len(contents)
        while place < end:
            portion = contents if self._batching else contents[place : place + 1]
            accepted = super().extend(portion, place if self._batching else 0, callback, one_batch=True)
            place += accepted
            if one_batch or not accepted:
                break
        return place - start

    def release(self, messages: int, memory_bytes: int = 0) -> None:
        """As in Outbox."""
        super().release(messages)
        with self.lock:
            if self._stopped:
                self.pending_max = 0
        self._memory.give_back(memory_bytes)

    def full_error(self) -> MagnetarError:
        """As in Outbox."""
        if not self._stopped:
            return super().full_error()
        return MemoryBufferIsFull(
            f"the client's {self._memory.limit_bytes} bytes of memory are full of messages without a receipt: wait for "
            "receipts, raise memory_limit_bytes, or set block_if_queue_full=True"
        )

    def _borrow(self, wanted: int = 0) -> bool:
        if self._stopped:
            if self.failure is not None or not self._memory.has_room(self):
                return False
            self._stopped = False
            self.pending_max = self._limit if self._pool is None else self._borrowed
            if self.pending < self.pending_max:
                return True
        return super()._borrow(wanted)

    def _seal(self) -> None:
        size, first = self._size, len(self._sealed)
        super()._seal()
        self._count(first, size)

    def _seal_one(self, content: bytes, callback: SendCallback, attributes: Attributes | None) -> None:
        first = len(self._sealed)
        super()._seal_one(content, callback, attributes)
        self._count(first, len(content) + MESSAGE_OVERHEAD_BYTES)

    def _count(self, index: int, size_bytes: int) -> None:
        """The batch with that index was closed; those of other keys that were closed with it count as part of it."""
        self._sealed[index].memory_bytes = size_bytes
        if not self._memory.take(size_bytes):
            self._stopped = True
            self.pending_max = 0


class MeteredKeyedOutbox(MeteredOutbox, KeyedOutbox):
    """The same with key-based batching."""


def outbox_type(memory: MemoryLimit | None, *, keyed: bool) -> Callable[..., Outbox]:
    """What makes the outboxes of a producer."""
    if memory is None:
        return KeyedOutbox if keyed else Outbox
    return partial(MeteredKeyedOutbox if keyed else MeteredOutbox, memory)
