"""Asks the cluster what a topic consists of, and keeps it from being trimmed while it is read.

The owner of each partition says which ledgers there are and where the last one ends now, and pins them, all in one
answer. Pins are prolonged and removed by the partition's owner at that time. While no broker answers, the read goes on
with the time that the pins still have. Bookies are found through the coordinator; if that is away, too, by the last
known addresses.

A `Planner` has pins from `plan` to `close`, and prolongs them until then. A driver that dies leaves pins behind. They
expire when the topic's owner has not seen them prolonged for `pin_ttl_s`, by its own clock: the driver's clock is asked
for nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from ..actors.members.contracts_broker import BrokerContract
from ..actors.members.contracts_coordinator import CoordinatorContract
from ..protocol.errors import (
    AlreadyClosed,
    LedgerFenced,
    MagnetarError,
    NotAllowedError,
    ServiceUnitNotReady,
    StaleEpoch,
    TopicNotFound,
    is_retriable,
)
from ..protocol.message_id import WireMessageId
from ..protocol.names import COORDINATOR_ID, ROLE_READER
from ..protocol.topics import TopicName
from ..runtime import retry
from ..runtime.backoff import LimitedBackoff
from ..runtime.environment import Environment
from ..runtime.rpc.connection import Locate, RpcConnection, rpc_connect
from ..runtime.rpc.keys import Identity
from ..runtime.tasks import Tasks
from ..storage.ledger.bookie_directory import BookieInfo
from ..storage.metadata.ledger_metadata import LedgerMetadata
from .access import ClusterAccess, locate_coordinator
from .read_plan import CLOCK_SKEW_MS, Bounds, PartitionPlan, PointsInTopic, parse_bounds

logger = logging.getLogger(__name__)

T = TypeVar("T")

LocateBookies = Callable[[], Awaitable[Sequence[BookieInfo]]]
"""Where the bookies listen now; the last known addresses if the coordinator does not answer."""

PLAN_TIMEOUT_S = 60.0
"""How long the topic's brokers are looked for while some of them fail over."""
PIN_TTL_S = 600.0
RENEWALS_PER_TTL = 3
CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 15.0
"""A broker that has just been given a topic loads it first, and recovers its ledgers."""
UNPIN_TIMEOUT_S = 20.0
FRAME_SIZE_MAX_BYTES = 64 << 20
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 1.0
MOVING = (StaleEpoch, LedgerFenced, AlreadyClosed)
"""What a broker says that has just lost the topic; the next owner knows more."""


class Planner:
    """Plans one read. Use as `async with`; `plan` once."""

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
        self._env = env
        self._access = access
        self._timeout_s = timeout_s
        self._pin_ttl_s = pin_ttl_s
        self._locate = locate
        self._identity = Identity(access.cluster_id, ROLE_READER, f"spark-{env.random.hex(4)}", env.random.hex(8))
        self._coordinator: RpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._bookies: list[BookieInfo] = []
        self._pins: list[tuple[str, str]] = []  # topic, id of the pin
        self._compacted = False
        self._tasks = Tasks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.close()
        await self._unpin()
        if self._coordinator is not None:
            self._coordinator.close()
            await self._coordinator.wait_closed()

    async def plan(
        self,
        start: PointsInTopic = "earliest",
        end: PointsInTopic = "latest",
        *,
        compacted: bool = False,
    ) -> list[PartitionPlan]:
        """Plan and pin every partition. With `compacted`, what is compacted is read from the compacted ledgers.

        Raises TopicNotFound, InvalidConfiguration (the bounds), and after `timeout_s` whatever kept the owners from
        answering.
        """
        self._compacted = compacted
        topics = await self._patiently(self._topics)
        bounds = parse_bounds(start, end, list(topics))
        connections: dict[str, RpcConnection] = {}
        try:
            # A group, so that none of them goes on pinning when another one has failed.
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._patiently(lambda p=partition, t=topic: self._plan_one(p, t, bounds[p], connections))
                    )
                    for partition, topic in topics.items()
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await _close(connections)
        self._tasks.spawn(self._prolong(), "prolong-pins")
        return [task.result() for task in tasks]

    async def bookies(self) -> list[BookieInfo]:
        """Where the bookies listen now; the last known addresses while the coordinator is away.

        Raises CoordinatorUnavailable if it never answered.
        """
        try:
            listed = await CoordinatorContract((await self._connection()).call).bookies()
        except (MagnetarError, OSError) as error:
            if not self._bookies:
                raise
            logger.warning(
                "the coordinator does not answer, so the read uses the last known list of bookies: %s", error
            )
        else:
            self._bookies = listed
        return self._bookies

    # -- planning ------------------------------------------------------------------------------------------------

    async def _topics(self) -> dict[int, str]:
        """Full names by partition; −1 for a topic that has none."""
        if self.name.partition >= 0:
            return {self.name.partition: self.name.full}
        coordinator = CoordinatorContract((await self._connection()).call)
        partitions = await coordinator.partitions(topic=self.name.full, create=False)
        if not partitions:
            return {-1: self.name.full}
        return {index: self.name.partition_name(index) for index in range(partitions)}

    async def _plan_one(
        self, partition: int, topic: str, bounds: Bounds, connections: dict[str, RpcConnection]
    ) -> PartitionPlan:
        broker = await self._owner(topic, connections)
        plan_read = BrokerContract(broker.call, timeout_s=CALL_TIMEOUT_S).plan_read
        if self._compacted:  # else left out: a broker of an earlier version does not know it
            plan_read = partial(plan_read, compacted=True)
        answer = await plan_read(
            topic=topic,
            start=_point(bounds.first, bounds.window.start_ms, -CLOCK_SKEW_MS, "earliest"),
            end=_point(bounds.last, bounds.window.end_ms, CLOCK_SKEW_MS, "latest"),
            ttl_s=self._pin_ttl_s,
        )
        if answer.pin:
            self._pins.append((topic, answer.pin))
        first, last = (answer.first.ledger, answer.first.entry), (answer.last.ledger, answer.last.entry)
        ledgers = tuple(LedgerMetadata.unpack(packed) for packed in answer.ledgers)
        compacted = None if answer.compacted is None else LedgerMetadata.unpack(answer.compacted)
        return PartitionPlan(topic, partition, ledgers, first, last, bounds, compacted)

    async def _owner(self, topic: str, connections: dict[str, RpcConnection]) -> RpcConnection:
        coordinator = await self._connection()
        owner = await CoordinatorContract(coordinator.call, timeout_s=CALL_TIMEOUT_S).assign(topic=topic, create=False)
        return await self._broker(owner.broker, owner.incarnation, connections)

    async def _broker(self, broker_id: str, incarnation: str, connections: dict[str, RpcConnection]) -> RpcConnection:
        async with self._connecting:
            known = connections.get(broker_id)
            if known is not None and not known.closed and known.peer.incarnation == incarnation:
                return known
            coordinator = await self._connected()
            for broker in await CoordinatorContract(coordinator.call).brokers():
                address = broker.rpc_address
                if broker.id == broker_id and broker.incarnation == incarnation and address is not None:
                    made = await self._connect(*address, broker_id)
                    connections[broker_id] = made
                    return made
        raise ServiceUnitNotReady(f"{broker_id} has just left the cluster")

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` while the cluster is in transition, for `timeout_s` at most."""
        return await retry.limited(
            LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, self._timeout_s),
            attempt,
            retriable=lambda error: is_retriable(error) or isinstance(error, MOVING),
            on_retry=lambda error, delay_s: logger.info(
                "the read of %s could not be planned and is tried again in %.1f s: %s", self.name.full, delay_s, error
            ),
        )

    # -- pins ----------------------------------------------------------------------------------------------------

    async def _prolong(self) -> None:
        while self._pins:
            await asyncio.sleep(self._pin_ttl_s / RENEWALS_PER_TTL)
            await self._at_the_owners(
                self._pins,
                lambda broker, topic, pin: broker.prolong_pin(topic=topic, pin=pin, ttl_s=self._pin_ttl_s),
                "a pin of %s could not be prolonged and is tried again: %s",
            )

    async def _unpin(self) -> None:
        pins, self._pins = self._pins, []
        try:
            async with asyncio.timeout(UNPIN_TIMEOUT_S):
                await self._at_the_owners(
                    pins,
                    lambda broker, topic, pin: broker.unpin(topic=topic, pin=pin),
                    "a pin of %s could not be removed and expires by itself: %s",
                )
        except TimeoutError:
            logger.warning("the pins of %s could not be removed in time and expire by themselves", self.name.full)

    async def _at_the_owners(
        self,
        pins: Sequence[tuple[str, str]],
        question: Callable[[BrokerContract, str, str], Awaitable[object]],
        failed: str,
    ) -> None:
        """Ask for each pin the broker that has its topic now. What fails is only logged, as `failed` says."""
        connections: dict[str, RpcConnection] = {}
        try:
            for topic, pin in pins:
                try:
                    owner = await self._owner(topic, connections)
                    await question(BrokerContract(owner.call, timeout_s=CALL_TIMEOUT_S), topic, pin)
                except TopicNotFound:
                    continue  # it was deleted, and its pins with it
                except (MagnetarError, OSError) as error:
                    logger.warning(failed, topic, error)
        finally:
            await _close(connections)

    # -- connections ---------------------------------------------------------------------------------------------

    async def _connection(self) -> RpcConnection:
        async with self._connecting:
            return await self._connected()

    async def _connected(self) -> RpcConnection:
        if self._coordinator is None or self._coordinator.closed:
            host, port = await self._locate()
            self._coordinator = await self._connect(host, port, COORDINATOR_ID)
        return self._coordinator

    async def _connect(self, host: str, port: int, node_id: str) -> RpcConnection:
        return await rpc_connect(
            self._env,
            host,
            port,
            self._identity,
            self._access.keys,
            expected_node_id=node_id,
            frame_size_max=FRAME_SIZE_MAX_BYTES,
            timeout_s=CONNECT_TIMEOUT_S,
        )


def _point(bound: WireMessageId, time_ms: int | None, skew_ms: int, otherwise: str) -> str | int | list[int]:
    """A bound as the broker takes it: it narrows the plan down and may be wide, since the decoder is exact."""
    if time_ms is not None:
        return max(time_ms + skew_ms, 0)
    if bound in (WireMessageId.earliest, WireMessageId.latest):
        return "earliest" if bound == WireMessageId.earliest else "latest"
    return [bound.ledger_id, bound.entry_id] if bound.ledger_id >= 0 else otherwise


async def _close(connections: Mapping[str, RpcConnection]) -> None:
    for connection in connections.values():
        connection.close()
        await connection.wait_closed()
