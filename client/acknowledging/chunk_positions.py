"""Where the chunks of messages lie that came in chunks and are not acknowledged.

A message is acknowledged, and asked for again, with all its chunks. Its id says where the first and the last one lie;
the others are remembered here, under the position of the last. An id that came straight from a producer or consumer
knows them itself, and needs no memory.
"""

from collections.abc import Callable

from ...protocol.message_id import Position
from ..core.message_id import MessageId, positions_of

MESSAGES_MAX = 100_000
"""So many messages are remembered; of older ones only what their ids know."""


class ChunkPositions:
    """See the module. All but `of` is for the loop."""

    def __init__(self) -> None:
        self.by_last: dict[Position, tuple[Position, ...]] = {}
        """The position of a message's last chunk → those of all its chunks; to look at."""

    def __bool__(self) -> bool:
        return bool(self.by_last)

    def put(self, positions: tuple[Position, ...]) -> None:
        """These entries are the chunks of one message, in order."""
        self.by_last[positions[-1]] = positions
        if len(self.by_last) > MESSAGES_MAX:
            del self.by_last[next(iter(self.by_last))]

    def of(self, message_id: MessageId) -> tuple[Position, ...]:
        """Where the message lies."""
        return self.by_last.get(message_id.position) or positions_of(message_id)

    def done(self, message_id: MessageId) -> tuple[Position, ...]:
        """The message is acknowledged: where its chunks but the last lie."""
        return (self.by_last.pop(message_id.position, None) or positions_of(message_id))[:-1]

    def done_up_to(self, position: Position, spared: Callable[[Position], bool]) -> list[Position]:
        """All messages that end there or before are acknowledged, but those that are `spared`: where their chunks but
        the last lie."""
        ended = [last for last in self.by_last if last <= position and not spared(last)]
        return [chunk for last in ended for chunk in self.by_last.pop(last)[:-1]]

    def clear(self) -> None:
        """Forget everything."""
        self.by_last.clear()
