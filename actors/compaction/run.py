"""One compaction of a topic: two passes over it, a new ledger, and one switch.

1. *Scanning*: the compacted ledger and the log up to the last acknowledged entry of this moment are read. Of each key
   the last message is noted (`survivors`). With more keys than memory is allowed for, this is done once per share.
2. *Copying*: the entries of which something is kept are read again, and copied to a new ledger.
3. *Switching*: one write of the record lets readers see the new ledger. Then the cursor moves to the horizon, and what
   nobody needs is trimmed.

What a crash at each step leaves is described in `storage.managed.compacted`. Both passes see the same entries:
acknowledged entries never change, and the compaction cursor keeps them from being trimmed.

Decoding runs off the event loop, a piece of about a megabyte at a time. One piece is read ahead.
"""

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import NamedTuple

from ...protocol.bookie_wire import LedgerEntry
from ...protocol.errors import CompactionError, MagnetarError
from ...protocol.message_id import Position
from ...runtime.environment import Environment
from ...storage.managed.compacted import CompactedWriter, ScanRange
from ...storage.managed.cursor import Cursor
from ...storage.managed.managed_ledger import ManagedLedger
from .survivors import EVERYTHING, KeyScan, Rules, by_entry, keep

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
    """See the module. `read_timeout_s` bounds the wait for one piece."""

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
