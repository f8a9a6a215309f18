"""Moving topics from broker to broker: by an operator's order, or so that they are spread evenly.

A move has the owner close the topic, then the placement assigns it elsewhere. An owner that does not answer is no
reason to wait: the new one fences its ledgers.

Brokers come and go in bursts: topics are evened out once the brokers have been the same for `rebalance_delay_s`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

from ...protocol.errors import MagnetarError
from ...runtime.tasks import Tasks
from ..members.contracts_broker import BrokerContract
from ..members.peer_calls import MemberCalls
from .membership import Membership
from .placement import Placement

logger = logging.getLogger(__name__)

CALLS_AT_A_TIME = 16
REBALANCE_MOVES_AT_A_TIME = 50


class Rebalancer:
    """See the module. `close` ends it."""

    def __init__(
        self,
        membership: Membership,
        placement: Placement,
        broker_calls: MemberCalls[BrokerContract],
        rebalance_delay_s: float,
    ) -> None:
        self._membership = membership
        self._placement = placement
        self._broker_calls = broker_calls
        self.on_order: Callable[[Iterable[str]], None] = _ignore
        """Called with the topics that an operator moves."""
        self._delay_s = rebalance_delay_s
        self._timer: asyncio.TimerHandle | None = None
        self._moving = asyncio.Lock()
        self._one_waits = False
        self._stopped = False
        self._tasks = Tasks()

    def stop(self) -> None:
        """Begin no more moves."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def finish(self) -> None:
        """Stop, and wait for the moves that are under way: no topic is left between two brokers."""
        self.stop()
        async with self._moving:
            pass

    async def close(self) -> None:
        """Stop, and end what is under way."""
        self.stop()
        await self._tasks.close()

    def brokers_changed(self) -> None:
        """A broker came or went: even out later."""
        if self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._start)

    def _start(self) -> None:
        self._timer = None
        self._tasks.spawn(self.rebalance(), "rebalance")

    async def rebalance(self) -> None:
        """Move topics until they are spread evenly, a few at a time.

        One at a time: of those that are asked for meanwhile one runs afterwards, and looks at things as they are then.
        """
        if self._one_waits:
            return
        self._one_waits = True
        try:
            await self._moving.acquire()
        finally:
            self._one_waits = False
        try:
            await self._rebalance()
        finally:
            self._moving.release()

    async def _rebalance(self) -> None:
        moved = 0
        bound = len(self._placement.table)
        while moved < bound:
            brokers = [session.node_id for session in self._membership.takers()]
            if self._stopped:
                break
            moves = self._placement.table.rebalance(brokers, REBALANCE_MOVES_AT_A_TIME)
            if not moves:
                break
            logger.info("rebalancing: %d topics move", len(moves))
            await self.move(moves)
            moved += len(moves)

    def owner_of(self, unit: str) -> str | None:
        """See `balancing.balancer.UnitMover`. A unit is a topic."""
        assignment = self._placement.table.get(unit)
        return assignment.broker if assignment is not None else None

    def takers(self) -> list[str]:
        """See `balancing.balancer.UnitMover`."""
        return [] if self._membership.in_grace else [session.node_id for session in self._membership.takers()]

    async def move_for_load(self, choose: Callable[[], Mapping[str, str]]) -> None:
        """See `balancing.balancer.UnitMover`."""
        async with self._moving:
            if not self._stopped and (moves := choose()):
                await self.move(moves)

    async def order(self, moves: Mapping[str, str | None]) -> None:
        """`move`, because an operator wants it."""
        self.on_order(moves)
        await self.move(moves)

    async def empty(self, broker: str) -> int:
        """Move the topics of a broker to those that take topics, a few at a time; returns how many it still has.

        A broker that others join meanwhile is no other's business: the caller asks again until it has none.
        """
        if any(session.node_id != broker for session in self._membership.takers()):
            topics = sorted(self._placement.table.topics_of(broker))[:REBALANCE_MOVES_AT_A_TIME]
            await self.move(dict.fromkeys(topics))
        return len(self._placement.table.topics_of(broker))

    async def move(self, moves: Mapping[str, str | None]) -> None:
        """Have the owners close these topics, then assign them to the given brokers (None: to any other)."""
        self._placement.hold(moves)
        try:
            await _at_a_time([self._release(topic) for topic in moves])
            self._placement.force(moves)
        finally:
            self._placement.unhold(moves)
        await self._placement.settle()

    async def _release(self, topic: str) -> None:
        assignment = self._placement.table.get(topic)
        if assignment is None:
            return
        try:
            await self._broker_calls.of(assignment.broker).unload(topic=topic)
        except MagnetarError as error:
            logger.warning("%s did not release %s: %s", assignment.broker, topic, error)


def _ignore(topics: Iterable[str]) -> None:
    """What an order calls when nothing balances the load."""


async def _at_a_time(coroutines: Sequence[Coroutine[object, object, None]]) -> None:
    permits = asyncio.Semaphore(CALLS_AT_A_TIME)

    async def bounded(coroutine: Coroutine[object, object, None]) -> None:
        async with permits:
            await coroutine

    await asyncio.gather(*(bounded(coroutine) for coroutine in coroutines))
