"""The latest entries of all topics of a broker, in memory, so that consumers at the tail cost no read.

Bounded in bytes of bodies; what was not used for the longest time goes first, whichever topic it belongs to. An entry
is put here only once it is acknowledged, and the bytes under a (ledger, entry) never change after that. So no cached
entry is wrong, and none must be invalidated.
"""

from collections import OrderedDict

from ...protocol.message_id import Position

ENTRY_OVERHEAD_BYTES = 200
"""What Python needs for the key, the position and the links of one entry, about."""


class EntryCache:
    """Bodies by position. `size_max_bytes` 0 keeps nothing."""

    def __init__(self, size_max_bytes: int) -> None:
        self.size_max_bytes = size_max_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._bodies: OrderedDict[Position, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bodies)

    def put(self, position: Position, body: bytes) -> None:
        """Keep an acknowledged entry."""
        bodies = self._bodies
        if position in bodies:
            bodies.move_to_end(position)
            return
        bodies[position] = body
        self.size_bytes += len(body) + ENTRY_OVERHEAD_BYTES
        while self.size_bytes > self.size_max_bytes and bodies:
            _, oldest = bodies.popitem(last=False)
            self.size_bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES

    def get(self, position: Position) -> bytes | None:
        """The body, or None."""
        body = self._bodies.get(position)
        if body is None:
            self.misses += 1
            return None
        self.hits += 1
        self._bodies.move_to_end(position)
        return body

    def __contains__(self, position: Position) -> bool:
        """Whether an entry is here, without counting as a use."""
        return position in self._bodies
