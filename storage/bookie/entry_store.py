"""A bookie's entries on disk: one log-structured store, in which every entry is written once.

The journal's files are themselves the entry store. A full journal gets an index and stays where it is. When enough of a
file is dead, compaction rewrites its live entries, ordered by ledger. The classic alternative, a journal plus an entry
log, writes every byte twice. It needs write caches, checkpoint marks and a flush that competes with the journal for the
disk. Here data that is deleted as a whole, the usual life of a topic, has a write amplification of 1.0. The one-time
zero fill of the file (`journal_files.py`) comes on top, but never makes a sync wait. The price: until compaction, a
ledger's entries lie among those of other ledgers. A catch-up read fetches each run of neighbouring records with one
read and tolerates small gaps. With few busy ledgers the runs are long. Figures: `bench/bookie.py`.

This class keeps the set of segments and ledger states, appends through the journal, seals full journals, replaces the
checkpoint, and removes segments. Invariants:

- every row in memory or on disk points at a record whose entry was accepted; only synced ones are shown to readers;
- a file is removed only after a checkpoint without it is durable and every reader lane has let go of it;
- sealing and compaction change the set of files by one atomic checkpoint each, so a crash at any step loses nothing.

Left to others: reading (`entry_reads.py`), admission of adds (`store.py`), which segments to compact (`compaction.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from ...protocol.bookie_wire import BookieStatus
from ...protocol.errors import DiskFull, StorageFailed
from ...runtime.environment import Environment
from ...runtime.files import Files
from ...runtime.offload import Lane
from ...runtime.tasks import Tasks
from .checkpoint import CHECKPOINT_NAME, Checkpoint
from .damage import DAMAGE_NAME, NOTES_MAX, DamageKeeper, DamageNotes
from .entry_reads import EntryReads
from .held_ledgers import TOMBSTONE_RUNS_MAX, HeldLedger, HeldLedgers, IdRanges
from .journal import Journal, Responder
from .journal_files import create_journal_file, first_journal_share
from .records import FILE_HEADER_SIZE
from .replay import load_store, rebuild_index
from .segment import COMPACTED_SUFFIX, JOURNAL_SUFFIX, Segment, SegmentState
from .segment_index import Rows, SegmentTable, encode_index

logger = logging.getLogger(__name__)

STATES_PER_STEP = 5000
"""Of ledgers, described for a checkpoint in one turn of the loop."""


class EntryStore:
    """See the module. Made by `open`; all methods run on the loop."""

    def __init__(
        self,
        env: Environment,
        directory: str,
        instance: str,
        *,
        segment_bytes: int,
        sync: bool,
        on_out_of_space: Callable[[], None],
        on_damage: Callable[[str], Coroutine[Any, Any, bool]],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.env = env
        self.directory = directory
        self.instance = instance
        self.segment_bytes = segment_bytes
        self.ledgers = HeldLedgers()
        self.segments: dict[int, Segment] = {}
        """SEALING and SEALED ones by file id."""
        self.tombstones = IdRanges()
        self.adds = 0
        self.added_bytes = 0
        self.limbo = ""
        self.fence_floor = 0
        self._on_out_of_space = on_out_of_space
        self._on_damage = on_damage
        self._on_fatal = on_fatal
        self._next_file_id = 1
        self._tasks = Tasks()
        self._opened = False
        """Everything was loaded. Until then nothing here may say what the directory consists of."""
        self._closed = False
        self._checkpoint_lock = asyncio.Lock()
        self._sealing = asyncio.Lock()
        self._rebuilding: dict[int, None] = {}
        self._write_lane = env.offload.lane("journal")
        self._prepare_lane = env.offload.lane("prepare")
        self._housekeeping_lane = env.offload.lane("housekeeping")
        self.damage = DamageKeeper(
            env.files,
            self._housekeeping_lane,
            f"{directory}/{DAMAGE_NAME}",
            DamageNotes(instance),
            on_overflow=self._too_much_damage,
            on_fatal=on_fatal,
        )
        self.reads = EntryReads(env, self.damage, self.rebuild_soon)
        self._first_bytes = int(segment_bytes * first_journal_share(directory, env.random))
        self.journal = Journal(
            env.files,
            self._write_lane,
            self._prepare_lane,
            self._new_journal,
            segment_bytes,
            first_bytes=self._first_bytes,
            sync=sync,
            on_rotated=self._keep_rotated,
            on_full=self._seal_soon,
            on_abandoned=self._forget_abandoned,
            on_out_of_space=on_out_of_space,
            on_fatal=on_fatal,
        )

    # -- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> list[str]:
        """Replay what is there and begin a new journal. Returns the damage found, for people; empty when all is well.

        Raises CookieMismatch, DiskFull (no room for a journal), OSError.
        """
        loaded = await self._housekeeping_lane.run(load_store, self.env.files, self.directory, self.instance)
        checkpoint = loaded.checkpoint
        self.damage.notes = loaded.notes
        self._next_file_id = checkpoint.next_file_id
        self.tombstones, self.limbo, self.fence_floor = (
            checkpoint.tombstones,
            checkpoint.limbo,
            checkpoint.fence_floor,
        )
        for ledger_id, nonce in checkpoint.fenced.items():
            if ledger_id not in self.tombstones:
                state = self.ledgers[ledger_id] = HeldLedger(ledger_id, nonce)
                state.fenced = state.fence_durable = True
        for ledger_id in checkpoint.given_up:
            if ledger_id in self.ledgers:
                self.ledgers[ledger_id].given_up = True
        for segment in loaded.segments:
            self._adopt(segment)
        self.damage.notes.keep(self.ledgers)
        if loaded.damage:
            self.limbo = "; ".join([self.limbo, *loaded.damage] if self.limbo else loaded.damage)
        if self.limbo:
            self.fence_all()
        first = self._new_journal()
        file = await self._housekeeping_lane.run(
            create_journal_file, self.env.files, first, self.segment_bytes, self._first_bytes
        )
        self.journal.start(file, first)
        await self.checkpoint()
        for path, index in loaded.indexes:
            await self._housekeeping_lane.run(self.env.files.write_atomic, path, index)
        self._opened = True
        await self._housekeeping_lane.run(_remove_files, self.env.files, self.directory, loaded.rubbish)
        return loaded.damage

    async def close(self) -> None:
        """Make everything accepted durable, seal it, let go of all files. Never raises for a failed disk."""
        if self._closed:
            return
        self._closed = True
        await self.journal.close()
        await self._tasks.close()
        await self.damage.close()
        for lane in (self._prepare_lane, self._housekeeping_lane):  # what a cancelled task began still runs there
            await lane.run(_nothing)
        try:
            if self._opened and self.journal.failed is None:
                await self._seal_last()
        except (OSError, DiskFull, StorageFailed) as error:
            logger.warning("%s was closed without an index, so the next start replays it: %s", self.directory, error)
        await self.reads.close()
        for segment in (self.journal.active, self.journal.release_spare(), *self.segments.values()):
            if segment is not None:
                _close_file(segment)
        for lane in (self._write_lane, self._prepare_lane, self._housekeeping_lane):
            lane.close()

    async def _seal_last(self) -> None:
        active, spare = self.journal.active, self.journal.release_spare()
        self.journal.active = None
        unused = [spare] if spare is not None else []
        if active is not None and active.rows:
            active.become(SegmentState.SEALING)
            self.segments[active.file_id] = active
        elif active is not None:
            unused.append(active)  # its fences and tombstones are in the checkpoint
        await self._seal_all()
        await self.checkpoint()
        for segment in unused:
            _close_file(segment)
        names = [segment.name for segment in unused]
        await self._housekeeping_lane.run(_remove_files, self.env.files, self.directory, names)

    # -- adding ------------------------------------------------------------------------------------------------------

    def append_entry(
        self,
        state: HeldLedger,
        payload: bytes,
        head: bytes,
        entry_id: int,
        lac: int,
        digest: int,
        responder: Responder,
        request_id: int,
    ) -> int | None:
        """Accept an entry: `responder` gets OK once it is durable. Returns why not, to be answered at once, or None."""
        try:
            offset = self.journal.append_entry(payload, head, responder, request_id)
        except DiskFull:
            return BookieStatus.READ_ONLY
        except StorageFailed:
            return BookieStatus.IO_ERROR
        self.adds += 1
        self.added_bytes += len(payload)
        size = len(payload) - 1
        segment = self.journal.active
        rows = state.rows
        if state.rows_segment is not segment or rows is None:
            assert segment is not None
            rows = state.rows = segment.rows[state.ledger_id] = Rows(state.nonce)
            state.rows_segment = segment
            state.segments.append(segment)
        if entry_id > state.last_entry:
            state.last_entry = entry_id
            rows.entries.append(entry_id)
            rows.offsets.append(offset)
            rows.sizes.append(size)
            rows.digests.append(digest)
            rows.entry_bytes += size
            if lac > rows.lac:
                rows.lac = lac
        else:
            rows.put(entry_id, offset, size, digest, lac)
        if lac > state.lac:
            state.lac = lac
        if self.damage.notes.count and self.damage.notes.has(state.ledger_id, entry_id):
            self.journal.after_pending(partial(self._repaired, state.ledger_id, entry_id))
        return None

    def _repaired(self, ledger_id: int, entry_id: int, error: BaseException | None) -> None:
        """A new copy of a damaged entry is durable, or has failed."""
        if error is None:
            self.damage.end(ledger_id, entry_id)

    # -- states of ledgers -------------------------------------------------------------------------------------------

    def fence_all(self) -> None:
        """Fence every ledger known; durable with the next checkpoint."""
        for state in self.ledgers.values():
            state.fenced = state.fence_durable = True

    def add_tombstone(self, ledger_id: int) -> None:
        """A ledger's tombstone is durable: forget the rest."""
        self.tombstones.add(ledger_id)
        self.damage.forget(ledger_id)
        state = self.ledgers.pop(ledger_id, None)
        for segment in state.segments if state is not None else ():
            segment.live_bytes -= segment.ledger_bytes(ledger_id)

    def give_up(self, state: HeldLedger) -> bool:
        """Drop a closed ledger's entries, which lie elsewhere. False, and nothing happens, while some are not sealed.

        As long as the segments are there a start brings the entries back. The checkpoint that removes them says that
        they were given up.
        """
        if not all(segment.sealed for segment in state.segments):
            return False
        state.fenced = True
        state.given_up = True
        for segment in state.segments:
            segment.live_bytes -= segment.ledger_bytes(state.ledger_id)
        state.segments = []
        state.rows = state.rows_segment = None
        state.last_entry = state.lac = -1
        self.damage.forget(state.ledger_id)
        return True

    def lives(self, segment: Segment, ledger_id: int) -> bool:
        """Whether a segment's entries of a ledger are wanted."""
        state = self.ledgers.get(ledger_id)
        return state is not None and (not state.given_up or segment in state.segments)

    @property
    def ledgers_end(self) -> int:
        """The first ledger id above all that this bookie knows: those held, fenced and deleted."""
        return max(self.ledgers.end, self.tombstones.end, self.fence_floor)

    # -- the set of segments -------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Make the present set of segments and ledger states durable. Raises DiskFull, OSError."""
        async with self._checkpoint_lock:
            path = f"{self.directory}/{CHECKPOINT_NAME}"
            try:
                await self._housekeeping_lane.run((await self._describe()).write, self.env.files, path)
            except DiskFull:
                spare = self.journal.release_spare()
                if spare is None or spare.file is None:
                    raise
                spare.file.close()
                await self._housekeeping_lane.run(_remove_files, self.env.files, self.directory, [spare.name])
                await self._housekeeping_lane.run((await self._describe()).write, self.env.files, path)

    async def _describe(self) -> Checkpoint:
        """The files are those of one moment. Ledgers are examined behind it, in steps, so that many do not stop the
        loop. A fence that comes in between is in a journal that this checkpoint's replay has."""
        sealed = [segment for segment in self.segments.values() if segment.sealed]
        unsealed = [segment for segment in self.segments.values() if not segment.sealed] + self.journal.unfilled
        described = Checkpoint(
            self.instance,
            self._next_file_id,
            min((segment.file_id for segment in unsealed), default=self._next_file_id),
            [(segment.file_id, segment.kind, segment.end) for segment in sealed],
            [segment.file_id for segment in unsealed if segment.file is not None],
            limbo=self.limbo,
            fence_floor=self.fence_floor,
            tombstones=self.tombstones.copy(),
        )
        states = list(self.ledgers.values())
        for start in range(0, len(states), STATES_PER_STEP):
            if start:
                await asyncio.sleep(0)
            step = [state for state in states[start : start + STATES_PER_STEP] if state.fenced]
            described.fenced.update((state.ledger_id, state.nonce) for state in step)
            described.given_up += [state.ledger_id for state in step if state.given_up]
        return described

    async def forget_tombstones(self) -> None:
        """Forget old ones when there are too many runs (see `bookie.held_ledgers`). No tombstone may be added."""
        if self.tombstones.runs <= TOMBSTONE_RUNS_MAX:
            return
        before = self.tombstones.count
        held = {ledger_id for segment in self.journal.unfilled for ledger_id in segment.rows}
        held.update(*(segment.rows for segment in self.segments.values()))
        tables = [segment.table for segment in self.segments.values() if segment.sealed]
        held |= await self._housekeeping_lane.run(self.tombstones.copy().common, tables)
        if self.tombstones.count == before:
            self.tombstones, floor = self.tombstones.without_older_runs(TOMBSTONE_RUNS_MAX // 2, sorted(held))
            self.fence_floor = max(self.fence_floor, floor)
            logger.info("%s: tombstones below ledger %d are forgotten", self.directory, floor)

    @property
    def housekeeping_lane(self) -> Lane:
        """The lane for work on files that no request waits for."""
        return self._housekeeping_lane

    @property
    def next_file_id(self) -> int:
        """Above the file id of every segment that there is."""
        return self._next_file_id

    def unsealed(self) -> list[Segment]:
        """Journals with something durable in them that have no index yet, oldest first."""
        found = [*self.segments.values(), *([self.journal.active] if self.journal.active is not None else [])]
        return [segment for segment in found if not segment.sealed and segment.synced_end > FILE_HEADER_SIZE]

    def new_compacted(self) -> Segment:
        """A name for a file that compaction writes."""
        return Segment(self.directory, self._take_file_id(), COMPACTED_SUFFIX, self.instance)

    async def replace(self, old: list[Segment], new: list[tuple[Segment, SegmentTable]]) -> None:
        """Put complete, synced, indexed segments in the place of others, then delete those.

        Raises DiskFull, OSError.
        """
        for segment, table in new:
            segment.synced_end = segment.end
            segment.become_sealed(table)
        gone = {segment.file_id: None for segment in old}
        for ledger_id in {ledger_id: None for segment in old for ledger_id in segment.ledger_ids()}:
            state = self.ledgers.get(ledger_id)
            if state is not None:
                state.segments = [segment for segment in state.segments if segment.file_id not in gone]
        for segment in old:
            self.segments.pop(segment.file_id, None)
            segment.become(SegmentState.REMOVED)
        for segment, _ in new:
            self._adopt(segment)
        await self.checkpoint()
        for segment in old:
            await self.reads.forget(segment)
        names = [name for segment in old for name in (segment.name, segment.name + ".index")]
        await self._housekeeping_lane.run(_remove_files, self.env.files, self.directory, names)

    def _adopt(self, segment: Segment) -> None:
        """A sealed segment becomes part of the store."""
        self.segments[segment.file_id] = segment
        segment.live_bytes = 0
        for ledger_id, line in segment.table.items():
            if ledger_id in self.tombstones:
                continue
            state = self.ledgers.get(ledger_id)
            if state is None:
                state = self.ledgers[ledger_id] = HeldLedger(ledger_id, line.nonce)
            state.extend(segment, line.last, line.lac)
            segment.live_bytes += line.entry_bytes

    def _take_file_id(self) -> int:
        self._next_file_id += 1
        return self._next_file_id - 1

    def _new_journal(self) -> Segment:
        return Segment(self.directory, self._take_file_id(), JOURNAL_SUFFIX, self.instance)

    def _forget_abandoned(self, segment: Segment) -> None:
        """The disk had no room for a journal: what was accepted for it is not stored."""
        for ledger_id in segment.rows:
            state = self.ledgers.get(ledger_id)
            if state is not None:
                state.segments.remove(segment)
                state.rows = state.rows_segment = None
                state.last_entry = max((held.last_entry(ledger_id) for held in state.segments), default=-1)
        segment.rows = {}
        self.segments.pop(segment.file_id, None)

    # -- sealing -----------------------------------------------------------------------------------------------------

    def _keep_rotated(self, full: Segment) -> None:
        """Part of every checkpoint from the moment it stops being the active one, be its last batch durable or not."""
        self.segments[full.file_id] = full

    def _seal_soon(self, full: Segment) -> None:
        self._tasks.spawn(self.seal_pending(), f"seal {full.name}")

    async def seal_pending(self) -> None:
        """Write the indexes of full journals and a checkpoint. A full disk is reported, and tried again by the next
        call."""
        try:
            await self._seal_all()
            await self.checkpoint()
        except DiskFull:
            self._on_out_of_space()
        except OSError as error:
            self._on_fatal(StorageFailed(f"a segment of {self.directory} could not be sealed: {error}"))

    async def _seal_all(self) -> None:
        async with self._sealing:
            full = [segment for segment in self.segments.values() if not segment.sealed]
            for segment in [segment for segment in full if segment.synced_end == segment.end]:
                table = await self._housekeeping_lane.run(_write_index, self.env.files, segment)
                segment.become_sealed(table)
                self._count_live_bytes(segment)
                _close_file(segment)

    def _count_live_bytes(self, segment: Segment) -> None:
        """Bytes of entries in a sealed segment whose ledgers are known."""
        segment.live_bytes = sum(
            line.entry_bytes for ledger_id, line in segment.table.items() if self.lives(segment, ledger_id)
        )

    def rebuild_soon(self, segment: Segment) -> None:
        """A read met a damaged index: rebuild it from its segment."""
        if self._closed:  # a read was in progress; its caller is disconnected soon, and the next start looks again
            return
        if segment.file_id not in self._rebuilding and segment.file_id in self.segments:
            self._rebuilding[segment.file_id] = None
            self._tasks.spawn(self._rebuild(segment), f"rebuild the index of {segment.name}")

    def _too_much_damage(self) -> None:
        """More entries are damaged than can be noted: in limbo every entry is read before it counts as held."""
        if not self.limbo and not self._closed:
            self._tasks.spawn(self._on_damage(f"more than {NOTES_MAX} entries are damaged"), "limbo")

    async def _rebuild(self, segment: Segment) -> None:
        try:
            index, table, damage = await self._housekeeping_lane.run(rebuild_index, self.env.files, segment)
            if damage:
                # First limbo, then an index without what was lost: no reader may be told that it never was, neither now
                # nor after a crash in between.
                if not await self._on_damage(damage):
                    return
                await self.reads.forget(segment)  # reads that were asked for before limbo are over
            if segment.file_id not in self.segments:
                return  # compacted in the meantime
            await self._housekeeping_lane.run(self.env.files.write_atomic, segment.index_path, index)
            segment.table = table
            self._count_live_bytes(segment)
            await self.reads.forget(segment)
        except (OSError, DiskFull) as error:
            logger.warning("the index of %s could not be rebuilt: %s", segment.path, error)
        finally:
            self._rebuilding.pop(segment.file_id, None)


def _close_file(segment: Segment) -> None:
    if segment.file is not None:
        segment.file.close()
        segment.file = None


def _write_index(files: Files, segment: Segment) -> SegmentTable:
    index, table = encode_index(segment.file_id, segment.seed, segment.end, segment.rows)
    files.write_atomic(segment.index_path, index)
    assert segment.file is not None
    segment.file.truncate(segment.end)
    return table


def _remove_files(files: Files, directory: str, names: Iterable[str]) -> None:
    for name in names:
        path = f"{directory}/{name}"
        if files.exists(path):
            files.remove(path)


def _nothing() -> None:
    """Run on a lane to learn that everything before it has ended."""
