"""Which consumer of a Shared subscription gets the chunks of a message: one and the same, also on redelivery.

The first chunk that is dispatched goes to the consumer whose turn it is. That consumer owns the message from then on,
and every other chunk goes to it, until the last one went out or the consumer left. A chunk whose owner is not able at
the moment (no permits, blocked, a full socket) is *parked*: it waits for its owner, while other entries go on to other
consumers. It goes back into the replay set as soon as the owner is able, and when the owner leaves.

A consumer that gives chunks back loses nothing: the next delivery begins with the first chunk, because replays go out
in order of position, and finds an owner in the same way.

Bounds: `OWNERS_MAX` messages have an owner; beyond that the oldest is forgotten. Of parked entries a dispatcher takes
note and stops reading at `PARKED_MAX`, until an owner takes some.
"""

from typing import NamedTuple

from ...protocol.message_id import Position
from .consumer import AttachedConsumer

OWNERS_MAX = 10_000
PARKED_MAX = 1_000


class ChunkPlace(NamedTuple):
    """What an entry says of itself when it is one of several chunks of a message."""

    uuid: str
    chunk_id: int
    chunks: int


class ChunkOwners:
    """See the module."""

    def __init__(self) -> None:
        self._owners: dict[str, AttachedConsumer] = {}
        self._parked: dict[AttachedConsumer, list[Position]] = {}
        self.parked = 0
        """Entries that wait for their owner."""

    def owner_of(self, chunk: ChunkPlace) -> AttachedConsumer | None:
        """Who has to get this chunk, if somebody has."""
        return self._owners.get(chunk.uuid)

    def dispatched(self, chunk: ChunkPlace, consumer: AttachedConsumer) -> None:
        """The chunk goes to this consumer."""
        if chunk.chunk_id + 1 >= chunk.chunks:
            self._owners.pop(chunk.uuid, None)
        elif chunk.uuid not in self._owners:
            self._owners[chunk.uuid] = consumer
            if len(self._owners) > OWNERS_MAX:
                del self._owners[next(iter(self._owners))]

    def park(self, position: Position, owner: AttachedConsumer) -> None:
        """The chunk there waits until its owner is able."""
        self._parked.setdefault(owner, []).append(position)
        self.parked += 1

    def parked_positions(self) -> list[Position]:
        """Where the chunks lie that wait for their owner."""
        return [position for waiting in self._parked.values() for position in waiting]

    def unpark(self) -> list[Position]:
        """The chunks whose owners are able again; they are parked no longer."""
        back: list[Position] = []
        for owner in [owner for owner in self._parked if owner.able]:
            back += self._parked.pop(owner)
        self.parked -= len(back)
        return back

    def leave(self, consumer: AttachedConsumer) -> list[Position]:
        """A consumer left: it owns nothing, and what was parked for it is returned."""
        self._owners = {uuid: owner for uuid, owner in self._owners.items() if owner is not consumer}
        back = self._parked.pop(consumer, [])
        self.parked -= len(back)
        return back

    def forget(self, positions: list[Position]) -> None:
        """Entries that are acknowledged or no longer exist wait no longer."""
        gone = {*positions}
        for owner in [*self._parked]:
            self._parked[owner] = [position for position in self._parked[owner] if position not in gone]
        self._parked = {owner: waiting for owner, waiting in self._parked.items() if waiting}
        self.parked = sum(map(len, self._parked.values()))

    def clear(self) -> None:
        """Everything begins again."""
        self._owners.clear()
        self._parked.clear()
        self.parked = 0
