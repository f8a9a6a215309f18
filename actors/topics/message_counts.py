"""How many messages recent entries hold, so that dispatch need not parse what the publish path has parsed already."""

from ...protocol.entries import message_count, parse_metadata
from ...protocol.errors import ProtocolError
from ...protocol.message_id import Position

GENERATION_ENTRIES_MAX = 16_384


class MessageCounts:
    """Message counts by position, of all topics of a broker (ledger ids are unique in the cluster).

    Bounded by two generations: when the young one is full it becomes the old one, and the old one is forgotten.
    """

    def __init__(self, generation_entries_max: int = GENERATION_ENTRIES_MAX) -> None:
        self._young: dict[Position, int] = {}
        self._old: dict[Position, int] = {}
        self._generation_entries_max = generation_entries_max

    def remember(self, position: Position, messages: int) -> None:
        """Keep a count that is known."""
        if len(self._young) >= self._generation_entries_max:
            self._old, self._young = self._young, {}
        self._young[position] = messages

    def known(self, position: Position) -> int | None:
        """Messages in the entry, if that is remembered."""
        return self._young.get(position) or self._old.get(position)

    def of(self, position: Position, body: bytes) -> int:
        """Messages in the entry; parses `body` only if the count is not known. At least 1, so that every entry costs
        a permit, even one that cannot be parsed: its consumer sees that and says so."""
        messages = self._young.get(position) or self._old.get(position)
        if messages is None:
            try:
                messages = max(message_count(parse_metadata(body)), 1)
            except ProtocolError:
                messages = 1
            self.remember(position, messages)
        return messages
