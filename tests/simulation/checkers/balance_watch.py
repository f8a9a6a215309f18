"""I15: moves for load are damped. Stands beside the coordinators, where they decide to move topics for their load.

- One coordinator moves a topic at most once within the grace period, also when others move it in between.
- A topic goes from its owner to another broker that takes topics at this moment.
- Up to so many move at a time.
- None moves before the coordinator has reports of so long a time that its averages have half of their weight.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.coordinator.load_balancer import LoadBalancer
from magnetar.actors.coordinator.rebalancing import Rebalancer
from magnetar.protocol.load_figures import LoadReport
from magnetar.runtime.settings.declarations import Settings

from .history import History
from .store_watch import is_dead, who

ROUNDING_S = 1e-6


class BalanceWatch:
    """See the module. `settings` are the cluster's."""

    def __init__(self, history: History, settings: Settings) -> None:
        self._history = history
        self._grace_s = settings.load_shedding_grace_minutes * 60
        self._moves_max = settings.load_moves_max
        history_share = settings.load_history_share
        periods = math.log(0.5) / math.log(history_share) if history_share else 0.0
        self._settle_s = periods * settings.load_shedding_interval_minutes * 60
        self._moved: dict[tuple[Rebalancer, str], float] = {}
        self._reported_s: dict[Any, dict[str, float]] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        moving, taking = Rebalancer.move_for_load, LoadBalancer.take

        def taken(balancer: LoadBalancer, broker: str, report: LoadReport) -> None:
            taking(balancer, broker, report)
            self.was_reported(balancer._rebalancer, broker, report.interval_s)

        async def watched(rebalancer: Rebalancer, choose: Callable[[], Mapping[str, str]]) -> None:
            def choosing() -> Mapping[str, str]:
                moves = choose()
                if not is_dead():
                    self.were_chosen(rebalancer, moves, asyncio.get_running_loop().time())
                return moves

            await moving(rebalancer, choosing)

        stack.enter_context(patch.object(Rebalancer, "move_for_load", watched))
        stack.enter_context(patch.object(LoadBalancer, "take", taken))

    def was_reported(self, rebalancer: Any, broker: str, interval_s: float) -> None:
        """A coordinator has counted a broker's report."""
        of_brokers = self._reported_s.setdefault(rebalancer, {})
        of_brokers[broker] = of_brokers.get(broker, 0.0) + interval_s

    def were_chosen(self, rebalancer: Rebalancer, moves: Mapping[str, str], now_s: float) -> None:
        """A coordinator has decided to move these."""
        self._history.counts["moved for their load"] += len(moves)
        if len(moves) > self._moves_max:
            self._history.violated(f"I15: {who()} moves {len(moves)} topics at a time")
        reported_s = max(self._reported_s.get(rebalancer, {}).values(), default=0.0)
        if moves and reported_s < self._settle_s - ROUNDING_S:
            self._history.violated(f"I15: {who()} moves topics by reports of {reported_s:.1f} s")
        takers = rebalancer.takers()
        for topic, target in moves.items():
            before = self._moved.get((rebalancer, topic))
            if before is not None and now_s - before < self._grace_s:
                self._history.violated(f"I15: {who()} moves {topic} again after {now_s - before:.1f} s")
            self._moved[rebalancer, topic] = now_s
            if target not in takers or target == rebalancer.owner_of(topic):
                self._history.violated(f"I15: {who()} moves {topic} to {target}")
