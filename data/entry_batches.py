"""What a subscription delivers, as batches of rows with the exact places where they end.

Entries come from an `EntryFeed`. A thread decodes as many at once as a batch takes, and `RowCutter` cuts the rows.

Invariants:

- The rows of a partition leave in their order, each once. What the broker delivers again, after it or the connection
  failed, is at or before the place that was taken last, and is dropped. It is not acknowledged by that.
- Nothing is skipped. After an entry that cannot be decoded, or came damaged, there is nothing but its error. Rows that
  were decoded before leave first.
- An entry is taken from the receiver queue only for a batch that is waited for. So what lies here is bounded by a batch
  and an entry, and by the permits of the receiver queue.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

import pyarrow as pa

from ..bulk.access import find_cluster
from ..bulk.arrow_decoding import EntryDecoder
from ..bulk.chunks import ChunkContent, StoredChunk, chunk_in
from ..bulk.cluster_link import ClusterLink
from ..bulk.decryption import ReadKeys
from ..bulk.typed.choice import RowShape, definition_of
from ..client.consuming.entry_feed import EntryFeed
from ..client.consuming.message import ReceivedEntry
from ..client.core.configuration import InitialPosition
from ..protocol.errors import EntryCorrupt
from ..protocol.message_id import Position
from ..protocol.topics import TopicName
from ..runtime.environment import Environment
from .positions import EARLIEST_PLACE, Marks, RowPlace
from .row_cutting import EntryPart, RowCutter

ENTRIES_MAX_BYTES = 32 << 20
"""A batch is full when the payloads of its entries have so many bytes, before they are decompressed."""
SCHEMA_TIMEOUT_S = 60.0
"""How long the brokers are asked for a version of the schema that came after the read began."""


@dataclass(frozen=True)
class FollowOrder:
    """What one reader reads. Ray pickles it to the reader."""

    topics: tuple[str, ...]
    """Full names of partitions, or of topics without partitions."""
    subscription: str
    shape: RowShape
    keys: ReadKeys
    batch_rows: int | None
    """Maximum number of rows of a batch. None: as many as `ENTRIES_MAX_BYTES` have."""
    batch_wait_s: float | None
    """How long a batch waits for more rows, from its first one on. None: until it is full."""
    receiver_queue_size: int
    initial_position: InitialPosition
    behind: Marks
    """Rows up to there are not wanted."""
    is_start: bool
    """Whether `behind` is where the application wants to begin: then the subscription is moved back if need be."""
    service_url: str | None
    admin_url: str | None


class EntryBatches:
    """See the module. One call of `next` at a time."""

    def __init__(self, env: Environment, feed: EntryFeed, order: FollowOrder) -> None:
        self._env = env
        self._feed = feed
        self._order = order
        self._decoding = _Decoding(order)
        self._taken: dict[str, RowPlace] = dict(order.behind)
        """By partition: the last place that was taken from the feed."""
        self._chunked: dict[str, list[tuple[Position, Position]]] = {}
        """By partition: the first and the last chunk of each message in chunks that was taken, and has not left."""
        self._failure: Exception | None = None

    async def next(self) -> tuple[pa.Table, Marks]:
        """The next batch, and where it ends in each of its partitions. It waits for the first entry without end.

        The batch has no rows if those of its entries were left out. Raises why there is none, also the next time.
        """
        cutter, rows_max = self._decoding.cutter, self._order.batch_rows
        if self._failure is None and cutter.rows < (rows_max or 1):
            try:
                await self._collect(cutter.rows)
            except Exception as error:
                self._failure = error
        if cutter.is_empty and self._failure is not None:
            raise self._failure
        table, marks = cutter.take(rows_max or cutter.rows)
        return table, {name: self._with_chunks(name, place) for name, place in marks.items()}

    def _with_chunks(self, name: str, place: RowPlace) -> RowPlace:
        """The place, with the first chunk up to there of a message that has not left."""
        found = self._chunked.get(name, [])
        if found:
            found[:] = [one for one in found if one[1] > place.position]
        waiting = self._feed.first_chunk(name)
        firsts = [first for first, _ in found] + ([] if waiting is None else [waiting])
        first = min(firsts, default=place.position)
        return place if first >= place.position else place._replace(chunks_from=first)

    def acknowledged_by(self, name: str, place: RowPlace) -> RowPlace:
        """Up to where everything is acknowledged when all is up to `place`.

        The consumer leaves chunks out that it has here. Those that came to another one only are not acknowledged, nor
        is what lies behind them, until the row of their message is.
        """
        first = place.chunks_from
        if first is None:
            return place
        waiting = self._feed.first_chunk(name)
        here = [one for one, _ in self._chunked.get(name, [])] + ([] if waiting is None else [waiting])
        return place if min(here, default=place.position) <= first else RowPlace(first[0], first[1] - 1)

    async def _collect(self, rows: int) -> None:
        """Decode what makes a batch with the `rows` that are here. What came before an error is decoded, too."""
        entries: list[ReceivedEntry] = []
        try:
            await self._receive(entries, rows)
        except Exception as error:
            if not entries:
                raise
            self._failure = error
        if entries:
            await self._decoding.learn_versions(entries)
            await self._env.offload.run(self._decoding.decode, entries)

    async def _receive(self, entries: list[ReceivedEntry], rows: int) -> None:
        """Wait for entries, until a batch is full or its time is over. Raises why no more come."""
        rows_max, size_bytes = self._order.batch_rows or sys.maxsize, 0
        wait_s = self._order.batch_wait_s if rows else None
        waiting = asyncio.timeout(wait_s)
        try:
            async with waiting:
                while rows < rows_max and size_bytes < ENTRIES_MAX_BYTES:
                    entry = self._new_part(self._feed.take() or await self._feed.receive())
                    if entry is None:
                        continue
                    entries.append(entry)
                    rows += entry.count
                    size_bytes += sum(len(part.payload) for part in entry.chunks or (entry,))
                    if len(entries) == 1 and wait_s is None and self._order.batch_wait_s is not None:
                        waiting.reschedule(asyncio.get_running_loop().time() + self._order.batch_wait_s)
        except TimeoutError:
            if not waiting.expired():  # else a batch that is not full: its time is over
                raise

    def _new_part(self, entry: ReceivedEntry) -> ReceivedEntry | None:
        """What of an entry was not taken before; None if all of it was."""
        taken = self._taken.get(entry.topic, EARLIEST_PLACE)
        whole = RowPlace(*entry.position)
        if taken.covers(whole):
            return None  # it is delivered again
        if taken.position == whole.position:
            entry.ack_set = _words_above(entry, taken.batch_index)
            if not any(entry.ack_set):
                return None
        self._taken[entry.topic] = whole
        if entry.chunks:
            self._chunked.setdefault(entry.topic, []).append((entry.chunks[0].position, entry.position))
        return entry


_topic_of = attrgetter("topic")


def _words_above(entry: ReceivedEntry, batch_index: int) -> tuple[int, ...]:
    """The ack set of an entry without the messages up to an index."""
    bits = (1 << entry.count) - 1 & ~((1 << batch_index + 1) - 1)
    for place, word in enumerate(entry.ack_set):
        bits &= ~(((1 << 64) - 1 & ~word) << 64 * place)
    return tuple((bits >> 64 * place) & (1 << 64) - 1 for place in range(entry.count // 64 + 1))


class _Decoding:
    """Entries into rows, for all partitions of a reader."""

    def __init__(self, order: FollowOrder) -> None:
        self.cutter = RowCutter(order.shape.schema)
        self._order = order
        self._shape = order.shape
        self._decoders: dict[str, EntryDecoder] = {}
        self._asked: set[bytes] = set()
        """Versions of the schema that the brokers were asked for."""

    async def learn_versions(self, entries: Sequence[ReceivedEntry]) -> None:
        """Fetch versions of the schema that were registered after the read began. Raises why that fails."""
        typed = self._shape.typed
        if typed is None:
            return
        found = {entry.metadata.schema_version for entry in entries} - self._asked - {b""}
        if all(int.from_bytes(version, "big") in typed.versions for version in found):
            return
        self._asked |= found
        env = Environment.real(threads_max=1)
        access, locate = await find_cluster(self._order.admin_url)
        link = ClusterLink(env, access, locate)
        try:
            name = TopicName.parse(self._order.topics[0]).without_partition().full
            rows = await link.patiently(lambda: link.schemas(name), SCHEMA_TIMEOUT_S, f"the schema of {name}")
        finally:
            await link.close()
            env.close()
        self._shape = self._shape._replace(
            typed=typed._replace(versions={row.version: definition_of(row) for row in rows})
        )
        self._decoders.clear()

    def decode(self, entries: Sequence[ReceivedEntry]) -> None:
        """Decode entries, which come in their order. Raises what `EntryDecoder` raises. Runs in a thread."""
        for topic, group in groupby(entries, _topic_of):
            decoder = self._decoders.get(topic)
            if decoder is None:
                partition = TopicName.parse(topic).partition
                decoder = EntryDecoder(topic, partition, shape=self._shape, keys=self._order.keys)
                self._decoders[topic] = decoder
            parts: list[EntryPart] = []
            try:
                for entry in group:
                    parts += _decode_one(decoder, entry)
            finally:  # what came before an entry that cannot be decoded leaves first
                if parts:
                    self._add(topic, decoder, parts)

    def _add(self, topic: str, decoder: EntryDecoder, parts: Sequence[EntryPart]) -> None:
        self.cutter.add(topic, decoder.take(), parts)


def _decode_one(decoder: EntryDecoder, entry: ReceivedEntry) -> list[EntryPart]:
    """Decode an entry, without what was acknowledged of it."""
    size = entry.count if entry.batched else 0
    whole = RowPlace(*entry.position, -1, size)
    if entry.chunks:
        before = decoder.rows
        decoder.add_whole(_stored_chunks(entry))
        return [EntryPart(decoder.rows - before, whole)]
    if entry.metadata.num_chunks_from_msg > 1:
        raise EntryCorrupt(
            f"entry {entry.ledger_id}:{entry.entry_id} of {entry.topic} is one chunk of a larger message, and the "
            "others are gone: skip it in the subscription",
            ledger_id=entry.ledger_id,
            entry_id=entry.entry_id,
            topic=entry.topic,
        )
    parts: list[EntryPart] = []
    for wanted in _open_runs(entry):
        before = decoder.rows
        decoder.add_parsed(entry.position, entry.metadata, entry.payload, wanted)
        rows = decoder.rows - before
        is_regular = bool(size) and rows == len(wanted)
        parts.append(EntryPart(rows, whole._replace(batch_index=wanted.stop - 1), wanted.start if is_regular else -1))
    parts[-1] = parts[-1]._replace(last=whole)
    return parts


def _open_runs(entry: ReceivedEntry) -> list[range]:
    """The indexes that are not acknowledged, as ranges without gaps."""
    if not entry.batched or not entry.ack_set:
        return [range(entry.count)]
    bits = [
        bool(entry.ack_set[index // 64] >> index % 64 & 1) for index in range(min(entry.count, 64 * len(entry.ack_set)))
    ]
    edges = [index for index, (one, other) in enumerate(pairwise([False, *bits, False])) if one != other]
    return [range(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True)] or [range(0)]


def _stored_chunks(entry: ReceivedEntry) -> list[StoredChunk]:
    return [
        chunk_in(part.metadata, part.position, part.position)._replace(
            content=ChunkContent(part.metadata, bytes(part.payload))
        )
        for part in entry.chunks
    ]
