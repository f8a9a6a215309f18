"""A whole cluster in this process: the same services and the same directory as on Ray, on one event loop of their own.

For tests, notebooks and small installations: nothing to install or supervise, the same durability, one core. The
services run on uvloop in a background thread; methods of `EmbeddedCluster` may be called from any thread. The data
directory is locked for as long as the cluster runs, and can be started on Ray afterwards.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

from ..actors.coordinator.desired_methods import DesiredMethods
from ..actors.coordinator.service import CoordinatorService
from ..actors.processes import assembly
from ..actors.processes.local_launcher import LocalLauncher
from ..actors.processes.plan import ClusterPlan, admin_url, service_urls
from ..actors.processes.reconciler import OneMachine, Reconciler
from ..actors.processes.restarts import STEP_TIMEOUT_S, Restarts, restart_view
from ..actors.processes.supervisor import Supervisor
from ..actors.processes.survey import this_machine
from ..protocol.cluster_status import ClusterStatus, DesiredView, RestartView, SupervisedView
from ..protocol.errors import ClusterError, CoordinatorUnavailable
from ..protocol.names import COORDINATOR_ID
from ..runtime.environment import Environment
from ..storage.metadata.store import MetadataStore
from .directory import ClusterDirectory
from .handle import Cluster
from .preparing import StartOptions, prepare

T = TypeVar("T")

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 60.0
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0


class _Services:
    """The services of one cluster, on the loop that they run on."""

    def __init__(self, env: Environment, plan: ClusterPlan) -> None:
        self._env = env
        self._plan = plan
        self._metadata: MetadataStore | None = None
        self._coordinator: CoordinatorService | None = None
        launcher = LocalLauncher(env, plan, self._locate)
        self._supervisor = Supervisor(env, launcher)
        self._reconciler = Reconciler(env, plan, self._supervisor, OneMachine(plan.home), launcher)
        self._restarts = Restarts(self._supervisor, self._reconciler)

    async def start(self) -> None:
        """Start all. Raises ClusterError or what the coordinator raised; the caller then closes."""
        self._metadata = await assembly.open_metadata(self._env, self._plan)
        self._coordinator = await self._start_coordinator(self._metadata)
        await self._reconciler.start(self._coordinator.office, {})
        problems = await self._supervisor.wait_ready(READY_TIMEOUT_S)
        if problems:
            reasons = "; ".join(f"{node}: {problem}" for node, problem in sorted(problems.items()))
            raise ClusterError(f"the embedded cluster did not start: {reasons}")

    async def status(self) -> SupervisedView:
        if self._coordinator is None:
            raise ClusterError("the cluster was stopped")
        return {**await self._coordinator.status(), "processes": self._supervisor.status()}

    @property
    def desired(self) -> DesiredMethods:
        if self._coordinator is None:
            raise ClusterError("the cluster was stopped")
        return self._coordinator.desired

    async def urls(self) -> tuple[list[str], str]:
        """Service URLs and the admin's URL."""
        nodes, settings = self._reconciler.nodes, self._plan.settings
        return service_urls(nodes, settings), admin_url(nodes, settings)

    async def accept_lost_ledgers(self) -> list[list[int]]:
        if self._coordinator is None:
            raise ClusterError("the cluster was stopped")
        return [list(one) for one in (await self._coordinator.office.ledger_ids.accept()).ranges]

    async def restart(self, process: str) -> RestartView:
        """Restart one process; see `Restarts.restart`."""
        if process != COORDINATOR_ID:
            return await self._restarts.restart(process)
        loop = asyncio.get_running_loop()
        began = safe = loop.time()
        coordinator = self._coordinator
        if coordinator is not None:
            await self._restarts.prepare_coordinator()
            safe = loop.time()
            self._coordinator = None
            await coordinator.close()
        if self._metadata is None:
            raise ClusterError("the cluster was stopped")
        self._coordinator = await self._start_coordinator(self._metadata)
        self._reconciler.follow(self._coordinator.office)
        back = loop.time()
        await self._restarts.settle(process)
        return restart_view(process, began, safe, back, loop.time())

    async def _start_coordinator(self, metadata: MetadataStore) -> CoordinatorService:
        coordinator = assembly.build_coordinator(self._env, self._plan, self._plan.coordinator, metadata)
        await coordinator.start()
        return coordinator

    async def close(self) -> None:
        """Close all: admin, brokers, bookies, coordinator, metadata."""
        await self._reconciler.close()
        if self._coordinator is not None:
            await self._coordinator.cluster_stops()
        await self._supervisor.stop_all()
        if self._coordinator is not None:
            await self._coordinator.close()
        if self._metadata is not None:
            await self._metadata.close()

    async def _locate(self) -> tuple[str, int]:
        if self._coordinator is None:
            raise CoordinatorUnavailable("the coordinator is being restarted")
        return self._coordinator.address


class EmbeddedCluster(Cluster):
    """A cluster in this process. Made by `start_embedded`."""

    def __init__(self, directory: ClusterDirectory, options: StartOptions) -> None:
        self._directory = directory
        self._stopped = False
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="magnetar-cluster", daemon=True)
        self._thread.start()
        self._env: Environment | None = None
        self._services: _Services | None = None
        try:
            plan = self._run(self._start(options), START_TIMEOUT_S)
            urls = self._run(self._require().urls(), STOP_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        super().__init__(plan.cluster_id, *urls)

    def status(self) -> ClusterStatus:
        return {
            **self._run(self._require().status(), STOP_TIMEOUT_S),
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "data_directory": str(self._directory.path),
        }

    def accept_lost_ledgers(self) -> list[list[int]]:
        return self._run(self._require().accept_lost_ledgers(), STOP_TIMEOUT_S)

    def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        return self._run(self._require().desired.scale(brokers=brokers, bookies=bookies), STOP_TIMEOUT_S)

    def drain(self, member: str) -> DesiredView:
        return self._run(self._require().desired.drain(member=member), STOP_TIMEOUT_S)

    def undrain(self, member: str) -> DesiredView:
        return self._run(self._require().desired.undrain(member=member), STOP_TIMEOUT_S)

    def _restart_one(self, process: str) -> RestartView:
        return self._run(self._require().restart(process), STEP_TIMEOUT_S + STOP_TIMEOUT_S)

    def refresh(self) -> None:
        self.service_urls, self.admin_url = self._run(self._require().urls(), STOP_TIMEOUT_S)

    def _require(self) -> _Services:
        if self._services is None:
            raise ClusterError("the cluster was stopped")
        return self._services

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            self._run(self._close(), STOP_TIMEOUT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._directory.unlock()

    async def _start(self, options: StartOptions) -> ClusterPlan:
        self._env = Environment.real()
        machine = this_machine(options.host, str(self._directory.path))
        prepared = await prepare(self._env, self._directory, options, [machine])
        for told in prepared.told:
            logger.warning("%s", told)
        if prepared.waiting:
            missing = ", ".join(prepared.waiting)
            where = self._directory.path
            logger.warning(
                "these bookies are registered, but %s does not hold their data: %s. If a disk is lost, add a "
                "bookie and drain that one, or start again with accept_lost_disk",
                where,
                missing,
            )
        self._services = _Services(self._env, prepared.plan)
        await self._services.start()
        return prepared.plan

    async def _close(self) -> None:
        services, self._services = self._services, None
        if services is not None:
            await services.close()
        if self._env is not None:
            self._env.close()

    def _run(self, coroutine: Coroutine[object, object, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise ClusterError(f"the embedded cluster did not answer within {timeout_s:.0f} s: read its log") from None

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def start_embedded(data_directory: str | os.PathLike[str], options: StartOptions) -> EmbeddedCluster:
    """Start a cluster in this process. Raises ClusterError, SettingError and whatever keeps a service from starting."""
    directory = ClusterDirectory(data_directory)
    directory.lock()
    try:
        return EmbeddedCluster(directory, options)
    except BaseException:
        directory.unlock()
        raise
