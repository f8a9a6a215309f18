"""Ledgers without brokers: bookies, an auditor, and hosts that write, recover and read ledgers.

The classes are those of production: `BookieService`, `Auditor`, `Ledgers` and what they use, each in a process of its
own, over the simulated network and disks. Left out are the coordinator's heartbeats, sessions and relayed metadata:
every process has its own connection to the metadata database, and the list of bookies reaches it a moment late. That
makes a seed cheap enough to meet rare orders of events often.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from magnetar.actors.auditor.index import LedgerFeed
from magnetar.actors.auditor.service import Auditor
from magnetar.actors.bookie.service import BookieService
from magnetar.actors.members.contracts_coordinator import LedgerChanges, UnnamedLedgers
from magnetar.protocol.errors import ServiceUnitNotReady
from magnetar.protocol.names import COORDINATOR_ID, ROLE_BROKER, ROLE_COORDINATOR
from magnetar.runtime.rpc.connection import Identity
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.bookie_client import BookieClient
from magnetar.storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.ledger_records import renew
from magnetar.storage.metadata.store import Versioned, Write

from .cluster import BOOKIE, CLUSTER_ID, COORDINATOR, KEYS, Node, SimCluster
from .loop import SimLoop
from .metadata import SimMetadataStore
from .process import Process

LISTING_DELAY_S = 0.05


class LedgerWorld(SimCluster):
    """See the module. `brokers` of a cluster are hosts here, its `coordinator` is the auditor, if there is one."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        settings: Settings,
        bookies: int,
        hosts: int,
        *,
        auditor: bool,
        disk_delay_s: float,
    ) -> None:
        super().__init__(loop, random, settings, bookies, hosts)
        self._disk_delay_s = disk_delay_s
        self._session_s = random.choice((0.1, 1.0, 3.0))
        self._metadata_delay_s = random.choice((0.002, 0.002, 0.05))
        self._listed: dict[str, Link] = {}
        self._readers: list[tuple[BookieDirectory, Context]] = []
        self.ledger_feed = LedgerFeed(1)
        self.doubtful_end = 0
        """As a coordinator tells it, see `BookieInfo`."""
        if not auditor:
            self.nodes.remove(self.coordinator)

    def hosts(self) -> "list[Host]":
        """Those that run now."""
        return [node.service for node in self.brokers if node.ready and node.running]

    def make_host(self, process: Process) -> "Host":
        """A host in a process that no fault touches. To be called in it."""
        return Host(self, process, self._store(process, Random(self._random.getrandbits(64))))

    def _store(self, process: Process, random: Random) -> SimMetadataStore:
        store = SimMetadataStore(process, self.records, random)
        store.trouble, store.delay_s = self.metadata_trouble, self._metadata_delay_s
        self._stores.append(store)
        return store

    def _build(self, node: Node, process: Process, random: Random) -> tuple[Any, Callable[[], Awaitable[Any]]]:
        ended: asyncio.Future[None] = self.loop.create_future()
        store = self._store(process, random)
        process.env.offload.delay_s = self._disk_delay_s  # type: ignore[attr-defined]
        if node.kind == COORDINATOR:
            return AuditorService(self, process, store, ended), lambda: ended
        if node.kind != BOOKIE:
            return Host(self, process, store), lambda: ended
        link = Link(self, process, store)
        service = BookieService(
            process.env,
            "/data",
            node.name,
            CLUSTER_ID,
            KEYS.node(BOOKIE, node.name),
            self.settings,
            node.name,
            0,
            self.locate,
            accept_lost_disk=node.disk_was_lost,
            coordinator=link,
        )

        def fatal(error: BaseException) -> None:
            if not ended.done():
                ended.set_exception(error)

        service.on_fatal = fatal
        return service, lambda: ended

    def _ended(self, node: Node, process: Process, task: "asyncio.Task[None]") -> None:
        if node.kind == BOOKIE:
            silence_s = self._session_s * self._random.random()
            self.loop.call_later(silence_s, self.unlist, process, context=Context())
        super()._ended(node, process, task)

    # -- the list of bookies ---------------------------------------------------------------------------------------

    def list_bookie(self, link: "Link") -> None:
        self._listed[link.process.name] = link
        self.list_changed()

    def unlist(self, process: Process) -> None:
        """Its session is over."""
        link = self._listed.get(process.name)
        if link is not None and link.process is process:
            del self._listed[process.name]
            self.list_changed()

    def list_changed(self) -> None:
        for directory, context in self._readers:
            delay_s = self._random.random() * LISTING_DELAY_S
            self.loop.call_later(delay_s, self._tell, directory, context=context)

    def follow(self, directory: BookieDirectory) -> None:
        """Keep a list of the calling process up to date."""
        self._readers.append((directory, copy_context()))
        self._tell(directory)

    def limbo(self) -> dict[str, str]:
        """Listed bookies that say that they are in limbo, and why."""
        return {name: link.report["limbo"] for name, link in self._listed.items() if link.report.get("limbo")}

    def damaged(self) -> dict[str, int]:
        """Listed bookies that say that they hold damaged entries, and how many."""
        counts = {name: link.report.get("scrub", {}).get("damaged", 0) for name, link in self._listed.items()}
        return {name: count for name, count in counts.items() if count}

    def record_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """The auditor is told, as by the coordinator that carries every write."""
        write = Write(key, None if after is None else after.value, None if before is None else before.version)
        self.ledger_feed.written([write])
        service = self.coordinator.service
        if isinstance(service, AuditorService):
            service.written(write)

    def unnamed(self, bookie: str, ledgers: list[int]) -> UnnamedLedgers:
        """As by the coordinator. Raises ServiceUnitNotReady when there is no auditor."""
        service = self.coordinator.service
        if not isinstance(service, AuditorService):
            raise ServiceUnitNotReady("there is no auditor")
        return service.unnamed(bookie, ledgers)

    def damage_found(self) -> None:
        """A bookie told of damage that was not known: the coordinator wakes its auditor."""
        node = self.coordinator
        if node.ready and node.running:
            node.service.wake()

    def _tell(self, directory: BookieDirectory) -> None:
        directory.update([link.info for link in self._listed.values()])


class Link:
    """What a bookie has in place of a `CoordinatorClient`."""

    def __init__(self, world: LedgerWorld, process: Process, store: SimMetadataStore) -> None:
        self.process = process
        self.metadata = store
        self.on_session_lost: list[Callable[[], None]] = []
        self._world = world
        self._report: dict[str, Any] = {}
        self._address: tuple[str, int] | None = None

    @property
    def report(self) -> dict[str, Any]:
        return self._report

    @report.setter
    def report(self, report: dict[str, Any]) -> None:
        changed = any(report.get(name) != self._report.get(name) for name in ("writable", "limbo"))
        found = report["scrub"]["found"] != self._report.get("scrub", {"found": 0})["found"]
        self._report = report
        if found:
            self._world.damage_found()
        if changed and self._address is not None:
            self._world.list_changed()

    @property
    def info(self) -> BookieInfo:
        assert self._address is not None
        return BookieInfo(
            self.process.name,
            *self._address,
            writable=bool(self._report.get("writable")),
            limbo=bool(self._report.get("limbo")),
            doubtful_end=self._world.doubtful_end,
        )

    async def start(self) -> None: ...

    async def register(self, host: str, port: int, data: dict[str, Any]) -> None:
        self._address = (host, port)
        self._world.list_bookie(self)

    @property
    def ask(self) -> "Link":
        return self

    async def renew_ledger(self, *, ledger: int, version: int) -> int:
        return await renew(self.metadata, ledger, version)

    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        return await self._world.ledger_feed.ledger_changes(epoch=epoch, since=since)

    async def unnamed_ledgers(self, *, ledgers: list[int]) -> UnnamedLedgers:
        return self._world.unnamed(self.process.name, ledgers)

    async def close(self) -> None:
        self._world.unlist(self.process)


class Host:
    """A process that has ledgers, as a broker does. `store` is its metadata, `env` its world."""

    def __init__(self, world: LedgerWorld, process: Process, store: SimMetadataStore) -> None:
        self.process = process
        self.env = process.env
        self.store = store
        self.settings = world.settings
        self._world = world
        directory = BookieDirectory()
        identity = Identity(CLUSTER_ID, ROLE_BROKER, process.name, self.env.random.hex(8))
        self.client = BookieClient(self.env, identity, KEYS.node(ROLE_BROKER, process.name), world.settings, directory)
        self.ledgers = Ledgers(self.env, store, self.client, world.settings)
        world.follow(directory)

    async def start(self) -> None: ...

    async def close(self) -> None:
        await self.client.close()


class AuditorService:
    """The auditor under a coordinator's epoch: one that was replaced while it was paused can write nothing more."""

    def __init__(
        self, world: LedgerWorld, process: Process, store: SimMetadataStore, ended: "asyncio.Future[None]"
    ) -> None:
        self._world = world
        self._env = process.env
        self._store = store
        self._ended = ended
        self._auditor: Auditor | None = None

    async def start(self) -> None:
        """Take office. Raises MetadataUnavailable."""
        world, directory = self._world, BookieDirectory()
        store = await take_office(self._store)
        store.on_superseded = self._superseded
        identity = Identity(CLUSTER_ID, ROLE_COORDINATOR, COORDINATOR_ID, str(store.epoch))
        keys = KEYS.node(ROLE_COORDINATOR, COORDINATOR_ID)
        self._auditor = Auditor(self._env, identity, keys, world.settings, store, directory, world.limbo, world.damaged)
        world.ledger_feed = LedgerFeed(store.epoch)
        world.follow(directory)
        self._auditor.start()

    def wake(self) -> None:
        if self._auditor is not None:
            self._auditor.wake()

    def written(self, write: Write) -> None:
        if self._auditor is not None:
            self._auditor.written([write])

    def unnamed(self, bookie: str, ledgers: list[int]) -> UnnamedLedgers:
        if self._auditor is None:
            raise ServiceUnitNotReady("the auditor has not started")
        return self._auditor.unnamed(bookie, ledgers)

    async def close(self) -> None:
        if self._auditor is not None:
            await self._auditor.close()

    def _superseded(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
