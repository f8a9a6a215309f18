"""Where a consumer starts within what its broker delivers.

A broker positions by entries, and a seek's target is inclusive. Messages of the first entry that lie before the wanted
message are dropped here. For a target in chunks the broker begins with the first one. What lies between its chunks is
delivered, and the target itself only if the start is inclusive.

The filter ends with the first entry that passes. For a publish time, the end of the topic at the seek ends it, too:
what lies behind is wanted whatever its producer's clock says.

Only the broker knows where `MessageId.latest` and a publish time are. Once it has said so (`placed`), the filter names
an entry. A subscription that is made again then begins there, and not at a later end of the topic.
"""

from collections.abc import Callable

from ...protocol.message_id import EARLIEST_POSITION, Position
from ..core.message_id import MessageId, start_of
from .chunks import is_chunk
from .message import ReceivedEntry


class StartFilter:
    """Drops what lies before a message id, or was published before a time (milliseconds). See the module."""

    def __init__(
        self, target: MessageId, inclusive: bool, publish_time: int = 0, end: Position = EARLIEST_POSITION
    ) -> None:
        """`end` is the last entry that the publish time is asked of."""
        self.target = target
        self.inclusive = inclusive
        self.publish_time = publish_time
        self.end = end
        self.drops_earlier = True
        """Whether entries before the target are not wanted."""
        self.begin = start_of(target)
        """Where the broker has to begin: with the first chunk of a target that was published in chunks."""
        self._is_chunked = self.begin.position != target.position

    @property
    def is_placed(self) -> bool:
        """Whether the filter names an entry."""
        return self.target != MessageId.latest and not self.publish_time

    def placed(self, place: Position, *, alone: bool) -> "StartFilter":
        """The same start, of which the broker has said that it lies behind the entry at `place`.

        Unless the consumer is `alone`, another one may seek back: what lies before is then wanted.
        """
        made = StartFilter(MessageId(self.target.partition(), *place), False, self.publish_time, self.end)
        made.drops_earlier = alone
        return made

    def is_reached(self, last: MessageId) -> bool:
        """Whether the start lies behind `last`, or is `last` and exclusive: none up to there is wanted."""
        if self.target == MessageId.latest or last.position != self.target.position:
            return last.position < self.target.position
        return not self.inclusive and (self.target.batch_index() < 0 or last.batch_index() <= self.target.batch_index())

    def is_passed(self, entry: ReceivedEntry) -> bool:
        """Whether `entry` and with it everything after it is wanted. To be asked of what is not dropped."""
        return self.target == MessageId.latest or entry.position > self.target.position

    def drops(self, entry: ReceivedEntry) -> bool:
        """Whether nothing of `entry` is wanted."""
        if self.target == MessageId.latest:
            return False
        position, target = entry.position, self.target.position
        if position < self.begin.position:
            return self.drops_earlier
        if position <= self.end and entry.metadata.publish_time < self.publish_time:
            return True
        if position != target or self.inclusive or (is_chunk(entry) and not entry.chunks and self._is_chunked):
            return False
        return not entry.batched or self.target.batch_index() < 0 or self.target.batch_index() >= entry.count - 1

    def wanted(self, entry: ReceivedEntry) -> Callable[[int], bool] | None:
        """For a batch of which only a part is wanted: which indexes. None for all."""
        index = self.target.batch_index()
        if entry.position != self.target.position or not entry.batched or index < 0:
            return None
        first = index if self.inclusive else index + 1
        return lambda candidate: candidate >= first
