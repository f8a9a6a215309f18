"""Ledgers by id: create, open for reading, recover, delete.

Ids come from one durable counter and are never used twice. An id is taken when a ledger is created and never kept for
later. So all ledgers that were created after some moment have ids above the counter of that moment. That distinguishes
metadata that was restored from a backup from metadata whose ledgers were deleted (`ledger_ids`). Those who wait for an
id at the same time take theirs with one change of the counter. A caller that chains ledgers asks for an id above the
last of its chain, so that positions grow along it.

A bookie that lost data refuses every unknown ledger whose id was given out before it had its data back: a fence of it
may have been lost.
"""

import asyncio
import weakref

from ...protocol.errors import LedgerError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..metadata.ledger_metadata import Fragment, LedgerMetadata
from ..metadata.ledger_records import LedgerRecord, LedgerRecords
from ..metadata.store import MetadataStore
from .bookie_client import BookieClient
from .ensemble import Copies, place
from .reader import LedgerReader
from .recovery import LedgerRecovery
from .writer import LedgerWriter

NONCE_SIZE_BYTES = 8
IDS_AT_ONCE_MAX = 1000


class Ledgers:
    """The ledger side of one process (a broker, the coordinator's auditor)."""

    def __init__(
        self, env: Environment, metadata: MetadataStore, bookie_client: BookieClient, settings: Settings
    ) -> None:
        self.env = env
        self.client = bookie_client
        self.settings = settings
        self.records = LedgerRecords(env, metadata)
        self._writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()
        self._waiting = 0
        """Callers that want an id."""
        self._ids: list[int] = []
        """Taken for those who wait, lowest last."""
        self._allocating = asyncio.Lock()

    async def create(self, *, above: int = -1, copies: Copies | None = None) -> LedgerWriter:
        """A new, empty, OPEN ledger whose id is greater than `above`, with these copies or those of the settings.

        Raises NotEnoughBookies when fewer than the ack quorum can be used, MetadataUnavailable, OutcomeUnknown.
        """
        copies = copies or Copies.of(self.settings)
        placement = place(
            self.env.random, self.client.usable(), copies, self.client.unusable(), self.client.directory.place_of
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
        writer = LedgerWriter(self.env, self.records, self.client, self.settings, record, copies)
        self._writers.add(writer)
        return writer

    def lacking_copies(self) -> int:
        """How many ledgers that are written here get fewer copies than configured, or have some on a lost bookie."""
        return sum(writer.ended is None and writer.degraded for writer in self._writers)

    async def open(self, ledger_id: int) -> LedgerReader:
        """A reader. It neither recovers nor fences. Raises NoSuchLedger."""
        return self.reader((await self.records.get(ledger_id)).metadata)

    def reader(self, metadata: LedgerMetadata) -> LedgerReader:
        """A reader of a ledger whose metadata is at hand."""
        return LedgerReader(self.client, self.settings, metadata)

    async def recover(self, ledger_id: int, known: LedgerRecord | None = None) -> LedgerMetadata:
        """Fence a ledger, settle its end and close it; see `ledger.recovery`. Returns the CLOSED metadata.

        Raises RecoveryFailed, NoSuchLedger, MetadataUnavailable, OutcomeUnknown.
        """
        return await LedgerRecovery(self.env, self.records, self.client, self.settings, ledger_id).run(known)

    async def delete(self, ledger_id: int) -> bool:
        """Delete a ledger. Its entries go when the bookies collect garbage. Returns whether it was there."""
        return await self.records.delete(ledger_id)

    async def _take_id(self, above: int) -> int:
        self._waiting += 1
        try:
            async with self._allocating:
                if not self._ids:
                    count = min(self._waiting, IDS_AT_ONCE_MAX)
                    first = await self.records.allocate(count)
                    self._ids = list(range(first + count - 1, first - 1, -1))
                taken = self._ids.pop()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._ids = []  # of those who did not wait to the end
        if taken <= above:
            raise LedgerError(
                f"the counter of ledger ids gave {taken}, but the topic's last ledger is {above}: "
                "this topic was written with another metadata store"
            )
        return taken
