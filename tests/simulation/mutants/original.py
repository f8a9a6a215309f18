"""Known bugs of the original, for the mutation gate."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from magnetar.actors.bookie.service import BookieService
from magnetar.protocol.errors import EntryCorrupt, LedgerFenced, MagnetarError
from magnetar.storage.bookie.entry_store import EntryStore
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.ledger import bookie_client
from magnetar.storage.ledger.recovery import LedgerRecovery
from magnetar.storage.ledger.recovery_state import FencingPhase, FencingState
from magnetar.storage.ledger.write_back import WriteBack
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.ledger.writer_state import LedgerWriterState, WriterPhase
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

from ..explorer.writer import Writer
from .mutant import Denying, Mutant, replace

# -- found by the explorer -------------------------------------------------------------------------------------------


def _recovery_reads_do_not_fence(stack: ExitStack) -> None:
    encode = bookie_client.encode_read

    def encode_read(ledger_id: int, nonce: int, first: int, last: int, bytes_max: int, fence: bool = False) -> bytes:
        return encode(ledger_id, nonce, first, last, bytes_max, False)

    replace(stack, bookie_client, "encode_read", encode_read)


def _no_floor(stack: ExitStack) -> None:
    replace(stack, FencingState, "start", property(lambda self: self.lac + 1))


class _Early:
    """A writer's records: commits its ensemble change when the compare-and-set leaves, not when it landed."""

    def __init__(self, writer: Any, slots: tuple[int, ...]) -> None:
        self.writer, self.slots, self.committed = writer, slots, False
        self.records = writer._records

    async def replace(self, target: LedgerMetadata, version: int, **options: Any) -> Any:
        if not self.committed:
            self.committed = True
            self.commit(target)
        return await self.records.replace(target, version, **options)

    def commit(self, target: LedgerMetadata) -> None:
        writer, state = self.writer, self.writer._state
        bookies = target.last_fragment.bookies
        replaced = {slot: name for slot, name in enumerate(bookies) if name != state.ensemble[slot]}
        resend, done = state.commit_change(target, replaced, [slot for slot in self.slots if slot not in replaced])
        for entry, slot in resend:
            writer._watch.sent[slot] += 1
            answered = partial(writer._answered, entry, slot, state.tenures[slot])
            writer._client.add(state.ensemble[slot], entry.parts, answered)
        writer._confirm(done)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.records, name)


def _commit_before_the_record(stack: ExitStack) -> None:
    async def change_while_needed(self: Any) -> None:
        state: LedgerWriterState = self._state
        while state.phase is WriterPhase.NEEDS_CHANGE:
            slots = state.begin_change()
            early = self._records = _Early(self, slots)
            try:
                change = await self._store_change(slots)
                if change is not None:
                    self._record = change[0]
            except LedgerFenced as error:
                self._end(error)
                return
            except MagnetarError:
                change = None
            finally:
                self._records = early.records
            if state.end_error is not None:
                self._fail(state.take_pending(), state.end_error, tell=True)
                return
            if change is None and not early.committed:
                self._confirm(state.abandon_change(slots))

    replace(stack, LedgerWriter, "_change_while_needed", change_while_needed)

    def proposed(self: Writer, target: LedgerMetadata, replaced: dict[int, str]) -> None:
        self.commit(target, replaced)
        self.cas = ("early", "sent")

    replace(stack, Writer, "proposed", proposed)


# -- for the simulator -----------------------------------------------------------------------------------------------


def _commit_changes_in_mid_recovery(stack: ExitStack) -> None:
    claim, change = LedgerRecovery._claim, WriteBack._change_ensemble
    claimed: dict[int, Any] = {}

    async def claiming(self: Any, record: Any) -> Any:
        claimed[self._ledger_id] = self._records, await claim(self, record)
        return claimed[self._ledger_id][1]

    async def store(records: Any, metadata: LedgerMetadata, version: int) -> None:
        try:
            await records.replace(metadata, version)
        except MagnetarError:
            return

    def changing(self: Any) -> None:
        before = self.metadata
        change(self)
        if self.metadata is not before and before.ledger_id in claimed:
            records, record = claimed[before.ledger_id]
            self._committing = asyncio.create_task(store(records, self.metadata, record.version))

    replace(stack, LedgerRecovery, "_claim", claiming)
    replace(stack, WriteBack, "_change_ensemble", changing)


def _corrupt_is_absent(stack: ExitStack) -> None:
    take = LedgerRecovery._take

    def taking(self: Any, reading: Any, bookie: str, first: int, last: int, task: Any) -> int:
        broken = task.exception()
        denying = broken is None or isinstance(broken, EntryCorrupt)
        return take(self, Denying(reading) if denying else reading, bookie, first, last, task)  # type: ignore[arg-type]

    replace(stack, LedgerRecovery, "_take", taking)


def _no_tombstones(stack: ExitStack) -> None:
    def add_tombstone(self: Any, ledger_id: int) -> None:
        state = self.ledgers.pop(ledger_id, None)
        for segment in state.segments if state is not None else ():
            segment.live_bytes -= segment.ledger_bytes(ledger_id)

    replace(stack, EntryStore, "add_tombstone", add_tombstone)


def _no_limbo(stack: ExitStack) -> None:
    replace(stack, EntryStore, "limbo", property(lambda self: "", lambda self, value: None), create=True)


def _wait_for_all(stack: ExitStack) -> None:
    judge = FencingState._judge

    def judging(self: Any) -> FencingPhase:
        return judge(self) if len(self._replies) == len(self.bookies) else self.phase

    replace(stack, FencingState, "_judge", judging)


def _collect_what_is_copied(stack: ExitStack) -> None:
    """The original drops copies that a closed ledger's record does not place on the bookie (yet), without a lock."""
    collect = BookieService.collect_garbage

    async def collecting(self: Any, *, major: bool = False) -> dict[str, int]:
        done = await collect(self, major=major)
        local = sorted(self.store.entries.ledgers)
        answers = await self._coordinator.metadata.get_many([metadata_keys.ledger(one) for one in local])
        found = [LedgerMetadata.unpack(answer.value) for answer in answers if answer is not None]
        await self.store.add_tombstones(
            [
                metadata.ledger_id
                for metadata in found
                if metadata.closed and all(self.identity.node_id not in bookies for _, bookies in metadata.fragments)
            ]
        )
        return done

    replace(stack, BookieService, "collect_garbage", collecting)


def _fence_only_in_memory(stack: ExitStack) -> None:
    def fence(self: Any, ledger_id: int, nonce: int, callback: Callable[[BaseException | None], None]) -> None:
        if ledger_id not in self.entries.tombstones:
            state = self._ledgers.get(ledger_id) or self._learn(ledger_id, nonce)
            state.fenced = state.touched = True
        self._journal.after_pending(callback)

    replace(stack, BookieStore, "_fence", fence)


ORIGINAL = (
    Mutant("#2614", "only the LAC read fences, recovery reads do not", "I3", _recovery_reads_do_not_fence),
    Mutant("#2615", "recovery starts at LAC + 1 without the fragment's floor", "I8", _no_floor),
    Mutant("#1591", "new bookies' acknowledgements count before the record", "I1", _commit_before_the_record),
    Mutant("PR 1621", "ensemble changes are committed in mid-recovery", "I1", _commit_changes_in_mid_recovery),
    Mutant("#2908", "corruption is taken for absence", "I1", _corrupt_is_absent),
    Mutant("PR 4462", "no tombstone stays of a deleted ledger", "I3", _no_tombstones),
    Mutant("#2612", "a bookie that lost data says that there is nothing", "I1", _no_limbo),
    Mutant("#1067", "recovery waits for every bookie", "I8", _wait_for_all),
    Mutant("#4668", "garbage collection does not see a copy under way", "I9", _collect_what_is_copied),
    Mutant("PR 4843", "a fence is kept in memory only", "I3", _fence_only_in_memory),
)
"""The invariants were named before the simulator was run, save two. #1591 was named I3 (closed without
covering an acknowledged entry) and first showed as I1 in the explorer (covered, but not where the record says). #2615
was named I3 and shows as I8: here only bookies of an entry's own fragment can deny it, so a recovery that begins too
early does not cut anything off, it fails or goes round for ever.

"#4668" is what the original did. Not to look at `touched` here changes nothing that anybody could see, because a
collection asks for the ledger's record only, ids are never used twice, and no read of the metadata is stale.
"""
