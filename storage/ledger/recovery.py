"""Recovery of a ledger whose writer is gone: fence it, find its end, complete its last entries, close it.

Steps (decisions in `ledger.recovery_state`, write-back by a `LedgerWriterState`):

1. OPEN → IN_RECOVERY by compare-and-set. CLOSED: nothing to do. IN_RECOVERY: somebody began; go on from the start.
2. Fence all bookies of the last fragment, until no ack quorum of unfenced ones is left.
3. Read from `max(highest LAC, start of the last fragment − 1) + 1` on, fencing again with each read, until the end is
   certain, and write each entry found back, the same bytes, to an ack quorum, in order.
4. IN_RECOVERY → CLOSED with last entry, length and fragments in one compare-and-set. Bookies that failed during the
   write-back are replaced in memory only until then. If somebody else closed it, theirs counts.

Several recoverers of one ledger may run at once, each may stop anywhere and begin again: all steps repeat safely.
Whenever something cannot be settled with the bookies at hand, RecoveryFailed is raised and the ledger stays
IN_RECOVERY; nothing is ever cut off on a guess.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from ...protocol.bookie_wire import BookieStatus, LedgerEntry, decode_entry, encode_add, encode_entry_header
from ...protocol.errors import (
    BadVersion,
    EntryCorrupt,
    MagnetarError,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    ProtocolError,
    RecoveryFailed,
)
from ...protocol.rpc_frames import STATUS_DISCONNECTED
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..metadata.ledger_metadata import LedgerMetadata, LedgerState
from ..metadata.ledger_records import LedgerRecord, LedgerRecords
from .bookie_client import BookieClient, ReadAnswer
from .ensemble import replace_slots
from .recovery_state import FencingPhase, FencingState, ReadingPhase, ReadingState
from .writer_state import LedgerWriterState, PendingEntry, SlotState, WriterPhase

logger = logging.getLogger(__name__)

ENTRIES_PER_READ_FIRST = 4
"""A ledger usually ends right behind its LAC, and each entry asked for costs a verdict of every bookie; a long tail
is read with ever larger questions."""
ENTRIES_PER_READ_MAX = 256
OVERLOADED_RETRY_S = 0.05
PATIENCE_MAX = 4
"""How many times the usual time-out bookies get at most, once they have been late again and again."""
LATE_ROUNDS_MAX = 6
"""So often in a row may the bookies be late before a recovery is given up."""


class LedgerRecovery:
    """One attempt to recover one ledger."""

    def __init__(
        self, env: Environment, records: LedgerRecords, client: BookieClient, settings: Settings, ledger_id: int
    ) -> None:
        self._env = env
        self._records = records
        self._client = client
        self._settings = settings
        self._ledger_id = ledger_id
        self._nonce = 0

    async def run(self, known: LedgerRecord | None = None) -> LedgerMetadata:
        """Recover, and return the CLOSED metadata. `known` saves a read when the record was just read.

        Raises RecoveryFailed, NoSuchLedger, MetadataUnavailable, OutcomeUnknown.
        """
        record = known or await self._records.get(self._ledger_id)
        while True:
            record = await self._claim(record)
            if record.metadata.closed:
                return record.metadata
            closed = await self._settle(record.metadata)
            base = record.metadata
            while True:
                try:
                    closed = (await self._records.replace(closed, record.version)).metadata
                    logger.info("ledger %d is recovered: its last entry is %d", self._ledger_id, closed.last_entry)
                    return closed
                except (BadVersion, NoSuchKey):
                    record = await self._records.get(self._ledger_id)
                if record.metadata.closed:
                    return record.metadata
                if record.metadata.last_fragment != base.last_fragment:
                    break  # what was settled rests on an ensemble that is no longer true
                closed = _on_top_of(record.metadata, closed)

    async def _claim(self, record: LedgerRecord) -> LedgerRecord:
        while record.metadata.state is LedgerState.OPEN:
            try:
                return await self._records.replace(record.metadata.in_recovery(), record.version)
            except (BadVersion, NoSuchKey):
                record = await self._records.get(self._ledger_id)
        return record

    async def _settle(self, metadata: LedgerMetadata) -> LedgerMetadata:
        self._nonce = metadata.nonce
        start = await self._fence(metadata)
        write_back = WriteBack(self._env, self._client, self._settings, metadata, start)
        reading = ReadingState(metadata, start)
        length: int | None = None
        window = ENTRIES_PER_READ_FIRST
        try:
            while reading.phase is ReadingPhase.READING:
                await self._read(metadata, reading, window)
                window = min(2 * window, ENTRIES_PER_READ_MAX)
                recovered = reading.take()
                if recovered:
                    length = recovered[-1].length
                    await write_back.write(recovered)
        finally:
            write_back.stop()
        if reading.phase is ReadingPhase.GIVEN_UP:
            raise RecoveryFailed(
                f"the bookies at hand cannot say whether ledger {self._ledger_id} has entry {reading.next_entry}",
                ledger_id=self._ledger_id,
                entry_id=reading.next_entry,
            )
        last = reading.next_entry - 1
        if length is None:
            length = await self._length_at(metadata, last)
        return write_back.metadata.close(last, length)

    # -- fencing ---------------------------------------------------------------------------------------------------

    async def _fence(self, metadata: LedgerMetadata) -> int:
        """Fence the last fragment; returns the first entry to recover."""
        fencing = FencingState(metadata)
        tasks = {
            asyncio.create_task(self._client.fence(bookie, self._ledger_id, metadata.nonce)): bookie
            for bookie in fencing.bookies
        }
        try:
            while fencing.phase is FencingPhase.WAITING:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task in done]:
                    bookie = tasks.pop(task)
                    try:
                        fencing.known(bookie, task.result().lac)
                    except (NoSuchLedger, NoSuchEntry):
                        fencing.known(bookie)
                    except MagnetarError as error:
                        logger.info("ledger %d: bookie %s cannot be fenced: %s", self._ledger_id, bookie, error)
                        fencing.unknown(bookie)
        finally:
            await _cancel(tasks)
        if fencing.phase is FencingPhase.GIVEN_UP:
            raise RecoveryFailed(
                f"too many bookies of ledger {self._ledger_id} cannot be fenced", ledger_id=self._ledger_id
            )
        return fencing.start

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _read(self, metadata: LedgerMetadata, reading: ReadingState, window: int) -> None:
        """Ask all bookies of the last fragment for the next `window` entries, until these are decided, or all have
        answered, or one that was cut short by its size could say more if it was asked from the next entry on: then a
        hung bookie is not waited for."""
        first = reading.next_entry
        last = first + window - 1
        tasks = {
            asyncio.create_task(
                self._client.read(
                    bookie,
                    self._ledger_id,
                    metadata.nonce,
                    first,
                    last,
                    self._settings.bookie_read_bytes_max,
                    fence=True,
                )
            ): bookie
            for bookie in metadata.last_fragment.bookies
        }
        ends = last + 1
        try:
            while tasks and reading.phase is ReadingPhase.READING and reading.next_entry <= last:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                spoken_of = [
                    self._take(reading, tasks.pop(task), first, last, task)
                    for task in [task for task in tasks if task in done]
                ]
                ends = min(ends, *spoken_of)
                reading.judge()
                if first < reading.next_entry and ends <= reading.next_entry:
                    return
        finally:
            await _cancel(tasks)

    def _take(self, reading: ReadingState, bookie: str, first: int, last: int, task: "asyncio.Task[ReadAnswer]") -> int:
        """Note what a bookie said; returns the first entry behind those that it spoke of."""
        try:
            answer = task.result()
        except (NoSuchEntry, NoSuchLedger):
            for entry_id in range(first, last + 1):
                reading.denied(entry_id, bookie)
            return last + 1
        except EntryCorrupt:
            reading.failed(first, bookie)
            return first + 1
        except MagnetarError as error:
            logger.info("ledger %d: bookie %s cannot say what it has: %s", self._ledger_id, bookie, error)
            for entry_id in range(first, last + 1):
                reading.failed(entry_id, bookie)
            return last + 1
        given: dict[int, None] = {}
        for number, data in enumerate(answer.entries):
            try:
                entry = decode_entry(data)
                if not self._is_ours(entry) or not first <= entry.entry_id <= last:
                    raise EntryCorrupt(f"got entry {entry.ledger_id}:{entry.entry_id}")
            except (EntryCorrupt, ProtocolError) as error:
                # Which entry it was cannot be trusted: from the last good one on this answer denies nothing.
                logger.warning("bookie %s gave a damaged entry of ledger %d: %s", bookie, self._ledger_id, error)
                doubtful = max(given, default=first - 1) + 1
                for entry_id in range(doubtful, last + 1):
                    reading.failed(entry_id, bookie)
                for other in answer.entries[number + 1 :]:
                    self._take_one(reading, other, first, last)
                return last + 1
            given[entry.entry_id] = None
            reading.found(entry)
        for entry_id in range(first, min(answer.next_entry, last + 1)):
            if entry_id not in given:
                reading.denied(entry_id, bookie)
        if answer.next_entry <= first:
            reading.failed(first, bookie)
        return min(max(answer.next_entry, first + 1), last + 1)

    def _take_one(self, reading: ReadingState, data: memoryview, first: int, last: int) -> None:
        """An entry behind a damaged one still proves itself."""
        try:
            entry = decode_entry(data)
        except (EntryCorrupt, ProtocolError):
            return
        if self._is_ours(entry) and first <= entry.entry_id <= last:
            reading.found(entry)

    def _is_ours(self, entry: LedgerEntry) -> bool:
        return (entry.ledger_id, entry.nonce) == (self._ledger_id, self._nonce)

    async def _length_at(self, metadata: LedgerMetadata, last: int) -> int:
        """Bytes up to an acknowledged entry that did not have to be recovered. A statistic: 0 when unreadable.

        All copies are asked at once and the first intact one counts: a hung bookie costs no time here either.
        """
        tasks = {
            asyncio.create_task(self._client.read(bookie, self._ledger_id, metadata.nonce, last, last, 1)): bookie
            for bookie in (metadata.write_set(last) if last >= 0 else ())
        }
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in tasks if task in done]:
                    bookie = tasks.pop(task)
                    try:
                        entry = decode_entry(b"".join(task.result().entries[:1]))
                    except MagnetarError as error:
                        logger.info("bookie %s has no entry %d:%d: %s", bookie, self._ledger_id, last, error)
                        continue
                    if self._is_ours(entry) and entry.entry_id == last:
                        return entry.length
        finally:
            await _cancel(tasks)
        return 0


class WriteBack:
    """Writes recovered entries back with the recovery flag. `metadata` carries the ensemble changes, in memory only.

    It comes to an end: a bookie that refuses an entry gets no slot again, and one that has buried the ledger says that
    it was deleted, which no other bookie can make good. One that is late is suspect for a while; each time that nothing
    came of a wait the next one is longer, and they are numbered: what is sent anew to bookies that are late because
    they have too much to do is one more thing to do.
    """

    def __init__(
        self, env: Environment, client: BookieClient, settings: Settings, metadata: LedgerMetadata, first_entry: int
    ) -> None:
        self.metadata = metadata
        self._env = env
        self._client = client
        self._settings = settings
        self._state = LedgerWriterState(metadata, first_entry)
        self._refusing: dict[str, None] = {}
        self._buried_at = ""
        self._progress = asyncio.Event()

    async def write(self, entries: list[LedgerEntry]) -> None:
        """Write entries, in order, each to an ack quorum. Raises RecoveryFailed when too few bookies take them."""
        loop = asyncio.get_running_loop()
        state = self._state
        for entry in entries:
            pending = state.add(entry.body)
            header = encode_entry_header(
                entry.ledger_id, entry.nonce, entry.entry_id, entry.lac, entry.length, entry.body
            )
            pending.parts = encode_add(header, entry.body, recovery=True)
            for slot in state.targets(pending.entry_id):
                self._send(pending, slot)
        late = 0
        deadline = loop.time() + self._settings.add_entry_timeout_s
        while state.pending:
            if self._buried_at:
                raise RecoveryFailed(
                    f"ledger {self.metadata.ledger_id} was deleted during its recovery: {self._buried_at} has buried it"
                )
            self._change_ensemble()
            if state.end_error is not None:
                raise RecoveryFailed(f"cannot write ledger {self.metadata.ledger_id} back: {state.end_error}")
            if not state.pending:
                break
            self._progress.clear()
            lac = state.lac
            try:
                async with asyncio.timeout_at(deadline):
                    await self._progress.wait()
            except TimeoutError:
                late += 1
                if late == LATE_ROUNDS_MAX:
                    raise RecoveryFailed(
                        f"bookies do not answer in time: entry {lac + 1} of ledger {self.metadata.ledger_id} cannot be "
                        "written back"
                    ) from None
                self._fail_late_slots()
            if state.lac != lac:
                late = 0
            if state.lac != lac or state.phase is WriterPhase.NEEDS_CHANGE:
                deadline = loop.time() + self._settings.add_entry_timeout_s * min(2**late, PATIENCE_MAX)

    def stop(self) -> None:
        """No answer counts any more."""
        self._state.end()

    def _send(self, entry: PendingEntry, slot: int) -> None:
        self._client.add(
            self._state.ensemble[slot], entry.parts, partial(self._answered, entry, slot, self._state.tenures[slot])
        )

    def _answered(self, entry: PendingEntry, slot: int, tenure: int, status: int, payload: bytes) -> None:
        if status == BookieStatus.OK:
            self._state.added(entry.entry_id, slot, tenure)
        elif status == BookieStatus.OVERLOADED:
            asyncio.get_running_loop().call_later(OVERLOADED_RETRY_S, self._send_again, entry, slot, tenure)
            return
        else:
            bookie = self._state.ensemble[slot]
            if not self._state.slot_failed(slot, tenure):
                return
            if status == BookieStatus.NO_SUCH_LEDGER:
                self._buried_at = bookie
            elif status != STATUS_DISCONNECTED:
                self._refusing[bookie] = None
        self._progress.set()

    def _send_again(self, entry: PendingEntry, slot: int, tenure: int) -> None:
        state = self._state
        if state.tenures[slot] == tenure and state.phase is not WriterPhase.ENDED:
            self._send(entry, slot)

    def _fail_late_slots(self) -> None:
        """The first pending entry waits for too long: whoever has not stored it is replaced."""
        state = self._state
        first = state.pending.get(state.lac + 1)
        if first is not None:
            for slot in state.targets(first.entry_id):
                if not first.acks >> slot & 1:
                    bookie, tenure = state.ensemble[slot], state.tenures[slot]
                    state.slot_failed(slot, tenure)
                    self._client.report_slow(bookie)

    def _change_ensemble(self) -> None:
        state = self._state
        if state.phase is not WriterPhase.NEEDS_CHANGE:
            return
        slots = state.begin_change()
        taken = [*state.ensemble, *self.metadata.last_fragment.bookies]
        replaced = replace_slots(self._env.random, taken, slots, self._client.usable(), self._refusing)
        if not replaced:
            state.abandon_change(slots)
            return
        ensemble = list(state.ensemble)
        for slot, bookie in replaced.items():
            ensemble[slot] = bookie
        self.metadata = self.metadata.with_ensemble(state.change_start, tuple(ensemble))
        unreplaced = [slot for slot in slots if state.slots[slot] is SlotState.FAILED and slot not in replaced]
        resend, _ = state.commit_change(self.metadata, replaced, unreplaced)
        for entry, slot in resend:
            self._send(entry, slot)


def _on_top_of(theirs: LedgerMetadata, ours: LedgerMetadata) -> LedgerMetadata:
    """Our closing, with fragments before the last one as somebody (the auditor) changed them meanwhile."""
    boundary = theirs.last_fragment.first_entry
    settled = tuple(fragment for fragment in ours.fragments if fragment.first_entry >= boundary)
    earlier = tuple(fragment for fragment in theirs.fragments[:-1] if fragment.first_entry <= max(ours.last_entry, 0))
    merged = replace(theirs, fragments=(*earlier, *settled))
    return merged.close(ours.last_entry, ours.length)


async def _cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait for them."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
