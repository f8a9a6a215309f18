"""A coordinator over loopback sockets, and members that can be killed, stopped and woken up."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

import uvloop

from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.members.contracts_broker import BrokerContract
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.errors import NoSuchKey, NotAllowedError, ServiceUnitNotReady
from magnetar.protocol.names import ROLE_BOOKIE, ROLE_BROKER
from magnetar.protocol.slots import TopicGrant
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import Identity, RpcConnection
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.rpc.server import RpcServer
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.store import Guard, MetadataStore, Write, one_result
from support.stores.memory_store import MemoryMetadataStore, MemoryRecords

from .open_rpc import OpenService, PartialService

CLUSTER = "cluster-1"
SLOTS = 256
"""With as many as a cluster has by default, these tests would mostly assign and write slots."""
PREFIX = "persistent://public/default/"
KEYS = RootKeys(b"coordination test secret")
FAST = Settings(heartbeat_interval_s=0.1, session_timeout_s=0.8, rebalance_delay_s=0.2, auditor_interval_s=3600.0)


async def eventually(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Wait until `condition()` is true; it is looked at every 10 ms."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (the state of any service may be waited for)
            await asyncio.sleep(0.01)


class OpenCoordinator(OpenService, CoordinatorService):
    """A coordinator that takes every call from every role: tests ask it as the members that they have."""

    def check_metadata_writer(self, connection: RpcConnection, keys: Sequence[str]) -> None:
        """Only what depends on the session."""
        own = connection.peer.role in (ROLE_BROKER, ROLE_BOOKIE)
        super().check_metadata_writer(connection, keys if own else ())


class TestBrokerRpc(PartialService):
    """The internal side of a broker that only takes notes."""

    __test__ = False
    contract = BrokerContract

    def __init__(self) -> None:
        self.released: list[str] = []
        """Topics."""
        self.released_slots: list[int] = []
        self.given_back: list[TopicGrant] = []
        self.take_failures = 0
        """So many times the broker does not take what it is given back."""
        self.used: dict[str, None] = {}
        """Topics that are not inactive."""
        self.deleted: list[tuple[str, int]] = []
        self.health_checks = 0
        self.health_error: Exception | None = None
        self.unload_error: Exception | None = None
        self.delete_error: Exception | None = None
        self.delete_gate: asyncio.Event | None = None
        self.metadata: MetadataStore | None = None

    async def release(self, *, number: int, slots: list[int], topics: list[str]) -> None:
        self.released_slots += slots
        self.released += topics

    async def take_topics(self, *, grants: list[TopicGrant]) -> None:
        if self.take_failures:
            self.take_failures -= 1
            raise ServiceUnitNotReady("not now")
        self.given_back += grants

    async def unload(self, *, topic: str, number: int, inactive: bool = False) -> None:
        if self.unload_error is not None:
            raise self.unload_error
        if inactive and topic in self.used:
            raise NotAllowedError(f"{topic} is in use")
        self.released.append(topic)

    async def check_health(self) -> float:
        self.health_checks += 1
        if self.health_error is not None:
            raise self.health_error
        return 0.001

    async def is_inactive(self, *, topic: str) -> bool:
        return topic not in self.used

    async def delete_topics(self, *, topics: list[tuple[str, int]]) -> None:
        self.deleted += [(topic, epoch) for topic, epoch in topics]
        if self.delete_error is not None:
            raise self.delete_error
        if self.delete_gate is not None:
            await self.delete_gate.wait()
        assert self.metadata is not None
        for topic, _ in topics:
            with contextlib.suppress(NoSuchKey):
                await self.metadata.delete(metadata_keys.managed_ledger(TopicName.parse(topic).path), None)


class Assigned(NamedTuple):
    """The owner of a topic, and the epoch of its slot or exception."""

    broker: str
    incarnation: str
    epoch: int


class Member:
    """A registered member; a broker has an internal RPC server of its own. `topics` gives those that exist."""

    def __init__(
        self,
        client: CoordinatorClient,
        rpc: TestBrokerRpc,
        server: RpcServer | None,
        topics: Callable[[], list[str]],
    ) -> None:
        self.client = client
        self.grants: dict[str, TopicGrant] = {}
        self._topics = topics
        self.rpc = rpc
        rpc.metadata = client.metadata
        self.server = server
        self.lost = 0
        client.on_session_lost.append(self._lose)

    def _lose(self) -> None:
        self.lost += 1

    @property
    def node_id(self) -> str:
        return self.client.identity.node_id

    @property
    def assignments(self) -> dict[str, Assigned]:
        """The owners of the topics that exist, as this member believes."""
        found = {topic: self.client.slots.entry_of(TopicName.parse(topic)) for topic in self._topics()}
        return {topic: Assigned(*one.owner, one.epoch) for topic, one in found.items() if one.owner is not None}

    def owned(self) -> list[str]:
        """Topics that this member believes to be its own."""
        mine = (self.client.identity.node_id, self.client.identity.incarnation)
        return sorted(topic for topic, value in self.assignments.items() if (value.broker, value.incarnation) == mine)

    async def load(self, topic: str) -> None:
        """Store what a broker stores when it opens a topic: its chain, provided that the topic is as it was when this
        member got its first grant. Raises ConditionFailed when it is not.
        """
        name = TopicName.parse(topic)
        grant = self.grants.get(topic) or (await self.client.ask.assign(topic=topic)).grant
        assert grant is not None and grant.version is not None
        self.grants[topic] = grant
        whole = name.without_partition() if grant.partitions else name
        needs = Guard(metadata_keys.topic(whole.path), grant.version)
        value = ManagedLedgerRecord(grant.epoch).pack()
        one_result(
            await self.client.metadata.write_many([Write(metadata_keys.managed_ledger(name.path), value, None, needs)])
        )

    async def stop(self) -> None:
        """Like SIGSTOP, as seen from outside: sockets stay open, nothing is sent."""
        self.client._disconnect = lambda: None  # type: ignore[method-assign]
        await self.client._tasks.close()

    async def close(self) -> None:
        await self.client.close()
        if self.server is not None:
            await self.server.close()


class Coordination:
    """One coordinator at a time (more on request) and any number of members."""

    def __init__(self, env: Environment, store: MetadataStore, settings: Settings) -> None:
        self.env = env
        self.store = store
        self.settings = settings
        self.coordinator: CoordinatorService
        self.members: list[Member] = []
        self._address: tuple[str, int] = ("127.0.0.1", 0)

    async def start_coordinator(self, store: MetadataStore | None = None) -> CoordinatorService:
        self.coordinator = OpenCoordinator(
            self.env, store or self.store, CLUSTER, KEYS, self.settings, "127.0.0.1", 0, ""
        )
        await self.coordinator.start()
        self._address = self.coordinator.address
        return self.coordinator

    def topics(self) -> list[str]:
        """Partitions and plain topics that exist."""
        contents = self.coordinator.office.contents
        members = [one for slot in range(contents.slots) for one in contents.members(slot)]
        return [topic if index < 0 else TopicName.parse(topic).partition_name(index) for topic, index in members]

    async def locate(self) -> tuple[str, int]:
        return self._address

    async def join(
        self,
        role: str,
        node_id: str,
        incarnation: str = "1",
        *,
        rpc_service: TestBrokerRpc | None = None,
        **data: Any,
    ) -> Member:
        identity = Identity(CLUSTER, role, node_id, incarnation)
        client = CoordinatorClient(self.env, identity, KEYS, self.settings, self.locate)
        rpc = rpc_service or TestBrokerRpc()
        server = None
        if role == ROLE_BROKER:
            server = RpcServer(self.env, identity, KEYS, rpc, frame_size_max=1 << 20)
            data = {"url": f"pulsar://{node_id}:6650", "rpc": list(await server.start("127.0.0.1")), **data}
        member = Member(client, rpc, server, self.topics)
        self.members.append(member)
        await client.start(5)
        await client.register("127.0.0.1", 6650, data, 5)
        return member

    async def broker(self, number: int, incarnation: str = "1") -> Member:
        return await self.join(ROLE_BROKER, f"broker-{number}", incarnation)

    async def start_coordinator_thread(self) -> "CoordinatorThread":
        """The coordinator takes office on a thread of its own; whoever calls closes it, instead of `close`."""
        found = await asyncio.to_thread(CoordinatorThread, self.store, self.settings)
        self._address = found.service.address
        self.coordinator = found.service
        return found

    async def close_members(self) -> None:
        for member in self.members:
            await member.close()

    async def close(self) -> None:
        await self.close_members()
        await self.coordinator.close()


@contextlib.asynccontextmanager
async def coordination(
    settings: Settings = FAST, store: MetadataStore | None = None, records: MemoryRecords | None = None
) -> AsyncIterator[Coordination]:
    """A fresh cluster with its active coordinator, past its first moments."""
    env = Environment.real()
    metadata = store or MemoryMetadataStore(records)
    await create_cluster(metadata, CLUSTER, 0, slots=SLOTS)
    found = Coordination(env, metadata, settings)
    await found.start_coordinator()
    try:
        yield found
    finally:
        await found.close()
        env.close()


class CoordinatorThread:
    """A active coordinator on a loop and a thread of its own, which can be stopped and go on: as SIGSTOP does it,
    the kernel goes on taking its connections and bytes, and nobody reads them.
    """

    def __init__(self, store: MetadataStore, settings: Settings) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paused-coordinator")
        self._thread.start()
        self._env = Environment.real()
        self.service: CoordinatorService = self._run(self._start(store, settings))

    async def _start(self, store: MetadataStore, settings: Settings) -> CoordinatorService:
        service = OpenCoordinator(self._env, store, CLUSTER, KEYS, settings, "127.0.0.1", 0, "")
        await service.start()
        return service

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It stands still inside the `with` block."""
        stopped, go_on = threading.Event(), threading.Event()

        def stand_still() -> None:
            stopped.set()
            go_on.wait()

        self._loop.call_soon_threadsafe(stand_still)
        stopped.wait()
        try:
            yield
        finally:
            go_on.set()

    def close(self) -> None:
        self._run(self.service.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._env.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


async def create(cluster: Coordination, name: str, partitions: int = 0) -> None:
    await cluster.coordinator.office.registry.create_topic(topic=PREFIX + name, partitions=partitions)


async def assign_all(cluster: Coordination, name: str, partitions: int) -> Counter[str]:
    client = cluster.members[0].client
    answers = await asyncio.gather(
        *(client.ask.assign(topic=f"{PREFIX}{name}-partition-{index}") for index in range(partitions))
    )
    return Counter(answer.broker for answer in answers)
