"""Which consumer of a Shared subscription gets the chunks of a message: one and the same, also on redelivery.

The first chunk that is dispatched goes to the consumer whose turn it is. That consumer owns the message while it holds
a chunk of it unacknowledged, and every other chunk goes to it. It owns the message no longer when it has acknowledged
or given back all that it held, or has left. So a chunk that is asked for alone comes to where the others are.

A chunk whose owner is not able at the moment (no permits, blocked, a full socket) is *parked*: it waits for its owner,
while other entries go on to other consumers. Chunks behind it wait with it, so that none overtakes another. It goes
back into the replay set as soon as the owner is able, and when the message has another owner or none.

Bounds: one note for each unacknowledged chunk that a consumer holds. Of parked entries a dispatcher takes note and
stops reading at `PARKED_MAX`, until an owner takes some.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ...protocol.message_id import Position
from .consumer import AttachedConsumer

PARKED_MAX = 1_000


class ChunkPlace(NamedTuple):
    """What an entry says of itself when it is one of several chunks of a message."""

    uuid: str
    chunk_id: int
    chunks: int


class _Owner:
    """A consumer that holds chunks of a message, and how many."""

    __slots__ = ("consumer", "entries")

    def __init__(self, consumer: AttachedConsumer) -> None:
        self.consumer = consumer
        self.entries = 0


class ChunkOwners:
    """See the module."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._held: dict[Position, str] = {}
        self._parked: dict[AttachedConsumer, dict[Position, str]] = {}
        self._has_ended = False
        """Whether an owner has ended since `unpark`, so that chunks may be parked for it in vain."""
        self.parked = 0
        """Entries that wait for their owner."""

    def owner_of(self, chunk: ChunkPlace) -> AttachedConsumer | None:
        """Who has to get this chunk, if somebody has."""
        owner = self._owners.get(chunk.uuid)
        return None if owner is None else owner.consumer

    def dispatched(self, position: Position, chunk: ChunkPlace, consumer: AttachedConsumer) -> None:
        """The chunk there goes to this consumer."""
        owner = self._owners.get(chunk.uuid)
        if owner is None:
            owner = self._owners[chunk.uuid] = _Owner(consumer)
        owner.entries += 1
        self._held[position] = chunk.uuid

    def released(self, positions: Iterable[Position]) -> None:
        """These entries are no longer held by a consumer. Those that hold no chunk are passed over."""
        if not self._held:
            return
        for position in positions:
            uuid = self._held.pop(position, None)
            if uuid is not None:
                owner = self._owners[uuid]
                owner.entries -= 1
                if not owner.entries:
                    del self._owners[uuid]
                    self._has_ended = True

    def waits_for(self, consumer: AttachedConsumer) -> bool:
        """Whether a chunk is parked for this consumer."""
        return consumer in self._parked

    def park(self, position: Position, chunk: ChunkPlace, owner: AttachedConsumer) -> None:
        """The chunk there waits until its owner is able."""
        self._parked.setdefault(owner, {})[position] = chunk.uuid
        self.parked += 1

    def parked_positions(self) -> list[Position]:
        """Where the chunks lie that wait for their owner."""
        return [position for waiting in self._parked.values() for position in waiting]

    def positions(self) -> set[Position]:
        """Where all chunks lie of which something is known here."""
        return {*self._held, *self.parked_positions()}

    def unpark(self) -> list[Position]:
        """The chunks whose owners are able again, or own them no longer; they are parked no longer."""
        back: list[Position] = []
        for consumer in [consumer for consumer in self._parked if consumer.able]:
            back += self._parked.pop(consumer)
        if self._has_ended:
            self._has_ended = False
            for consumer, waiting in self._parked.items():
                back += [position for position, uuid in waiting.items() if not self._owns(consumer, uuid)]
            self._unnote(back)
        self.parked -= len(back)
        return back

    def leave(self, consumer: AttachedConsumer) -> list[Position]:
        """A consumer is about to leave: it owns nothing, and what was parked for it is returned."""
        self.released(consumer.pending)
        back = [*self._parked.pop(consumer, ())]
        self.parked -= len(back)
        return back

    def forget(self, positions: list[Position]) -> None:
        """Entries that are acknowledged or no longer exist wait no longer."""
        self._unnote(positions)
        self.parked = sum(map(len, self._parked.values()))

    def clear(self) -> None:
        """Everything begins again."""
        self._owners.clear()
        self._held.clear()
        self._parked.clear()
        self._has_ended = False
        self.parked = 0

    def _owns(self, consumer: AttachedConsumer, uuid: str) -> bool:
        owner = self._owners.get(uuid)
        return owner is not None and owner.consumer is consumer

    def _unnote(self, positions: list[Position]) -> None:
        for consumer in [*self._parked]:
            waiting = self._parked[consumer]
            for position in positions:
                waiting.pop(position, None)
            if not waiting:
                del self._parked[consumer]
