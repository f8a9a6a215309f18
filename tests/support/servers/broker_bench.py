"""A broker's front on a loopback socket, over managed ledgers in memory and without a coordinator."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from magnetar.actors.broker.service import COMMAND_FAMILIES
from magnetar.actors.connections.connection import ServerConnection
from magnetar.actors.connections.forwarding import Forwards
from magnetar.actors.connections.limits import ConnectionLimits, PublishBudget
from magnetar.actors.features.table import FEATURES
from magnetar.actors.members.broker_addresses import Reach, reach
from magnetar.actors.members.contracts_coordinator import BrokerInfo
from magnetar.actors.schemas.registry import SchemaRegistry
from magnetar.actors.security.audit import AuditLog
from magnetar.actors.security.authentication import ClientAuthentication
from magnetar.actors.security.authorization import Authorization
from magnetar.actors.topics.loaded_topics import Topics
from magnetar.protocol.errors import TopicNotFound
from magnetar.protocol.pulsar_pb2 import BaseCommand
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.repeated_warnings import RepeatedWarnings
from magnetar.runtime.settings.declarations import Settings
from magnetar.runtime.tasks import Tasks
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.record import LeftBehind, left_behind
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack
from support.stores.memory_store import MemoryMetadataStore

from ..clients.wire_peer import WirePeer, entry
from ..fakes.bookies import FakeCluster
from ..fakes.managed_ledger import MemoryManagedLedger

TOPIC = "persistent://public/default/t"


async def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class FixedLookups:
    """Every topic is here, except `missing`. `claimed` are the topics that clients came for in vain so far."""

    def __init__(self) -> None:
        self.url = ""
        self.listeners = {"outside": "pulsar://broker-1.example.com:6651", "web": "pulsar+proxy://example.com:6652"}
        self.claimed: list[tuple[str, bool]] = []
        self.grant: Callable[[TopicName], bool] = lambda name: True

    async def owner_url(self, name: TopicName) -> str:
        await asyncio.sleep(0)
        if name.local_name == "missing":
            raise TopicNotFound("no such topic")
        return self.url

    def reach(self, url: str, listener: str) -> Reach:
        """Every topic's broker has two listeners, of which one forwards."""
        found = BrokerInfo("broker-1", "1", "127.0.0.1", 1, url, {"url": url, "listeners": dict(self.listeners)})
        return reach([found], url, listener)

    async def claim(self, name: TopicName, create: bool) -> bool:
        """Whether a topic is this broker's; `missing` is not created."""
        self.claimed.append((name.full, create))
        if name.local_name == "missing" and not create:
            raise TopicNotFound(f"{name.full} does not exist")
        return self.grant(name)

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        if name.local_name == "missing":
            raise TopicNotFound("no such topic")
        return 4 if name.local_name == "parted" else 0

    async def topics(self, namespace: str, *, domain: str | None, size_max_bytes: int, taken: Any = None) -> list[str]:
        return [TOPIC]


class BrokerFront:
    """What a connection needs of a broker. With `storage` topics lie on its bookies, else in memory."""

    def __init__(self, settings: Settings, storage: FakeCluster | None = None) -> None:
        self.storage = storage
        self.env = Environment.real(1)
        self.settings = settings
        self.families = COMMAND_FAMILIES
        self.ledgers: dict[str, MemoryManagedLedger] = {}
        self.lookups = FixedLookups()
        ledgers = (self._open_ledger, self._delete_ledger, self._read_left)
        self.topics = Topics(
            self.env,
            settings,
            *ledgers,
            self.lookups.claim,  # type: ignore[arg-type]
            self.retire,
            features=FEATURES,
        )
        self.topics.policies.on_permissions = self._permissions_changed
        self.authentication = ClientAuthentication(self.env, settings)
        self.authorization = Authorization.of_settings(settings, self.topics.policies)
        self.topics.policies.listing_began()
        self.topics.policies.listing_ended()
        self.metadata = MemoryMetadataStore()
        self.schemas = SchemaRegistry(self.env, lambda: self.metadata)
        self.audit = AuditLog(self.env, settings, "broker-1")
        self.strangers = RepeatedWarnings(logging.getLogger(__name__), lambda: self.env.clock.now_ms() / 1000)
        self.connection_limits = ConnectionLimits(settings)
        self.brokers: list[BrokerInfo] = []
        self.forwards = Forwards(self.env, settings, lambda: self.brokers, lambda address: address[1] == self.port)
        self.accepts_connections = True
        self.where_tls_is = ""
        self.publish_budget = PublishBudget(settings.publish_buffer_max_mb << 20)
        self.requests = Tasks()
        self.connections: dict[ServerConnection, None] = {}
        self.port = 0
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.opened: list[str] = []
        self.retired: list[str] = []
        self.left: dict[str, LeftBehind] = {}
        self.read_left: list[list[str]] = []
        self._names = 0

    def _permissions_changed(self) -> None:
        for connection in list(self.connections):
            connection.permissions_changed()

    async def _open_ledger(self, name: TopicName, epoch: int) -> Any:
        self.opened.append(name.full)
        await self.open_gate.wait()
        if (storage := self.storage) is not None:
            ledgers = storage.new_ledgers()
            return await ManagedLedger.open(self.env, ledgers, storage.metadata, name.path, epoch, self.settings)
        ledger = self.ledgers.get(name.full)
        if ledger is None or ledger.closed:
            ledger = self.ledgers[name.full] = MemoryManagedLedger(ledger_id=len(self.ledgers) + 1)
        return ledger

    async def _read_left(self, names: Sequence[TopicName]) -> list[LeftBehind]:
        self.read_left.append([name.full for name in names])
        if self.storage is None:
            return [self.left.get(name.full, LeftBehind()) for name in names]
        return await left_behind(self.storage.metadata, [name.path for name in names])

    async def retire(self, name: TopicName) -> None:
        """What the coordinator does with a topic that nobody uses: it asks again, and deletes it."""
        self.retired.append(name.full)
        self.topics.check_unused(name.full, inactive=True)
        await self.topics.release(name.full)
        await self.topics.delete(name, 2)

    async def _delete_ledger(self, name: TopicName, epoch: int) -> None:
        if (storage := self.storage) is not None:
            await delete_managed_ledger(self.env, storage.new_ledgers(), storage.metadata, name.path, epoch)
        self.ledgers.pop(name.full, None)

    def new_producer_name(self) -> str:
        self._names += 1
        return f"generated-{self._names}"

    @property
    def ledger(self) -> MemoryManagedLedger:
        return self.ledgers[TOPIC]

    @property
    def topic(self) -> Any:
        return self.topics.loaded[TOPIC]

    async def peer(self, **options: Any) -> WirePeer:
        return await WirePeer.open(self.port, **options)


@asynccontextmanager
async def broker_front(
    storage: FakeCluster | None = None, *, epoch: int = 1, **changes: Any
) -> AsyncIterator[BrokerFront]:
    """A listening front that owns TOPIC; `changes` are settings."""
    front = BrokerFront(dataclasses.replace(Settings(), **changes), storage)
    server = await asyncio.get_running_loop().create_server(
        lambda: ServerConnection(front, front.families), "127.0.0.1", 0
    )
    front.port = server.sockets[0].getsockname()[1]
    front.lookups.url = f"pulsar://127.0.0.1:{front.port}"
    front.topics.assign(TOPIC, epoch, load=False)
    await front.metadata.put(metadata_keys.namespace("public/default"), pack({"policies": {}}), None)
    try:
        yield front
    finally:
        server.close()
        front.accepts_connections = False
        for connection in list(front.connections):
            connection.close()
        front.connection_limits.refusals.close()
        await front.forwards.close()
        await front.topics.close()
        await front.requests.close()
        await server.wait_closed()
        front.env.close()


async def filled(front: BrokerFront, count: int, *, messages: int | None = None) -> WirePeer:
    """A peer that has published so many entries."""
    peer = await front.peer()
    await peer.producer(TOPIC, 9)
    for index in range(count):
        peer.send_entry(
            entry(b"%d" % index, sequence_id=index, messages=messages), index, producer_id=9, messages=messages or 1
        )
    if count:
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=count - 1)
    peer.received.clear()
    return peer


async def cursor(front: BrokerFront, name: str = "s", durable: bool = True) -> Any:
    """The cursor of a subscription of TOPIC."""
    return front.topic.subscriptions[name, durable].cursor
