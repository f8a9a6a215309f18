"""Coordinator, bookies and brokers in one background thread, each of which a test can stop and start again.

The blocking official client, and our own, run against it from the test's thread. Unlike `magnetar.start(embedded=True)`
it has no supervisor and no directory lock: nothing comes back unless the test says so.
"""

import asyncio
import dataclasses
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from magnetar.actors.admin.service import AdminService
from magnetar.actors.bookie.service import BookieService
from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.errors import CoordinatorUnavailable
from magnetar.protocol.names import (
    ADMIN_ID,
    COORDINATOR_ID,
    ROLE_ADMIN,
    ROLE_BOOKIE,
    ROLE_BROKER,
    ROLE_COORDINATOR,
    bookie_id,
    broker_id,
)
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.sql import SqlMetadataStore

T = TypeVar("T")

CLUSTER_ID = "test-cluster"
SLOTS = 256
"""With as many as a cluster has by default, a start with three brokers takes three times as long."""
KEYS = RootKeys(b"0123456789abcdef0123456789abcdef")
HOST = "127.0.0.1"
TIMEOUT_S = 60.0


class EmbeddedCluster:
    """`settings` are changes to the defaults. Use as a context manager."""

    def __init__(self, directory: Path, *, brokers: int = 1, bookies: int = 3, **settings: Any) -> None:
        self.settings = dataclasses.replace(Settings(), **settings)
        self.coordinator: CoordinatorService | None = None
        self.bookies: dict[int, BookieService] = {}
        self.brokers: dict[int, BrokerService] = {}
        self._directory = directory
        self._broker_ports: dict[int, int] = {}
        self._counts = (brokers, bookies)
        self._metadata: SqlMetadataStore | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="embedded-cluster", daemon=True)
        self._env = Environment.real()
        self.admin: AdminService | None = None

    # -- from the test's thread --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._env.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
        """Run on the cluster's loop and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    @property
    def service_url(self) -> str:
        """All brokers' addresses, running or not."""
        return "pulsar://" + ",".join(f"{HOST}:{port}" for port in self._broker_ports.values())

    def owner(self, topic: str) -> int:
        """The number of the broker that has the topic (its full name) loaded."""
        return next(number for number, broker in self.brokers.items() if topic in broker.topics.loaded)

    # -- on the loop: single services ----------------------------------------------------------------------------------

    async def start_coordinator(self) -> None:
        assert self._metadata is not None
        directory = self._directory / "coordinator"
        directory.mkdir(exist_ok=True)
        coordinator = CoordinatorService(
            self._env,
            self._metadata,
            CLUSTER_ID,
            KEYS.node(ROLE_COORDINATOR, COORDINATOR_ID),
            self.settings,
            HOST,
            0,
            str(directory),
        )
        await coordinator.start()
        self.coordinator = coordinator

    async def stop_coordinator(self) -> None:
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            await coordinator.close()

    async def start_bookie(self, number: int) -> None:
        name = bookie_id(number)
        bookie = BookieService(
            self._env,
            str(self._directory / name),
            name,
            CLUSTER_ID,
            KEYS.node(ROLE_BOOKIE, name),
            self.settings,
            HOST,
            0,
            self.locate,
        )
        self.bookies[number] = bookie
        await bookie.start()

    async def stop_bookie(self, number: int) -> None:
        await self.bookies.pop(number).close()

    async def start_broker(self, number: int) -> None:
        broker = BrokerService(
            self._env,
            broker_id(number),
            CLUSTER_ID,
            KEYS.node(ROLE_BROKER, broker_id(number)),
            self.settings,
            HOST,
            self._broker_ports.get(number, 0),
            self.locate,
        )
        self.brokers[number] = broker
        await broker.start()
        self._broker_ports[number] = broker.address[1]

    async def stop_broker(self, number: int) -> None:
        await self.brokers.pop(number).close()

    async def start_admin(self) -> str:
        """Start an admin; returns `http://host:port`. It ends with the cluster."""
        keys = KEYS.node(ROLE_ADMIN, ADMIN_ID)
        self.admin = AdminService(self._env, CLUSTER_ID, keys, self.settings, HOST, 0, self.locate)
        await self.admin.start()
        return f"http://{HOST}:{self.admin.address[1]}"

    async def coordinator_call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the coordinator as the admin does."""
        identity = Identity(CLUSTER_ID, ROLE_ADMIN, ADMIN_ID, "1")
        admin = CoordinatorClient(self._env, identity, KEYS.node(ROLE_ADMIN, ADMIN_ID), self.settings, self.locate)
        try:
            await admin.start()
            return await admin.call(method, **arguments)
        finally:
            await admin.close()

    async def locate(self) -> tuple[str, int]:
        if self.coordinator is None:
            raise CoordinatorUnavailable("the coordinator is stopped")
        return self.coordinator.address

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        brokers, bookies = self._counts
        file = self._directory / "metadata.sqlite"
        self._metadata = await SqlMetadataStore.open(self._env, f"sqlite:///{file}", create=not file.exists())
        await create_cluster(self._metadata, CLUSTER_ID, self._env.clock.now_ms(), slots=SLOTS)
        await self.start_coordinator()
        await asyncio.gather(*(self.start_bookie(number) for number in range(1, bookies + 1)))
        for number in range(1, brokers + 1):
            await self.start_broker(number)

    async def _stop(self) -> None:
        if self.admin is not None:
            await self.admin.close()
        for number in list(self.brokers):
            await self.stop_broker(number)
        for number in list(self.bookies):
            await self.stop_bookie(number)
        await self.stop_coordinator()
        if self._metadata is not None:
            await self._metadata.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
