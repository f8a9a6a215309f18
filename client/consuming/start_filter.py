"""Where a consumer starts within what its broker delivers.

A broker positions by entries, and a seek's target is inclusive. Messages of the first entry that lie before the wanted
message are dropped here. For a target in chunks the broker begins with the first one. What lies between its chunks is
delivered, and the target itself only if the start is inclusive.
"""

from collections.abc import Callable

from ..core.message_id import MessageId, start_of
from .chunks import is_chunk
from .message import ReceivedEntry


class StartFilter:
    """Drops what lies before a message id, or was published before a time (milliseconds).

    The broker alone knows where `MessageId.latest` is; whatever it delivers then is wanted.
    """

    def __init__(self, target: MessageId, inclusive: bool, publish_time: int = 0) -> None:
        self.target = target
        self.inclusive = inclusive
        self.publish_time = publish_time
        self.begin = start_of(target)
        """Where the broker has to begin: with the first chunk of a target that was published in chunks."""
        self._is_chunked = self.begin.position != target.position

    def is_passed(self, entry: ReceivedEntry) -> bool:
        """Whether `entry` and with it everything after it is wanted."""
        if self.target == MessageId.latest:
            return True
        return entry.position > self.target.position and entry.metadata.publish_time >= self.publish_time

    def drops(self, entry: ReceivedEntry) -> bool:
        """Whether nothing of `entry` is wanted."""
        if self.target == MessageId.latest:
            return False
        position, target = entry.position, self.target.position
        if position < self.begin.position or entry.metadata.publish_time < self.publish_time:
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
