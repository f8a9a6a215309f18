"""The chunks that a partition's consumer has received, on the loop: puts messages together and has the rest done.

What `chunks` decides is carried out here: chunks are acknowledged or asked for again, and a timer drops what is
incomplete for too long. A chunk that is kept gives its permit back at once. The permit of a whole message is that of
the chunk which completes it, and comes back when the application reaches the message.

On a subscription that keeps an order, all chunks but the last count as undelivered until their message is acknowledged.
So a cumulative acknowledgement of a message whose last chunk lies before theirs does not delete them.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from ...protocol.message_id import Position
from ..acknowledging.chunk_positions import ChunkPositions
from ..core.configuration import ConsumerConfiguration
from ..core.context import Core
from .chunks import ChunkOutcome, IncompleteMessages
from .message import ReceivedEntry

logger = logging.getLogger(__name__)

AWAITED_MAX = 1_000
"""So many damaged entries are remembered."""


class ChunkAcks(Protocol):
    """A consumer's acknowledgements, as far as chunks need them."""

    def acknowledge_entry(self, position: Position) -> None: ...
    def undelivered(self, position: Position, *, damaged: bool) -> None: ...
    def redeliver_later(self, positions: Sequence[Position]) -> None: ...
    @property
    def chunked(self) -> ChunkPositions: ...


class ChunkReceiver:
    """See the module."""

    def __init__(
        self, core: Core, configuration: ConsumerConfiguration, acks: ChunkAcks, name: str, *, keeps_order: bool
    ) -> None:
        self._core = core
        self._acks = acks
        self._name = name
        self._keeps_order = keeps_order
        self._messages = IncompleteMessages(
            configuration.max_pending_chunked_message,
            configuration.auto_ack_oldest_chunked_message_on_queue_full,
            configuration.expire_time_of_incomplete_chunked_message_ms / 1000,
            core.configuration.decompressed_size_max_bytes,
        )
        self.awaited: dict[Position, None] = {}
        """Entries that came damaged, in that order."""
        self._timer: asyncio.TimerHandle | None = None

    def arrive(self, chunk: ReceivedEntry) -> ReceivedEntry | None:
        """A chunk came. Returns what is for the receive queue: a whole message, or a chunk that makes no sense."""
        if self._keeps_order and chunk.metadata.chunk_id + 1 < chunk.metadata.num_chunks_from_msg:
            self._acks.undelivered(chunk.position, damaged=False)
        outcome = self._messages.arrive(chunk, self._core.loop.time())
        self._carry_out(outcome)
        self._set_timer()
        if outcome.whole is not None and outcome.whole.chunks:
            self._acks.chunked.put(tuple([part.position for part in outcome.whole.chunks]))
        return outcome.whole

    def damaged(self, position: Position) -> None:
        """An entry came damaged, and will come again: it may be the missing chunk of any message. None expires until
        it has come."""
        self.awaited[position] = None
        if len(self.awaited) > AWAITED_MAX:
            del self.awaited[next(iter(self.awaited))]

    def came(self, position: Position) -> None:
        """An entry came undamaged."""
        if self.awaited.pop(position, self) is None and not self.awaited:
            self._messages.restart(self._core.loop.time())
            self._set_timer()

    def first_position(self) -> Position | None:
        """Where the first chunk of those lies that are here."""
        return min(self._messages.positions(), default=None)

    def clear(self) -> None:
        """What is here comes again, or is not wanted."""
        self._messages.clear()
        self.awaited.clear()
        self._set_timer()

    def _carry_out(self, outcome: ChunkOutcome) -> None:
        for position in outcome.done:
            self._acks.acknowledge_entry(position)
        if outcome.again:
            logger.warning("%s holds too many incomplete messages; it asks for the oldest again", self._name)
            self._acks.redeliver_later(outcome.again)

    def _set_timer(self) -> None:
        due_s = self._messages.next_expiry_s if not self.awaited else None
        if self._timer is not None:
            if due_s is not None and self._timer.when() <= due_s:
                return  # it looks again then
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = self._core.loop.call_at(due_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.awaited:
            return
        outcome = self._messages.expire(self._core.loop.time())
        if outcome.done:
            logger.warning(
                "%s acknowledges %d chunks whose messages did not become complete in time",
                self._name,
                len(outcome.done),
            )
        self._carry_out(outcome)
        self._set_timer()
