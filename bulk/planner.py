"""Asks the cluster what a topic consists of, and keeps it from being trimmed while it is read.

The owner of each partition says which ledgers there are and where the last one ends now, and pins them, all in one
answer. Pins are prolonged and removed by the partition's owner at that time. While no broker answers, the read goes on
with the time that the pins still have.

A `Planner` has pins from `plan` to `close`, and prolongs them until then. A driver that dies leaves pins behind. They
expire when the topic's owner has not seen them prolonged for `pin_ttl_s`, by its own clock: the driver's clock is asked
for nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from ..actors.members.contracts_broker import SchemaRow
from ..protocol.errors import (
    NotAllowedError,
)
from ..protocol.message_id import WireMessageId
from ..protocol.topics import TopicName
from ..runtime.environment import Environment
from ..runtime.rpc.connection import Locate
from ..runtime.tasks import Tasks, together
from ..storage.metadata.ledger_metadata import LedgerMetadata
from .access import ClusterAccess, locate_coordinator
from .arrow_decoding import TimeWindow
from .cluster_link import ClusterLink, Pin
from .read_plan import CLOCK_SKEW_MS, Bounds, PartitionPlan, PointsInTopic, parse_bounds
from .typed.choice import RowShape, SchemaChoice, chosen, row_shape

logger = logging.getLogger(__name__)

T = TypeVar("T")

PLAN_TIMEOUT_S = 60.0
"""How long the topic's brokers are looked for while some of them fail over."""
PIN_TTL_S = 600.0
RENEWALS_PER_TTL = 3
UNPIN_TIMEOUT_S = 20.0


class Planner:
    """Plans one read. Use as `async with`, or `close` it; `plan` once."""

    def __init__(
        self,
        env: Environment,
        access: ClusterAccess,
        topic: str,
        *,
        timeout_s: float,
        pin_ttl_s: float = PIN_TTL_S,
        locate: Locate = locate_coordinator,
    ) -> None:
        """Raises InvalidTopicName, NotAllowedError for a topic that is not persistent."""
        self.name = TopicName.parse(topic)
        if not self.name.persistent:
            raise NotAllowedError(f"{self.name.full} stores no messages: only persistent topics can be read in bulk")
        self.link = ClusterLink(env, access, locate)
        self._env = env
        self._timeout_s = timeout_s
        self._pin_ttl_s = pin_ttl_s
        self._pins: list[Pin] = []
        self._compacted, self._before_bytes = False, 0
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove the pins, and end the connections."""
        await self._tasks.close()
        await self._unpin()
        await self.link.close()

    async def plan(
        self,
        start: PointsInTopic = "earliest",
        end: PointsInTopic = "latest",
        *,
        compacted: bool = False,
        window: TimeWindow | None = None,
        before_bytes: int = 0,
    ) -> list[PartitionPlan]:
        """Plan and pin every partition. With `compacted`, what is compacted is read from the compacted ledgers.

        `window` narrows the bounds down to messages that were published in it. The ledgers of about `before_bytes`
        before the start are planned and pinned, too, where the topic has them.

        Raises TopicNotFound, InvalidConfiguration (the bounds), and after `timeout_s` whatever kept the owners from
        answering.
        """
        self._compacted, self._before_bytes = compacted, before_bytes
        topics = await self._patiently(self._topics)
        bounds = parse_bounds(start, end, list(topics))
        if window is not None:
            bounds = {partition: found.within(window) for partition, found in bounds.items()}
        try:
            plans = await together(
                [
                    self._patiently(partial(self._plan_one, partition, topic, bounds[partition]))
                    for partition, topic in topics.items()
                ]
            )
        finally:
            await self.link.leave_brokers()
        self._tasks.spawn(self._prolong(), "prolong-pins")
        return plans

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins that this planner prolongs."""
        return tuple(self._pins)

    async def shape(self, columns: Sequence[str] | None, choice: SchemaChoice) -> RowShape:
        """The columns of the rows. Ask after `plan`: then the versions are all that the planned messages have.

        Raises InvalidConfiguration, NotAllowedError, and what kept the brokers from answering for `timeout_s`.
        """
        if choice is None:
            return row_shape(columns)
        rows = await self.schemas()
        return row_shape(columns, chosen(self.name.full, choice, rows), rows)

    async def schemas(self) -> list[SchemaRow]:
        """The versions of the topic's schema, oldest first. Raises what `shape` raises."""
        return await self._patiently(lambda: self.link.schemas(self.name.without_partition().full))

    def detach(self) -> list[Pin]:
        """The pins, for somebody else to prolong. They stay when this planner is closed."""
        pins, self._pins = self._pins, []
        return pins

    # -- planning ------------------------------------------------------------------------------------------------

    async def _topics(self) -> dict[int, str]:
        """Full names by partition; −1 for a topic that has none."""
        if self.name.partition >= 0:
            return {self.name.partition: self.name.full}
        coordinator = await self.link.coordinator()
        partitions = await coordinator.partitions(topic=self.name.full, create=False)
        if not partitions:
            return {-1: self.name.full}
        return {index: self.name.partition_name(index) for index in range(partitions)}

    async def _plan_one(self, partition: int, topic: str, bounds: Bounds) -> PartitionPlan:
        plan_read = (await self.link.owner(topic)).plan_read
        if self._compacted:  # else left out: a broker of an earlier version does not know it
            plan_read = partial(plan_read, compacted=True)
        if self._before_bytes:
            plan_read = partial(plan_read, before_bytes=self._before_bytes)
        answer = await plan_read(
            topic=topic,
            start=_point(bounds.first, bounds.window.start_ms, -CLOCK_SKEW_MS, "earliest"),
            end=_point(bounds.last, bounds.window.end_ms, CLOCK_SKEW_MS, "latest"),
            ttl_s=self._pin_ttl_s,
        )
        if answer.pin:
            self._pins.append(Pin(topic, answer.pin))
        first, last = (answer.first.ledger, answer.first.entry), (answer.last.ledger, answer.last.entry)
        ledgers = tuple(LedgerMetadata.unpack(packed) for packed in answer.ledgers)
        compacted = None if answer.compacted is None else LedgerMetadata.unpack(answer.compacted)
        return PartitionPlan(topic, partition, ledgers, first, last, bounds, compacted, answer.open_entry_bytes)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await self.link.patiently(attempt, self._timeout_s, f"the plan of a read of {self.name.full}")

    # -- pins ----------------------------------------------------------------------------------------------------

    async def _prolong(self) -> None:
        while self._pins:
            await asyncio.sleep(self._pin_ttl_s / RENEWALS_PER_TTL)
            await self.link.prolong(self._pins, self._pin_ttl_s)

    async def _unpin(self) -> None:
        pins, self._pins = self._pins, []
        try:
            async with asyncio.timeout(UNPIN_TIMEOUT_S):
                await self.link.unpin(pins)
        except TimeoutError:
            logger.warning("the pins of %s could not be removed in time and expire by themselves", self.name.full)


def _point(bound: WireMessageId, time_ms: int | None, skew_ms: int, otherwise: str) -> str | int | list[int]:
    """A bound as the broker takes it: it narrows the plan down and may be wide, since the decoder is exact."""
    if time_ms is not None:
        return max(time_ms + skew_ms, 0)
    if bound in (WireMessageId.earliest, WireMessageId.latest):
        return "earliest" if bound == WireMessageId.earliest else "latest"
    return [bound.ledger_id, bound.entry_id] if bound.ledger_id >= 0 else otherwise
