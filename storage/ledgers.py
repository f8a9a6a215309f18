"""Ledgers by id: create, open for reading, recover, delete.

Ids come in durable blocks from one counter and are never used twice. A caller that chains ledgers asks for an id above
the last of its chain, so that positions grow along the chain although brokers hold different blocks.

A bookie that lost data refuses every ledger that it does not know and whose id was given out before it had its data
back: a fence of it may have been lost. To it, all ids of a block taken before are such ids, used or not; so a block is
given up when one of its ledgers is refused.
"""

import asyncio
import logging

from ..protocol.errors import LedgerError
from ..runtime.environment import Environment
from ..runtime.settings import Settings
from .bookie_client import BookieClient
from .ensemble import place
from .entry_cache import EntryCache
from .ledger_metadata import Fragment, LedgerMetadata
from .ledger_reader import LedgerReader
from .ledger_records import LedgerRecord, LedgerRecords
from .ledger_recovery import LedgerRecovery
from .ledger_writer import LedgerWriter
from .metadata_store import MetadataStore

logger = logging.getLogger(__name__)

NONCE_SIZE_BYTES = 8


class Ledgers:
    """The ledger side of one process (a broker, the coordinator's auditor)."""

    def __init__(
        self, env: Environment, metadata: MetadataStore, bookie_client: BookieClient, settings: Settings
    ) -> None:
        self.env = env
        self.client = bookie_client
        self.settings = settings
        self.records = LedgerRecords(env, metadata)
        self.cache = EntryCache(settings.cache_size_mb << 20)
        """Entries of all managed ledgers of this process."""
        self._block_start = 0
        self._next_id = 0
        self._ids_left = 0
        self._allocating = asyncio.Lock()

    async def create(self, *, above: int = -1) -> LedgerWriter:
        """A new, empty, OPEN ledger whose id is greater than `above`.

        Raises NotEnoughBookies when fewer than the ack quorum can be used, MetadataUnavailable, OutcomeUnknown.
        """
        settings = self.settings
        placement = place(
            self.env.random,
            self.client.usable(),
            settings.ensemble_size,
            settings.write_quorum,
            settings.ack_quorum,
            self.client.unusable(),
        )
        metadata = LedgerMetadata(
            ledger_id=await self._take_id(above),
            ensemble_size=len(placement.bookies),
            write_quorum=placement.write_quorum,
            ack_quorum=placement.ack_quorum,
            fragments=(Fragment(0, placement.bookies),),
            under_replicated=placement.under_replicated,
            nonce=int.from_bytes(self.env.random.token(NONCE_SIZE_BYTES), "big"),
        )
        record = await self.records.create(metadata)
        writer = LedgerWriter(self.env, self.records, self.client, settings, record)
        writer.on_refused = self._give_up_block_of
        return writer

    async def open(self, ledger_id: int) -> LedgerReader:
        """A reader. It neither recovers nor fences. Raises NoSuchLedger."""
        return self.reader((await self.records.get(ledger_id)).metadata)

    def reader(self, metadata: LedgerMetadata) -> LedgerReader:
        """A reader of a ledger whose metadata is at hand."""
        return LedgerReader(self.client, self.settings, metadata)

    async def recover(self, ledger_id: int, known: LedgerRecord | None = None) -> LedgerMetadata:
        """Fence a ledger, settle its end and close it; see `ledger_recovery`. Returns the CLOSED metadata.

        Raises RecoveryFailed, NoSuchLedger, MetadataUnavailable, OutcomeUnknown.
        """
        return await LedgerRecovery(self.env, self.records, self.client, self.settings, ledger_id).run(known)

    async def delete(self, ledger_id: int) -> bool:
        """Delete a ledger. Its entries go when the bookies collect garbage. Returns whether it was there."""
        return await self.records.delete(ledger_id)

    async def _take_id(self, above: int) -> int:
        async with self._allocating:
            if not self._ids_left or self._next_id <= above:
                block = self.settings.ledger_id_block
                self._block_start = self._next_id = await self.records.allocate(block)
                self._ids_left = block
                if self._next_id <= above:
                    raise LedgerError(
                        f"the counter of ledger ids gave {self._next_id}, which is not above {above}: "
                        "the metadata store is not the one that this chain was written with"
                    )
            taken = self._next_id
            self._next_id += 1
            self._ids_left -= 1
            return taken

    def _give_up_block_of(self, ledger_id: int) -> None:
        """The next ledger's id is from a new block, if this one's is from the present one."""
        if self._ids_left and ledger_id >= self._block_start:
            logger.info("ledger %d is refused: no more ids of its block are used", ledger_id)
            self._ids_left = 0
