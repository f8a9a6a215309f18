"""Ledgers whose metadata is restored from a backup that is older than they are, without brokers.

The backup is taken at a random moment while ledgers are written, closed, moved and deleted. In most runs some bookies
of a ledger that is open at that moment are then away in turn. So the record in the backup names bookies that do not
hold the last entries. The restore comes at the very end: bookies are stopped, the records are replaced and marked as
restored, bookies are started. Then a judge recovers every ledger of the backup. Ledgers that were deleted after the
backup are among them: some bookies hold a part of these, others a tombstone. A cluster's restore (`restoring`) has
topics, cursors and new ids besides, and costs a hundred times as much.

What has to hold:

- I1: an acknowledged entry of a ledger that was not deleted since can be read, if its fragment did not move
  (`survives_restore`). A ledger that bookies in limbo keep from being recovered is counted and not judged.
- I2: no place holds two bodies, nor one that nobody wrote.
- I9: no bookie puts a tombstone on a ledger that existed when the records were replaced.

In a share of the restores the judge hears only while it recovers that ledgers are in doubt. This happens where nobody
said that the metadata was restored, and a bookie's ids tell. What the judge closed before may have lost its end, so I1
is not judged there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from random import Random

from magnetar.protocol.errors import LedgerInDoubt, MagnetarError, NoSuchEntry, RecoveryFailed
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_ids import mark_restored
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.store import Versioned
from support.stores.memory_store import MemoryMetadataStore

from ..checkers.ledger_history import LedgerHistory
from ..world.ledgers import Host, LedgerWorld
from ..world.metadata import LATE_MAX_S

logger = logging.getLogger("magnetar.simulation")

START_LIMIT_S = 60.0
AWAY_S = 0.6
BACK_S = 0.3
HEARD_LATE_SHARE = 0.25
HEARD_LATE_S = 0.05
MOVES_SHARE = 0.7
ATTEMPTS = 3
"""At a ledger whose bookies cannot say enough; they will not say more later."""


def survives_restore(before: LedgerMetadata, now: LedgerMetadata, entry_id: int) -> bool:
    """Whether an acknowledged entry has to be there after a restore.

    `before` is its ledger's record in the backup, `now` the one that the restore replaces. The recovery of a ledger
    that was open in the backup asks all bookies. Where other entries lie it believes the record, so they must not have
    moved.
    """
    if not before.closed and entry_id >= before.last_fragment.first_entry:
        return True
    return before.write_set(entry_id) == now.write_set(entry_id)


class LedgerRestoring:
    """See the module."""

    def __init__(self, world: LedgerWorld, history: LedgerHistory, random: Random) -> None:
        self._world = world
        self._history = history
        self._random = random
        self._backup: tuple[dict[str, Versioned], int] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._heard_late = False

    def back_up_within(self, limit_s: float) -> None:
        """Take the backup at some moment from now on."""
        asyncio.get_running_loop().call_later(self._random.random() * limit_s, self._back_up)

    def _back_up(self) -> None:
        self._backup = dict(self._world.records.by_key), self._world.records.floor
        ledgers = [one for one in self._ledgers().values() if one.ledger_id in self._history.used and not one.closed]
        if ledgers and self._random.random() < MOVES_SHARE:
            ensemble = self._random.choice(ledgers).last_fragment.bookies
            self._moving = asyncio.get_running_loop().create_task(self._away_in_turn(ensemble), name="away-in-turn")

    async def _away_in_turn(self, bookies: Sequence[str]) -> None:
        """Each is away for a while. Faults may stop and begin the same ones meanwhile."""
        for node in [node for node in self._world.bookies if node.name in bookies]:
            self._world.stop(node)
            await asyncio.sleep(self._random.random() * 2 * AWAY_S)
            self._world.begin(node)
            await asyncio.sleep(self._random.random() * 2 * BACK_S)

    async def moved(self) -> None:
        """Until no bookie is away because of this."""
        if self._moving is not None:
            await self._moving

    async def restore(self, make_judge: Callable[[str], Awaitable[Host]], limit_s: float) -> None:
        """Stop, replace, start, recover and read. `limit_s` is for each ledger. Raises AssertionError (I8)."""
        world, records, history = self._world, self._world.records, self._history
        if self._backup is None:
            return
        by_key, floor = self._backup
        cookies = [key for key in records.keys if key.startswith(metadata_keys.BOOKIES_PREFIX)]
        if any(records.by_key[key] != by_key.get(key) for key in cookies):
            history.counts["restores left out"] += 1  # a bookie began again on another disk since
            return
        for node in world.nodes:
            world.stop(node)
        for process in world.zombies:
            process.kill()
        await asyncio.sleep(LATE_MAX_S)  # the database carries out what broken connections have left with it before
        now = self._ledgers()
        history.protected.update(dict.fromkeys(now))
        records.watcher = self._changed
        records.by_key, records.keys, records.floor = dict(by_key), sorted(by_key), floor
        before, operator = self._ledgers(), world.client_process("operator")
        doubtful_end = (await mark_restored(operator.env, MemoryMetadataStore(records))).doubtful_end
        self._heard_late = self._random.random() < HEARD_LATE_SHARE
        if not self._heard_late:
            world.doubtful_end = doubtful_end
        history.counts["restores of ledgers"] += 1
        logger.info("the metadata is restored: it has ledgers %s, the newer one had %s", list(before), list(now))
        bookies = [node for node in world.bookies if not node.gone]
        for node in bookies:
            world.begin(node)
        await world.until(lambda: all(node.ready for node in bookies), START_LIMIT_S, "I8: a bookie does not start")
        judge = await make_judge("judge-of-the-restore")
        if self._heard_late:
            delay_s = self._random.random() * HEARD_LATE_S
            asyncio.get_running_loop().call_later(delay_s, self._hear, doubtful_end, context=Context())
        for ledger_id in history.used:
            if ledger_id in before:
                looking = self._look(judge, before[ledger_id], now.get(ledger_id))
                await self._within(judge, looking, f"restore-{ledger_id}", limit_s)

    def _hear(self, doubtful_end: int) -> None:
        self._world.doubtful_end = doubtful_end
        self._world.list_changed()

    def _ledgers(self) -> dict[int, LedgerMetadata]:
        prefix, records = metadata_keys.LEDGERS_PREFIX, self._world.records
        keys = [key for key in records.keys if key.startswith(prefix)]
        return {metadata_keys.ledger_id_of(key): LedgerMetadata.unpack(records.by_key[key].value) for key in keys}

    def _changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if key.startswith(metadata_keys.LEDGERS_PREFIX) and (before is None or after is None):
            self._history.violated(f"I2: {key} is made or deleted after the restore, when nobody asked for it")

    async def _within(self, judge: Host, looking: Awaitable[None], name: str, limit_s: float) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(limit_s):
                await looking

        try:
            await judge.process.spawn(bounded(), name)
        except TimeoutError:
            raise AssertionError(f"I8: {name} took over {limit_s:.0f} s") from None

    async def _look(self, judge: Host, before: LedgerMetadata, now: LedgerMetadata | None) -> None:
        ledger_id, history = before.ledger_id, self._history
        for _ in range(ATTEMPTS):
            try:
                metadata = await judge.ledgers.recover(ledger_id)
                break
            except (LedgerInDoubt, RecoveryFailed) as error:
                history.counts[f"not recovered after a restore: {type(error).__name__}"] += 1
        else:
            return
        kind = "deleted" if now is None else "ones"
        history.counts[f"{kind} recovered after a restore"] += 1
        owing = now is not None and not self._heard_late
        for entry_id in range(metadata.last_entry + 1):
            owed = owing and now is not None and survives_restore(before, now, entry_id)
            await self._look_at(judge, metadata, entry_id, owed)
        if now is None or not owing:
            return
        for (ledger, entry_id), body in history.acknowledged.items():
            owed = ledger == ledger_id and survives_restore(before, now, entry_id)
            if owed and entry_id > metadata.last_entry:
                end = metadata.last_entry
                history.violated(f"I1: {body[:40]!r}, acknowledged at {(ledger, entry_id)}, lies behind the end {end}")

    async def _look_at(self, judge: Host, metadata: LedgerMetadata, entry_id: int, owed: bool) -> None:
        place = (metadata.ledger_id, entry_id)
        try:
            found = await judge.ledgers.reader(metadata).read_all(entry_id, entry_id)
        except MagnetarError as error:
            if owed and place in self._history.acknowledged and isinstance(error, NoSuchEntry):
                self._history.violated(f"I1: {place}, which was acknowledged, is lost in a restore: {error}")
            self._history.counts[f"not read after a restore: {type(error).__name__}"] += 1
            return
        self._history.was_read(place, bytes(found[0].body))
        self._history.counts["looked for after a restore"] += owed
