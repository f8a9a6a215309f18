"""I15: moves for load are damped. Stands beside the coordinators, where they decide to move topics for their load.

- One coordinator moves a topic at most once within the grace period, also when others move it in between.
- A topic goes from its owner to another broker that takes topics at this moment.
- Up to so many move at a time.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from unittest.mock import patch

from magnetar.actors.coordinator.rebalancing import Rebalancer
from magnetar.runtime.settings.declarations import Settings

from .history import History
from .store_watch import is_dead, who


class BalanceWatch:
    """See the module. `settings` are the cluster's."""

    def __init__(self, history: History, settings: Settings) -> None:
        self._history = history
        self._grace_s = settings.load_shedding_grace_minutes * 60
        self._moves_max = settings.load_moves_max
        self._moved: dict[tuple[Rebalancer, str], float] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        moving = Rebalancer.move_for_load

        async def watched(rebalancer: Rebalancer, choose: Callable[[], Mapping[str, str]]) -> None:
            def choosing() -> Mapping[str, str]:
                moves = choose()
                if not is_dead():
                    self.were_chosen(rebalancer, moves, asyncio.get_running_loop().time())
                return moves

            await moving(rebalancer, choosing)

        stack.enter_context(patch.object(Rebalancer, "move_for_load", watched))

    def were_chosen(self, rebalancer: Rebalancer, moves: Mapping[str, str], now_s: float) -> None:
        """A coordinator has decided to move these."""
        self._history.counts["moved for their load"] += len(moves)
        if len(moves) > self._moves_max:
            self._history.violated(f"I15: {who()} moves {len(moves)} topics at a time")
        takers = rebalancer.takers()
        for topic, target in moves.items():
            before = self._moved.get((rebalancer, topic))
            if before is not None and now_s - before < self._grace_s:
                self._history.violated(f"I15: {who()} moves {topic} again after {now_s - before:.1f} s")
            self._moved[rebalancer, topic] = now_s
            if target not in takers or target == rebalancer.owner_of(topic):
                self._history.violated(f"I15: {who()} moves {topic} to {target}")
