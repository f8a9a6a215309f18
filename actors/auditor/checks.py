"""Looks at ledgers, and repairs those that lack copies: several at a time.

A look at some records, in this order:

1. each live bookie is asked which of its pieces of these ledgers it lacks, all in one question;
2. a closed ledger that lacks nothing, whose bookies are all live, and are on different machines, is whole;
3. each other closed ledger is repaired as `plan` says: missing entries are copied to the live bookies that lack them.
   Then slots of lost bookies are given to spares, thin ledgers get more copies, and copies on one machine, or in one
   zone, are given to spares elsewhere. In all three, the entries are copied first. The record changes by
   compare-and-set after all copies are durable. `REPAIRS_UNDER_WAY_MAX` ledgers are under way at a time;
4. an open ledger stays as it is, unless it has no owner: see `service`.

Crash points: the copying bookie, a source and this process may end at any step. Until the compare-and-set the record
names the former bookies only. The next look finds what was copied to a spare, or the spare collects it as garbage.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...protocol.errors import BadVersion, MagnetarError, NoSuchKey
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...storage.ledger.bookie_client import BookieClient
from ...storage.ledger.ensemble import Clashes
from ...storage.ledger.recovery import LedgerRecovery
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.ledger_records import LedgerRecord, LedgerRecords
from ..members.contracts_bookie import Part
from .absence import BookieWatch
from .index import LedgerCondition, LedgerIndex
from .plan import Change, Piece, crowding, pieces_of, replace_lost, spread, thicken
from .repair import LedgerRepair

logger = logging.getLogger(__name__)

REPAIRS_UNDER_WAY_MAX = 8


class Looked(NamedTuple):
    """What a look has found."""

    closed: int
    """How many closed ledgers were looked at."""
    left: list[int]
    """Those of them that there was no time to repair."""
    failed: list[int]
    """Ledgers, open ones too, that have to be tried again."""


class Settled(enum.Enum):
    """How the repair of a closed ledger ended."""

    DONE = enum.auto()
    """As far as it can be done with the bookies that there are."""
    LEFT = enum.auto()
    """There was no time."""
    FAILED = enum.auto()


class LedgerChecks:
    """See the module. `on_repaired` follows each repair, `on_failure(what, error)` each that did not succeed."""

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        records: LedgerRecords,
        client: BookieClient,
        index: LedgerIndex,
        watch: BookieWatch,
        on_repaired: Callable[[], None],
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._env = env
        self._settings = settings
        self._records = records
        self._client = client
        self._index = index
        self._watch = watch
        self._on_repaired = on_repaired
        self._on_failure = on_failure
        self._copies_given: dict[str, int] = {}
        self._places = asyncio.Semaphore(REPAIRS_UNDER_WAY_MAX)

    async def look(self, found: Sequence[LedgerRecord], repair: LedgerRepair, ends: float) -> Looked:
        """Look at these ledgers, repair what can be repaired, and put each into the index. No repair begins after
        `ends` (the loop's time). Raises nothing of a single ledger's.
        """
        closed: list[LedgerRecord] = []
        failed: list[int] = []
        for record in found:
            self._watch.note_absent(record.metadata.bookies)
            settled = record if record.metadata.closed else await self._settle_open(record, failed)
            if settled is None:
                self._put_open(record)
            else:
                closed.append(settled)
        lacking = await self._lacking(closed, repair)
        for record in closed:
            if any(bookie in self._watch.lost for bookie in record.metadata.bookies):
                self._put(record, LedgerCondition.MOVING)
        done = await asyncio.gather(
            *(self._settle(record, lacks, repair, ends) for record, lacks in zip(closed, lacking, strict=True))
        )
        ends_of = [(record.metadata.ledger_id, settled) for record, settled in zip(closed, done, strict=True)]
        failed += [ledger_id for ledger_id, settled in ends_of if settled is Settled.FAILED]
        return Looked(len(closed), [one for one, settled in ends_of if settled is Settled.LEFT], failed)

    def _put(self, record: LedgerRecord, condition: LedgerCondition) -> None:
        metadata = record.metadata
        self._index.put(metadata.ledger_id, metadata.bookies, record.version, metadata.length, condition)

    def _put_open(self, record: LedgerRecord) -> None:
        bookies, condition = record.metadata.bookies, LedgerCondition.OPEN
        if not all(map(self._watch.is_live, bookies)):
            condition = LedgerCondition.OPEN_LACKING
        elif any(bookie in self._watch.limbo_since for bookie in bookies):
            condition = LedgerCondition.OPEN_DOUBTFUL
        self._put(record, condition)

    async def _lacking(self, closed: Sequence[LedgerRecord], repair: LedgerRepair) -> list[dict[Piece, None]]:
        """For each ledger the pieces that their live bookies lack, as far as they can be asked."""
        lacking: list[dict[Piece, None]] = [{} for _ in closed]
        asked: dict[str, list[tuple[int, Piece]]] = {}
        for index, record in enumerate(closed):
            for piece in pieces_of(record.metadata):
                if self._watch.is_live(piece.bookie):
                    asked.setdefault(piece.bookie, []).append((index, piece))

        async def ask(bookie: str, pieces: list[tuple[int, Piece]]) -> None:
            parts = [_part(closed[index].metadata, piece) for index, piece in pieces]
            try:
                found = await repair.lacking(bookie, parts)
            except MagnetarError as error:
                self._on_failure(f"the check of bookie {bookie}", error)
                found = list(range(len(pieces)))
            for place in found:
                index, piece = pieces[place]
                lacking[index][piece] = None

        await asyncio.gather(*(ask(bookie, pieces) for bookie, pieces in asked.items()))
        return lacking

    async def _settle(
        self, record: LedgerRecord, lacks: dict[Piece, None], repair: LedgerRepair, ends: float
    ) -> Settled:
        """Repair one closed ledger and put it into the index."""
        metadata, place_of = record.metadata, self._watch.place_of
        complete = not lacks and self._is_complete(metadata)
        if complete and crowding(metadata, place_of) == Clashes():
            self._put(record, LedgerCondition.WHOLE)
            return Settled.DONE
        condition, settled = LedgerCondition.LACKING, Settled.FAILED
        async with self._places:
            if asyncio.get_running_loop().time() >= ends:
                lost = any(bookie in self._watch.lost for bookie in metadata.bookies)
                unfinished = LedgerCondition.MOVING if lost else LedgerCondition.LACKING
                self._put(record, self._condition_of(metadata) if complete else unfinished)
                return Settled.LEFT
            try:
                await self._fill(metadata, lacks, repair)
                condition = LedgerCondition.FILLED
                spares = self._watch.spares()
                change = replace_lost(metadata, self._watch.lost, spares, self._copies_given, place_of)
                if change is not None:
                    record = await self._carry_out(record, change, repair)
                change = thicken(record.metadata, self._settings.write_quorum, spares, self._copies_given, place_of)
                if change is not None:
                    record = await self._carry_out(record, change, repair)
                if self._is_complete(record.metadata):
                    condition = self._condition_of(record.metadata)
                    change = spread(record.metadata, spares, self._copies_given, place_of)
                    if change is not None:
                        record = await self._carry_out(record, change, repair)
            except (BadVersion, NoSuchKey) as error:
                logger.debug("ledger %d changed while it was repaired: %s", metadata.ledger_id, error)
                condition = LedgerCondition.LACKING
            except MagnetarError as error:
                self._on_failure(f"ledger {metadata.ledger_id}", error)
            else:
                settled = Settled.DONE
                if self._is_complete(record.metadata):
                    condition = self._condition_of(record.metadata)
        self._put(record, condition)
        return settled

    def _is_complete(self, metadata: LedgerMetadata) -> bool:
        """Whether it lacks nothing, if its bookies hold what they should."""
        return not metadata.under_replicated and all(map(self._watch.stays, metadata.bookies))

    def _condition_of(self, metadata: LedgerMetadata) -> LedgerCondition:
        """That of a ledger that lacks nothing."""
        return LedgerCondition.CROWDED if crowding(metadata, self._watch.place_of).nodes else LedgerCondition.WHOLE

    async def _fill(self, metadata: LedgerMetadata, lacks: dict[Piece, None], repair: LedgerRepair) -> None:
        """Copy what is missing on live bookies."""
        for piece in lacks:
            entries = await repair.fill(metadata, piece)
            if entries:
                self._on_repaired()
                logger.info(
                    "%d missing entries of ledger %d are copied to bookie %s", entries, metadata.ledger_id, piece.bookie
                )

    async def _carry_out(self, record: LedgerRecord, change: Change, repair: LedgerRepair) -> LedgerRecord:
        """Copy, then change the record. Raises BadVersion or NoSuchKey when it was changed meanwhile."""
        for piece in change.pieces:
            self._copies_given[piece.bookie] = self._copies_given.get(piece.bookie, 0) + 1
        for piece in change.pieces:
            await repair.fill(change.metadata, piece, record.metadata)
        replaced = await self._records.replace(change.metadata, record.version)
        logger.info("ledger %d now lies on %s", change.metadata.ledger_id, ", ".join(change.metadata.bookies))
        self._on_repaired()
        return replaced

    async def _settle_open(self, record: LedgerRecord, failed: list[int]) -> LedgerRecord | None:
        """Close a ledger that has no owner although a bookie of it is lost, in limbo or draining; None: it stays. One
        that could not be closed is added to `failed`.
        """
        metadata = record.metadata
        away, in_limbo = self._watch.away_long(metadata.bookies)
        if not in_limbo and replace_lost(metadata, away, self._watch.spares(), self._copies_given) is None:
            return None
        logger.warning(
            "ledger %d is still open, and its bookie %s is lost, in limbo or draining: the auditor recovers it",
            metadata.ledger_id,
            ", ".join(in_limbo or away),
        )
        recovery = LedgerRecovery(self._env, self._records, self._client, self._settings, metadata.ledger_id)
        try:
            await recovery.run(record)
            return await self._records.get(metadata.ledger_id)
        except MagnetarError as error:
            self._on_failure(f"ledger {metadata.ledger_id}", error)
            failed.append(metadata.ledger_id)
            return None


def _part(metadata: LedgerMetadata, piece: Piece) -> Part:
    return Part(metadata.ledger_id, metadata.nonce, piece.first, piece.last, *piece.stripe(metadata))
