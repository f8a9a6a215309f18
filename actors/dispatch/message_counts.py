"""How many messages recent entries hold, so that dispatch need not parse what the publish path has parsed already.

Of entries that are chunks of a larger message it is also known which message that is, and of entries with a delivery
time when it is. Markers are known, too. The publish path leaves these out, so that they are parsed here when they are
first dispatched.
"""

from collections.abc import Mapping, Sequence

from ...protocol.entries import is_marker, message_count, parse_metadata
from ...protocol.errors import ProtocolError
from ...protocol.message_id import Position
from .chunk_owners import ChunkPlace
from .dispatcher import Entry

GENERATION_ENTRIES_MAX = 16_384
NO_TIMES: Mapping[Position, int] = {}


class MessageCounts:
    """Message counts by position, of all topics of a broker (ledger ids are unique in the cluster).

    Bounded by two generations: when the young one is full it becomes the old one, and the old one is forgotten.
    """

    def __init__(self, generation_entries_max: int = GENERATION_ENTRIES_MAX) -> None:
        self._young: dict[Position, int] = {}
        self._old: dict[Position, int] = {}
        self._young_chunks: dict[Position, ChunkPlace] = {}
        self._old_chunks: dict[Position, ChunkPlace] = {}
        self._young_times: dict[Position, int] = {}
        self._old_times: dict[Position, int] = {}
        self._young_markers: set[Position] = set()
        self._old_markers: set[Position] = set()
        self.has_chunks = False
        """Whether any entry that is remembered is a chunk."""
        self._generation_entries_max = generation_entries_max

    def is_chunk(self, position: Position) -> bool:
        """Whether the entry there is known to be a chunk."""
        return position in self._young_chunks or position in self._old_chunks

    def chunks_among(self, entries: list[Entry]) -> dict[Position, ChunkPlace]:
        """Those of the entries that are chunks. Parses what is not known."""
        self._parse_unknown(entries)
        if not self.has_chunks:
            return {}
        found = [(position, self._chunk_at(position)) for position, _ in entries]
        return {position: chunk for position, chunk in found if chunk is not None}

    def delivery_times(self, entries: Sequence[Entry]) -> Mapping[Position, int]:
        """Those of the entries that have a delivery time, in ms since the epoch. Parses what is not known."""
        self._parse_unknown(entries)
        young, old = self._young_times, self._old_times
        if not young and not old:
            return NO_TIMES
        found = [(position, young.get(position) or old.get(position)) for position, _ in entries]
        return {position: at_ms for position, at_ms in found if at_ms is not None}

    def markers_among(self, entries: Sequence[Entry]) -> list[Position]:
        """Those of the entries that are markers. Parses what is not known."""
        for position, body in entries:
            if position not in self._young and position not in self._old:
                self.of(position, body)
        young, old = self._young_markers, self._old_markers
        if not young and not old:
            return []
        return [position for position, _ in entries if position in young or position in old]

    def _parse_unknown(self, entries: Sequence[Entry]) -> None:
        for position, body in entries:
            if position not in self._young and position not in self._old:
                self.of(position, body)

    def _chunk_at(self, position: Position) -> ChunkPlace | None:
        return self._young_chunks.get(position) or self._old_chunks.get(position)

    def remember(self, position: Position, messages: int) -> None:
        """Keep a count that is known."""
        if len(self._young) >= self._generation_entries_max:
            self._old, self._young = self._young, {}
            self._old_chunks, self._young_chunks = self._young_chunks, {}
            self.has_chunks = bool(self._old_chunks)
            self._old_times, self._young_times = self._young_times, {}
            self._old_markers, self._young_markers = self._young_markers, set()
        self._young[position] = messages

    def known(self, position: Position) -> int | None:
        """Messages in the entry, if that is remembered."""
        return self._young.get(position) or self._old.get(position)

    def of(self, position: Position, body: bytes) -> int:
        """Messages in the entry; parses `body` only if the count is not known. At least 1, so that every entry costs
        a permit, even one that cannot be parsed: its consumer sees that and says so."""
        messages = self._young.get(position) or self._old.get(position)
        if messages is None:
            chunk: ChunkPlace | None = None
            at_ms = 0
            marker = False
            try:
                metadata = parse_metadata(body)
                messages = max(message_count(metadata), 1)
                at_ms = metadata.deliver_at_time
                marker = is_marker(metadata)
                if metadata.num_chunks_from_msg > 1 and metadata.uuid:
                    chunk = ChunkPlace(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
            except ProtocolError:
                messages = 1
            self.remember(position, messages)
            if chunk is not None:
                self._young_chunks[position] = chunk
                self.has_chunks = True
            if at_ms > 0:
                self._young_times[position] = at_ms
            if marker:
                self._young_markers.add(position)
        return messages
