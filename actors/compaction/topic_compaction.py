"""The compaction of one topic: its cursor, when it runs, and how the last one went.

`TRANSITIONS` has the states; their names are Pulsar's. A topic is compacted on request, or when more than
`compactionThreshold` bytes of it lie behind the compaction cursor. At most one compaction of a topic runs at a time,
and at most `RUNNING_MAX` on a broker; others wait, and count as running.

The cursor `__compaction` is made with the first compaction, or as soon as a threshold is set. From then on the log that
is not compacted is kept. It is a cursor of a kind of its own, not a subscription.

A topic that closes or moves ends its compaction. Its next owner starts at NOT_RUN.
"""

import asyncio
import enum
import logging
from array import array
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from ...protocol.bookie_wire import LedgerEntry
from ...protocol.errors import CompactionError, ConflictError, MagnetarError, SubscriptionNotFound
from ...protocol.message_id import Position
from ...protocol.topic_figures import (
    CompactedFigures,
    CompactionFigures,
    StorageFigures,
    SubscriptionFigures,
    TopicFigures,
)
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.gone import GONE
from ...runtime.settings.compaction import CompactionSettings
from ...runtime.settings.declarations import Settings
from ...runtime.transitions import check_transition
from ...storage.managed.compacted import CompactedWriter, ScanRange
from ...storage.managed.cursor import Cursor
from ...storage.managed.cursor_storage import CursorKind
from ...storage.managed.managed_ledger import ManagedLedger
from ..policies.effective import EffectivePolicies
from ..topics.feature import FeatureCursor, TopicFeature
from ..topics.log_view import LogView
from .reading import CompactedLog
from .survivors import DECOMPRESSED_SIZE_MAX, EVERYTHING, KeyScan, Rules, by_entry, keep

if TYPE_CHECKING:
    from ..topics.persistent import PersistentTopic

logger = logging.getLogger(__name__)

SHARES_MAX = 64
"""How many times the topic may be read for its keys."""
GAP_MAX = 32
"""Entries without a survivor that one range read may include to reach the next with one."""
RANGE_ENTRIES_MAX = 1000


class CompactionResult(NamedTuple):
    """What a compaction did: messages that it saw, messages that it dropped, and where it ended."""

    messages: int
    removed: int
    horizon: Position


class CompactionRun:
    """One compaction of a topic: two passes over it, a new ledger, and one switch.

    1. *Scanning*: the compacted ledger and the log up to the last acknowledged entry of this moment are read. Of each
       key the last message is noted (`survivors`). With more keys than memory is allowed for, this is done once per
       share.
    2. *Copying*: the entries of which something is kept are read again, and copied to a new ledger.
    3. *Switching*: one write of the record lets readers see the new ledger. Then the cursor moves to the horizon, and
       what nobody needs is trimmed.

    What a crash at each step leaves is described in `storage.managed.compacted`. Both passes see the same entries:
    acknowledged entries never change, and the compaction cursor keeps them from being trimmed.

    Decoding runs off the event loop, a piece of about a megabyte at a time. One piece is read ahead.

    `read_timeout_s` bounds the wait for one piece.
    """

    def __init__(
        self, env: Environment, ledger: ManagedLedger, cursor: Cursor, rules: Rules, read_timeout_s: float
    ) -> None:
        self._env = env
        self._ledger = ledger
        self._compacted = ledger.compacted
        self._cursor = cursor
        self._rules = rules
        self._read_timeout_s = read_timeout_s

    async def run(self) -> CompactionResult:
        """Compact what there is now. Raises MagnetarError; then readers see what they saw before."""
        upto = self._ledger.last_confirmed
        if upto <= self._compacted.horizon:
            await self._move_cursor(upto)
            return CompactionResult(0, 0, upto)
        segments = self._compacted.segments(upto)
        kept, messages, removed = await self._scan(segments)
        await self._copy(segments, kept, upto)
        await self._move_cursor(upto)
        return CompactionResult(messages, removed, upto)

    async def _move_cursor(self, upto: Position) -> None:
        self._cursor.acknowledge_cumulative(upto)
        await self._cursor.flush()

    # -- the first pass ----------------------------------------------------------------------------------------------

    async def _scan(self, segments: list[ScanRange]) -> tuple[list["array[int]"], int, int]:
        """The codes of what is kept, one array for each share; how many messages there are, and how many go, as Pulsar
        counts them."""
        shares = [EVERYTHING]
        kept: list[array[int]] = []
        messages = survivors = 0
        while shares:
            share = shares.pop()
            scan = KeyScan(self._rules, share, notes=not kept)
            if await self._scan_share(segments, scan):
                kept.append(await self._env.offload.run(scan.survivors))
                messages, survivors = scan.messages, survivors + scan.kept + scan.deleted
                continue
            if len(shares) + len(kept) + 2 > SHARES_MAX:
                raise CompactionError(
                    f"{self._ledger.name} has more keys than a compaction holds: raise topicCompactionKeysMaxMb"
                )
            shares += share.split()
        return kept, messages, max(messages - survivors, 0)

    async def _scan_share(self, segments: list[ScanRange], scan: KeyScan) -> bool:
        """False when the keys of the share need too much memory."""
        number = 0
        async with aclosing(self._pieces(segments)) as pieces:
            async for segment, entries in pieces:
                bodies = [segment.decode(entry)[1] for entry in entries]
                await self._env.offload.run(scan.add, number, bodies)
                number += len(bodies)
                if scan.too_large:
                    return False
        return True

    # -- the second pass ---------------------------------------------------------------------------------------------

    async def _copy(self, segments: list[ScanRange], kept: list["array[int]"], upto: Position) -> None:
        """Copy what is kept, and switch."""
        writer: CompactedWriter | None = None
        wanted: dict[tuple[int, int], frozenset[int]] = {}
        try:
            async with aclosing(self._pieces(_ranges(segments, by_entry(kept), wanted))) as pieces:
                async for segment, entries in pieces:
                    chosen = [
                        (*segment.decode(entry), indexes)
                        for entry in entries
                        if (indexes := wanted.pop((segment.ledger_id, entry.entry_id), None)) is not None
                    ]
                    if not chosen:
                        continue
                    writer = writer or await self._compacted.begin()
                    kept_of = [(body, indexes) for _, body, indexes in chosen]
                    bodies = await self._env.offload.run(self._keep_all, kept_of)
                    for (position, _, _), body in zip(chosen, bodies, strict=True):
                        await writer.add(position, body)
            await self._compacted.switch(writer, upto)
        except MagnetarError:
            if writer is not None:
                await self._compacted.give_up(writer)
            raise
        except asyncio.CancelledError:
            if writer is not None:  # the topic closes: its next owner deletes the ledger
                await writer.abandon()
            raise

    def _keep_all(self, chosen: list[tuple[bytes, frozenset[int]]]) -> list[bytes]:
        return [keep(body, indexes, self._rules.decompressed_size_max) for body, indexes in chosen]

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _pieces(self, segments: Iterable[ScanRange]) -> AsyncGenerator[tuple[ScanRange, list[LedgerEntry]]]:
        """All entries of some segments, in order, with one read ahead."""
        following = iter(segments)
        segment = next(following, None)
        ahead = None if segment is None else self._read(segment)
        try:
            while segment is not None and ahead is not None:
                try:
                    async with asyncio.timeout(self._read_timeout_s):
                        entries = await ahead
                except TimeoutError:
                    raise CompactionError(
                        f"a read of ledger {segment.ledger_id} took more than {self._read_timeout_s:g} s"
                    ) from None
                behind = entries[-1].entry_id + 1
                rest = segment._replace(first=behind) if behind <= segment.last else next(following, None)
                ahead = None if rest is None else self._read(rest)
                yield segment, entries
                segment = rest
        finally:
            # Without waiting: a run that is taken apart with its process has no event loop.
            if ahead is not None and not ahead.cancel() and not ahead.cancelled():
                ahead.exception()  # nobody wants it, and asyncio would report it

    def _read(self, segment: ScanRange) -> "asyncio.Task[list[LedgerEntry]]":
        return asyncio.create_task(self._compacted.piece(segment))


def _ranges(
    segments: list[ScanRange],
    kept: Iterator[tuple[int, frozenset[int]]],
    wanted: dict[tuple[int, int], frozenset[int]],
) -> Iterator[ScanRange]:
    """The parts of the segments that have what is kept. What is kept of which entry is put into `wanted`."""
    number = 0
    following = next(kept, None)
    for segment in segments:
        part: ScanRange | None = None
        while following is not None and following[0] < number + segment.entries:
            entry_id = segment.first + following[0] - number
            wanted[segment.ledger_id, entry_id] = following[1]
            if part is None:
                part = segment._replace(first=entry_id, last=entry_id)
            elif entry_id - part.last > GAP_MAX or entry_id - part.first >= RANGE_ENTRIES_MAX:
                yield part
                part = segment._replace(first=entry_id, last=entry_id)
            else:
                part = part._replace(last=entry_id)
            following = next(kept, None)
        if part is not None:
            yield part
        number += segment.entries


COMPACTION_CURSOR = "__compaction"
RUNNING_MAX = 2
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0


class CompactionState(enum.StrEnum):
    """See `TRANSITIONS`."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


TRANSITIONS: Mapping[CompactionState, Collection[CompactionState]] = {
    CompactionState.NOT_RUN: (CompactionState.RUNNING,),  # a request, or the threshold
    CompactionState.RUNNING: (
        CompactionState.SUCCESS,  # the switch is stored, and the cursor has moved
        CompactionState.ERROR,  # anything else: readers see what they saw before
    ),
    CompactionState.SUCCESS: (CompactionState.RUNNING,),
    CompactionState.ERROR: (CompactionState.RUNNING,),
}


async def open_compaction_cursor(ledger: ManagedLedger) -> Cursor:
    """The cursor that keeps what is not compacted, made at the beginning of the topic if need be.

    Raises what `ManagedLedger.open_cursor` raises.
    """
    return await ledger.open_cursor(COMPACTION_CURSOR, "earliest", kind=CursorKind.COMPACTION)


class RunningCompactions(asyncio.Semaphore):
    """Held by each compaction that runs on a broker."""

    def __init__(self) -> None:
        super().__init__(RUNNING_MAX)


class TopicCompaction(TopicFeature):
    """See the module."""

    name = "compaction"
    settings = CompactionSettings
    policies = ("compaction_threshold",)
    duties = ("compaction_threshold",)
    cursors = (FeatureCursor(COMPACTION_CURSOR, CursorKind.COMPACTION, counts_as_subscription=True),)
    persistent_only = True

    def __init__(self, topic: "PersistentTopic") -> None:
        self.state = CompactionState.NOT_RUN
        self.last_error = ""
        self._host = topic
        self._running = topic.common.shared(RunningCompactions)
        self._makes_cursor = False
        self._removed = 0
        self._succeeded_ms = 0
        self._failed_ms = 0
        self._duration_ms = 0

    @classmethod
    async def opening(cls, ledger: ManagedLedger, policies: EffectivePolicies) -> None:
        if policies.compaction_threshold:
            await open_compaction_cursor(ledger)  # what is published from now on is kept for a compaction

    def policies_changed(self, before: EffectivePolicies) -> None:
        self.prepare()

    @classmethod
    def check_interval_s(cls, settings: Settings) -> float:
        return settings.compaction_monitor_interval_s

    @property
    def has_duties(self) -> bool:
        return self._cursor is not None or self._threshold > 0

    def log_view(self) -> LogView:
        return CompactedLog(self._host)

    def start(self) -> None:
        """Compact the topic in the background. Raises NotAllowedError while that is under way, ServiceUnitNotReady."""
        self._host.check_open()
        if self.state is CompactionState.RUNNING:
            raise ConflictError("Compaction already in progress")
        self._become(CompactionState.RUNNING)
        self._host.spawn(self._run(), "compact")

    def check(self) -> None:
        """Start if enough is not compacted."""
        threshold = self._threshold
        if not threshold or self.state is CompactionState.RUNNING or not self._host.is_open:
            return
        self.prepare()
        if self._host.ledger.compacted.backlog_bytes > threshold:
            self.start()

    def prepare(self) -> None:
        """With a threshold the cursor is made now, so that the broker keeps what comes."""
        if self._needs_cursor and not self._makes_cursor:
            self._makes_cursor = True
            self._host.spawn(self._make_cursor(), "make the compaction cursor")

    async def forget(self) -> None:
        """Delete the compacted ledger and the cursor: what Pulsar does when the subscription `__compaction` is deleted.

        Raises SubscriptionNotFound where there is no cursor, NotAllowedError while a compaction is under way, and what
        writing the record raises.
        """
        if self._cursor is None:
            raise SubscriptionNotFound(f"the subscription {COMPACTION_CURSOR} does not exist")
        if self.state is CompactionState.RUNNING:
            raise ConflictError("Compaction already in progress")
        await self._host.ledger.compacted.forget()
        await self._host.ledger.delete_cursor(COMPACTION_CURSOR, CursorKind.COMPACTION)
        self._host.cursor_moved()

    async def delete_cursor(self, name: str) -> bool:
        if name == COMPACTION_CURSOR:
            await self.forget()
        return name == COMPACTION_CURSOR

    def let_go(self) -> None:
        self._host = cast("PersistentTopic", GONE)

    @property
    def _threshold(self) -> int:
        return self._host.policies.compaction_threshold

    @property
    def _cursor(self) -> Cursor | None:
        return self._host.ledger.cursors.get(COMPACTION_CURSOR)

    @property
    def _needs_cursor(self) -> bool:
        return self._threshold > 0 and self._cursor is None and self._host.is_open

    async def _make_cursor(self) -> None:
        """Until the cursor is there, a trim may take what is not compacted: so this does not wait for `check`."""

        async def attempt() -> None:
            if self._needs_cursor:
                await open_compaction_cursor(self._host.ledger)

        def log(error: Exception, delay_s: float) -> None:
            logger.info("%s has no compaction cursor yet: %s", self._host.ledger.name, error)

        backoff = Backoff(self._host.env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        try:
            await retry.forever(backoff, attempt, retriable=retry.our_error, on_retry=log)
        finally:
            self._makes_cursor = False

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        name = self._host.ledger.name
        try:
            async with self._running:
                started = loop.time()
                result = await self._compact()
        except Exception as error:
            if isinstance(error, MagnetarError):
                logger.warning("the compaction of %s failed: %s", name, error)
            else:
                logger.exception("the compaction of %s failed after an unexpected error", name)
            self._ended(loop.time() - started, error)
        else:
            self._removed = result.removed
            self._ended(loop.time() - started, None)
            logger.info("%s is compacted up to %s: %d of %d messages are gone", name, result.horizon, *result[1::-1])
            self._host.cursor_moved()

    async def _compact(self) -> CompactionResult:
        host, settings = self._host, self._host.settings
        cursor = await open_compaction_cursor(host.ledger)
        rules = Rules(
            settings.compaction_retain_null_key,
            DECOMPRESSED_SIZE_MAX,
            settings.compaction_keys_max_mb << 20,
            host.env.clock.now_ms(),
        )
        return await CompactionRun(host.env, host.ledger, cursor, rules, settings.compaction_read_timeout_s).run()

    def _ended(self, duration_s: float, error: Exception | None) -> None:
        now_ms = self._host.env.clock.now_ms()
        self._duration_ms = round(duration_s * 1000)
        if error is None:
            self._succeeded_ms, self.last_error = now_ms, ""
            self._become(CompactionState.SUCCESS)
        else:
            self._failed_ms, self.last_error = now_ms, str(error)
            self._become(CompactionState.ERROR)

    def _become(self, state: CompactionState) -> None:
        check_transition(TRANSITIONS, f"the compaction of {self._host.ledger.name}", self.state, state)
        self.state = state

    # -- figures -------------------------------------------------------------------------------------------------

    def figures(self, topic: TopicFigures) -> TopicFigures:
        return replace(topic, compaction=self.status())

    def status(self) -> CompactionFigures:
        """How the last compaction went."""
        return CompactionFigures(
            self.state.value,
            self.last_error,
            self._removed,
            self._succeeded_ms,
            self._failed_ms,
            self._duration_ms,
        )

    def subscriptions(self) -> list[SubscriptionFigures]:
        """The cursor as Pulsar shows it among the subscriptions; nothing where there is none."""
        cursor = self._cursor
        if cursor is None:
            return []
        backlog = cursor.backlog_entries
        properties = dict(cursor.properties)
        return [SubscriptionFigures(COMPACTION_CURSOR, True, "Exclusive", properties, 0, 0, backlog, 0, 0, False, [])]

    def storage_figures(self, topic: StorageFigures) -> StorageFigures:
        found = self._host.ledger.compacted.current
        if found is None:
            return topic
        ledger_id = -1 if found.ledger_id is None else found.ledger_id
        return replace(topic, compacted=CompactedFigures(ledger_id, found.entries, found.size_bytes, found.horizon))
