"""Copies entries of closed ledgers to a bookie that should hold them: the auditor's hands.

Entries are read from whichever bookie holds them, digest verified, and written with the recovery flag, which passes
fences. The bytes are those that the writer sent, LAC included, so a copy that is made twice is the same entry. The pace
is bounded by `repair_bytes_per_s`; one batch is under way at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ...protocol.bookie_wire import BookieStatus, LedgerEntry, encode_add, encode_entry_header, error_for_status
from ...protocol.errors import EntryUnknown
from ...runtime.settings.declarations import Settings
from ...storage.ledger.bookie_client import BookieClient
from ...storage.ledger.reader import LedgerReader
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ..members.contracts_bookie import BookieContract
from ..members.peer_calls import MemberCalls
from .plan import Piece, Range, missing_entries

logger = logging.getLogger(__name__)

BATCH_BYTES = 1 << 20
LIST_TIMEOUT_S = 30.0
"""For one answer of a bookie, which says what it holds in parts of a few seconds' work."""


class LedgerRepair:
    """See the module. `calls` reaches the bookies' control methods, `client` their entries.

    `on_copied(entries, bytes of bodies)` is called for each batch that has become durable.
    """

    def __init__(
        self,
        client: BookieClient,
        calls: MemberCalls[BookieContract],
        settings: Settings,
        on_copied: Callable[[int, int], None],
    ) -> None:
        self._client = client
        self._calls = calls
        self._settings = settings
        self._on_copied = on_copied
        self._not_before = 0.0

    async def find_missing(self, metadata: LedgerMetadata, piece: Piece) -> list[Range]:
        """Entries of a piece that its bookie does not hold. Raises ServiceUnitNotReady when it does not answer."""
        missing: list[Range] = []
        first = piece.first
        while first <= piece.last:
            answer = await self._calls.of(piece.bookie, timeout_s=LIST_TIMEOUT_S).entry_ids(
                ledger=metadata.ledger_id, nonce=metadata.nonce, first=first, last=piece.last
            )
            following = min(max(answer.next, first + 1), piece.last + 1)
            missing += missing_entries(metadata, piece._replace(first=first, last=following - 1), answer.ranges)
            first = following
        return missing

    async def copy(self, metadata: LedgerMetadata, ranges: Sequence[Range], target: str) -> int:
        """Copy these entries to a bookie; returns how many.

        Raises what reading and adding raise; what was copied stays.
        """
        reader = LedgerReader(self._client, self._settings, metadata)
        entries = 0
        for first, last in ranges:
            following = first
            while following <= last:
                await self._keep_pace()
                batch = await reader.read(following, last, BATCH_BYTES)
                await self._write(batch, target)
                following = batch[-1].entry_id + 1
                entries += len(batch)
                size_bytes = sum(len(entry.body) for entry in batch)
                self._on_copied(len(batch), size_bytes)
                self._spend(size_bytes)
        return entries

    async def _write(self, batch: Sequence[LedgerEntry], target: str) -> None:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        left = len(batch)

        def answered(status: int, payload: bytes) -> None:
            nonlocal left
            left -= 1
            if done.done():
                return
            if status != BookieStatus.OK:
                done.set_result(status)
            elif not left:
                done.set_result(BookieStatus.OK)

        for entry in batch:
            header = encode_entry_header(
                entry.ledger_id, entry.nonce, entry.entry_id, entry.lac, entry.length, entry.body
            )
            self._client.add(target, encode_add(header, bytes(entry.body), recovery=True), answered)
        try:
            async with asyncio.timeout(self._settings.add_entry_timeout_s + self._settings.read_entry_timeout_s):
                status = await done
        except TimeoutError:
            raise EntryUnknown(
                f"bookie {target} did not store {len(batch)} copied entries in time", bookie=target
            ) from None
        if status != BookieStatus.OK:
            raise error_for_status(status, bookie=target, ledger_id=batch[0].ledger_id)

    async def _keep_pace(self) -> None:
        delay_s = self._not_before - asyncio.get_running_loop().time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def _spend(self, size_bytes: int) -> None:
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now) + size_bytes / self._settings.repair_bytes_per_s
