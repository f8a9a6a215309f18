"""Messages in chunks, as a bulk read puts them together. Pure: no I/O; `look_back` reads what a split lacks.

A message that is larger than an entry is stored as chunks, entries with one `uuid`. Chunks of one message come in
order, but not next to each other. The message is a row in the place of its last chunk. So the split that has the last
chunk gives the row, and looks back for those chunks that lie before it.

Which chunks make a message is what consumers go by that begin where the read begins:

- A first chunk begins the message, and begins it again when its producer stored it again.
- A chunk that is the next one joins. A chunk that is here already is a second copy, and counts once.
- A chunk that comes too early ends the message: one is missing, and Pulsar's clients drop such a message, too.
- Without its first chunk a message is none. It lies before the read's start, or its ledger was trimmed.
- A message that is still without its last chunk where the read ends is none.

After a last chunk nothing is left of a message: it was whole, or is none. So a search that goes back from a last chunk
ends at the nearest first or last chunk with the same uuid.

The publish time of a message is that of its last chunk. Producers give all chunks of a message the same.

Memory: the payloads of messages that are not whole yet take up to `KEPT_MAX_BYTES`. Beyond that those of the message
of which the oldest are kept are let go, and read again when its last chunk comes. Nothing is lost by that.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.errors import MessageTooBig, ProtocolError
from ..protocol.message_id import Position
from ..protocol.pulsar_pb2 import MessageMetadata

KEPT_MAX_BYTES = 64 << 20
"""Payloads of the unfinished messages of one split."""
WHOLE_MAX_BYTES = 512 << 20
"""The largest message that is put together; consumers take up to 80 MiB unless they are told otherwise."""
CIPHER_OVERHEAD_MAX_BYTES = 64
"""By so much each chunk may be larger because it is encrypted."""


class ChunkContent(NamedTuple):
    metadata: MessageMetadata
    payload: bytes


class StoredChunk(NamedTuple):
    """A chunk of a message. `position` is that in the topic; in a compacted ledger it is stored in another `place`."""

    chunk_id: int
    chunk_count: int
    total_bytes: int
    place: Position
    position: Position
    content: ChunkContent | None = None
    """None where it is not needed, or is to be read again."""

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of its message."""
        return self.chunk_id == self.chunk_count - 1


class LastChunk(NamedTuple):
    """The last chunk of a message came, and perhaps completes it."""

    uuid: str
    chunks: list[StoredChunk]
    """What the split has of the message, in the order of entries; the last one has its content."""
    begins_before: bool
    """Whether the first chunk lies before the split, if there is one."""
    needs_payloads: bool


def chunk_in(metadata: MessageMetadata, place: Position, position: Position) -> StoredChunk:
    """The chunk that an entry holds, without its content. Raises ProtocolError if it makes no sense."""
    index, count, total_bytes = metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
    if not metadata.uuid or not 0 <= index < count or total_bytes < 0:
        raise ProtocolError(f"it says that it is chunk {index} of {count} of message {metadata.uuid[:100]!r}")
    return StoredChunk(index, count, total_bytes, place, position)


def message_of(chunks: Sequence[StoredChunk]) -> list[StoredChunk] | None:
    """The chunks of the message that the last of `chunks` completes; None if it completes none.

    `chunks` have one uuid, and come in the order of their entries. Raises ProtocolError when they contradict each
    other.
    """
    found: list[StoredChunk] = []
    for chunk in chunks:
        if chunk.chunk_id == 0:
            found = [chunk]
        elif found:
            if (chunk.chunk_count, chunk.total_bytes) != (found[0].chunk_count, found[0].total_bytes):
                raise ProtocolError("its number of chunks or its size is not that of its message's first chunk")
            if chunk.chunk_id == len(found):
                found.append(chunk)
            elif chunk.chunk_id > len(found):
                found = []
    return found if found and found[-1].is_last and found[-1].place == chunks[-1].place else None


def refuse_too_large(message: Sequence[StoredChunk]) -> None:
    """Raises MessageTooBig for a message that is larger than what a bulk read puts together."""
    size_bytes = message[-1].total_bytes
    if size_bytes > WHOLE_MAX_BYTES:
        raise MessageTooBig(
            f"a message in {len(message)} chunks has {size_bytes} bytes, and a bulk read takes {WHOLE_MAX_BYTES}: "
            "leave the column `value` out, or receive it with a consumer",
            size_bytes=size_bytes,
            size_max_bytes=WHOLE_MAX_BYTES,
        )


class SplitChunks:
    """The chunks of the messages that a split has seen and that are not whole yet. See the module."""

    def __init__(self) -> None:
        self._unfinished: dict[str, list[StoredChunk]] = {}
        self._begins_before: set[str] = set()
        """Those of them whose first chunk the split has not seen."""
        self._seen: set[str] = set()
        """Messages of which the split has seen a first or a last chunk: what lies before it is of no interest."""
        self._kept: dict[str, int] = {}
        """The bytes that are kept of unfinished messages, the oldest first."""
        self._kept_bytes = 0

    def arrive(self, chunk: StoredChunk, content: ChunkContent, *, keeps_payload: bool) -> LastChunk | None:
        """The next chunk of the split. Returns what may be a whole message."""
        uuid = content.metadata.uuid
        if chunk.chunk_id == 0:
            self._forget(uuid)
            self._seen.add(uuid)
            self._unfinished[uuid] = []
        elif uuid not in self._unfinished:
            if uuid in self._seen:
                return None
            self._unfinished[uuid] = []
            self._begins_before.add(uuid)
        chunks = self._unfinished[uuid]
        if chunk.is_last:
            chunks.append(chunk._replace(content=content if keeps_payload else content._replace(payload=b"")))
            begins_before = uuid in self._begins_before
            self._forget(uuid)
            self._seen.add(uuid)
            return LastChunk(uuid, chunks, begins_before, keeps_payload)
        chunks.append(chunk._replace(content=content) if keeps_payload else chunk)
        if keeps_payload:
            self._keep(uuid, len(content.payload))
        return None

    def _keep(self, uuid: str, size_bytes: int) -> None:
        self._kept[uuid] = self._kept.get(uuid, 0) + size_bytes
        self._kept_bytes += size_bytes
        while self._kept_bytes > KEPT_MAX_BYTES:
            oldest = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(oldest)
            self._unfinished[oldest] = [one._replace(content=None) for one in self._unfinished[oldest]]

    def _forget(self, uuid: str) -> None:
        self._unfinished.pop(uuid, None)
        self._begins_before.discard(uuid)
        self._kept_bytes -= self._kept.pop(uuid, 0)
