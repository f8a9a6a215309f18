"""Recovery of a ledger whose writer is gone: fence it, find its end, complete its last entries, close it.

Steps (decisions in `ledger.recovery_state`, write-back by a `LedgerWriterState`):

1. OPEN → IN_RECOVERY by compare-and-set. CLOSED: nothing to do. IN_RECOVERY: another recovery began; repeat it from the
   start.
2. Fence all bookies of the last fragment, until no ack quorum of unfenced ones is left.
3. Read from `max(highest LAC, start of the last fragment − 1) + 1` on, fencing again with each read, until the end is
   certain, and write each entry found back, the same bytes, to an ack quorum, in order.
4. IN_RECOVERY → CLOSED with last entry, length and fragments in one compare-and-set. Bookies that failed during the
   write-back are replaced in memory only until then. If another recovery closed it, its record counts.

**A ledger in doubt.** The metadata may have been restored from a backup (`metadata.ledger_ids`). A ledger that is OPEN
or IN_RECOVERY there may have got other ensembles and more entries since, even been closed or deleted. Its record then
names bookies of which no ack quorum holds the newest entries, and their denials mean nothing. What holds instead:

- Every bookie that could hold an entry has a cookie. (One that was added after the backup has none, and is refused.)
- An acknowledged entry of a ledger that was not deleted is on Qa bookies. Copies that were given up do not count
  against that. A bookie gives its copy up only when the CLOSED record names others, and then answers UNKNOWN, which is
  no denial.

So steps 2 and 3 ask all registered bookies and those that the record names. Each is a member of one large write set
(`ledger.recovery_state`). They start where the recorded last fragment begins. Whatever is found is written back to the
recorded ensemble, with failed bookies replaced: that is what the CLOSED record then names. Earlier fragments stay as
recorded, like those of a ledger that was CLOSED in the backup. When too few bookies answer, LedgerInDoubt is raised,
and the ledger stays as it is until they do. Before it closes a ledger, recovery checks again whether it is in doubt. A
bookie that registered meanwhile may have shown that the metadata is older.

A tombstone proves that the ledger was deleted after the backup. A bookie with one is replaced. When there is no other
bookie, the ledger is closed behind the entries that were written back. The ledger was deleted, so no reader has a claim
to the rest, and otherwise the topic could never be opened.

Several recoverers of one ledger may run at once, each may stop anywhere and begin again: all steps repeat safely. When
the bookies that answer cannot settle a question, RecoveryFailed is raised and the ledger stays IN_RECOVERY. Recovery
never cuts a ledger off on a guess.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...protocol.bookie_wire import LedgerEntry, decode_entry
from ...protocol.errors import (
    BadVersion,
    EntryCorrupt,
    LedgerInDoubt,
    MagnetarError,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    ProtocolError,
    RecoveryFailed,
)
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..metadata.ledger_metadata import LedgerMetadata, LedgerState
from ..metadata.ledger_records import LedgerRecord, LedgerRecords
from .bookie_client import BookieClient, ReadAnswer
from .recovery_state import FencingPhase, FencingState, ReadingPhase, ReadingState
from .write_back import WriteBack

logger = logging.getLogger(__name__)

ENTRIES_PER_READ_FIRST = 4
"""A ledger usually ends right behind its LAC, and each requested entry costs an answer of every bookie. So a long tail
is read with ever larger requests.
"""
ENTRIES_PER_READ_MAX = 256


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
            everyone = await self._everyone(record.metadata)
            closed = await self._settle(record.metadata, everyone)
            base = record.metadata
            while True:
                if not everyone and self._in_doubt():
                    break  # a bookie has shown meanwhile that the metadata is older than the ledgers
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

    def _in_doubt(self) -> bool:
        return self._client.directory.in_doubt(self._ledger_id)

    async def _everyone(self, metadata: LedgerMetadata) -> tuple[str, ...]:
        """All bookies there are, if the ledger is in doubt."""
        if not self._in_doubt():
            return ()
        logger.warning(
            "ledger %d was open in the backup from which the metadata was restored, so all bookies are asked for it",
            self._ledger_id,
        )
        return tuple(sorted(dict.fromkeys([*await self._records.registered_bookies(), *metadata.bookies])))

    async def _settle(self, metadata: LedgerMetadata, everyone: Sequence[str]) -> LedgerMetadata:
        self._nonce = metadata.nonce
        fencing = await self._fence(metadata, everyone)
        start = fencing.start
        write_back = WriteBack(self._env, self._client, self._settings, metadata, start, in_doubt=bool(everyone))
        reading = ReadingState(metadata, start, everyone, fencing.lac)
        length: int | None = None
        window = ENTRIES_PER_READ_FIRST
        try:
            while reading.phase is ReadingPhase.READING and not write_back.deleted:
                await self._read(everyone or metadata.last_fragment.bookies, reading, window)
                window = min(2 * window, ENTRIES_PER_READ_MAX)
                for recovered in _without_gaps(reading.take()):
                    if recovered[0].entry_id != write_back.next_entry:  # those before it were passed over
                        write_back = write_back.behind(recovered[0].entry_id)
                    length = recovered[-1].length
                    await write_back.write(recovered)
        finally:
            write_back.stop()
        if write_back.deleted:
            last = write_back.next_entry - 1
            logger.warning("ledger %d was deleted after the backup and is closed at entry %d", self._ledger_id, last)
            return write_back.metadata.close(last, await self._length_at(write_back.metadata, last))
        if reading.phase is ReadingPhase.GIVEN_UP and everyone:
            raise self._doubt(reading.silent)
        if reading.phase is ReadingPhase.GIVEN_UP:
            raise RecoveryFailed(
                f"too few bookies answered whether ledger {self._ledger_id} has entry {reading.next_entry}: start the "
                "missing bookies",
                ledger_id=self._ledger_id,
                entry_id=reading.next_entry,
            )
        last = reading.next_entry - 1
        if length is None:
            length = await self._length_at(metadata, last)
        return write_back.metadata.close(last, length)

    def _doubt(self, silent: Sequence[str]) -> LedgerInDoubt:
        return LedgerInDoubt(
            f"ledger {self._ledger_id} was open in the backup from which the metadata was restored. These bookies "
            f"did not say what they hold of it: {', '.join(silent)}. Closing it without them could lose acknowledged "
            "messages. Start them, or restore a newer backup. The broker then recovers the ledger by itself",
            ledger_id=self._ledger_id,
            bookies=list(silent),
        )

    # -- fencing ---------------------------------------------------------------------------------------------------

    async def _fence(self, metadata: LedgerMetadata, everyone: Sequence[str]) -> FencingState:
        """Fence the last fragment, or everyone."""
        fencing = FencingState(metadata, everyone)
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
                        logger.info("ledger %d could not be fenced on bookie %s: %s", self._ledger_id, bookie, error)
                        fencing.unknown(bookie)
        finally:
            await _cancel(tasks)
        if fencing.phase is FencingPhase.GIVEN_UP and everyone:
            raise self._doubt(fencing.silent)
        if fencing.phase is FencingPhase.GIVEN_UP:
            raise RecoveryFailed(
                f"too few bookies of ledger {self._ledger_id} could be fenced: start the missing bookies",
                ledger_id=self._ledger_id,
            )
        return fencing

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _read(self, bookies: Sequence[str], reading: ReadingState, window: int) -> None:
        """Ask bookies for the next `window` entries, until these are decided or all have answered. It also ends when an
        answer that was cut short by its size could continue from the next entry on: it then does not wait for a hung
        bookie.
        """
        first = reading.next_entry
        last = first + window - 1
        tasks = {
            asyncio.create_task(
                self._client.read(
                    bookie,
                    self._ledger_id,
                    self._nonce,
                    first,
                    last,
                    self._settings.bookie_read_bytes_max,
                    fence=True,
                )
            ): bookie
            for bookie in bookies
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
            logger.info("ledger %d: bookie %s did not say what it holds: %s", self._ledger_id, bookie, error)
            for entry_id in range(first, last + 1):
                reading.failed(entry_id, bookie)
            return last + 1
        given: dict[int, None] = {}
        for number, data in enumerate(answer.entries):
            try:
                entry = decode_entry(data)
                if not self._is_ours(entry) or not first <= entry.entry_id <= last:
                    raise EntryCorrupt(f"the bookie returned entry {entry.ledger_id}:{entry.entry_id} instead")
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


def _without_gaps(entries: list[LedgerEntry]) -> list[list[LedgerEntry]]:
    """Entries in order, cut where ids are missing."""
    runs: list[list[LedgerEntry]] = []
    for entry in entries:
        if runs and entry.entry_id == runs[-1][-1].entry_id + 1:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _on_top_of(theirs: LedgerMetadata, ours: LedgerMetadata) -> LedgerMetadata:
    """Our closing, with fragments before the last one as the auditor changed them meanwhile."""
    boundary = theirs.last_fragment.first_entry
    settled = tuple(fragment for fragment in ours.fragments if fragment.first_entry >= boundary)
    earlier = tuple(fragment for fragment in theirs.fragments[:-1] if fragment.first_entry <= max(ours.last_entry, 0))
    merged = replace(theirs, fragments=(*earlier, *settled))
    return merged.close(ours.last_entry, ours.length)


async def _cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
