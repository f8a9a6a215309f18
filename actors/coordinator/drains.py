"""Empties the members that are being drained, ends them, and strikes them off the desired state.

A broker: its topics move to other brokers, a few at a time; it gets no new ones meanwhile. When it has none, its
process ends, and the record forgets it.

A bookie: it is read-only, writers go on in other ledgers, and the auditor copies closed ledgers to other bookies. When
no ledger names it, its process ends. Then all ledgers are looked at once more: a broker that did not know yet
may have created one on it. If there is one, the bookie runs again and goes on draining. If not, the record forgets the
bookie, then its directory is emptied, then its cookie is deleted.

Crash points: the record forgets a member last of what has to happen while it is known. A coordinator that begins finds
the member still draining, starts its process again, and gets here again. After the record forgot a bookie, the next
pass, or the next coordinator, finds it by its cookie (`DesiredMembers.retired`), empties the directory and deletes the
cookie. The view names a bookie until then, so a drain is done when both are gone.

A directory that cannot be emptied stays, and the drain ends all the same: `left_over` says why. Nothing runs on it,
because numbers of bookies are not used again. `left_over` ends with the coordinator; its log has the same.

A coordinator that was superseded, and does not know yet, may start a member again that this one has ended. Such a
process is refused (`may_run`): it gets no topics and no ledgers, and a bookie does not touch its directory.

Ledgers are counted only while a bookie drains, at most a tenth of the time.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from ...protocol.cluster_status import DrainView
from ...protocol.errors import MagnetarError, MetadataError
from ...protocol.names import ROLE_BROKER
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.store import MetadataStore
from ..desired.state import DesiredMembers
from .rebalancing import Rebalancer

logger = logging.getLogger(__name__)

LEDGERS_PER_PAGE = 500
PASS_PAUSE_S = 0.5
COUNTING_SHARE = 0.1
LEFT_OVER_MAX = 100
"""Of directories that could not be emptied, those that were met last are known."""


class ProcessEnds(Protocol):
    """What ends the processes of drained members."""

    async def end(self, member: str) -> None:
        """Close the process in good order, and keep it from being started; returns when it has ended."""
        ...

    def resume(self, member: str) -> None:
        """It may be started again, and is if it is wanted: it stays after all, or its number is used again."""
        ...

    async def erase(self, bookie: str) -> str:
        """Remove the directory of a retired bookie. Returns why it is left over, and what to do; else nothing."""
        ...


class Drains:
    """See the module. Nothing ends and nothing is erased before `processes` is set. `close` ends it."""

    def __init__(self, env: Environment, desired: DesiredMembers, store: MetadataStore, rebalancer: Rebalancer) -> None:
        self.processes: ProcessEnds | None = None
        self._env = env
        self.desired = desired
        self._store = store
        self._rebalancer = rebalancer
        self._views: dict[str, DrainView] = {}
        self._ended: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._erased: dict[str, None] = {}
        """Retired bookies whose directories are done with, and whose cookies are left."""
        self.left_over: dict[str, str] = {}
        """Bookies that were retired, and why their directories are left."""
        self._not_before = 0.0
        self._tasks = Tasks()
        desired.on_change.append(self._wake.set)

    def start(self) -> None:
        self._tasks.spawn(self._run(), "drains")

    async def close(self) -> None:
        await self._tasks.close()
        await self.desired.close()

    def view(self) -> dict[str, DrainView]:
        """How far each member has come that drains, that is just being ended, or of which something is left."""
        known = {one: self._views.get(one, {"left": -1, "most": -1}) for one in (*self._draining(), *self.ending())}
        for bookie in self.desired.retired:
            known[bookie] = {"left": 0, "most": max(self._views.get(bookie, {"most": 0})["most"], 0)}
        return dict(sorted(known.items()))

    def ending(self) -> list[str]:
        """Members of the desired state whose processes have been ended, or are just being. One that was undrained
        meanwhile is started again at once."""
        return [member for member in self._ended if self.desired.state is not None and member in self.desired.state]

    def may_run(self, member: str) -> bool:
        """Whether a broker or bookie has a place in the cluster: the desired state names it, and no drain has ended its
        process. A cluster without the record has a place for all."""
        state = self.desired.state
        return state is None or (member in state and member not in self._ended)

    def _draining(self) -> Collection[str]:
        return self.desired.state.draining if self.desired.state is not None else ()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause_s: float | None = None
            if self._draining() or self.desired.leaving or self._ended or self.desired.retired:
                pause_s = PASS_PAUSE_S
                try:
                    await self._pass()
                except MagnetarError as error:
                    logger.warning("draining goes on later: %s", error)
                except Exception:  # of any kind: nothing else would finish the drain
                    logger.exception("draining met an unexpected error, and goes on later")
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _pass(self) -> None:
        draining = sorted(self._draining())
        self._views = {
            member: view for member, view in self._views.items() if member in draining or member in self.desired.retired
        }
        for member in [member for member in self._ended if member not in draining]:
            self._restore(member)
        for broker in filter(_is_broker, sorted(self.desired.emptied)):
            left = await self._rebalancer.empty(broker)
            if broker in self._draining():
                self._note(broker, left)
                if not left and self.processes is not None:
                    await self._end(broker)
                    await self.desired.forget(broker)
                    self._restore(broker)  # it may be wanted again by now: its number is used again
        bookies = [member for member in draining if not _is_broker(member)]
        if bookies and asyncio.get_running_loop().time() >= self._not_before:
            await self._pass_bookies(bookies)
        await self._pass_retired()

    async def _pass_bookies(self, bookies: Sequence[str]) -> None:
        counts = await self._count(bookies)
        for bookie, left in counts.items():
            self._note(bookie, left)
            if left or bookie not in self._draining():
                self._restore(bookie)  # an earlier pass may have ended it, and failed before its last look
                continue
            await self._end(bookie)
            if self.processes is None or (await self._count([bookie]))[bookie] or bookie not in self._draining():
                self._restore(bookie)
                continue
            if not await self.desired.forget(bookie):
                self._restore(bookie)  # it was undrained since: nothing of it may be erased
                continue
            logger.info("bookie %s is retired: no ledger names it", bookie)

    async def _pass_retired(self) -> None:
        if self.processes is None:
            return
        for bookie in list(self.desired.retired):
            if bookie not in self._erased:
                if reason := await self.processes.erase(bookie):
                    logger.warning("bookie %s is retired, but %s", bookie, reason)
                    self.left_over[bookie] = reason
                    while len(self.left_over) > LEFT_OVER_MAX:
                        del self.left_over[next(iter(self.left_over))]
                self._erased[bookie] = None
            await self.desired.forget_cookie(bookie)
            for known in (self._erased, self._ended, self._views):
                known.pop(bookie, None)

    async def _end(self, member: str) -> None:
        if self.processes is not None:
            self._ended[member] = None
            await self.processes.end(member)

    def _restore(self, member: str) -> None:
        if member in self._ended and member not in self.desired.retired and self.processes is not None:
            del self._ended[member]
            self.processes.resume(member)

    def _note(self, member: str, left: int) -> None:
        view = self._views.setdefault(member, {"left": left, "most": left})
        view["left"], view["most"] = left, max(left, view["most"])

    async def _count(self, bookies: Sequence[str]) -> dict[str, int]:
        """How many ledgers name each of these bookies."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        counts = dict.fromkeys(bookies, 0)
        after = ""
        while True:
            page = await self._store.list(metadata_keys.LEDGERS_PREFIX, after=after, limit=LEDGERS_PER_PAGE)
            for key, record in page:
                for bookie in _bookies_in(key, record.value):
                    if bookie in counts:
                        counts[bookie] += 1
            if len(page) < LEDGERS_PER_PAGE:
                break
            after = page[-1][0]
        now = loop.time()
        self._not_before = now + (now - began) / COUNTING_SHARE
        return counts


def _bookies_in(key: str, value: bytes) -> Iterable[str]:
    """The bookies that a ledger's record names. Raises MetadataError: it may name any, so none can be retired."""
    try:
        return LedgerMetadata.unpack(value).bookies
    except MetadataError as error:
        raise MetadataError(f"the record with the key {key} may name a bookie that drains: {error}", key=key) from error


def _is_broker(member: str) -> bool:
    return member.startswith(f"{ROLE_BROKER}-")
