"""Reads splits straight from the bookies and turns them into blocks: the part of a bulk read that runs on every node.

A `RangeReader` lives in a Ray actor. So the connections to the bookies, and the record of which bookies answer well,
last for many splits. It owns the blocks that it puts: they are there for as long as its process and somebody who refers
to them.

It reads ahead while it decodes, in bounded pieces. It never fences, asks nothing of brokers, and trusts nothing without
a checksum. Either it returns all entries of the split or it raises; blocks of a failed split are forgotten.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...protocol.compacted_entries import decode_compacted
from ...protocol.message_id import WireMessageId
from ...protocol.names import ROLE_READER
from ...runtime.environment import Environment
from ...runtime.ray_calls import put
from ...runtime.rpc.keys import Identity, NodeKeys
from ...runtime.settings.declarations import Settings
from ...storage.ledger.bookie_client import BookieClient
from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.ledger.reader import LedgerReader
from .arrow_decoding import EntryDecoder
from .read_plan import LedgerRange, ReadSplit

BLOCK_SIZE_BYTES = 16 << 20
"""A block is closed when it has this size: small enough for many to fit, large enough to be worth a Spark task."""
READ_SIZE_BYTES = 2 << 20
READ_ENTRIES_MAX = 2000
READ_TIMEOUT_S = 15.0
SPECULATIVE_READ_DELAY_MS = 2000
"""Longer than a broker's: decoding keeps the loop busy meanwhile, which is no reason to ask another bookie."""
FRAME_SIZE_MAX_BYTES = 1 << 30
"""Bookies may be set to larger entries than the default; those that hold a bookie's key are trusted."""


class ClusterAccess(NamedTuple):
    """What proves to the bookies that a reader belongs to the cluster. Carried by Ray only, never logged."""

    cluster_id: str
    keys: NodeKeys
    coordinator: tuple[str, int]

    def __repr__(self) -> str:
        return f"ClusterAccess({self.cluster_id!r}, coordinator={self.coordinator})"


class Block(NamedTuple):
    """Rows as an Arrow IPC stream, in Ray's object store."""

    ref: object
    rows: int
    size_bytes: int


class RangeReader:
    """Reads splits for one cluster. `put` stores a block's bytes and returns a reference to it."""

    def __init__(self, env: Environment, access: ClusterAccess, put: Callable[[bytes], object]) -> None:
        self._put = put
        self._directory = BookieDirectory()
        self._settings = dataclasses.replace(
            Settings(),
            bookie_frame_size_max_bytes=FRAME_SIZE_MAX_BYTES,
            read_entry_timeout_s=READ_TIMEOUT_S,
            speculative_read_delay_ms=SPECULATIVE_READ_DELAY_MS,
        )
        identity = Identity(access.cluster_id, ROLE_READER, f"reader-{env.random.hex(4)}", env.random.hex(8))
        self._client = BookieClient(env, identity, access.keys, self._settings, self._directory)

    async def read(self, split: ReadSplit, bookies: Sequence[BookieInfo]) -> list[Block]:
        """The blocks of a split, in the order of its entries; `bookies` says where they listen now.

        Raises NoSuchEntry, EntryUnknown (some copy cannot be reached: retriable), EntryCorrupt, NotAllowedError.
        """
        self._directory.update(bookies)
        decoder = EntryDecoder(split.topic, split.partition, split.window)
        blocks: list[Block] = []
        for part in split.ranges:
            await self._read_range(part, decoder, blocks)
        if decoder.rows:
            blocks.append(self._block(decoder))
        return blocks

    async def close(self) -> None:
        """End the connections to the bookies."""
        await self._client.close()

    async def _read_range(self, part: LedgerRange, decoder: EntryDecoder, blocks: list[Block]) -> None:
        ledger = part.ledger
        reader = LedgerReader(self._client, self._settings, ledger)
        entries_per_read = READ_ENTRIES_MAX
        if ledger.closed and ledger.length:
            entries_per_read = min(max(READ_SIZE_BYTES * (ledger.last_entry + 1) // ledger.length, 1), READ_ENTRIES_MAX)
        expected = part.first_entry
        async for entries in reader.stream(part.first_entry, part.last_entry, entries_per_read=entries_per_read):
            for entry in entries:
                assert entry.entry_id == expected, "a ledger reader leaves no gaps"
                expected += 1
                if part.compacted_between is not None:
                    _add_compacted(decoder, entry.body, *part.compacted_between)
                else:
                    decoder.add(
                        ledger.ledger_id,
                        entry.entry_id,
                        entry.body,
                        first_batch_index=part.first_batch_index if entry.entry_id == part.first_entry else -1,
                        last_batch_index=part.last_batch_index if entry.entry_id == part.last_entry else -1,
                    )
                if decoder.size_bytes >= BLOCK_SIZE_BYTES:
                    blocks.append(self._block(decoder))
        assert expected == part.last_entry + 1, "a ledger reader reads to the end"

    def _block(self, decoder: EntryDecoder) -> Block:
        rows = decoder.rows
        data = decoder.take_block()
        return Block(self._put(data), rows, len(data))


def _add_compacted(decoder: EntryDecoder, body: bytes, first: WireMessageId, last: WireMessageId) -> None:
    """Decode an entry of a compacted ledger, if it lies between two ids, both inclusive."""
    position, content = decode_compacted(body)
    if first.position <= position <= last.position:
        decoder.add(
            *position,
            content,
            first_batch_index=first.batch_index if position == first.position else -1,
            last_batch_index=last.batch_index if position == last.position else -1,
        )


class RangeReaderActor:
    """`RangeReader` as Ray sees it; wrapped by `ray.remote` where it is created."""

    def __init__(self, access: ClusterAccess) -> None:
        self._env = Environment.real()
        self._access = access
        self._reader: RangeReader | None = None

    async def read(self, split: ReadSplit, bookies: Sequence[BookieInfo]) -> list[Block]:
        """See `RangeReader.read`."""
        if self._reader is None:
            self._reader = RangeReader(self._env, self._access, put)
        return await self._reader.read(split, bookies)
