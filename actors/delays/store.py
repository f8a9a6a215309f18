"""Buckets as they are stored: reading them back, and removing them, with as many tries as that takes.

A bucket that cannot be read for `READ_LIMIT_S` is given up: the error is raised.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from ...protocol.errors import AlreadyClosed, EntryCorrupt, LedgerFenced, MagnetarError, NoSuchLedger, StaleEpoch
from ...protocol.message_id import Position
from ...runtime import retry
from ...runtime.backoff import Backoff, LimitedBackoff
from ...runtime.environment import Environment
from ...storage.ledger.reader import LedgerReader
from ...storage.managed.cursor_storage import SideLedgers
from ..dispatch.delayed import TimedRun
from .bucket import BucketSegment, Covered, decode_segment, decode_table
from .coverage import last_of

logger = logging.getLogger(__name__)

RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
READ_LIMIT_S = 10.0
ENDS = (StaleEpoch, LedgerFenced, AlreadyClosed)
"""The cursor ends here with them."""

_T = TypeVar("_T")


class OtherSlotsError(MagnetarError):
    """The entries of a bucket have slots that mean something else now."""


FINAL = (NoSuchLedger, OtherSlotsError, *ENDS)
"""Reading again gives them again."""


class Bucket:
    """One bucket. `next` is the segment to read next, `skip` says how many of its entries were taken already."""

    __slots__ = ("dropped", "last", "ledger_id", "next", "reader", "segments", "skip")

    def __init__(
        self, ledger_id: int, segments: list[BucketSegment], last: Position, reader: LedgerReader | None
    ) -> None:
        self.ledger_id = ledger_id
        self.segments = segments
        self.last = last
        """The last position that it covers."""
        self.reader = reader
        self.next = 0
        self.skip = 0
        self.dropped = False

    @property
    def first_ms(self) -> int:
        """The time of the first entry that was not read back, or an earlier one."""
        return self.segments[self.next].first_ms

    @property
    def left(self) -> int:
        """How many entries were not read back."""
        return sum([one.entries for one in self.segments[self.next :]]) - self.skip

    @property
    def empty(self) -> bool:
        return self.next >= len(self.segments)

    def next_run(self, run: TimedRun) -> None:
        """Its next segment was read back, as this."""
        run.head, self.skip = self.skip, 0
        self.next += 1

    def pass_over(self, count: int) -> None:
        """The first entries need not be read back."""
        self.skip += count
        while not self.empty and self.skip >= self.segments[self.next].entries:
            self.skip -= self.segments[self.next].entries
            self.next += 1


class BucketStore:
    """The buckets of one subscription. `wanted` says whether its dispatcher still wants what it asked for."""

    def __init__(self, env: Environment, name: str, side: SideLedgers, wanted: Callable[[], bool]) -> None:
        self._env = env
        self._name = name
        self._side = side
        self._wanted = wanted

    async def add(self, bodies: Sequence[bytes]) -> int | None:
        """Store a bucket with these entries. Returns its ledger; None when it is no longer wanted."""
        return await self._side.add(bodies, self._wanted)

    async def open(self, ledger_id: int, slots: int) -> tuple[Bucket, Covered]:
        """A stored bucket, and what it covers. Raises why it cannot be read, or not by a dispatcher with such slots."""

        async def attempt() -> tuple[Bucket, Covered]:
            reader = await self._side.open(ledger_id)
            last = reader.metadata.last_entry
            if not reader.metadata.closed or last < 1:
                raise EntryCorrupt(f"ledger {ledger_id} is no bucket: it is not closed, or has no segments")
            table = decode_table((await reader.read(last, last, 1))[0].body, last)
            if table.slots != slots:
                raise OtherSlotsError(f"bucket {ledger_id} is of another subscription type")
            return Bucket(ledger_id, table.segments, last_of(table.covered), reader), table.covered

        return await self._limited(attempt, ledger_id)

    async def read(self, bucket: Bucket) -> TimedRun:
        """The next segment of a bucket. Raises why it cannot be read."""
        number = bucket.next

        async def attempt() -> bytes:
            reader, bucket.reader = bucket.reader, None  # after an error the metadata is read again
            if reader is None:
                reader = await self._side.open(bucket.ledger_id)
            body = (await reader.read(number, number, 1))[0].body
            bucket.reader = reader
            return body

        return decode_segment(await self._limited(attempt, bucket.ledger_id), bucket.segments[number])

    async def remove(self, ledger_ids: Sequence[int]) -> None:
        """Remove buckets, however often that has to be tried. Returns early when it is no longer wanted.

        Raises an error of ENDS where the cursor has ended.
        """

        async def attempt() -> None:
            await self._side.remove(ledger_ids, self._wanted)

        def retriable(error: Exception) -> bool:
            return isinstance(error, MagnetarError) and not isinstance(error, ENDS) and self._wanted()

        def log(error: Exception, delay_s: float) -> None:
            logger.info("subscription %s removes buckets in %.1f s: %s", self._name, delay_s, error)

        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        try:
            await retry.forever(backoff, attempt, retriable=retriable, on_retry=log)
        except MagnetarError:
            if self._wanted():
                raise

    async def _limited(self, attempt: Callable[[], Coroutine[object, object, _T]], ledger_id: int) -> _T:
        def retriable(error: Exception) -> bool:
            return isinstance(error, MagnetarError) and not isinstance(error, FINAL) and self._wanted()

        def log(error: Exception, delay_s: float) -> None:
            logger.info("subscription %s reads bucket %d in %.1f s: %s", self._name, ledger_id, delay_s, error)

        backoff = LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, READ_LIMIT_S)
        return await retry.limited(backoff, attempt, retriable=retriable, on_retry=log)
