"""Looks for the chunks of a message that lie before the split which has its last chunk, and reads them.

A split that meets no such message reads nothing here. It looks back over the ranges that the read has before the split
(`ReadSplit.before`), piece by piece, from the nearest entry on. It stops at the nearest first or last chunk of the
message. What it learns on the way about other messages it remembers. So each entry is looked at once, however many
messages are looked for.

Payloads are not kept on the way. Those of a message that is whole are read again, entry by entry.

Bounds: `ReadSplit.before` has up to `LOOK_BACK_MAX_BYTES`, and `CHUNKS_MAX` chunks are remembered. A message whose
first chunk lies beyond that ends the read with an error, unless the read begins within the bound: then it is none. With
`ReadSplit.loss_is_ignored` it is left out, and the log says so.
"""

import logging
from collections.abc import Callable

from ..protocol.compacted_entries import decode_compacted
from ..protocol.entries import parse_entry, parse_metadata
from ..protocol.errors import ChecksumError, EntryCorrupt, NoSuchEntry, ProtocolError
from ..protocol.message_id import Position
from ..storage.ledger.reader import LedgerReader
from ..storage.metadata.ledger_metadata import LedgerMetadata
from .chunks import (
    CIPHER_OVERHEAD_MAX_BYTES,
    ChunkContent,
    LastChunk,
    StoredChunk,
    chunk_in,
    message_of,
    refuse_too_large,
)
from .read_plan import LedgerRange, ReadSplit, entry_size_bytes

logger = logging.getLogger(__name__)

PIECE_SIZE_BYTES = 2 << 20
"""So much is looked at between two looks at what was found."""
PIECE_ENTRIES_MAX = 8_000
PIECE_ENTRIES_UNKNOWN = 64
READ_SIZE_BYTES = 2 << 20
CHUNKS_MAX = 100_000
"""Chunks that are remembered, of all messages: about 30 MB."""


class LookBack:
    """For one split. See the module."""

    def __init__(self, split: ReadSplit, reader_of: Callable[[LedgerMetadata], LedgerReader]) -> None:
        self._split = split
        self._reader_of = reader_of
        self._left = list(split.before)
        self._found: dict[str, list[StoredChunk]] = {}
        """By message the chunks before the split, the nearest first."""
        self._chunks = 0
        self._entry_bytes: dict[int, int] = {}
        """By ledger: how large its entries were in the latest piece, on average."""
        self._ranges = {part.ledger.ledger_id: part for part in (*split.before, *split.ranges)}

    async def message(self, last: LastChunk) -> list[StoredChunk] | None:
        """The chunks of the message that `last` completes, with their contents if it needs them. None: it is none.

        Raises NoSuchEntry when the first chunk lies too far back, MessageTooBig, EntryCorrupt when the chunks
        contradict each other, and what reading raises.
        """
        try:
            return await self._message(last)
        except (ProtocolError, ChecksumError) as error:
            raise _corrupt(self._split.topic, last.chunks[-1].position, error) from error

    async def _message(self, last: LastChunk) -> list[StoredChunk] | None:
        chunks = last.chunks
        if last.begins_before:
            chunks = [*await self._before(last), *chunks]
        message = message_of(chunks)
        if message is None or not last.needs_payloads:
            return message
        refuse_too_large(message)
        size_max_bytes = message[-1].total_bytes + len(message) * CIPHER_OVERHEAD_MAX_BYTES
        for index, chunk in enumerate(message):
            content = chunk.content or await self._content(chunk)
            message[index] = chunk._replace(content=content)
            size_max_bytes -= len(content.payload)
            if size_max_bytes < 0:
                raise ProtocolError(f"its chunks have more than the {chunk.total_bytes} bytes that they claim")
        return message

    async def _before(self, last: LastChunk) -> list[StoredChunk]:
        """The chunks before the split, in the order of their entries: from the first one on, or none."""
        looked_at = 0
        chunks: list[StoredChunk] = []
        while True:
            known = self._found.get(last.uuid, [])
            for chunk in known[looked_at:]:
                if chunk.is_last:
                    return []
                chunks.append(chunk)
                if chunk.chunk_id == 0:
                    return chunks[::-1]
            looked_at = len(known)
            if not self._left and self._split.reaches_start:
                return []
            if not self._left or self._chunks > CHUNKS_MAX:
                error = self._too_far(last)
                if not self._split.loss_is_ignored:
                    raise error
                logger.warning("a message is left out: %s", error)
                return []
            await self._look_further()

    def _too_far(self, last: LastChunk) -> NoSuchEntry:
        ledger_id, entry_id = last.chunks[-1].position
        looked_at = sum(part.entries for part in self._split.before) - sum(part.entries for part in self._left)
        return NoSuchEntry(
            f"entry {ledger_id}:{entry_id} of {self._split.topic} is the last chunk of a message. Its first one is not "
            f"among the {looked_at} entries before its split, and farther back it is not looked for, or is gone. Make "
            "splits larger (maxBytesPerSplit), begin the read behind that entry, or receive the message with a "
            "consumer. A stream passes over it with failOnDataLoss=false",
            ledger_id=ledger_id,
            entry_id=entry_id,
            topic=self._split.topic,
        )

    async def _look_further(self) -> None:
        """Look at the next piece, backwards."""
        part = self._left.pop()
        ledger_id = part.ledger.ledger_id
        first = max(part.first_entry, part.last_entry - self._entries_of_piece(part.ledger) + 1)
        if first > part.first_entry:
            self._left.append(part._replace(last_entry=first - 1, last_batch_index=-1))
        found: list[tuple[str, StoredChunk]] = []
        reader = self._reader_of(part.ledger)
        following, size_bytes = first, 0
        while following <= part.last_entry:
            for entry in await reader.read(following, part.last_entry, READ_SIZE_BYTES):
                one = _chunk_at(self._split.topic, part, (ledger_id, entry.entry_id), entry.body)
                if one is not None:
                    found.append(one)
                size_bytes += len(entry.body)
                following = entry.entry_id + 1
        self._entry_bytes[ledger_id] = max(size_bytes // (following - first), 1)
        for uuid, chunk in reversed(found):
            self._found.setdefault(uuid, []).append(chunk)
        self._chunks += len(found)

    def _entries_of_piece(self, ledger: LedgerMetadata) -> int:
        """How many entries make a piece. Nobody has said yet how large those of an open ledger are."""
        size_bytes = self._entry_bytes.get(ledger.ledger_id)
        if size_bytes is None and not ledger.closed:
            return PIECE_ENTRIES_UNKNOWN
        return max(1, min(PIECE_SIZE_BYTES // (size_bytes or entry_size_bytes(ledger)), PIECE_ENTRIES_MAX))

    async def _content(self, chunk: StoredChunk) -> ChunkContent:
        """Read a chunk again."""
        ledger_id, entry_id = chunk.place
        part = self._ranges[ledger_id]
        (entry,) = await self._reader_of(part.ledger).read_all(entry_id, entry_id)
        body = entry.body if part.compacted_between is None else decode_compacted(entry.body)[1]
        metadata, payload = parse_entry(body)
        return ChunkContent(metadata, bytes(payload))


def _chunk_at(topic: str, part: LedgerRange, place: Position, body: bytes) -> tuple[str, StoredChunk] | None:
    """The chunk that an entry before the split holds, and its message; None for everything else."""
    position = place
    try:
        if part.compacted_between is not None:
            first, last = part.compacted_between
            position, body = decode_compacted(body)
            if not first.position <= position <= last.position:
                return None
        metadata = parse_metadata(body)
        if metadata.num_chunks_from_msg <= 1:
            return None
        return metadata.uuid, chunk_in(metadata, place, position)
    except ProtocolError as error:
        raise _corrupt(topic, position, error) from error


def _corrupt(topic: str, position: Position, error: Exception) -> EntryCorrupt:
    ledger_id, entry_id = position
    text = f"entry {ledger_id}:{entry_id} of {topic} cannot be decoded: {error}"
    return EntryCorrupt(text, ledger_id=ledger_id, entry_id=entry_id, topic=topic)
