"""The auditor: sees to it that closed ledgers lie on as many bookies as they should, whole.

It goes through all ledgers in rounds. A round follows a change among the bookies after a moment. Further rounds follow
at doubling pauses, because an open ledger may be closed by then. One round runs at least every `auditor_interval_s`. A
round checks each closed ledger that was not found whole before, and repairs it as `auditor.plan` says. Missing entries
are copied to the live bookies that lack them. Slots of bookies that have been away for `lost_bookie_grace_s` are given
to spares. Ledgers created with too few copies get more. Metadata changes by compare-and-set, after the copies are
durable.

A whole ledger is not checked again until its record changes, or one of its bookies registers again, is lost or falls
into limbo.

Entries that a bookie found damaged on its disk are copied back to it; see `damage_repair`.

A bookie in limbo (its disk lost data) answers "unknown" instead of "no such entry". It leaves limbo when every ledger
that names it is closed and whole on it. Ledgers that were created before stay closed to it, because their fences may be
among the lost data.

Ledgers that nothing names are deleted; see `auditor.orphans`.

OPEN ledgers are their writers' affair, IN_RECOVERY ones their recoverers'. A writer rolls over when one of its bookies
has been away for `lost_bookie_grace_s`, and then its ledger is repaired here. A ledger that is still open after as much
time again has no owner. The auditor recovers and closes it, which fences a late owner. It does so only when there is a
spare to copy to; without one closing would win nothing. The same goes for a ledger that names a bookie in limbo, with a
spare or without: limbo lasts until it is closed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.cluster_status import AuditorStatus
from ...protocol.errors import BadVersion, MagnetarError, NoSuchKey
from ...runtime.environment import Environment
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.ledger.bookie_client import BookieClient
from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.ledger.recovery import LedgerRecovery
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.ledger_records import LedgerRecord, LedgerRecords
from ...storage.metadata.store import MetadataStore, unpack
from ..members.contracts_bookie import BookieContract
from ..members.peer_calls import MemberCalls
from . import orphans as orphan_ledgers
from .damage_repair import repair_damage
from .orphans import OrphanLedgers
from .plan import Change, pieces_of, replace_lost, thicken
from .repair import LedgerRepair

logger = logging.getLogger(__name__)

FIRST_ROUND_DELAY_S = 2.0
CHANGE_DELAY_S = 0.5
ROUNDS_AFTER_CHANGE_S = 64.0
LEDGERS_PER_PAGE = 500
LEDGERS_PER_S_MAX = 500


@dataclass
class AuditProgress:
    """What `status` shows. Totals count from the coordinator's start; the others are of the latest round."""

    rounds: int = 0
    running: bool = False
    whole: bool = False
    """Whether the latest round found every closed ledger whole, and nothing has changed among the bookies since."""
    ledgers: int = 0
    open_ledgers: int = 0
    checked: int = 0
    incomplete: int = 0
    """Ledgers of the latest round that lack copies, whether closed or not."""
    round_ledgers: int = 0
    """How many ledgers the round that is running has gone through."""
    repaired_total: int = 0
    orphans_deleted_total: int = 0
    copied_entries_total: int = 0
    copied_bytes_total: int = 0
    failures_total: int = 0
    last_failure: str = ""
    finished_ms: int = 0


class Auditor:
    """See the module. `limbo` names the live bookies that say they are in limbo, and why; `damaged` those that hold
    damaged entries, and how many."""

    def __init__(
        self,
        env: Environment,
        identity: Identity,
        keys: Keys,
        settings: Settings,
        store: MetadataStore,
        directory: BookieDirectory,
        limbo: Callable[[], dict[str, str]],
        damaged: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._env = env
        self._settings = settings
        self._store = store
        self._directory = directory
        self._limbo = limbo
        self._damaged = damaged
        self._records = LedgerRecords(env, store)
        self._client = BookieClient(env, identity, keys, settings, directory)
        self._calls = MemberCalls(env, identity, keys, self._find, BookieContract)
        self._repair = LedgerRepair(self._client, self._calls, settings, self._copied)
        self._orphans = OrphanLedgers(env, store)
        self._progress = AuditProgress()
        self._whole: dict[int, tuple[int, tuple[str, ...]]] = {}  # ledger → version found whole, its bookies
        self._known: dict[str, BookieInfo] = {}
        self._absent_since: dict[str, float] = {}
        self._lost: dict[str, None] = {}
        self._copies_given: dict[str, int] = {}
        self._limbo_known: dict[str, str] = {}
        self._limbo_since: dict[str, float] = {}
        self._changed = False
        self._wake = asyncio.Event()
        self._tasks = Tasks()
        directory.on_change.append(self._bookies_changed)

    def start(self) -> None:
        """Begin; the first round comes when the bookies have had time to register."""
        self._tasks.spawn(self._run(), "auditor")

    async def close(self) -> None:
        self._directory.on_change.remove(self._bookies_changed)
        await self._tasks.close()
        await self._client.close()
        await self._calls.close()

    def wake(self) -> None:
        """Begin a round soon."""
        self._wake.set()

    def status(self) -> AuditorStatus:
        """The progress, lost bookies, bookies in limbo, and damaged entries by bookie."""
        progress = self._progress
        return {
            "rounds": progress.rounds,
            "running": progress.running,
            "whole": progress.whole,
            "ledgers": progress.ledgers,
            "open_ledgers": progress.open_ledgers,
            "checked": progress.checked,
            "incomplete": progress.incomplete,
            "round_ledgers": progress.round_ledgers,
            "repaired_total": progress.repaired_total,
            "orphans_deleted_total": progress.orphans_deleted_total,
            "copied_entries_total": progress.copied_entries_total,
            "copied_bytes_total": progress.copied_bytes_total,
            "failures_total": progress.failures_total,
            "last_failure": progress.last_failure,
            "finished_ms": progress.finished_ms,
            "lost_bookies": sorted(self._lost),
            "limbo": list(self._limbo()),
            "damaged": self._damaged(),
        }

    # -- when ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_ROUND_DELAY_S)
        pause_s = CHANGE_DELAY_S
        while True:
            repaired = self._progress.repaired_total
            self._changed = False
            self._wake.clear()
            self._progress.running = True
            try:
                await self.round()
            except MagnetarError as error:
                self._fail("the round", error)
            except Exception as error:  # of any kind: without the auditor, lost copies stay unnoticed
                logger.exception("the auditor met an unexpected error")
                self._fail("the round", error)
            finally:
                self._progress.running = False
            if self._changed or repaired != self._progress.repaired_total:
                pause_s = CHANGE_DELAY_S
            else:
                pause_s = min(pause_s * 2, self._settings.auditor_interval_s)
                if pause_s > ROUNDS_AFTER_CHANGE_S and not self._progress.incomplete:
                    pause_s = self._settings.auditor_interval_s
            if self._limbo() or self._damaged():
                pause_s = min(pause_s, ROUNDS_AFTER_CHANGE_S, max(self._settings.lost_bookie_grace_s, CHANGE_DELAY_S))
            if self._orphans.suspected:
                pause_s = min(pause_s, orphan_ledgers.ORPHAN_AFTER_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                pause_s = CHANGE_DELAY_S
                await asyncio.sleep(CHANGE_DELAY_S)  # bookies tend to come in groups
            except TimeoutError:
                continue

    def _bookies_changed(self) -> None:
        now = asyncio.get_running_loop().time()
        latest = self._directory.bookies
        for bookie, info in latest.items():
            self._absent_since.pop(bookie, None)
            if self._known.get(bookie) != info:
                self._forget(bookie)
        for bookie in self._known:
            if bookie not in latest:
                self._absent_since.setdefault(bookie, now)
        self._known = dict(latest)
        self._changed = True
        self._progress.whole = False
        self._wake.set()

    def _forget(self, bookie: str) -> None:
        """Ledgers on this bookie have to be checked again."""
        self._whole = {ledger: found for ledger, found in self._whole.items() if bookie not in found[1]}

    def _find_lost(self) -> None:
        now = asyncio.get_running_loop().time()
        grace_s = self._settings.lost_bookie_grace_s
        lost = {bookie: None for bookie, since in self._absent_since.items() if now - since >= grace_s}
        for bookie in lost:
            if bookie not in self._lost:
                logger.warning(
                    "bookie %s has been away for %s s: the auditor copies its ledgers to other bookies", bookie, grace_s
                )
                self._forget(bookie)
        self._lost = lost

    # -- a round -------------------------------------------------------------------------------------------------

    async def round(self) -> None:
        """Look at every ledger once. Raises what the metadata store raises; a ledger's own trouble is only counted."""
        self._find_lost()
        progress = self._progress
        try:
            progress.orphans_deleted_total += await self._orphans.collect()
        except MagnetarError as error:
            self._fail("the search for ledgers that no record names", error)
        await self._repair_damage()
        ledgers = open_ledgers = checked = incomplete = 0
        whole: dict[int, tuple[int, tuple[str, ...]]] = {}
        holding_back: dict[str, None] = {}  # bookies that ledgers keep in limbo
        floor = await self._ledgers_allocated()
        limbo = self._limbo()
        now = asyncio.get_running_loop().time()
        self._limbo_since = {bookie: self._limbo_since.get(bookie, now) for bookie in limbo}
        for bookie, reason in limbo.items():
            if self._limbo_known.get(bookie) != reason:  # what was whole on it may be so no longer
                self._forget(bookie)
        self._limbo_known = dict(limbo)
        after = ""
        while True:
            page = await self._store.list(metadata_keys.LEDGERS_PREFIX, after=after, limit=LEDGERS_PER_PAGE)
            for key, stored in page:
                ledgers += 1
                progress.round_ledgers = ledgers
                ledger_id = metadata_keys.ledger_id_of(key)
                known = self._whole.get(ledger_id)
                if known is not None and known[0] == stored.version:
                    whole[ledger_id] = known
                    continue
                record = LedgerRecord(LedgerMetadata.unpack(stored.value), stored.version)
                bookies = record.metadata.bookies
                self._note_absent(bookies)
                if not record.metadata.closed:
                    settled = await self._settle_open(record)
                    if settled is None:
                        open_ledgers += 1
                        incomplete += any(bookie not in self._directory.bookies for bookie in bookies)
                        holding_back.update(dict.fromkeys(bookies))
                        continue
                    record = settled
                checked += 1
                await asyncio.sleep(1 / LEDGERS_PER_S_MAX)
                filled, settled = await self._settle(record)
                if not filled:
                    holding_back.update(dict.fromkeys(bookies))
                if settled is None:
                    incomplete += 1
                else:
                    whole[ledger_id] = (settled.version, settled.metadata.bookies)
            if len(page) < LEDGERS_PER_PAGE:
                break
            after = page[-1][0]
        if not self._changed:
            self._whole = whole
        progress.rounds += 1
        progress.ledgers, progress.open_ledgers = ledgers, open_ledgers
        progress.checked, progress.incomplete = checked, incomplete
        progress.whole = not incomplete and not self._changed
        progress.finished_ms = self._env.clock.now_ms()
        for bookie, reason in limbo.items():
            if bookie not in holding_back and not self._changed:
                await self._let_out(bookie, floor, reason)

    async def _repair_damage(self) -> None:
        """What one bookie's damage meets must keep nothing else from its repair."""
        for bookie in self._damaged():
            try:
                await repair_damage(bookie, self._calls, self._records, self._repair, self._fail)
            except MagnetarError as error:
                self._fail(f"the damaged entries of bookie {bookie}", error)

    def _note_absent(self, bookies: tuple[str, ...]) -> None:
        """A bookie that this coordinator never saw is absent since it first missed it."""
        for bookie in bookies:
            if bookie not in self._directory.bookies and bookie not in self._absent_since:
                self._absent_since[bookie] = asyncio.get_running_loop().time()

    async def _settle_open(self, record: LedgerRecord) -> LedgerRecord | None:
        """Close a ledger that has no owner although a bookie of it is lost or in limbo; None when it stays as it is."""
        metadata = record.metadata
        before = asyncio.get_running_loop().time() - 2 * self._settings.lost_bookie_grace_s
        lost = [bookie for bookie in metadata.bookies if self._absent_since.get(bookie, before + 1) <= before]
        in_limbo = [bookie for bookie in metadata.bookies if self._limbo_since.get(bookie, before + 1) <= before]
        if not in_limbo and replace_lost(metadata, lost, self._spares(), self._copies_given) is None:
            return None
        away = ", ".join(in_limbo or lost)
        logger.warning(
            "ledger %d is still open, and its bookie %s is lost or in limbo: the auditor recovers it",
            metadata.ledger_id,
            away,
        )
        recovery = LedgerRecovery(self._env, self._records, self._client, self._settings, metadata.ledger_id)
        try:
            await recovery.run(record)
            return await self._records.get(metadata.ledger_id)
        except MagnetarError as error:
            self._fail(f"ledger {metadata.ledger_id}", error)
            return None

    def _spares(self) -> list[str]:
        """Bookies that copies can be given to."""
        return [info.id for info in self._directory.bookies.values() if info.writable]

    async def _settle(self, record: LedgerRecord) -> tuple[bool, LedgerRecord | None]:
        """Check and repair one closed ledger. Returns whether each live bookie that its record names has all that it
        should. Also returns the record when the ledger is whole, None when something remains.
        """
        filled = False
        try:
            all_live = await self._fill(record.metadata)
            filled = True
            if not all_live and not self._lost:
                return filled, None
            spares = self._spares()
            change = replace_lost(record.metadata, self._lost, spares, self._copies_given)
            if change is not None:
                record = await self._carry_out(record, change)
            change = thicken(record.metadata, self._settings.write_quorum, spares, self._copies_given)
            if change is not None:
                record = await self._carry_out(record, change)
        except (BadVersion, NoSuchKey) as error:
            logger.debug("ledger %d changed while it was repaired: %s", record.metadata.ledger_id, error)
            return False, None
        except MagnetarError as error:
            self._fail(f"ledger {record.metadata.ledger_id}", error)
            return filled, None
        absent = [bookie for bookie in record.metadata.bookies if bookie not in self._directory.bookies]
        return filled, None if absent or record.metadata.under_replicated else record

    async def _fill(self, metadata: LedgerMetadata) -> bool:
        """Copy what is missing on live bookies; answers whether all bookies of the ledger are live."""
        all_live = True
        for piece in pieces_of(metadata):
            if piece.bookie not in self._directory.bookies:
                all_live = False
                continue
            missing = await self._repair.find_missing(metadata, piece)
            if missing:
                entries = await self._repair.copy(metadata, missing, piece.bookie)
                self._progress.repaired_total += 1
                logger.info(
                    "copied %d missing entries of ledger %d to bookie %s", entries, metadata.ledger_id, piece.bookie
                )
        return all_live

    async def _carry_out(self, record: LedgerRecord, change: Change) -> LedgerRecord:
        """Copy, then change the record. Raises BadVersion or NoSuchKey when it was changed meanwhile."""
        for piece in change.pieces:
            missing = await self._repair.find_missing(change.metadata, piece)
            await self._repair.copy(record.metadata, missing, piece.bookie)
            self._copies_given[piece.bookie] = self._copies_given.get(piece.bookie, 0) + 1
        replaced = await self._records.replace(change.metadata, record.version)
        logger.info("ledger %d now lies on %s", change.metadata.ledger_id, ", ".join(change.metadata.bookies))
        self._progress.repaired_total += 1
        return replaced

    def _copied(self, entries: int, size_bytes: int) -> None:
        """A batch of copies is durable."""
        self._progress.copied_entries_total += entries
        self._progress.copied_bytes_total += size_bytes

    def _fail(self, what: str, error: Exception) -> None:
        self._progress.failures_total += 1
        self._progress.last_failure = f"{what}: {error}"
        logger.warning("the auditor could not finish %s: %s", what, error)

    # -- limbo ---------------------------------------------------------------------------------------------------

    async def _ledgers_allocated(self) -> int:
        """The first ledger id that was not given out yet."""
        record = await self._store.get(metadata_keys.counter(metadata_keys.LEDGER_COUNTER))
        return int(unpack(record.value)["next"]) if record is not None else 1

    async def _let_out(self, bookie: str, floor: int, reason: str) -> None:
        """The bookie refuses when it lost more than it had said when the round began."""
        try:
            await self._calls.of(bookie).clear_limbo(fence_floor=floor, reason=reason)
        except MagnetarError as error:
            self._fail(f"the limbo of bookie {bookie}", error)
        else:
            self._limbo_known.pop(bookie, None)  # it may fall into limbo again before the next round
            logger.info("bookie %s has all its data back and leaves limbo", bookie)

    def _find(self, bookie: str) -> tuple[str, str, int] | None:
        info = self._directory.get(bookie)
        return (f"{info.host}:{info.port}", info.host, info.port) if info is not None else None
