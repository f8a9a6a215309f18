"""Acknowledgement of single messages of batches, for a subscription of a broker that allows it.

The cursor keeps for each partly acknowledged batch which of its messages are open. Here stands what that means for
consumers. A batch that comes again carries the set of its open messages, and costs as many permits as it has of them.
An acknowledgement takes from its consumer's unacknowledged messages what it newly acknowledges.

Without `acknowledgmentAtBatchIndexLevelEnabled` nothing of this exists. An acknowledgement of a part of a batch is then
ignored, as in Pulsar. What a cursor still has of an earlier setting is kept, but not looked at.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...protocol.ack_sets import WORD_BITS, words_to_bits
from ...protocol.message_id import Position
from ...storage.managed.acknowledged import OpenMessages
from ...storage.managed.cursor import Cursor
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.dispatcher import Dispatcher
from ..dispatch.message_counts import MessageCounts


class PartOfBatch(NamedTuple):
    """What an acknowledgement says of one batch: a bit that is set in `ack_set` is a message not yet acknowledged."""

    position: Position
    ack_set: list[int]
    batch_size: int
    """As the client says, 0 if it does not."""


class BatchIndexAcks:
    """See the module."""

    def __init__(self, cursor: Cursor, counts: MessageCounts) -> None:
        self._cursor = cursor
        self._counts = counts

    def open_count(self, position: Position, body: bytes) -> int:
        """Messages of an entry that are to be delivered: at least 1, so that every entry costs a permit."""
        count = self._counts.of(position, body)
        batch = self._cursor.batches.get(position)
        if batch is None:
            return count
        return max((batch[1] & ((1 << count) - 1)).bit_count(), 1)

    @property
    def ack_set_of(self) -> Callable[[Position], list[int] | None] | None:
        """Gives the ack set that goes with an entry, None for one that is all open. None while all entries are."""
        return self._cursor.batches.ack_set if self._cursor.batches.sets else None

    def open_messages(self, part: PartOfBatch) -> OpenMessages | None:
        """What of a batch is open, as a cursor keeps it; None where the ack set says nothing."""
        if not any(part.ack_set):
            return None
        return self._size_of(part), words_to_bits(part.ack_set)

    def _size_of(self, part: PartOfBatch) -> int:
        return self._counts.known(part.position) or part.batch_size or WORD_BITS * len(part.ack_set)

    def acknowledge(self, dispatcher: Dispatcher, consumer: AttachedConsumer, parts: Iterable[PartOfBatch]) -> bool:
        """Acknowledge messages of batches. Returns whether a blocked consumer may go on.

        Raises NotAllowedError at the first batch that is beyond the bounds of what a cursor keeps.
        """
        unblocked = False
        for part in parts:
            position = part.position
            self._cursor.acknowledge_batch_index(position, part.ack_set, self._size_of(part))
            if self._cursor.is_acknowledged(position):
                unblocked |= dispatcher.acknowledged(consumer, [position])
            elif (batch := self._cursor.batches.get(position)) is not None:
                unblocked |= dispatcher.acknowledged_in_part(consumer, position, batch[1].bit_count())
        return unblocked
