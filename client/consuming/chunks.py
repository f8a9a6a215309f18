"""Putting messages together from chunks. Pure: no I/O and no clock; `ChunkReceiver` does what `ChunkOutcome` says.

A message that is larger than an entry travels as chunks, entries with one `uuid`. Chunks of one message come in order,
but not next to each other. A chunk may come twice: again from the broker (same position), or stored twice because its
producer sent it again (another position).

States of a message, from here:

- *incomplete*: some of its chunks are here. None of them is acknowledged.
- *complete*, which is final: the last missing chunk came, and the whole goes to the receive queue.
- *dropped*, which is final: it was the oldest of too many (`pending_max`), or it did not become complete in time. Its
  chunks are then acknowledged, or asked for again.

Rules, those of Pulsar's clients but for the last:

- A chunk that is here already and comes from another position is a second copy: the copy is acknowledged.
- A first chunk that is here already and comes from another position begins the message again: its producer started
  again. What was here is acknowledged, because no whole message can come of it.
- A chunk that comes before an earlier one is kept. Pulsar's clients drop the message and wait for its redelivery.

Invariants: a chunk belongs to one incomplete message at most. The payloads that are kept of a message never exceed what
it claims (`total_chunk_msg_size`), nor `size_max_bytes`. So memory is bounded by `pending_max` times `size_max_bytes`.
Of a message that is larger only positions are kept. It goes to the receive queue as an error when it is complete.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ...protocol.errors import InvalidMessage, MagnetarError
from ...protocol.message_id import Position
from .message import ReceivedEntry
from .undelivered import too_large

CIPHER_OVERHEAD_MAX_BYTES = 64
"""By so much each chunk may be larger because it is encrypted."""


def is_chunk(entry: ReceivedEntry) -> bool:
    """Whether an entry is one of several chunks of a message."""
    return entry.metadata.num_chunks_from_msg > 1


class ChunkOutcome(NamedTuple):
    """What came of a chunk or of time."""

    whole: ReceivedEntry | None = None
    """A complete message, or the chunk itself when it makes no sense (`failure` says why)."""
    done: tuple[Position, ...] = ()
    """Chunks to acknowledge: nothing can come of them."""
    again: tuple[Position, ...] = ()
    """Chunks to ask for again."""


class _Incomplete:
    """A message of which some chunks are here."""

    __slots__ = ("chunks", "count", "failure", "since_s", "size_bytes", "total_bytes")

    def __init__(self, entry: ReceivedEntry, now_s: float, size_max_bytes: int) -> None:
        self.count = entry.metadata.num_chunks_from_msg
        self.total_bytes = entry.metadata.total_chunk_msg_size
        self.since_s = now_s
        self.size_bytes = 0
        self.chunks: dict[int, ReceivedEntry] = {}
        self.failure: MagnetarError | None = None
        if self.total_bytes > size_max_bytes:
            self.failure = too_large(self.total_bytes, size_max_bytes)

    @property
    def positions(self) -> tuple[Position, ...]:
        return tuple([chunk.position for chunk in self.chunks.values()])

    def put(self, index: int, entry: ReceivedEntry) -> None:
        former = self.chunks.get(index)
        self.size_bytes += len(entry.payload) - (len(former.payload) if former is not None else 0)
        self.chunks[index] = entry
        if self.size_bytes > self.total_bytes + self.count * CIPHER_OVERHEAD_MAX_BYTES and self.failure is None:
            self.failure = InvalidMessage(f"its chunks have more than the {self.total_bytes} bytes that they claim")
        if self.failure is not None:
            entry.payload = b""

    def whole(self) -> ReceivedEntry:
        """The complete message: its last chunk's entry, which holds all of them."""
        chunks = [self.chunks[index] for index in range(self.count)]
        last = chunks[-1]
        last.chunks = tuple([*chunks[:-1], _without_chunks(last)])
        last.payload = b""
        last.failure = self.failure
        return last


class IncompleteMessages:
    """See the module. `pending_max` 0 is no bound, `expire_s` 0 is no expiry."""

    def __init__(self, pending_max: int, drops_by_acknowledging: bool, expire_s: float, size_max_bytes: int) -> None:
        self._pending_max = pending_max
        self._acknowledges = drops_by_acknowledging
        self._expire_s = expire_s
        self._size_max_bytes = size_max_bytes
        self._by_uuid: dict[str, _Incomplete] = {}
        """In the order in which their first chunks came."""

    def __len__(self) -> int:
        return len(self._by_uuid)

    def arrive(self, entry: ReceivedEntry, now_s: float) -> ChunkOutcome:
        metadata = entry.metadata
        uuid, index, count = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
        if not uuid or not 0 <= index < count or metadata.total_chunk_msg_size < 0:
            entry.failure = InvalidMessage(f"it says that it is chunk {index} of {count} of message {uuid!r}")
            return ChunkOutcome(entry)
        done: tuple[Position, ...] = ()
        message = self._by_uuid.get(uuid)
        if message is not None:
            known = message.chunks.get(index)
            if known is not None and known.position != entry.position:
                if index:
                    return ChunkOutcome(done=(entry.position,))
                done = self._by_uuid.pop(uuid).positions
                message = None
            elif count != message.count or metadata.total_chunk_msg_size != message.total_bytes:
                entry.failure = InvalidMessage("its number of chunks or size is not that of its message's other chunks")
                return ChunkOutcome(entry)
        again: tuple[Position, ...] = ()
        if message is None:
            if 0 < self._pending_max <= len(self._by_uuid):
                oldest = self._by_uuid.pop(next(iter(self._by_uuid))).positions
                if self._acknowledges:
                    done += oldest
                else:
                    again = oldest
            message = self._by_uuid[uuid] = _Incomplete(entry, now_s, self._size_max_bytes)
        message.put(index, entry)
        if len(message.chunks) < count:
            return ChunkOutcome(done=done, again=again)
        del self._by_uuid[uuid]
        return ChunkOutcome(message.whole(), done, again)

    def expire(self, now_s: float) -> ChunkOutcome:
        """The messages that did not become complete in time are dropped, and their chunks acknowledged."""
        done: tuple[Position, ...] = ()
        for uuid in [uuid for uuid, message in self._by_uuid.items() if message.since_s + self._expire_s <= now_s]:
            done += self._by_uuid.pop(uuid).positions
        return ChunkOutcome(done=done)

    @property
    def next_expiry_s(self) -> float | None:
        """When the next message expires, if any."""
        if not self._expire_s or not self._by_uuid:
            return None
        return min([message.since_s for message in self._by_uuid.values()]) + self._expire_s

    def restart(self, now_s: float) -> None:
        """What is here expires as if it had come now."""
        for message in self._by_uuid.values():
            message.since_s = now_s

    def positions(self) -> Iterator[Position]:
        """Where the chunks lie that are here."""
        for message in self._by_uuid.values():
            yield from message.positions

    def clear(self) -> None:
        """Everything comes again, or is not wanted."""
        self._by_uuid.clear()


def _without_chunks(entry: ReceivedEntry) -> ReceivedEntry:
    """The last chunk itself, apart from the message that it completes."""
    return ReceivedEntry(entry.topic, entry.partition, entry.ledger_id, entry.entry_id, entry.metadata, entry.payload)
