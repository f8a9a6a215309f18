"""Restarts one process after the other, so that publishing and consuming go on meanwhile.

States of a restart of one member, each with the bound of its wait:

    WAITING    until it is safe (below): SAFE_TIMEOUT_S
    AWAY       a broker is emptied and gets nothing new; the process is closed, and started again where it was:
               BACK_TIMEOUT_S
    SETTLING   until it is safe again: SETTLE_TIMEOUT_S

It is safe when nothing drains or leaves, and every broker and bookie that should run has a session. For a bookie, no
ledger that a broker writes has fewer copies than configured either, and a round of the auditor that began then found
every closed ledger whole. So of each entry at most one copy is away. A coordinator that was superseded while it waited
takes nothing away: the next one may restart another process. A ledger that lost a bookie is kept for some seconds
before its writer goes on in another (`managed.chain_writer`). A second bookie that went away earlier would leave it
below its ack quorum.

A wait that is too long, and a process that cannot be started several times, raise RestartStopped. What was begun goes
on: the supervisor starts the process again until it runs. One process is restarted at a time.

The coordinator is restarted by those that carry it. `prepare_coordinator` is what comes before.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from ...protocol.cluster_status import RestartView
from ...protocol.errors import (
    ClusterError,
    MagnetarError,
    NoSuchKey,
    NotAllowedError,
    RestartStopped,
    ServiceUnitNotReady,
)
from ...protocol.names import ADMIN_ID, COORDINATOR_ID, ROLE_BOOKIE, ROLE_BROKER
from .reconciler import Reconciler
from .supervisor import Supervisor

if TYPE_CHECKING:
    from ..coordinator.office import Office

logger = logging.getLogger(__name__)

Handle = TypeVar("Handle")

SAFE_TIMEOUT_S = 120.0
BACK_TIMEOUT_S = 180.0
SETTLE_TIMEOUT_S = 120.0
FINISH_TIMEOUT_S = 20.0
STEP_TIMEOUT_S = SAFE_TIMEOUT_S + BACK_TIMEOUT_S + SETTLE_TIMEOUT_S
POLL_S = 0.1


class Restarts(Generic[Handle]):
    """See the module."""

    def __init__(self, supervisor: Supervisor[Handle], reconciler: Reconciler[Handle]) -> None:
        self._supervisor = supervisor
        self._reconciler = reconciler
        self._under_way = ""

    async def restart(self, member: str) -> RestartView:
        """Restart a broker, a bookie or the admin.

        Raises NoSuchKey for no such member, NotAllowedError while another is being restarted, RestartStopped.
        """
        office = self._office()
        state = office.desired.state
        if member != ADMIN_ID and (state is None or member not in state):
            raise NoSuchKey(f"{member[:100]} is no process of this cluster: `magnetar status` lists them")
        self._begin(member)
        try:
            return await self._restart(office, member)
        finally:
            self._under_way = ""

    async def prepare_coordinator(self) -> None:
        """Wait until the coordinator may end: no member is away, and no topic is between two brokers.

        Raises NotAllowedError while a member is being restarted, RestartStopped. No topic moves from then on.
        """
        office = self._office()
        self._begin(COORDINATOR_ID)
        try:
            await self._wait(office, COORDINATOR_ID, f"{COORDINATOR_ID} was not restarted:", SAFE_TIMEOUT_S)
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await office.rebalancer.finish()
        except TimeoutError:
            logger.warning("the coordinator ends although topics are being moved: their new owners recover them")
        finally:
            self._under_way = ""

    async def settle(self, member: str) -> None:
        """Wait until all is well after a restart. Raises RestartStopped."""
        await self._wait(self._office(), member, f"{member} was restarted and runs, but", SETTLE_TIMEOUT_S)

    def _begin(self, member: str) -> None:
        if self._under_way:
            raise NotAllowedError(f"{self._under_way} is being restarted: wait until that has ended")
        self._under_way = member

    def _office(self) -> "Office":
        office = self._reconciler.office
        if office is None:
            raise ServiceUnitNotReady("the coordinator is not active yet")
        return office

    async def _restart(self, office: "Office", member: str) -> RestartView:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._wait(office, member, f"{member} was not restarted:", SAFE_TIMEOUT_S)
        safe = loop.time()
        logger.info("%s is restarted", member)
        if _role(member) == ROLE_BROKER:
            self._reconciler.rest(member)
        try:
            async with asyncio.timeout(BACK_TIMEOUT_S):
                await self._supervisor.restart(member)
        except TimeoutError:
            raise RestartStopped(
                f"{member} did not come back within {BACK_TIMEOUT_S:.0f} s: {self._problem(member)}. It is started "
                f"again until it runs: read its log, {member}.log"
            ) from None
        except ClusterError as error:
            raise RestartStopped(f"{error}. It is started again until it runs: read its log, {member}.log") from error
        finally:
            self._reconciler.rest("")
        back = loop.time()
        await self.settle(member)
        return restart_view(member, began, safe, back, loop.time())

    def _problem(self, member: str) -> str:
        found = [one for one in self._supervisor.status() if one["node_id"] == member]
        return found[0]["problem"] or found[0]["state"] if found else "it is no longer wanted"

    # -- what is safe --------------------------------------------------------------------------------------------------

    async def _wait(self, office: "Office", member: str, failure: str, timeout_s: float) -> None:
        obstacle = "the cluster was not looked at in time"
        try:
            async with asyncio.timeout(timeout_s):
                # What it waits for lies in several processes, which tell nobody: look again.
                while obstacle := await _obstacle(office, member):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise RestartStopped(f"{failure} after {timeout_s:.0f} s {obstacle}") from None


def restart_view(process: str, began: float, safe: float, back: float, settled: float) -> RestartView:
    """How long each part took, from the times at which one ended and the next began, in seconds."""
    return {
        "process": process,
        "waited_s": round(safe - began, 3),
        "away_s": round(back - safe, 3),
        "settled_s": round(settled - back, 3),
    }


async def _obstacle(office: "Office", member: str) -> str:
    """Why a process may not end now; empty if nothing is in the way.

    What takes long comes first. A member that went away meanwhile is noticed afterwards.
    """
    return _absent(office) or await _lacking(office, member) or await _in_doubt(office) or _absent(office)


async def _in_doubt(office: "Office") -> str:
    """Why it is not certain that this coordinator is the active one; empty if it is."""
    try:
        await office.store.verify()
    except MagnetarError as error:
        return f"the coordinator cannot tell whether it is active: {error}"
    return ""


def _absent(office: "Office") -> str:
    """Why no process may end now; empty if nothing is in the way."""
    if office.desired.emptied:
        return f"{', '.join(sorted(office.desired.emptied))} still drains: wait, or `magnetar undrain` it"
    state = office.desired.state
    if state is None:
        return "this cluster has no record of what should run: start it again with `magnetar start`"
    alive = {session.node_id for session in office.membership.all()}
    missing = [one for one in (*state.bookie_ids, *state.broker_ids) if one not in alive]
    return f"{', '.join(missing)} is away: `magnetar status` says why" if missing else ""


async def _lacking(office: "Office", member: str) -> str:
    """Why no bookie may be away now; empty for other members."""
    if _role(member) != ROLE_BOOKIE:
        return ""
    for session in office.membership.of_role(ROLE_BROKER):
        try:
            lacking = await office.broker_calls.of(session.node_id).lacking_copies()
        except MagnetarError as error:
            return f"{session.node_id} does not say whether its ledgers have all copies: {error}"
        if lacking:
            return f"{lacking} ledgers that {session.node_id} writes have too few copies"
    if await office.auditor.look_again():
        return ""
    found = office.auditor.status()
    limbo = f", {', '.join(found['limbo'])} lost data and is in limbo" if found["limbo"] else ""
    return f"{found['incomplete']} ledgers lack copies, {found['to_check']} have yet to be checked{limbo}"


def _role(member: str) -> str:
    return member.rpartition("-")[0] or member
