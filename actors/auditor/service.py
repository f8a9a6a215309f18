"""The auditor: sees to it that closed ledgers lie on as many bookies as they should, whole.

It remembers of each ledger its bookies and what the latest look found (`index`), and looks at those that a change
concerns. So a round costs what changed:

- a record that was written since: the coordinator carries every write of a ledger's record, and tells (`written`);
- the ledgers of a bookie that registered or was lost: the index names them;
- those that wait for a spare, when one came;
- those whose repair failed, after pauses that double.

A ledger that cannot be repaired now costs nothing until something changes that may help. `due` has the states of a
ledger, and says what makes it due again.

How it looks, and repairs, is described in `checks`, what it decides in `plan`. Bookies copy among themselves
(`repair`). A round follows a change among the bookies after a moment. Further rounds follow at doubling pauses of up to
`ROUND_PAUSE_MAX_S`. A round ends after `ROUND_S`, and the next one continues at once. So a long repair keeps no new
damage and no returning bookie waiting.

A *walk* reads all records, and asks the bookies for all closed ledgers. It fills the index after a start. It runs again
every `auditor_interval_s`, when a bookie fell into limbo, and when more than `due.WRITTEN_MAX` changes came between two
rounds. It is cut into pieces of `WALK_S`, and `pace` holds it back.

Entries that a bookie found damaged on its disk are copied back to it; see `repair_damage`.

A bookie in limbo (its disk lost data) answers "unknown" instead of "no such entry". It leaves limbo when a walk that
began since has found every ledger that names it closed and whole on it. This does not rest on what was told. Ledgers
that were created before stay closed to it, because their fences may be among the lost data.

Ledgers that nothing names are deleted; see `orphans`. The search for them is a task beside the rounds, because `pace`
holds it back too: rounds do not wait for it. After a start it waits for the first walk, which repairs need more.

OPEN ledgers are their writers' affair, IN_RECOVERY ones their recoverers'. A writer rolls over when one of its bookies
has been away for `lost_bookie_grace_s`, and then its ledger is repaired here. A ledger that is still open after as much
time again has no owner. The auditor recovers and closes it, which fences a late owner. It does so only when there is a
spare to copy to; without one closing would win nothing. The same goes for a ledger that names a bookie in limbo, with a
spare or without: limbo lasts until it is closed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ...protocol.cluster_status import AuditorStatus
from ...protocol.errors import MagnetarError, MetadataError, ProtocolError
from ...runtime.environment import Environment
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.ledger.bookie_client import BookieClient
from ...storage.ledger.bookie_directory import BookieDirectory
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.ledger_records import LedgerRecord, LedgerRecords
from ...storage.metadata.store import MetadataStore, Versioned, Write, unpack
from ..members.contracts_bookie import BookieContract
from ..members.contracts_coordinator import AuditContract, UnnamedLedgers
from ..members.peer_calls import MemberCalls
from .absence import BookieWatch
from .checks import LedgerChecks
from .due import DueLedgers
from .index import HOLDING_BACK, INCOMPLETE, LedgerCondition, LedgerFeed, LedgerIndex
from .orphans import OrphanLedgers
from .pace import ReadPace
from .repair import LedgerRepair, repair_damage

logger = logging.getLogger(__name__)

FIRST_ROUND_DELAY_S = 2.0
CHANGE_DELAY_S = 0.5
ROUND_PAUSE_MAX_S = 60.0
ROUND_S = 10.0
WALK_S = 5.0
LEDGERS_PER_PAGE = 500
UNREADABLE = ("",)
"""In place of the bookies of a record that cannot be decoded. It may name any of them, so it holds all back in limbo.
It keeps no other ledger from its repair."""


@dataclass
class AuditProgress:
    """What `status` shows. Totals count from the coordinator's start; the others are of the latest round."""

    rounds: int = 0
    running: bool = False
    whole: bool = False
    """Whether every closed ledger was found whole, and nothing has changed among the bookies since."""
    checked: int = 0
    round_ledgers: int = 0
    """How many ledgers the round that is running has gone through."""
    repaired_total: int = 0
    copied_entries_total: int = 0
    copied_bytes_total: int = 0
    failures_total: int = 0
    last_failure: str = ""
    finished_ms: int = 0
    round_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, at the end of each round."""

    def repaired(self) -> None:
        """A repair has ended well."""
        self.repaired_total += 1

    def copied(self, entries: int, size_bytes: int) -> None:
        """A batch of copies is durable."""
        self.copied_entries_total += entries
        self.copied_bytes_total += size_bytes


@dataclass
class Walk:
    """Through all records. `number` counts those that have begun."""

    due: bool = True
    number: int = 0
    done: int = 0
    """The number of the latest that came to its end."""
    after: str | None = None
    """Where the one that is under way continues; None when there is none."""
    malformed: int = 0
    """Keys that are no ledger's, which the one that is under way has met."""
    malformed_found: int = 0
    """The same of the latest that came to its end. Each may be a ledger's record that lost its key."""
    floor: int = 0
    """The first ledger id that was not given out when it began."""
    next_at: float = 0.0
    limbo: dict[str, int] = field(default_factory=dict[str, int])
    """Bookie in limbo → the walk that has to come to its end before it is let out."""


class Auditor(AuditContract):
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
        self._damaged = damaged
        self._progress = AuditProgress()
        self._records = LedgerRecords(env, store)
        self._client = BookieClient(env, identity, keys, settings, directory)
        self._calls = MemberCalls(env, identity, keys, lambda bookie: _find(directory, bookie), BookieContract)
        self._repair = LedgerRepair(self._calls, directory, self._progress.copied)
        self._pace = ReadPace()
        self._orphans = OrphanLedgers(env, store, self._pace, settings.auditor_interval_s)
        self._index = LedgerIndex()
        self._watch = BookieWatch(directory, settings.lost_bookie_grace_s, limbo, self._bookies_changed)
        self._checks = LedgerChecks(
            env, settings, self._records, self._client, self._index, self._watch, self._progress.repaired, self._fail
        )
        self._due = DueLedgers(self._index, self._watch)
        self._walk = Walk()
        self.feed = LedgerFeed(int(identity.incarnation))
        """What bookies are told before they collect garbage. The coordinator's incarnation is its epoch."""
        self._changed = False
        self._wake = asyncio.Event()
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin; the first round comes when the bookies have had time to register."""
        self._tasks.spawn(self._run(), "auditor")

    async def end_rounds(self) -> None:
        """Check and repair nothing from now on. What is known of ledgers is still answered."""
        await self._tasks.close()

    async def close(self) -> None:
        self._watch.close()
        await self._tasks.close()
        await self._client.close()
        await self._calls.close()

    def forget_retired(self, is_retired: Callable[[str], bool]) -> None:
        """Have a bookie no longer count as lost when `is_retired` says so, and no ledger names it."""
        self._watch.is_retired = lambda bookie: is_retired(bookie) and next(self._index.of(bookie), None) is None

    def wake(self) -> None:
        """Begin a round soon."""
        self._wake.set()

    async def audit(self) -> None:
        self._due.failed.hasten()
        self._wake.set()

    async def look_again(self) -> bool:
        """Wait for the end of a round that begins now or later. Returns whether it found every closed ledger whole.

        Rounds that fail do not count; the caller bounds the wait.
        """
        progress = self._progress
        enough = progress.rounds + (2 if progress.running else 1)
        while progress.rounds < enough:
            self._wake.set()
            await progress.round_ended.wait()
        return progress.whole

    def written(self, writes: Iterable[Write]) -> None:
        """These changes were made, or may have been. The carrier of the writes calls this at once."""
        writes = list(writes)
        self.feed.written(writes)
        for write in writes:
            if not write.key.startswith(metadata_keys.LEDGERS_PREFIX):
                self._orphans.written(write.key)
                continue
            try:
                ledger_id = metadata_keys.ledger_id_of(write.key)
            except ProtocolError:
                self._walk.due = True  # which says what is wrong with that key, or that it is gone
                continue
            if write.value is not None and write.expected_version is None:
                self._orphans.created(ledger_id)
            if not self._due.write(ledger_id):
                self._walk.due = True

    async def unnamed_ledgers(self, *, ledgers: list[int], caller: RpcConnection = CALLER) -> UnnamedLedgers:
        return self.unnamed(caller.peer.node_id, ledgers)

    def unnamed(self, bookie: str, ledgers: Iterable[int]) -> UnnamedLedgers:
        """See the contract."""
        find, found = self._index.find, list[int]()
        for ledger_id in ledgers:
            known = find(ledger_id)
            if known is None or (bookie not in known.bookies and known.bookies != UNREADABLE):
                found.append(ledger_id)
        return UnnamedLedgers(self.feed.epoch, self._walk.done > 0, found)

    def status(self) -> AuditorStatus:
        """The progress, lost bookies, bookies in limbo, and damaged entries by bookie."""
        progress, counts = self._progress, self._index.counts
        return {
            "rounds": progress.rounds,
            "running": progress.running,
            "whole": progress.whole,
            "ledgers": self._index.count,
            "open_ledgers": counts[LedgerCondition.OPEN] + counts[LedgerCondition.OPEN_LACKING],
            "checked": progress.checked,
            "incomplete": self._walk.malformed_found + sum(counts[condition] for condition in INCOMPLETE),
            "crowded": counts[LedgerCondition.CROWDED],
            "to_check": self._due.count,
            "bytes_to_go": sum(self._index.lengths[condition] for condition in INCOMPLETE),
            "round_ledgers": progress.round_ledgers,
            "repaired_total": progress.repaired_total,
            "orphans_deleted_total": self._orphans.deleted_total,
            "copied_entries_total": progress.copied_entries_total,
            "copied_bytes_total": progress.copied_bytes_total,
            "failures_total": progress.failures_total,
            "last_failure": progress.last_failure,
            "finished_ms": progress.finished_ms,
            "lost_bookies": sorted(bookie for bookie in self._watch.lost if not self._watch.is_live(bookie)),
            "limbo": list(self._watch.limbo_now()),
            "damaged": self._damaged(),
        }

    # -- when ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_ROUND_DELAY_S)
        pause_s = CHANGE_DELAY_S
        while True:
            repaired = self._progress.repaired_total
            failed = False
            self._changed = False
            self._wake.clear()
            self._progress.running = True
            try:
                await self.round()
            except MagnetarError as error:
                failed = True
                self._fail("the round", error)
            except Exception as error:  # of any kind: without the auditor, lost copies stay unnoticed
                failed = True
                logger.exception("the auditor met an unexpected error")
                self._fail("the round", error)
            finally:
                self._progress.running = False
                self._progress.round_ended.set()
                self._progress.round_ended = asyncio.Event()
            if not failed and self._unfinished():
                continue
            if self._changed or repaired != self._progress.repaired_total:
                pause_s = CHANGE_DELAY_S
            else:
                pause_s = self._next_pause_s(pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                pause_s = CHANGE_DELAY_S
                await asyncio.sleep(CHANGE_DELAY_S)  # bookies tend to come in groups
            except TimeoutError:
                continue

    def _next_pause_s(self, pause_s: float) -> float:
        pause_s = min(pause_s * 2, self._settings.auditor_interval_s, ROUND_PAUSE_MAX_S)
        for next_s in (self._watch.next_event_s(), self._due.failed.next_s()):
            if next_s is not None:
                pause_s = min(pause_s, next_s + CHANGE_DELAY_S)
        if self._watch.limbo_now() or self._damaged() or self._watch.draining():
            pause_s = min(pause_s, max(self._settings.lost_bookie_grace_s, CHANGE_DELAY_S))
        return pause_s

    def _bookies_changed(self) -> None:
        self._changed = True
        self._progress.whole = False
        self._wake.set()

    # -- a round -------------------------------------------------------------------------------------------------

    async def round(self) -> None:
        """Look at what has changed. Raises what the metadata store raises; a ledger's own trouble is only counted."""
        progress = self._progress
        progress.checked = progress.round_ledgers = 0
        if self._watch.find_lost():
            progress.whole = False
        if not self._orphans.busy:
            self._tasks.spawn(self._collect_orphans(), "search for ledgers that no record names")
        await self._repair_damage()
        limbo, new = self._watch.find_limbo()
        loop = asyncio.get_running_loop()
        if new or (self._walk.after is None and loop.time() >= self._walk.next_at):
            self._walk.due = True  # not because of the time while one is under way: it would begin again at its end
        self._walk.limbo.update(dict.fromkeys(new, self._walk.number + 1))
        await self._due.expand()
        await self._look_at_due(loop.time() + ROUND_S)
        await self._walk_on(loop.time() + WALK_S)
        progress.rounds += 1
        complete = not self._unfinished() and not self._changed
        incomplete = any(self._index.counts[condition] for condition in (LedgerCondition.UNCHECKED, *INCOMPLETE))
        progress.whole = complete and not incomplete and not self._walk.malformed_found
        progress.finished_ms = self._env.clock.now_ms()
        if complete:
            for bookie, reason in limbo.items():
                await self._let_out(bookie, reason)

    def _unfinished(self) -> bool:
        """Whether the next round has something to do at once."""
        return self._due.count > 0 or self._walk.due or self._walk.after is not None

    async def _collect_orphans(self) -> None:
        """A task of its own: it may take many minutes."""
        what = "the search for ledgers that no record names"
        try:
            await self._orphans.collect_due(search=self._walk.done > 0)
        except MagnetarError as error:
            self._fail(what, error)
        except Exception as error:  # of any kind: the next round begins it again
            logger.exception("the auditor met an unexpected error")
            self._fail(what, error)

    async def _repair_damage(self) -> None:
        """What one bookie's damage meets must keep nothing else from its repair."""
        for bookie in self._damaged():
            try:
                await repair_damage(bookie, self._calls, self._records, self._repair, self._fail)
            except MagnetarError as error:
                self._fail(f"the damaged entries of bookie {bookie}", error)

    async def _look_at_due(self, ends: float) -> None:
        while self._due.count and asyncio.get_running_loop().time() < ends:
            ledger_ids = self._due.take(LEDGERS_PER_PAGE)
            try:
                found = await self._store.get_many([metadata_keys.ledger(one) for one in ledger_ids])
                await self._look(list(zip(ledger_ids, found, strict=True)), ends)
            except BaseException:
                self._due.add(ledger_ids)
                raise

    async def _walk_on(self, ends: float) -> None:
        walk, loop = self._walk, asyncio.get_running_loop()
        if walk.after is None:
            if not walk.due:
                return
            walk.floor = await self._ledgers_allocated()
            walk.due, walk.after = False, ""
            walk.number += 1
            walk.malformed = 0
            self._index.begin_walk()
        while walk.after is not None and loop.time() < ends:
            page = await self._store.list(metadata_keys.LEDGERS_PREFIX, after=walk.after, limit=LEDGERS_PER_PAGE)
            await self._look(self._by_ledger(page), ends)
            if len(page) == LEDGERS_PER_PAGE:
                walk.after = page[-1][0]
                await self._pace.keep(len(page))
            else:
                walk.after = None
                walk.malformed_found = walk.malformed
                walk.done, walk.next_at = walk.number, loop.time() + self._settings.auditor_interval_s
                self._index.end_walk()

    def _by_ledger(self, page: Sequence[tuple[str, Versioned]]) -> list[tuple[int, Versioned]]:
        """The records by ledger id. A key that is no ledger's is reported, and stops nothing but the end of limbo."""
        found: list[tuple[int, Versioned]] = []
        for key, stored in page:
            try:
                found.append((metadata_keys.ledger_id_of(key), stored))
            except ProtocolError as error:
                self._walk.malformed += 1
                self._fail(f"the record with the key {key}", error)
        return found

    async def _look(self, found: Sequence[tuple[int, Versioned | None]], ends: float) -> None:
        """What there is no time for stays due."""
        records: list[LedgerRecord] = []
        failed: list[int] = []
        for ledger_id, stored in found:
            if stored is None:
                self._index.remove(ledger_id)
                continue
            try:
                records.append(LedgerRecord(LedgerMetadata.unpack(stored.value), stored.version))
            except MetadataError as error:
                self._fail(f"ledger {ledger_id}", error)
                self._index.put(ledger_id, UNREADABLE, stored.version, 0, LedgerCondition.LACKING)
                failed.append(ledger_id)
        self._progress.round_ledgers += len(found)
        looked = await self._checks.look(records, self._repair, ends)
        self._progress.checked += looked.closed
        self._due.looked([ledger_id for ledger_id, _ in found], looked.left, [*looked.failed, *failed])

    def _fail(self, what: str, error: Exception) -> None:
        self._progress.failures_total += 1
        self._progress.last_failure = f"{what}: {error}"
        logger.warning("the auditor could not finish %s: %s", what, error)

    # -- limbo ---------------------------------------------------------------------------------------------------

    async def _ledgers_allocated(self) -> int:
        """The first ledger id that was not given out yet."""
        record = await self._store.get(metadata_keys.counter(metadata_keys.LEDGER_COUNTER))
        return int(unpack(record.value)["next"]) if record is not None else 1

    async def _let_out(self, bookie: str, reason: str) -> None:
        """If nothing holds it back. The bookie refuses when it lost more than it had said when the round began."""
        if self._walk.done < self._walk.limbo.get(bookie, self._walk.number + 1) or self._walk.malformed_found:
            return
        for ledger_id in chain(self._index.of(bookie), self._index.of(*UNREADABLE)):
            known = self._index.find(ledger_id)
            if known is not None and known.condition in HOLDING_BACK:
                return
        try:
            await self._calls.of(bookie).clear_limbo(fence_floor=self._walk.floor, reason=reason)
        except MagnetarError as error:
            self._fail(f"the limbo of bookie {bookie}", error)
        else:
            self._watch.left_limbo(bookie)
            logger.info("bookie %s has all its data back and leaves limbo", bookie)


def _find(directory: BookieDirectory, bookie: str) -> tuple[str, str, int] | None:
    info = directory.get(bookie)
    return (f"{info.host}:{info.port}", info.host, info.port) if info is not None else None
