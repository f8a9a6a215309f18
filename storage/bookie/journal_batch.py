"""One batch of a journal: the records that become durable with one synced write, and the callers that wait for them.

`TRANSITIONS` has the states. The journal changes them once per batch, never for each record.
"""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from ...runtime.transitions import check_transition
from .segment import Segment


class Responder(Protocol):
    """The caller: an `RpcConnection`, or a test."""

    def respond(self, request_id: int, status: int, parts: Sequence[bytes] = ()) -> None: ...
    def respond_all(self, request_ids: Sequence[int], status: int) -> None: ...


class BatchState(enum.Enum):
    """See `TRANSITIONS`."""

    OPEN = enum.auto()
    QUEUED = enum.auto()
    WRITING = enum.auto()
    DURABLE = enum.auto()
    FAILED = enum.auto()


TRANSITIONS: Mapping[BatchState, Collection[BatchState]] = {
    BatchState.OPEN: (  # records join it
        BatchState.QUEUED,  # its COMMIT is in it: it is large enough, the disk is free, or its segment is full
        BatchState.FAILED,  # the write of an earlier batch failed, or a background file could not be made
    ),
    BatchState.QUEUED: (
        BatchState.WRITING,  # it is the oldest, its segment has a file, and no other batch is at the disk
        BatchState.FAILED,  # as above, or the disk has no room for its segment's file
    ),
    BatchState.WRITING: (
        BatchState.DURABLE,  # the synced write has returned
        BatchState.FAILED,  # the write or the sync failed
    ),
    BatchState.DURABLE: (),
    BatchState.FAILED: (),
}


class JournalBatch:
    """See the module. `start` and `end` are offsets in the segment's file."""

    __slots__ = ("add_bytes", "callbacks", "end", "final", "parts", "segment", "start", "state", "waiters")

    def __init__(self, segment: Segment, start: int) -> None:
        self.state = BatchState.OPEN
        self.segment = segment
        self.start = start
        self.end = start
        self.parts: list[bytes] = []
        self.waiters: dict[Responder, list[int]] = {}
        self.callbacks: list[Callable[[BaseException | None], None]] = []
        self.add_bytes = 0
        self.final = False
        """Nothing follows it in its segment."""

    def become(self, state: BatchState) -> None:
        """Change the state. Raises ForbiddenTransition for a step that the table does not have."""
        check_transition(TRANSITIONS, f"the batch at {self.start} of {self.segment.name}", self.state, state)
        self.state = state
