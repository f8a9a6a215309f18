"""A bulk reader's calls into the cluster: the coordinator, and the brokers that own topics.

Bookies are found through the coordinator; if that is away, by the last known addresses.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from ..actors.members.contracts_broker import BrokerContract, SchemaRow
from ..actors.members.contracts_coordinator import CoordinatorContract
from ..protocol.errors import (
    AlreadyClosed,
    LedgerFenced,
    MagnetarError,
    ServiceUnitNotReady,
    StaleEpoch,
    TopicNotFound,
    is_retriable,
)
from ..protocol.names import COORDINATOR_ID, ROLE_READER
from ..runtime import retry
from ..runtime.backoff import LimitedBackoff
from ..runtime.environment import Environment
from ..runtime.rpc.connection import Locate, RpcConnection, rpc_connect
from ..runtime.rpc.keys import Identity
from ..storage.ledger.bookie_directory import BookieInfo
from .access import ClusterAccess

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 15.0
"""A broker that has just been given a topic loads it first, and recovers its ledgers."""
FRAME_SIZE_MAX_BYTES = 64 << 20
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 1.0
MOVING = (StaleEpoch, LedgerFenced, AlreadyClosed)
"""What a broker says that has just lost the topic; the next owner knows more."""

LocateBookies = Callable[[], Awaitable[Sequence[BookieInfo]]]
"""Where the bookies listen now; the last known addresses if the coordinator does not answer."""


class Pin(NamedTuple):
    """What keeps the planned ledgers of a topic from being trimmed."""

    topic: str
    id: str


class ClusterLink:
    """Connections of one bulk reader. Use as long as it reads, then `close`."""

    def __init__(self, env: Environment, access: ClusterAccess, locate: Locate) -> None:
        self.env = env
        self._access = access
        self._locate = locate
        self._identity = Identity(access.cluster_id, ROLE_READER, f"reader-{env.random.hex(4)}", env.random.hex(8))
        self._coordinator: RpcConnection | None = None
        self._brokers: dict[str, RpcConnection] = {}
        self._connecting = asyncio.Lock()
        self._bookies: list[BookieInfo] = []

    async def close(self) -> None:
        """End all connections."""
        await self.leave_brokers()
        if self._coordinator is not None:
            self._coordinator.close()
            await self._coordinator.wait_closed()

    async def leave_brokers(self) -> None:
        """End the connections to brokers. The next call finds the owners of that time."""
        connections = list(self._brokers.values())
        self._brokers.clear()
        for connection in connections:
            connection.close()
            await connection.wait_closed()

    async def coordinator(self) -> CoordinatorContract:
        """The active coordinator. Raises CoordinatorUnavailable, ConnectError."""
        async with self._connecting:
            return CoordinatorContract((await self._connected()).call, timeout_s=CALL_TIMEOUT_S)

    async def owner(self, topic: str) -> BrokerContract:
        """The broker that has a partition or plain topic now. Raises TopicNotFound, ServiceUnitNotReady."""
        owner = await (await self.coordinator()).assign(topic=topic, create=False)
        broker = await self._broker(owner.broker, owner.incarnation)
        return BrokerContract(broker.call, timeout_s=CALL_TIMEOUT_S)

    async def schemas(self, topic: str) -> list[SchemaRow]:
        """The versions of a topic's schema, oldest first, as any broker knows them; none for a topic without one.

        Raises ServiceUnitNotReady when no broker is there, or what the last one that was asked has raised.
        """
        failure: MagnetarError | OSError = ServiceUnitNotReady("there is no broker that knows the topic's schema")
        for broker in await (await self.coordinator()).brokers():
            try:
                connection = await self._broker(broker.id, broker.incarnation)
                return await BrokerContract(connection.call, timeout_s=CALL_TIMEOUT_S).schemas(topic=topic)
            except (MagnetarError, OSError) as error:
                failure = error
        raise failure

    async def bookies(self) -> list[BookieInfo]:
        """Where the bookies listen now; the last known addresses while the coordinator is away.

        Raises CoordinatorUnavailable if it never answered.
        """
        try:
            self._bookies = await (await self.coordinator()).bookies()
        except (MagnetarError, OSError) as error:
            if not self._bookies:
                raise
            logger.warning(
                "the coordinator does not answer, so the read uses the last known list of bookies: %s", error
            )
        return self._bookies

    async def prolong(self, pins: Sequence[Pin], ttl_s: float) -> None:
        """Let pins last `ttl_s` seconds from now on. One whose topic cannot be asked keeps the time that it has."""
        await self._at_the_owners(
            pins,
            lambda broker, pin: broker.prolong_pin(topic=pin.topic, pin=pin.id, ttl_s=ttl_s),
            "a pin of %s could not be prolonged and is tried again: %s",
        )

    async def unpin(self, pins: Sequence[Pin]) -> None:
        """Remove pins. One whose topic cannot be asked expires by itself."""
        await self._at_the_owners(
            pins,
            lambda broker, pin: broker.unpin(topic=pin.topic, pin=pin.id),
            "a pin of %s could not be removed and expires by itself: %s",
        )

    async def _at_the_owners(
        self, pins: Sequence[Pin], question: Callable[[BrokerContract, Pin], Awaitable[object]], failed: str
    ) -> None:
        """Ask for each pin the broker that has its topic now. What fails is only logged, as `failed` says."""
        for pin in pins:
            try:
                await question(await self.owner(pin.topic), pin)
            except TopicNotFound:
                continue  # it was deleted, and its pins with it
            except (MagnetarError, OSError) as error:
                logger.warning(failed, pin.topic, error)

    async def patiently(self, attempt: Callable[[], Awaitable[T]], timeout_s: float, what: str) -> T:
        """Repeat `attempt` while the cluster is in transition, for `timeout_s` at most. Raises its last error."""
        return await retry.limited(
            LimitedBackoff(self.env.random, RETRY_INITIAL_S, RETRY_MAX_S, timeout_s),
            attempt,
            retriable=lambda error: is_retriable(error) or isinstance(error, MOVING),
            on_retry=lambda error, delay_s: logger.info(
                "%s failed and is tried again in %.1f s: %s", what, delay_s, error
            ),
        )

    async def _broker(self, broker_id: str, incarnation: str) -> RpcConnection:
        async with self._connecting:
            known = self._brokers.get(broker_id)
            if known is not None and not known.closed and known.peer.incarnation == incarnation:
                return known
            coordinator = await self._connected()
            for broker in await CoordinatorContract(coordinator.call).brokers():
                address = broker.rpc_address
                if broker.id == broker_id and broker.incarnation == incarnation and address is not None:
                    made = await self._connect(*address, broker_id)
                    self._brokers[broker_id] = made
                    return made
        raise ServiceUnitNotReady(f"{broker_id} has just left the cluster")

    async def _connected(self) -> RpcConnection:
        if self._coordinator is None or self._coordinator.closed:
            host, port = await self._locate()
            self._coordinator = await self._connect(host, port, COORDINATOR_ID)
        return self._coordinator

    async def _connect(self, host: str, port: int, node_id: str) -> RpcConnection:
        return await rpc_connect(
            self.env,
            host,
            port,
            self._identity,
            self._access.keys,
            expected_node_id=node_id,
            frame_size_max=FRAME_SIZE_MAX_BYTES,
            timeout_s=CONNECT_TIMEOUT_S,
        )
