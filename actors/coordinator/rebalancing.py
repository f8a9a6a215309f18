"""Moving slots and single topics from broker to broker: by an operator's order, or so that slots are spread evenly.

A move has the owner release what moves: it closes the topics, and opens none of them again without a new grant. Then
the placement gives it to another broker. An owner that does not answer is no reason to wait: the new one fences its
ledgers. Slots in which nothing lies move without a release, as placement does by itself when a broker joins.

Brokers come and go in bursts: slots are evened out once the brokers have been the same for `rebalance_delay_s`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from ...protocol.errors import MagnetarError, NotAllowedError
from ...protocol.slots import slot_of
from ...protocol.topics import TopicName
from ...runtime.tasks import Tasks
from ...storage.metadata.slot_rows import SlotEntry
from ..members.contracts_broker import BrokerContract
from ..members.peer_calls import MemberCalls
from ..slots.contents import SlotContents
from .membership import Membership
from .placement import SlotPlacement

logger = logging.getLogger(__name__)

SLOTS_AT_A_TIME = 64
TOPICS_AT_A_TIME = 50
"""Of which slots move together; one slot at least."""


class Rebalancer:
    """See the module. `close` ends it."""

    def __init__(
        self,
        membership: Membership,
        placement: SlotPlacement,
        contents: SlotContents,
        broker_calls: MemberCalls[BrokerContract],
        rebalance_delay_s: float,
    ) -> None:
        self._membership = membership
        self._placement = placement
        self.contents = contents
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
        """Move slots until they are spread evenly, a few at a time.

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
        while moved < self.contents.slots:
            brokers = [session.node_id for session in self._membership.takers()]
            if self._stopped:
                break
            moves = self._placement.table.rebalance(brokers, SLOTS_AT_A_TIME)
            moves = {slot: moves[slot] for slot in self._few(moves)}
            if not moves:
                break
            logger.info("rebalancing: %d topics move, in %d slots", self.contents.count(moves), len(moves))
            await self.move(moves)
            moved += len(moves)

    def owner_of(self, unit: str) -> str | None:
        """The broker that owns a topic; None where there is none."""
        owner = self._placement.table.entry_of(TopicName.parse(unit)).owner
        return owner.broker if owner is not None else None

    def takers(self) -> list[str]:
        """The brokers that take topics; none while it is too early to say."""
        return [] if self._membership.in_grace else [session.node_id for session in self._membership.takers()]

    async def move_for_load(self, choose: Callable[[], Mapping[str, str]]) -> None:
        """Move what `choose` returns, topic → broker, when nothing else is being moved. It is called once, then."""
        async with self._moving:
            if not self._stopped and (moves := choose()):
                try:
                    await self.move_topics(moves)
                except NotAllowedError as error:
                    logger.warning("topics do not move for their load: %s", error)

    async def order(self, moves: Mapping[str, str | None]) -> None:
        """`move_topics`, because an operator wants it."""
        self.on_order(moves)
        await self.move_topics(moves)

    async def empty(self, broker: str) -> int:
        """Move what a broker owns to those that take slots, a few at a time; returns how many topics it still has.

        A broker that others join meanwhile is no other's business: the caller asks again until it has none.
        """
        table = self._placement.table
        if any(session.node_id != broker for session in self._membership.takers()):
            slots = table.slots_of(broker)
            vacant = [slot for slot in slots if self.contents.is_empty(slot)]
            if vacant:
                self._placement.force(dict.fromkeys(vacant))
                await self._placement.settle()
            used = [slot for slot in slots if not self.contents.is_empty(slot)]
            await self.move(dict.fromkeys(self._few(used)))
            await self.move_topics(dict.fromkeys(islice(table.exceptions_of(broker), TOPICS_AT_A_TIME)))
        slots = table.slots_of(broker)
        return max(len(slots), self.contents.count(slots)) + len(table.exceptions_of(broker))

    def _few(self, slots: Iterable[int]) -> list[int]:
        """The first of these slots: as many as are moved at a time."""
        few: list[int] = []
        topics = 0
        for slot in islice(slots, SLOTS_AT_A_TIME):
            topics += self.contents.count((slot,))
            if few and topics > TOPICS_AT_A_TIME:
                break
            few.append(slot)
        return few

    async def move(self, moves: Mapping[int, str | None]) -> None:
        """Have the owners release these slots, then give them to the given brokers (None: to any other)."""
        if not moves:
            return
        self._placement.hold(moves)
        try:
            table = self._placement.table
            slots = [slot for slot in moves if not self.contents.is_empty(slot)]
            await self._release({slot: table.get(slot) for slot in slots}, table.exceptions_in(slots))
            self._placement.force(moves)
        finally:
            self._placement.unhold(moves)
        await self._placement.settle()

    async def move_topics(self, moves: Mapping[str, str | None]) -> None:
        """Have the owners release these topics, then give them alone to the given brokers (None: to any other).

        Raises NotAllowedError when too many topics were moved alone.
        """
        if not moves:
            return
        names = {topic: TopicName.parse(topic) for topic in moves}
        slots = dict.fromkeys(slot_of(name, self.contents.slots) for name in names.values())
        self._placement.hold(slots)
        try:
            table = self._placement.table
            await self._release({}, {topic: table.entry_of(name) for topic, name in names.items()})
            self._placement.move_topics(moves)
        finally:
            self._placement.unhold(slots)
        await self._placement.settle()

    async def _release(self, slots: Mapping[int, SlotEntry], topics: Mapping[str, SlotEntry]) -> None:
        parts: dict[str, tuple[list[int], list[str]]] = {}
        for slot, entry in slots.items():
            if entry.owner is not None:
                parts.setdefault(entry.owner.broker, ([], []))[0].append(slot)
        for topic, entry in topics.items():
            if entry.owner is not None:
                parts.setdefault(entry.owner.broker, ([], []))[1].append(topic)

        async def release(broker: str, slots: list[int], topics: list[str]) -> None:
            try:
                number = self._placement.take_epoch()
                await self._broker_calls.of(broker).release(number=number, slots=slots, topics=topics)
            except MagnetarError as error:
                logger.warning("%s did not release %d slots and %d topics: %s", broker, len(slots), len(topics), error)

        await asyncio.gather(*(release(broker, *part) for broker, part in parts.items()))


def _ignore(topics: Iterable[str]) -> None:
    """What an order calls when nothing balances the load."""
