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
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Protocol, cast

from ...protocol.errors import MagnetarError, NotAllowedError, SubscriptionNotFound
from ...protocol.names import COMPACTION_CURSOR
from ...protocol.topic_figures import CompactedFigures, CompactionFigures, SubscriptionFigures
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.gone import GONE
from ...runtime.settings.declarations import Settings
from ...runtime.transitions import check_transition
from ...storage.managed.cursor import Cursor
from ...storage.managed.cursor_record import CursorKind
from ...storage.managed.managed_ledger import ManagedLedger
from .run import CompactionResult, CompactionRun
from .survivors import Rules

logger = logging.getLogger(__name__)

RUNNING_MAX = 2
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
DECOMPRESSED_SIZE_MAX = 64 << 20
"""A payload may be larger than an entry before it is compressed; one that is larger than this is kept as it is."""


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


class CompactionHost(Protocol):
    """What a compaction needs of its topic."""

    env: Environment
    settings: Settings
    ledger: ManagedLedger

    @property
    def is_open(self) -> bool: ...
    def check_open(self) -> None: ...
    def spawn(self, coroutine: Coroutine[object, object, object], name: str) -> None: ...
    def cursor_moved(self) -> None: ...


async def open_compaction_cursor(ledger: ManagedLedger) -> Cursor:
    """The cursor that keeps what is not compacted, made at the beginning of the topic if need be.

    Raises what `ManagedLedger.open_cursor` raises.
    """
    return await ledger.open_cursor(COMPACTION_CURSOR, "earliest", kind=CursorKind.COMPACTION)


class TopicCompaction:
    """See the module. `threshold()` gives the bytes at which it begins by itself, 0 for never."""

    def __init__(self, host: CompactionHost, running: asyncio.Semaphore, threshold: Callable[[], int]) -> None:
        self.state = CompactionState.NOT_RUN
        self.last_error = ""
        self._host = host
        self._running = running
        self._threshold = threshold
        self._makes_cursor = False
        self._removed = 0
        self._succeeded_ms = 0
        self._failed_ms = 0
        self._duration_ms = 0

    def start(self) -> None:
        """Compact the topic in the background. Raises NotAllowedError while that is under way, ServiceUnitNotReady."""
        self._host.check_open()
        if self.state is CompactionState.RUNNING:
            raise NotAllowedError("Compaction already in progress", exists=True)
        self._become(CompactionState.RUNNING)
        self._host.spawn(self._run(), "compact")

    def check(self) -> None:
        """Called now and then: start if enough is not compacted."""
        threshold = self._threshold()
        if not threshold or self.state is CompactionState.RUNNING or not self._host.is_open:
            return
        self.prepare()
        if self._host.ledger.compacted.backlog_bytes > threshold:
            self.start()

    def prepare(self) -> None:
        """Policies have changed: with a threshold the cursor is made now, so that the broker keeps what comes."""
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
            raise NotAllowedError("Compaction already in progress", exists=True)
        await self._host.ledger.compacted.forget()
        await self._host.ledger.delete_cursor(COMPACTION_CURSOR, CursorKind.COMPACTION)
        self._host.cursor_moved()

    def let_go(self) -> None:
        """The topic is closed."""
        self._host = cast("CompactionHost", GONE)
        self._threshold = GONE

    @property
    def _cursor(self) -> Cursor | None:
        return self._host.ledger.cursors.get(COMPACTION_CURSOR)

    @property
    def _needs_cursor(self) -> bool:
        return self._threshold() > 0 and self._cursor is None and self._host.is_open

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

    def figures(self) -> CompactionFigures:
        """How the last compaction went."""
        return CompactionFigures(
            self.state.value,
            self.last_error,
            self._removed,
            self._succeeded_ms,
            self._failed_ms,
            self._duration_ms,
        )

    def subscription(self) -> list[SubscriptionFigures]:
        """The cursor as Pulsar shows it among the subscriptions; nothing where there is none."""
        cursor = self._cursor
        if cursor is None:
            return []
        backlog = cursor.backlog_entries
        properties = dict(cursor.properties)
        return [SubscriptionFigures(COMPACTION_CURSOR, True, "Exclusive", properties, 0, 0, backlog, 0, 0, False, [])]

    def compacted(self) -> CompactedFigures | None:
        """The compacted ledger; None where there is none."""
        found = self._host.ledger.compacted.current
        if found is None:
            return None
        ledger_id = -1 if found.ledger_id is None else found.ledger_id
        return CompactedFigures(ledger_id, found.entries, found.size_bytes, found.horizon)
