"""A simulated cluster from one seed: a coordinator, bookies, brokers, and processes for clients.

Nodes are kept running, as the supervisor would: one that ends by itself or cannot start begins again half a second
later, on the same disk. A fault may keep a node down (`stop`) until it says `begin`.

With `supervision` the real supervisor begins brokers and bookies, and the metadata say which there are: see there.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from random import Random
from typing import Any, Protocol

from magnetar.actors.bookie.service import BookieService
from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.office import Office
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.connection import ClientConnection
from magnetar.client.core.context import Core
from magnetar.client.core.discovery import service_url_source
from magnetar.client.core.threading_bridge import SameThread
from magnetar.protocol.errors import CoordinatorUnavailable
from magnetar.protocol.topics import TopicName
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.store import Versioned
from support.files.faulty_files import FaultyFiles
from support.stores.memory_store import MemoryMetadataStore

from .loop import SimLoop
from .metadata import SimMetadataStore, WatchedRecords
from .network import Network
from .process import EPOCH_MS, Process

logger = logging.getLogger("magnetar.simulation")

CLUSTER_ID = "simulated"
KEYS = RootKeys(b"0123456789abcdef0123456789abcdef")
RESTART_S = 0.5
COORDINATOR, BOOKIE, BROKER, CLIENT = "coordinator", "bookie", "broker", "client"
START_LIMIT_S = 30.0
SLOTS = 64


class Supervision(Protocol):
    """What begins and ends members in the place of the cluster: see `supervision`."""

    runs_on: dict[str, str]

    async def created(self, store: MemoryMetadataStore) -> None: ...
    async def begin(self, process: Process, office: Office) -> None: ...


class Node:
    """A place where incarnations of one service run, with its disk."""

    def __init__(self, kind: str, name: str, disk: FaultyFiles | None) -> None:
        self.kind = kind
        self.name = name
        self.disk = disk
        self.process: Process | None = None
        self.service: Any = None
        self.ready = False
        self.wanted = False
        self.disk_was_lost = False
        self.gone = False
        """It never begins again."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive


def draw_settings(random: Random) -> Settings:
    """Settings in which a short run meets everything: small ledgers, early deletion, hostile values now and then."""
    hostile = {
        field.name: field.metadata["hostile"]
        for field in dataclasses.fields(Settings)
        if field.metadata.get("hostile") is not None and random.random() < 0.15
    }
    quorums = random.choice(((3, 3, 2), (3, 3, 2), (3, 2, 2)))
    partitioned = random.random() < 0.4
    drawn = {
        "ledger_entries_max": random.choice((3, 20, 100, 50_000)),
        "ledger_rollover_min_minutes": 0,
        "gc_interval_ms": random.choice((1000, 5000, 900_000)),
        "major_compaction_interval_s": random.choice((1.0, 86400.0)),
        "auditor_interval_s": random.choice((1.0, 5.0, 600.0)),
        "lost_bookie_grace_s": random.choice((2.0, 60.0)),
        "cache_size_mb": random.choice((0, 64)),
        "rebalance_delay_s": random.choice((0.5, 5.0)),
        "cursor_ledger_entries_max": random.choice((3, 50_000)),
        "allow_auto_topic_creation_type": "partitioned" if partitioned else "non-partitioned",
        "default_num_partitions": random.choice((2, 3)) if partitioned else 1,
    }
    apart = Random()
    apart.setstate(random.getstate())  # takes no draw from `random`
    drawn["acknowledgment_at_batch_index_level_enabled"] = apart.random() < 0.4
    if apart.random() < 0.3:  # topics that nobody uses are deleted within the run
        drawn |= {"inactive_topics_check_interval_s": 0.3, "inactive_topics_max_s": 1}
        drawn["inactive_partitioned_topics_deletion_enabled"] = True
    if apart.random() < 0.3:  # topics rest as soon as their clients are away for a moment
        drawn |= {"idle_topics_loaded_max": apart.choice((0, 1)), "topic_idle_s": apart.choice((0.005, 0.1))}
    ensemble_size, write_quorum, ack_quorum = quorums
    for kept_apart in ("connection_requests_max", "connection_write_buffer_max_bytes", "session_timeout_s"):
        hostile.pop(kept_apart, None)
    return Settings(
        **{
            **hostile,
            **drawn,
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            "segment_size_bytes": 1 << 20,
            "disk_check_interval_ms": 1000,
        }
    )


class SimCluster:
    """See the module. `network`, `records` and the nodes are for faults and checkers."""

    def __init__(self, loop: SimLoop, random: Random, settings: Settings, bookies: int, brokers: int) -> None:
        self.loop = loop
        self.settings = settings
        self.network = Network(loop, Random(random.getrandbits(64)))
        self.records = WatchedRecords()
        self.metadata_trouble = 0.0
        self.clients: list[Process] = []
        self.zombies: list[Process] = []
        self.on_record: list[Callable[[str, Versioned | None, Versioned | None], None]] = []
        """Told of every change of the metadata: key, before, after."""
        self.calm = False
        """Whether no fault has begun: a workload may make one of its own, and look at nothing else."""
        self.deletion_delay_max_s = 0.0
        """How much longer than it needs a broker takes, at most, to delete what a topic stores."""
        self.on_service: Callable[[Process, str, Any], None] = lambda process, kind, service: None
        """Told of every service and client that is made."""
        self._random = Random(random.getrandbits(64))
        self.coordinator = Node(COORDINATOR, "coordinator", None)
        self.bookies = [self._with_disk(BOOKIE, number) for number in range(1, bookies + 1)]
        self.brokers = [Node(BROKER, f"broker-{number}", None) for number in range(1, brokers + 1)]
        self.nodes = [self.coordinator, *self.bookies, *self.brokers]
        self.supervision: Supervision | None = None
        self.left: dict[ClientConnection, str] = {}
        """Connections that clients ended of their own accord, and why. `LeaveWatch` notes them."""
        self.client_hosts = [node.name for node in self.brokers]
        """Where clients begin to look for brokers."""
        self._stores: list[SimMetadataStore] = []
        self._closing = False

    def _with_disk(self, kind: str, number: int) -> Node:
        return Node(kind, f"{kind}-{number}", FaultyFiles(self._random.getrandbits(64)))

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the cluster and start all of it."""
        store = MemoryMetadataStore(self.records)
        await create_cluster(store, CLUSTER_ID, EPOCH_MS, slots=SLOTS)
        if self.supervision is not None:
            await self.supervision.created(store)
        for node in self.nodes:
            self.begin(node)
        await self.until(lambda: all(node.ready for node in self.nodes), START_LIMIT_S, "the cluster does not start")

    def begin(self, node: Node) -> None:
        """Start a node's next incarnation, unless one runs. A member that is supervised may start from now on."""
        node.wanted = not node.gone
        if not node.gone and not self._is_supervised(node):
            self.launch(node)

    def _is_supervised(self, node: Node) -> bool:
        return self.supervision is not None and node.kind != COORDINATOR

    def launch(self, node: Node) -> None:
        """Start a node's next incarnation now, unless one runs."""
        if node.running or self._closing:
            return
        node.ready = False
        random = Random(self._random.getrandbits(64))
        process = node.process = Process(self.loop, self.network, node.name, random, node.disk)
        task = process.spawn(self._serve(node, process, random), "serve")
        task.add_done_callback(lambda done: self._ended(node, process, done), context=Context())

    def stop(self, node: Node, *, power_loss: bool | None = None) -> None:
        """Kill a node and keep it down. `power_loss` as in `Process.kill`; one that is down already loses power too."""
        node.wanted = False
        node.ready = False
        if node.process is not None:
            node.process.kill(power_loss=power_loss)
        if power_loss and node.disk is not None:
            node.disk.crash()

    def replace(self, node: Node) -> None:
        """Take a process that does not answer for dead, and begin again; the old one may wake up."""
        if node.process is not None:
            self.zombies.append(node.process)
        node.process = None
        self.begin(node)

    def lose_disk(self, node: Node) -> None:
        """A stopped node's disk is replaced by an empty one, and an operator says so."""
        node.disk = FaultyFiles(self._random.getrandbits(64))
        node.disk_was_lost = True

    async def _serve(self, node: Node, process: Process, random: Random) -> None:
        service, ended = self._build(node, process, random)
        node.service = service
        self.on_service(process, node.kind, service)
        await service.start()
        if node.process is process:  # it may have been replaced meanwhile
            node.ready = True
        if node.kind == COORDINATOR and self.supervision is not None:
            await self.supervision.begin(process, service.office)
        await ended()

    def _build(self, node: Node, process: Process, random: Random) -> tuple[Any, Callable[[], Awaitable[Any]]]:
        ended: asyncio.Future[None] = self.loop.create_future()
        env, settings = process.env, self.settings
        keys = KEYS.node(node.kind, node.name)
        if node.kind == COORDINATOR:
            store = SimMetadataStore(process, self.records, Random(random.getrandbits(64)))
            store.trouble = self.metadata_trouble
            self._stores.append(store)
            coordinator = CoordinatorService(env, store, CLUSTER_ID, keys, settings, node.name, 0, "")
            return coordinator, coordinator.wait_ended
        common = (CLUSTER_ID, keys, settings, node.name)
        if node.kind == BOOKIE:
            bookie = BookieService(
                env, "/data", node.name, *common, 0, self.locate, accept_lost_disk=node.disk_was_lost
            )

            def fatal(error: BaseException) -> None:
                if not ended.done():
                    ended.set_exception(error)

            bookie.on_fatal = fatal
            if self.supervision is not None:
                bookie.place = {"node": self.supervision.runs_on[node.name]}
            return bookie, lambda: ended
        broker = BrokerService(env, node.name, *common, 6650, self.locate)
        self._slow_deletions(broker, random)
        return broker, lambda: ended

    def _slow_deletions(self, broker: BrokerService, random: Random) -> None:
        delete = broker.topics._delete_ledger

        async def slowly(name: TopicName, epoch: int) -> None:
            await delete(name, epoch)
            await asyncio.sleep(random.random() * self.deletion_delay_max_s)

        broker.topics._delete_ledger = slowly

    def _ended(self, node: Node, process: Process, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        logger.info("%s ended: %r", node.name, error)
        if node.process is not process or self._closing:
            if process in self.zombies:
                process.kill()
            return
        node.ready = False
        if process.alive:
            process.kill()
        if node.wanted and not self._is_supervised(node):
            self.loop.call_later(RESTART_S, self._begin_if_wanted, node, context=Context())

    def _begin_if_wanted(self, node: Node) -> None:
        if node.wanted:
            self.begin(node)

    def member(self, name: str) -> Node:
        """A broker or bookie by its name, new if there is none."""
        for node in (*self.brokers, *self.bookies):
            if node.name == name:
                return node
        kind, _, number = name.rpartition("-")
        node = self._with_disk(kind, int(number)) if kind == BOOKIE else Node(kind, name, None)
        node.wanted = True
        (self.bookies if kind == BOOKIE else self.brokers).append(node)
        self.nodes.append(node)
        return node

    def retire(self, node: Node) -> None:
        """A broker or bookie is no member any longer."""
        node.wanted = node.ready = False
        (self.bookies if node.kind == BOOKIE else self.brokers).remove(node)
        self.nodes.remove(node)

    async def locate(self) -> tuple[str, int]:
        """Where the coordinator is, as the nodes are told."""
        node = self.coordinator
        if not node.running or not node.ready:
            raise CoordinatorUnavailable("the coordinator does not run")
        return node.service.address

    def set_metadata_trouble(self, share: float) -> None:
        """From now on this share of the database's calls goes wrong."""
        self.metadata_trouble = share
        for store in self._stores:
            store.trouble = share

    # -- clients ---------------------------------------------------------------------------------------------------

    def client_process(self, name: str) -> Process:
        """A process for clients. Clients are not killed, and have no disk."""
        process = Process(self.loop, self.network, name, Random(self._random.getrandbits(64)), None)
        self.clients.append(process)
        return process

    def client(self, process: Process, **options: Any) -> AsyncClient:
        """A client of the cluster; to be called, and used, in `process`."""
        urls = ",".join(f"{host}:6650" for host in self.client_hosts)
        client = AsyncClient(f"pulsar://{urls}", **options)
        client._environment = process.env
        source = service_url_source(process.env, client.configuration)
        client._core = Core(process.env, client.configuration, SameThread(), source)
        self.on_service(process, CLIENT, client)
        return client

    # -- good order --------------------------------------------------------------------------------------------------

    async def restart_in_order(self, node: Node) -> None:
        """Close a node as its operator would, and begin it again."""
        process = node.process
        assert process is not None and node.ready, f"I8: {node.name} is not there to be restarted"
        node.wanted = False
        async with asyncio.timeout(60):
            await process.spawn(node.service.close(), "close")
        self.stop(node)
        self.begin(node)
        await self.until(lambda: node.ready, START_LIMIT_S, f"I8: {node.name} does not start")

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], limit_s: float, complaint: str) -> None:
        """Raises AssertionError when it takes longer."""
        end = self.loop.now + limit_s
        while not condition():
            assert self.loop.now < end, f"{complaint} (waited {limit_s:.0f} s)"
            await asyncio.sleep(0.05)  # virtual time: it costs nothing

    async def close(self) -> None:
        """End everything in good order: brokers, bookies, coordinator."""
        self._closing = True
        for node in (*self.brokers, *self.bookies, self.coordinator):
            process = node.process
            node.wanted = False
            if process is not None and process.alive and node.ready:
                async with asyncio.timeout(60):
                    await process.spawn(node.service.close(), "close")
            if process is not None:
                process.kill()
        for process in self.zombies:
            process.kill()
