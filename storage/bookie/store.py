"""The rules of a bookie: what may be added, when a ledger is fenced, what absence means.

Each request is decided synchronously on the loop, then waits for the disk by callback; there is no coroutine, future
or lock per entry. That is what makes the fence check and the add one step.

The answer to an ADD, first match:

    malformed, or its digest wrong            BAD_REQUEST, CORRUPT
    larger than the frame limit               TOO_LARGE
    ledger tombstoned                         FENCED (a zombie writer), NO_SUCH_LEDGER to a recovery add
    another ledger held under this id         FOREIGN
    ledger fenced, ordinary add               FENCED
    bookie read-only, or the ledger unknown
      while in limbo or below the fence floor READ_ONLY, ordinary adds only
    too many bytes pending                    OVERLOADED
    same bytes already stored and intact      OK, once they are durable
    other bytes already stored                CONFLICT
    else                                      OK, once it is durable

"Another ledger" is one with another nonce (see `protocol.bookie_wire`). FOREIGN is then the answer to a READ, a FENCE
and a READ_LAC, too, and nothing is changed.

The bookie as a whole:

    WRITABLE ⇄ READ_ONLY      disk ≥ 95% full or no room for a journal / below 90% again
    NORMAL → IN_LIMBO         corruption found, or it replaced a lost disk; durable
    IN_LIMBO → NORMAL         `clear_limbo`, after the auditor has copied everything back; durable
    any → FAILED              a write or sync failed: nothing is served from then on, `on_fatal` tells the shell

Guarantees: a fence is durable before it is answered, and the answer covers every add that was accepted before it. In
limbo, absence is answered UNKNOWN, and all known ledgers are fenced. Absence in a ledger that was given up is answered
UNKNOWN, too. A tombstoned ledger never takes an entry again. After limbo, unknown ledgers below the fence floor stay
closed to ordinary adds, because their fences may be among the lost data.

What a bookie may store, as pure decisions: the fence check of an ADD. `BookieStore` carries them out.

They are plain functions of what the bookie knows, so that the exhaustive explorer (tests/simulation/explorer) takes
the very decisions that run in production. The order of the checks is the table in `bookie`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from crc32c import crc32c

from ...protocol.bookie_wire import (
    ADD_FLAG_RECOVERY,
    ENTRY_ID_MAX,
    BookieOp,
    BookieStatus,
    decode_ledger,
    decode_read,
    encode_ledger_end,
    encode_read_answer,
)
from ...protocol.errors import (
    BadVersion,
    DiskFull,
    ForeignLedger,
    MagnetarError,
    NoSuchLedger,
    ProtocolError,
    StorageFailed,
)
from ...runtime.environment import Environment
from ...runtime.files import DiskUsage
from ...runtime.settings.declarations import Settings
from .entry_store import EntryStore
from .held_ledgers import HeldLedger
from .journal import Responder
from .records import DIGESTED_HEAD_END, ENTRY_HEAD, ENTRY_HEAD_SIZE, FENCE_BODY, KIND_FENCE, KIND_TOMBSTONE, LEDGER_BODY
from .segment_reader import RangeResult

logger = logging.getLogger(__name__)


def refuse_unknown_ledger(recovery: int, tombstoned: bool, writable: bool, doubtful: bool) -> BookieStatus | None:
    """Why a ledger that the bookie holds nothing of takes no add, or None.

    `recovery` is the ADD's flags (0 for an ordinary add), `doubtful` whether a fence may have been lost with a disk.
    """
    if tombstoned:
        return BookieStatus.NO_SUCH_LEDGER if recovery else BookieStatus.FENCED
    if not recovery and (not writable or doubtful):
        return BookieStatus.READ_ONLY
    return None


def refuse_known_ledger(recovery: int, fenced: bool, writable: bool) -> BookieStatus | None:
    """Why a ledger that the bookie knows takes no add, or None. Recovery adds pass the fence."""
    if recovery:
        return None
    if fenced:
        return BookieStatus.FENCED
    return None if writable else BookieStatus.READ_ONLY


def judge_repeated(stored_digest: int, digest: int) -> BookieStatus:
    """The answer to an ADD of an entry that is stored already: adds are idempotent on (ledger, entry, digest)."""
    return BookieStatus.OK if stored_digest == digest else BookieStatus.CONFLICT


_ADD, _OK = int(BookieOp.ADD), int(BookieStatus.OK)


class BookieStore:
    """See the module. `segment_bytes` overrides the setting's size of a journal file."""

    def __init__(
        self,
        env: Environment,
        directory: str,
        instance: str,
        settings: Settings,
        *,
        on_fatal: Callable[[BaseException], None],
        segment_bytes: int | None = None,
    ) -> None:
        self.writable = True
        self.failed: BaseException | None = None
        self.on_change: Callable[[], None] = _nobody
        """Called when `writable`, `limbo` or `failed` changed."""
        self._settings = settings
        self._env = env
        self._on_fatal = on_fatal
        self._size_max = settings.bookie_frame_size_max_bytes
        self._pending_bytes_max = settings.bookie_pending_bytes_max
        self._lookup_bytes = 0
        self._disk_full = False
        self.entries = EntryStore(
            env,
            directory,
            instance,
            segment_bytes=segment_bytes or settings.segment_size_bytes,
            sync=settings.journal_sync_data,
            on_out_of_space=self._became_full,
            on_damage=self._found_damage,
            on_fatal=self._fail,
        )
        self.entries.damage.on_change = self._damage_changed
        self._ledgers = self.entries.ledgers
        self._journal = self.entries.journal
        self._reads = self.entries.reads

    async def open(self) -> None:
        """Replay and begin to serve. Raises CookieMismatch, DiskFull, OSError."""
        damage = await self.entries.open()
        if damage:
            logger.error(
                "%s: data is damaged, so the bookie is in limbo: %s", self.entries.directory, "; ".join(damage)
            )

    async def close(self) -> None:
        """Serve nothing more, make everything accepted durable, let go of the files."""
        await self.entries.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(self, responder: Responder, op: int, request_id: int, payload: bytes) -> None:
        """Serve one data request; `responder` gets exactly one answer, now or later."""
        if op == _ADD:
            status = self.add(payload, responder, request_id)
            if status is not None:
                responder.respond(request_id, status)
            return
        if self.failed is not None:
            responder.respond(request_id, BookieStatus.IO_ERROR)
            return
        try:
            if op == BookieOp.READ:
                self._read(responder, request_id, payload)
            elif op == BookieOp.FENCE:
                key = decode_ledger(payload)
                self._fence(*key, lambda error: self._answer_state(responder, request_id, *key, error))
            elif op == BookieOp.READ_LAC:
                key = decode_ledger(payload)
                self._journal.after_pending(lambda error: self._answer_state(responder, request_id, *key, error))
            else:
                responder.respond(request_id, BookieStatus.BAD_REQUEST)
        except ProtocolError:
            responder.respond(request_id, BookieStatus.BAD_REQUEST)

    def add(self, payload: bytes, responder: Responder, request_id: int) -> int | None:
        """Decide on an ADD request. Returns the status to answer with at once, or None: `responder` hears later."""
        size = len(payload)
        if size < ENTRY_HEAD_SIZE:
            return BookieStatus.BAD_REQUEST
        head = payload[:ENTRY_HEAD_SIZE]
        flags, ledger_id, nonce, entry_id, lac, _, digest = ENTRY_HEAD.unpack(head)
        if flags & ~ADD_FLAG_RECOVERY or entry_id > ENTRY_ID_MAX or lac < -1:
            return BookieStatus.BAD_REQUEST
        if size > self._size_max:
            return BookieStatus.TOO_LARGE
        if crc32c(memoryview(payload)[ENTRY_HEAD_SIZE:], crc32c(head[1:DIGESTED_HEAD_END])) != digest:
            return BookieStatus.CORRUPT
        state = self._ledgers.get(ledger_id)
        if state is None:
            refusal = self._refuse_unknown_ledger(ledger_id, flags)
            if refusal is not None:
                return refusal
            state = self._learn(ledger_id, nonce)
        elif state.nonce != nonce:
            return BookieStatus.FOREIGN
        if state.fenced or not self.writable:  # nothing else refuses an add to a known ledger
            refusal = refuse_known_ledger(flags, state.fenced, self.writable)
            if refusal is not None:
                return refusal
        if flags:
            state.touched = state.new_here = True
        if self._journal.pending_bytes + self._lookup_bytes + size > self._pending_bytes_max:
            return BookieStatus.OVERLOADED
        if entry_id <= state.last_entry:
            return self._add_again(state, payload, head, responder, request_id)
        return self.entries.append_entry(state, payload, head, entry_id, lac, digest, responder, request_id)

    def _refuse_unknown_ledger(self, ledger_id: int, flags: int) -> int | None:
        """Why a ledger that the bookie holds nothing of takes no add, or None."""
        entries = self.entries
        return refuse_unknown_ledger(flags, ledger_id in entries.tombstones, self.writable, self._doubtful(ledger_id))

    def _doubtful(self, ledger_id: int) -> bool:
        """Whether a fence of a ledger that nothing is known of may have been lost."""
        return bool(self.entries.limbo) or ledger_id < self.entries.fence_floor

    def _learn(self, ledger_id: int, nonce: int) -> HeldLedger:
        state = self._ledgers[ledger_id] = HeldLedger(ledger_id, nonce)
        if self._doubtful(ledger_id):
            state.fenced = state.fence_durable = True  # limbo and floor are durable, and say the same
        return state

    def _add_again(
        self, state: HeldLedger, payload: bytes, head: bytes, responder: Responder, request_id: int
    ) -> int | None:
        """An entry at or below the highest known: stored before, or a gap that is filled now."""
        _, ledger_id, _, entry_id, lac, _, digest = ENTRY_HEAD.unpack(head)
        found = self._reads.find_unsealed(state, entry_id)
        if found is not None:
            segment, row = found
            verdict = judge_repeated(row.digest, digest)
            if verdict is not BookieStatus.OK:
                return verdict
            if row.offset < segment.synced_end:
                if self.entries.damage.notes.has(ledger_id, entry_id):
                    return self.entries.append_entry(state, payload, head, entry_id, lac, digest, responder, request_id)
                return verdict
            self._journal.after_pending(
                lambda error: responder.respond(request_id, _OK if error is None else BookieStatus.IO_ERROR)
            )
            return None
        holders = self._reads.sealed_holders(state, entry_id)
        if not holders:
            return self.entries.append_entry(state, payload, head, entry_id, lac, digest, responder, request_id)

        def looked_up(stored_digest: int | None, error: BaseException | None) -> None:
            self._lookup_bytes -= len(payload)
            status: int | None
            if error is not None:
                status = BookieStatus.IO_ERROR
            elif stored_digest is not None:
                status = judge_repeated(stored_digest, digest)
                self.entries.damage.end(ledger_id, entry_id)  # only an intact copy has a digest
            elif self._ledgers.get(ledger_id) is not state:
                status = BookieStatus.NO_SUCH_LEDGER if head[0] else BookieStatus.FENCED
            elif state.fenced and not head[0]:
                status = BookieStatus.FENCED
            elif self._reads.sealed_holders(state, entry_id) != holders or self._reads.find_unsealed(state, entry_id):
                status = self._add_again(state, payload, head, responder, request_id)
            else:
                status = self.entries.append_entry(state, payload, head, entry_id, lac, digest, responder, request_id)
            if status is not None:
                responder.respond(request_id, status)

        self._lookup_bytes += len(payload)
        self._reads.find_sealed(state, entry_id, holders, looked_up)
        return None

    def _fence(self, ledger_id: int, nonce: int, callback: Callable[[BaseException | None], None]) -> None:
        """Fence a ledger, seen before or not; `callback` when the fence, and every add accepted before, is durable.

        Another ledger of that id is left alone: what is asked for is not here, and cannot come while that one is.
        """
        if ledger_id in self.entries.tombstones:
            callback(None)
            return
        state = self._ledgers.get(ledger_id) or self._learn(ledger_id, nonce)
        if state.nonce != nonce:
            callback(None)
            return
        state.fenced = True
        state.touched = state.new_here = True
        if state.fence_durable:
            self._journal.after_pending(callback)
            return

        def durable(error: BaseException | None) -> None:
            if error is None:
                state.fence_durable = True
            callback(error)

        try:
            self._journal.append(KIND_FENCE, FENCE_BODY.pack(ledger_id, nonce), durable)
        except (DiskFull, StorageFailed) as error:
            callback(error)

    def _answer_state(
        self, responder: Responder, request_id: int, ledger_id: int, nonce: int, error: BaseException | None
    ) -> None:
        state = self._ledgers.get(ledger_id)
        if error is not None:
            responder.respond(request_id, BookieStatus.IO_ERROR)
        elif state is not None and state.nonce != nonce:
            responder.respond(request_id, BookieStatus.FOREIGN)
        elif self.entries.limbo or (state is not None and state.given_up):
            responder.respond(request_id, BookieStatus.UNKNOWN)
        elif state is None:
            responder.respond(request_id, BookieStatus.NO_SUCH_LEDGER)
        else:
            responder.respond(request_id, _OK, (encode_ledger_end(state.lac, state.last_entry),))

    def _read(self, responder: Responder, request_id: int, payload: bytes) -> None:
        wanted = decode_read(payload)

        def done(result: RangeResult | None, error: BaseException | None) -> None:
            if result is None:
                logger.warning("a read of ledger %d failed: %s", wanted.ledger_id, error)
                responder.respond(request_id, BookieStatus.IO_ERROR)
            elif result.status is not BookieStatus.OK:
                responder.respond(request_id, result.status)
            else:
                parts: Sequence[Any] = encode_read_answer(result.next_entry_id, result.entries)  # type: ignore[arg-type]
                responder.respond(request_id, _OK, parts)

        def read(error: BaseException | None) -> None:
            state = self._ledgers.get(wanted.ledger_id)
            if error is not None:
                responder.respond(request_id, BookieStatus.IO_ERROR)
            elif state is None:
                missing = BookieStatus.UNKNOWN if self.entries.limbo else BookieStatus.NO_SUCH_LEDGER
                responder.respond(request_id, missing)
            elif state.nonce != wanted.nonce:
                responder.respond(request_id, BookieStatus.FOREIGN)
            else:
                bytes_max = min(wanted.bytes_max, self._settings.bookie_read_bytes_max)
                gapless = bool(self.entries.limbo) or state.given_up
                self._reads.read(state, wanted.first, wanted.last, bytes_max, gapless, done)

        if wanted.fence:
            self._fence(wanted.ledger_id, wanted.nonce, read)
        else:
            read(None)

    # -- control -----------------------------------------------------------------------------------------------------

    @property
    def limbo(self) -> str:
        """Why the bookie is in limbo; empty when it is not."""
        return self.entries.limbo

    async def enter_limbo(self, reason: str) -> None:
        """Data was lost: fence everything known, answer "unknown" for what is absent, until `clear_limbo`."""
        self.entries.limbo = f"{self.entries.limbo}; {reason}" if self.entries.limbo else reason
        self.entries.fence_all()
        self.on_change()
        await self.entries.checkpoint()

    async def clear_limbo(self, fence_floor: int, reason: str | None = None) -> None:
        """Everything this bookie should hold has been copied back to it. Every ledger id handed out until now is below
        `fence_floor`. Durable when it returns.

        Raises DiskFull and OSError. Raises BadVersion when `reason` (None: any) is not why it is in limbo now, because
        more was lost after the copying began. Limbo then stays.
        """
        limbo, floor = self.entries.limbo, self.entries.fence_floor
        if reason is not None and reason != limbo:
            raise BadVersion(f"the reason for limbo has changed to: {limbo or 'none'}")
        self.entries.limbo, self.entries.fence_floor = "", max(floor, fence_floor)
        try:
            await self.entries.checkpoint()
        except BaseException:
            self.entries.limbo = limbo
            raise
        self.on_change()

    async def add_tombstones(self, ledger_ids: Sequence[int]) -> None:
        """Put durable tombstones on deleted ledgers; compaction then gives back their space. Raises DiskFull,
        StorageFailed; those that were durable by then stay."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = len(ledger_ids)
        failure: BaseException | None = None

        def stored(ledger_id: int, error: BaseException | None) -> None:
            nonlocal waiting, failure
            waiting -= 1
            failure = failure or error
            if error is None:
                self.entries.add_tombstone(ledger_id)
            if not waiting and not done.done():
                done.set_result(None)

        for ledger_id in ledger_ids:
            state = self._ledgers.get(ledger_id)
            if state is not None:
                state.fenced = True
            try:
                self._journal.append(KIND_TOMBSTONE, LEDGER_BODY.pack(ledger_id), partial(stored, ledger_id))
            except (DiskFull, StorageFailed) as error:
                stored(ledger_id, error)
        if ledger_ids:
            await done
        if failure is not None:
            raise failure

    async def held_ranges(
        self, ledger_id: int, nonce: int, first: int, last: int, intact_only: bool = False
    ) -> tuple[list[tuple[int, int]], int]:
        """Ranges of entry ids stored, and the first id not looked at: a question that would take long is answered in
        part. With `intact_only` every entry is read and verified; damaged ones are left out.

        Raises NoSuchLedger, ForeignLedger, EntryCorrupt (an index is being rebuilt), OSError.
        """
        state = self._ledgers.get(ledger_id)
        if state is None:
            raise NoSuchLedger(f"this bookie holds nothing of ledger {ledger_id}")
        if state.nonce != nonce:
            raise ForeignLedger(f"this bookie holds another ledger with id {ledger_id}", ledger_id=ledger_id)
        state.touched = True  # the auditor, which is about to copy what is not here
        if intact_only:
            return await self._reads.intact_ranges(state, first, last)
        return await self._reads.held_ranges(state, first, last)

    # -- the disk ------------------------------------------------------------------------------------------------------

    @property
    def disk_full(self) -> bool:
        """Whether the bookie is read-only for want of space."""
        return self._disk_full

    async def check_disk(self) -> DiskUsage:
        """Look at the disk and become read-only or writable accordingly. Raises OSError.

        A directory that is gone is fatal, with StorageFailed. The files that are still open end with the process, after
        the bookie has said that their entries are stored.
        """
        try:
            usage = await self._env.offload.run(self._env.files.disk_usage, self.entries.directory)
        except FileNotFoundError:
            lost = StorageFailed(f"its directory {self.entries.directory} was deleted while the bookie ran")
            self._fail(lost)
            raise lost from None
        used = usage.used_fraction
        if used >= self._settings.disk_usage_full:
            self._became_full()
        elif used < self._settings.disk_usage_warn and self._disk_full:
            logger.warning("%s: the disk is %.1f%% full and has space again", self.entries.directory, used * 100)
            self._disk_full = False
            self.writable = self.failed is None
            self._journal.space_available()
            self.on_change()
            await self.entries.seal_pending()
        elif used >= self._settings.disk_usage_warn:
            logger.warning("%s: the disk is %.1f%% full", self.entries.directory, used * 100)
        return usage

    def _became_full(self) -> None:
        if not self._disk_full:
            logger.error(
                "%s: the disk is full, so this bookie is read-only until less than %.0f%% of it is used",
                self.entries.directory,
                self._settings.disk_usage_warn * 100,
            )
            self._disk_full = True
            self.writable = False
            self.on_change()

    def _damage_changed(self) -> None:
        self.on_change()

    async def _found_damage(self, reason: str) -> bool:
        """Go into limbo; whether that is durable (if not, the bookie has failed)."""
        logger.error("%s: %s, so the bookie goes into limbo", self.entries.directory, reason)
        try:
            await self.enter_limbo(reason)
        except (OSError, MagnetarError) as error:
            self._fail(StorageFailed(f"limbo could not be made durable: {error}"))
            return False
        return True

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            logger.critical("%s: the disk failed, so this bookie stops: %s", self.entries.directory, error)
            self.failed = error
            self.writable = False
            self.on_change()
            self._on_fatal(error)


def _nobody() -> None:
    """Nobody is told of changes."""
