"""Takes brokers' load reports, and has units moved from overloaded brokers, a few at a time.

A round, once per interval: the averages have settled, and every broker that takes topics has reported lately, and
often enough → the averages become a plan (`planner`) → its moves are carried out as any other move. While one broker
does not report (it has just joined, it is of an older version, it is cut off), nothing moves: its load would look like
none.

Invariants:

1. A unit moves for its load at most once within the grace period. The period begins when the move is planned, or when
   an operator moved the unit.
2. A round plans while no other move of the rebalancer is under way, and by the owners of that moment.
3. A round moves up to `moves_max` units, between brokers that take topics.

Averages and grace periods are in memory. After the coordinator restarted, nothing moves before the averages have
settled: the load of one moment would decide. A unit that moved before the restart may move once more.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping

from ...protocol.errors import MagnetarError, ProtocolError, StaleEpoch
from ...protocol.load_figures import UNITS_PER_REPORT_MAX, BrokerLoad, ClusterLoad, LoadReport
from ...protocol.names import ROLE_BROKER
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER
from ...runtime.settings.declarations import Settings
from ..balancing.averages import LoadAverages
from ..balancing.planner import PlanLimits, plan
from ..members.contracts_coordinator import LoadContract
from .rebalancing import Rebalancer

logger = logging.getLogger(__name__)

REPORTS_BEFORE = 3
REPORTS_MISSED_MAX = 4
"""A broker that was silent for so many intervals counts as one that does not report."""
REPORT_AGE_MIN_S = 1.0
MOVES_REMEMBERED_MAX = 100_000
"""Of an operator who moves more topics than that within the grace period, the first ones are forgotten."""


class _Reports:
    """What one broker reported."""

    def __init__(self) -> None:
        self.count = 0
        self.last: LoadReport | None = None
        self.at_s = 0.0


class LoadBalancer(LoadContract):
    """See the module. `is_alive(role, node_id, incarnation)` says who has a session."""

    def __init__(self, settings: Settings, rebalancer: Rebalancer, is_alive: Callable[[str, str, str], bool]) -> None:
        self.moves = 0
        """Units that were given to the rebalancer."""
        self.rounds = 0
        """Rounds in which something was to move."""
        self._enabled = settings.load_balancer_enabled and settings.load_shedding_enabled
        self._interval_s = settings.load_shedding_interval_minutes * 60
        self._grace_s = settings.load_shedding_grace_minutes * 60
        self._silence_s = max(REPORTS_MISSED_MAX * settings.load_report_interval_ms / 1000, REPORT_AGE_MIN_S)
        self._limits = PlanLimits(
            settings.load_threshold_percentage / 100, settings.load_least_entries_over_mean, settings.load_moves_max
        )
        self._averages = LoadAverages(settings.load_history_share, self._interval_s)
        self._rebalancer = rebalancer
        self._is_alive = is_alive
        self._reports: dict[str, _Reports] = {}
        self._moved_at: dict[str, float] = {}

    # -- reports -------------------------------------------------------------------------------------------------

    async def report_load(self, *, report: LoadReport, caller: RpcConnection = CALLER) -> None:
        peer = caller.peer
        if not self._is_alive(ROLE_BROKER, peer.node_id, peer.incarnation):
            raise StaleEpoch(f"{peer.node_id} has no session: register first")
        self.take(peer.node_id, report)

    def take(self, broker: str, report: LoadReport) -> None:
        """Count the report of a live broker. Raises ProtocolError for an impossible one."""
        _check(broker, report)
        self._averages.take(broker, report, lambda unit: self._rebalancer.owner_of(unit) == broker)
        reports = self._reports.setdefault(broker, _Reports())
        reports.count += 1
        reports.last, reports.at_s = report, asyncio.get_running_loop().time()

    def ordered(self, units: Iterable[str]) -> None:
        """An operator moved these: they stay there for the grace period."""
        if self._enabled:
            self._moved_at.update(dict.fromkeys(units, asyncio.get_running_loop().time()))
            for unit in list(self._moved_at)[:-MOVES_REMEMBERED_MAX]:
                del self._moved_at[unit]

    async def cluster_load(self) -> ClusterLoad:
        now_s = asyncio.get_running_loop().time()
        averages = self._averages.of_reports()
        brokers = {
            broker: BrokerLoad(one.last, now_s - one.at_s, averages.get(broker, 0.0))
            for broker, one in sorted(self._reports.items())
            if one.last is not None and now_s - one.at_s <= self._silence_s
        }
        return ClusterLoad(brokers, self.moves, self.rounds)

    # -- rounds --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Balance until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.balance()
            except MagnetarError as error:
                logger.warning("the load is balanced later: %s", error)
            except Exception:  # of any kind: nothing else would balance the load
                logger.exception("balancing the load met an unexpected error, and goes on later")

    async def balance(self) -> None:
        """One round."""
        self._forget_old()
        if self._enabled and self._reported(self._rebalancer.takers()):
            await self._rebalancer.move_for_load(self._choose)

    def _choose(self) -> Mapping[str, str]:
        takers = self._rebalancer.takers()
        if not self._reported(takers):  # it may have changed while other moves were under way
            return {}
        loads = self._averages.loads(self._rebalancer.owner_of)
        moves = plan(loads, takers, self._may_move, self._limits)
        if moves:
            now_s = asyncio.get_running_loop().time()
            self._moved_at.update(dict.fromkeys(moves, now_s))
            self.moves += len(moves)
            self.rounds += 1
            totals = {broker: round(load) for broker, load in loads.by_broker(takers).items()}
            logger.info("balancing the load %s: %d topics move", totals, len(moves))
        return moves

    def _may_move(self, unit: str) -> bool:
        moved_at = self._moved_at.get(unit)
        return moved_at is None or asyncio.get_running_loop().time() - moved_at >= self._grace_s

    def _reported(self, takers: Collection[str]) -> bool:
        now_s = asyncio.get_running_loop().time()
        found = [self._reports.get(broker) for broker in takers]
        return (
            self._averages.settled
            and len(found) > 1
            and all(
                one is not None and one.count >= REPORTS_BEFORE and now_s - one.at_s <= self._silence_s for one in found
            )
        )

    def _forget_old(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._moved_at = {unit: at_s for unit, at_s in self._moved_at.items() if now_s - at_s < self._grace_s}
        kept_s = max(self._silence_s, 2 * self._interval_s)
        self._reports = {broker: one for broker, one in self._reports.items() if now_s - one.at_s <= kept_s}
        self._averages.keep_only(self._reports)


def _check(broker: str, report: LoadReport) -> None:
    figures = [report.interval_s, report.cpu, *report.rest, *(rate for one in report.heaviest for rate in one.rates)]
    if (
        len(report.heaviest) > UNITS_PER_REPORT_MAX
        or report.interval_s <= 0
        or not all(math.isfinite(one) and one >= 0 for one in figures)
    ):
        raise ProtocolError(f"the load report of {broker} is impossible")
