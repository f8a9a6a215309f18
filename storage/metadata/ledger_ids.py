"""Giving out ledger ids, when the metadata may be older than the ledgers.

The counter of ledger ids lies in the metadata. The counter goes back when that is restored from a backup, or its
PostgreSQL fails over to an asynchronous replica. But bookies hold ledgers with the ids that it would give out again.
Three things keep those ledgers apart from new ones, and safe from garbage collection:

- Bookies say at each registration which ids they know (the *end*: the first id above all of them). `LedgerIds` raises
  the counter to that end and by `GAP` beyond it, before the bookie is listed. It hands out no id before a bookie has
  registered. It also compares what the counter gives with what it gave before, for a database that fails over under it.
- Before the counter rises, the ids that it skips are stored as *restored*. So are the ids up to `GAP` below it, which
  may have been taken but not used when the backup was made. No bookie collects a ledger with such an id that the
  metadata does not know, until an operator accepts that it is lost (`accept`). The order matters: once the counter is
  above a ledger that the metadata does not know, that ledger would pass for a deleted one.
- A bookie that registers later may know ids beyond the gap, or its ids may have been given out again before anybody
  knew. Then two ledgers have one id; their nonces differ, and no bookie holds both (`protocol.bookie_wire`).

An id and what a bookie's garbage collection does with a ledger of that id:

    the metadata knows the ledger                            keeps it (or gives its copy up, see `garbage_collection`)
    the metadata knows one with another nonce                keeps it, until its loss is accepted
    unknown, and the counter is not above all ids held       keeps it: the metadata is older, which is not detected yet
    unknown, and restored                                    keeps it, until its loss is accepted
    unknown otherwise                                        deletes it

A ledger below the restored counter may be newer than its record: entries were added since the backup, and bookies
replaced. As long as its record is OPEN or IN_RECOVERY it is *in doubt*, and its recovery asks all bookies (`recovery`).
The `doubtful_end` of the record says so. It never goes down, and accepted losses do not change it. Bookies show an
older metadata only when one of them knows an id beyond the restored counter. Nobody sees it by the ids alone when no
ledger was created since the backup, or before the bookies that know newer ids have registered. So the operator says
it before anything starts: `magnetar start --metadata-restored` calls `mark_restored`.

The record, changed by compare-and-set: ranges of restored ids, the id below which losses were accepted, the id below
which open ledgers are in doubt.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ...protocol.errors import BadVersion, MetadataError, MetadataUnavailable, ProtocolError
from ...runtime.environment import Environment
from . import keys as metadata_keys
from .certain_writes import put_certain
from .store import MetadataStore, Versioned, pack, unpack

logger = logging.getLogger(__name__)

GAP = 1 << 20
"""Ids that are skipped beyond the highest known id, for bookies that have not registered and ids that brokers took from
the newer metadata. As many ids below the restored counter are in doubt, too.
"""
LEDGER_IDS_MAX = 1 << 62
RANGES_MAX = 1000
"""Of restored ids; further ones are joined with the last, which only keeps more."""


@dataclass(frozen=True)
class RestoredIds:
    """The record. `ranges` are (first, end), ascending and apart, `end` excluded; loss is accepted below
    `accepted_end`; ledgers below `doubtful_end` may be newer than their records."""

    ranges: tuple[tuple[int, int], ...] = ()
    accepted_end: int = 0
    doubtful_end: int = 0

    def __contains__(self, ledger_id: int) -> bool:
        return any(first <= ledger_id < end for first, end in self.ranges)

    @property
    def first(self) -> int | None:
        """The lowest restored id, None when there is none."""
        return self.ranges[0][0] if self.ranges else None

    def joined(self, first: int, end: int) -> "RestoredIds":
        """With one more range."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self.ranges, (first, end)]):
            if merged and (low <= merged[-1][1] or len(merged) == RANGES_MAX):
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        return replace(self, ranges=tuple(merged))

    def restored(self, counter: int, end: int) -> "RestoredIds":
        """With the changes for a counter that went back to `counter`; no id below `end` is given out again."""
        joined = self.joined(max(0, counter - GAP), end)
        return replace(joined, doubtful_end=max(self.doubtful_end, counter))

    def pack(self) -> bytes:
        ranges = [list(one) for one in self.ranges]
        return pack({"ranges": ranges, "accepted_end": self.accepted_end, "doubtful_end": self.doubtful_end})

    @staticmethod
    def unpack(record: Versioned | None) -> "RestoredIds":
        """Of a record, or of none. Raises MetadataError for anything else."""
        if record is None:
            return RestoredIds()
        try:
            fields = cast("Mapping[str, Any]", unpack(record.value))
            ranges = tuple((int(first), int(end)) for first, end in fields["ranges"])
            # Older releases did not write the last one; what they marked as restored, or accepted, is in doubt as well.
            accepted_end = int(fields["accepted_end"])
            known_end = max([accepted_end, *(end for _, end in ranges)])
            return RestoredIds(ranges, accepted_end, int(fields.get("doubtful_end", known_end)))
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of restored ledger ids cannot be decoded: {error!r}") from error


def counter_of(record: Versioned | None) -> int:
    """The first ledger id that was not given out. Raises MetadataError for a record that is none."""
    try:
        return int(unpack(record.value)["next"]) if record is not None else 1
    except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
        raise MetadataError(f"the counter of ledger ids cannot be decoded: {error!r}") from error


async def mark_restored(env: Environment, store: MetadataStore) -> RestoredIds:
    """The operator says that the metadata was restored, before anything else uses it. Returns what is in doubt now.

    Raises MetadataError, MetadataUnavailable, OutcomeUnknown.
    """
    counter = counter_of(await store.get(metadata_keys.counter(metadata_keys.LEDGER_COUNTER)))
    record = await store.get(metadata_keys.RESTORED_LEDGERS)
    restored = RestoredIds.unpack(record).restored(counter, counter)
    version = None if record is None else record.version
    await put_certain(env, store, metadata_keys.RESTORED_LEDGERS, restored.pack(), version)
    return restored


class LedgerIds:
    """The coordinator's side; see the module. `store` is the coordinator's own, guarded by its epoch."""

    def __init__(self, env: Environment, store: MetadataStore) -> None:
        self.on_restored: Callable[[], None] | None = None
        """Called when more ledgers are in doubt than before."""
        self.restored = RestoredIds()
        """As it was read or written last."""
        self._env = env
        self._store = store
        self._end = 0
        self._heard = False
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read what was restored before. Raises MetadataError."""
        self.restored = RestoredIds.unpack(await self._store.get(metadata_keys.RESTORED_LEDGERS))

    async def known(self, end: int, by: str) -> None:
        """A bookie knows ledgers with ids below `end`. When this returns, none of them is given out again.

        Raises ProtocolError for an impossible id, MetadataUnavailable, OutcomeUnknown.
        """
        if not 0 <= end < LEDGER_IDS_MAX:
            raise ProtocolError(f"{by} reported {end} as the end of its ledger ids, which is not a ledger id")
        async with self._lock:
            self._end = max(self._end, end)
            counter = counter_of(await self._store.get(metadata_keys.counter(metadata_keys.LEDGER_COUNTER)))
            if counter < end:
                logger.error(
                    "%s holds ledgers below %d, but the metadata has given out ids below %d only. The metadata was "
                    "restored from "
                    "an older backup. Ledgers that it does not know are kept; see `magnetar status`",
                    by,
                    end,
                    counter,
                )
                await self._raise(counter)
            self._heard = True

    async def allocate(self, count: int) -> int:
        """The first of `count` ids that no ledger has. Raises MetadataUnavailable, OutcomeUnknown (ask again)."""
        if not self._heard:
            raise MetadataUnavailable(
                "no bookie has registered yet, so the ledger ids in use are unknown: start the bookies"
            )
        async with self._lock:
            while True:
                first = await self._store.allocate(metadata_keys.LEDGER_COUNTER, count)
                if first >= self._end:
                    self._end = first + count
                    return first
                logger.error("the counter of ledger ids went back to %d: older metadata was restored", first)
                await self._raise(first)

    async def accept(self) -> RestoredIds:
        """An operator gives up what the metadata does not know: bookies delete it from now on. Returns what that was.

        Raises MetadataUnavailable, OutcomeUnknown.
        """
        async with self._lock:
            counter = counter_of(await self._store.get(metadata_keys.counter(metadata_keys.LEDGER_COUNTER)))
            record = await self._store.get(metadata_keys.RESTORED_LEDGERS)
            before = RestoredIds.unpack(record)
            await self._put(replace(before, ranges=(), accepted_end=max(before.accepted_end, counter)), record)
            logger.warning("these ledgers, which the restored metadata does not know, are given up: %s", before.ranges)
            return before

    async def _raise(self, counter: int) -> None:
        """Jump over what is known. The mark is durable first."""
        end = max(self._end, counter) + GAP
        while True:
            record = await self._store.get(metadata_keys.RESTORED_LEDGERS)
            try:
                await self._put(RestoredIds.unpack(record).restored(counter, end), record)
                break
            except BadVersion:
                continue  # this coordinator is being replaced, and the next one has written it
        if self.on_restored is not None:
            self.on_restored()
        first = await self._store.allocate(metadata_keys.LEDGER_COUNTER, end - counter)
        logger.warning("ledger ids %d to %d are skipped; the next id is %d", counter, end - 1, first)

    async def _put(self, restored: RestoredIds, record: Versioned | None) -> None:
        version = None if record is None else record.version
        await put_certain(self._env, self._store, metadata_keys.RESTORED_LEDGERS, restored.pack(), version)
        self.restored = restored
