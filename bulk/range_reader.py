"""Reads splits straight from the bookies as record batches: the part of a bulk read that runs wherever rows are wanted.

A `RangeReader` keeps its connections to the bookies, and the record of which bookies answer well, for many splits. It
reads ahead while it decodes, in bounded pieces. It never fences, asks nothing of brokers, and trusts nothing without a
checksum. Either it gives all entries of the split or it raises. Where a message in chunks ends in the split and begins
before it, it reads the chunks there (`look_back`).
"""

# pyarrow brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from ..protocol.compacted_entries import decode_compacted
from ..protocol.errors import MagnetarError, is_retriable
from ..protocol.message_id import Position, WireMessageId
from ..protocol.names import ROLE_READER
from ..runtime.backoff import LimitedBackoff
from ..runtime.environment import Environment
from ..runtime.rpc.keys import Identity
from ..runtime.settings.declarations import Settings
from ..storage.ledger.bookie_client import BookieClient
from ..storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ..storage.ledger.reader import LedgerReader
from ..storage.metadata.ledger_metadata import LedgerMetadata
from .access import ClusterAccess
from .arrow_decoding import EntryDecoder
from .chunks import LastChunk
from .cluster_link import LocateBookies
from .decryption import NO_KEYS, ReadKeys
from .look_back import LookBack
from .read_plan import LedgerRange, ReadSplit
from .typed.choice import PAYLOADS, RowShape

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

BATCH_SIZE_BYTES = 16 << 20
"""A record batch is closed when it has about this size: small enough for many to fit, large enough for a Spark task."""
READ_SIZE_BYTES = 2 << 20
READ_ENTRIES_MAX = 2000
READ_TIMEOUT_S = 15.0
RETRY_INITIAL_S = 0.2
RETRY_MAX_S = 2.0
SPECULATIVE_READ_DELAY_MS = 2000
"""Longer than a broker's: decoding keeps the loop busy meanwhile, which is no reason to ask another bookie."""
FRAME_SIZE_MAX_BYTES = 1 << 30
"""Bookies may be set to larger entries than the default; those that hold a bookie's key are trusted."""


class RangeReader:
    """Reads splits of one cluster."""

    def __init__(self, env: Environment, access: ClusterAccess) -> None:
        self._env = env
        self._directory = BookieDirectory()
        self._settings = dataclasses.replace(
            Settings(),
            bookie_frame_size_max_bytes=FRAME_SIZE_MAX_BYTES,
            read_entry_timeout_s=READ_TIMEOUT_S,
            speculative_read_delay_ms=SPECULATIVE_READ_DELAY_MS,
        )
        identity = Identity(access.cluster_id, ROLE_READER, f"reader-{env.random.hex(4)}", env.random.hex(8))
        self._client = BookieClient(env, identity, access.keys, self._settings, self._directory)

    async def read(
        self,
        split: ReadSplit,
        bookies: Sequence[BookieInfo],
        shape: RowShape = PAYLOADS,
        keys: ReadKeys = NO_KEYS,
    ) -> "AsyncGenerator[pa.RecordBatch]":
        """The rows of a split, in the order of its entries; `bookies` says where they listen now.

        Raises NoSuchEntry, EntryUnknown (some copy cannot be reached: retriable), EntryCorrupt, CryptoError,
        MessageTooBig, and what `TypedRows.decode` raises. A caller that tries again starts from the beginning.
        """
        self._directory.update(bookies)
        decoder = EntryDecoder(split.topic, split.partition, split.window, shape, keys)
        look_back = LookBack(split, self._reader_of)
        for part in split.ranges:
            async for last_chunk in self._decoded(part, decoder):
                if last_chunk is not None:
                    message = await look_back.message(last_chunk)
                    if message is not None:
                        decoder.add_whole(message)
                if decoder.size_bytes >= BATCH_SIZE_BYTES:
                    yield decoder.take()
        if decoder.rows:
            yield decoder.take()

    async def read_patiently(
        self,
        split: ReadSplit,
        locate: LocateBookies,
        shape: RowShape,
        limit_s: float,
        keys: ReadKeys = NO_KEYS,
    ) -> AsyncGenerator["pa.RecordBatch"]:
        """The same. What may pass (a bookie restarts) is tried again with the current addresses, for `limit_s` at most.

        Raises what `read` raises, if it lasts.
        """
        backoff = LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, limit_s)
        given = 0
        while True:
            bookies = await locate()
            skipped = given  # batches that an earlier attempt gave: a split is read the same way each time
            try:
                async for batch in self.read(split, bookies, shape, keys):
                    if skipped:
                        skipped -= 1
                        continue
                    given += 1
                    yield batch
                return
            except MagnetarError as error:
                delay_s = backoff.next_delay_s() if is_retriable(error) else None
                if delay_s is None:
                    raise
                logger.warning("a read of %s failed and is tried again in %.1f s: %s", split.topic, delay_s, error)
            await asyncio.sleep(delay_s)

    async def close(self) -> None:
        """End the connections to the bookies."""
        await self._client.close()

    def _reader_of(self, ledger: LedgerMetadata) -> LedgerReader:
        return LedgerReader(self._client, self._settings, ledger)

    async def _decoded(self, part: LedgerRange, decoder: EntryDecoder) -> AsyncGenerator[LastChunk | None]:
        """Decode a range; the caller looks at what is decoded after each entry. It is given each last chunk."""
        ledger = part.ledger
        reader = self._reader_of(ledger)
        entries_per_read = READ_ENTRIES_MAX
        if ledger.closed and ledger.length:
            entries_per_read = min(max(READ_SIZE_BYTES * (ledger.last_entry + 1) // ledger.length, 1), READ_ENTRIES_MAX)
        expected = part.first_entry
        async for entries in reader.stream(part.first_entry, part.last_entry, entries_per_read=entries_per_read):
            for entry in entries:
                assert entry.entry_id == expected, "a ledger reader leaves no gaps"
                expected += 1
                if part.compacted_between is not None:
                    place = (ledger.ledger_id, entry.entry_id)
                    last_chunk = _add_compacted(decoder, place, entry.body, *part.compacted_between)
                else:
                    last_chunk = decoder.add(
                        ledger.ledger_id,
                        entry.entry_id,
                        entry.body,
                        first_batch_index=part.first_batch_index if entry.entry_id == part.first_entry else -1,
                        last_batch_index=part.last_batch_index if entry.entry_id == part.last_entry else -1,
                    )
                yield last_chunk
        assert expected == part.last_entry + 1, "a ledger reader reads to the end"


def _add_compacted(
    decoder: EntryDecoder, place: Position, body: bytes, first: WireMessageId, last: WireMessageId
) -> LastChunk | None:
    """Decode an entry of a compacted ledger, if it lies between two ids, both inclusive."""
    position, content = decode_compacted(body)
    if not first.position <= position <= last.position:
        return None
    return decoder.add(
        *position,
        content,
        first_batch_index=first.batch_index if position == first.position else -1,
        last_batch_index=last.batch_index if position == last.position else -1,
        compacted_at=place,
    )
