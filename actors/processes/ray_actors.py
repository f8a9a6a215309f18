"""What Ray sees of the services: thin actor classes that build a service, start it and answer questions about it.

They are plain classes, wrapped by `ray.remote` where they are created. Ray runs all their methods, constructors
included, on the actor's asyncio loop (uvloop's), and that loop carries the service's sockets, too. Bytes of messages
never pass through the methods.

`MemberActor` is a bookie, a broker or the admin; the supervisor starts it and waits in `wait_ended`. `CoordinatorActor`
starts by itself, because after a crash Ray creates it again and no process calls it. It supervises the members.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from ...protocol.cluster_status import DesiredView, RestartView, SupervisedView
from ...protocol.errors import ClusterError
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.ray_calls import node_ip_address, own_node_id, was_restarted
from ...runtime.rpc.keys import ReadCredentials
from ...runtime.tasks import Tasks
from ...storage.metadata.store import MetadataStore
from ..desired.planner import Machine
from ..security.ray_tokens import make_ray_token
from . import assembly
from .beginning import begin_process
from .lease import renew_lease
from .node import Member
from .plan import ClusterPlan, MemberPlan, admin_url, is_wildcard, service_urls, service_urls_tls
from .ray_deputy import DeputyKeeper
from .ray_figures import report_coordinator, report_member
from .ray_launcher import RayLauncher, locate_coordinator
from .ray_machines import RayMachines
from .reconciler import Reconciler
from .restarts import Restarts
from .supervisor import Supervisor
from .survey import machine_id

if TYPE_CHECKING:
    from ..coordinator.service import CoordinatorService

logger = logging.getLogger(__name__)

START_RETRY_INITIAL_S = 0.1
START_RETRY_MAX_S = 5.0


class ClientInformation(TypedDict):
    """What a client needs to know. `service_urls` are those of all brokers, `service_urls_tls` those with TLS. `token`
    may be empty; see `ray_tokens`.
    """

    service_urls: list[str]
    service_urls_tls: list[str]
    admin_url: str
    cluster_id: str
    data_directory: str
    token: str


class MemberActor:
    """A bookie, broker or admin as a Ray actor."""

    def __init__(self, plan: MemberPlan) -> None:
        begin_process(plan.log_directory, plan.node.node_id, audits=plan.settings.audit_log_enabled)
        self._plan = plan
        self._tasks = Tasks()
        self._reports = False
        self._env = replace(Environment.real(), launch=plan.launch)
        self._member = Member(self._env, plan, locate_coordinator)

    async def start(self) -> tuple[str, int]:
        """Start the service, once; returns (host, port). Raises what the service raised."""
        await self._member.start()
        if not (self._reports or self._tasks.closed):
            self._reports = True
            node = self._plan.node
            reporting = report_member(self._member.service, node.role, self._plan.cluster_id, node.node_id)
            self._tasks.spawn(reporting, "report-figures")
        return await self.address()

    async def address(self) -> tuple[str, int]:
        """(host, port) of the service's main socket."""
        return self._member.service.address

    async def process_id(self) -> int:
        """The operating system's id of this process."""
        return os.getpid()

    async def ray_node_id(self) -> str:
        """The Ray node on which this process runs."""
        return own_node_id()

    async def wait_ended(self) -> str:
        """Return, with the reason, when the service has ended by itself or was closed."""
        return await asyncio.shield(self._member.ended)

    async def close(self) -> None:
        """Close the service in good order."""
        await self._tasks.close()
        await self._member.close()


class CoordinatorActor:
    """The coordinator as a Ray actor, and the supervisor of all others."""

    def __init__(self, plan: ClusterPlan) -> None:
        begin_process(plan.log_directory, plan.coordinator.node_id)
        self._plan = plan
        self._env = Environment.real()
        self._service: CoordinatorService | None = None
        self._metadata: MetadataStore | None = None
        self._restarted = was_restarted()
        self._launcher = RayLauncher(plan, MemberActor)
        self._supervisor = Supervisor(self._env, self._launcher)
        only = "" if is_wildcard(plan.layout.host) else plan.home.address
        known: Sequence[Machine] = () if self._restarted else plan.machines
        self._machines = RayMachines(self._env, plan.data_directory, known, only=only)
        self._reconciler = Reconciler(self._env, plan, self._supervisor, self._machines, self._launcher)
        self._restarts = Restarts(self._supervisor, self._reconciler)
        self._deputy = DeputyKeeper(self._env, plan, self._machines)
        self._problem = ""
        self._stopping = False
        self._serving = asyncio.Event()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks = Tasks()
        self._tasks.spawn(self._start(), "start-coordinator")

    async def address(self) -> tuple[str, int]:
        """(host, port) of the internal RPC; waits until it listens. Members need it before all processes are known."""
        await self._serving.wait()
        assert self._service is not None
        return self._service.address

    async def process_id(self) -> int:
        """The operating system's id of this process."""
        return os.getpid()

    async def wait_ready(self, timeout_s: float) -> dict[str, str]:
        """Wait until the whole cluster runs; after `timeout_s` return what does not: node id → reason."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._running()
        except TimeoutError:
            return {self._plan.coordinator.node_id: self._problem or "starting"}
        return await self._supervisor.wait_ready(deadline - loop.time())

    async def client_information(self) -> ClientInformation:
        """What a client needs."""
        return {
            "service_urls": service_urls(self._reconciler.nodes, self._plan.settings),
            "service_urls_tls": service_urls_tls(self._reconciler.nodes, self._plan.settings),
            "admin_url": admin_url(self._reconciler.nodes, self._plan.settings),
            "cluster_id": self._plan.cluster_id,
            "data_directory": self._plan.data_directory,
            "token": make_ray_token(self._plan.keys.client_key, self._plan.settings, self._env.clock.now_ms()),
        }

    async def read_credentials(self) -> ReadCredentials:
        """What a bulk reader needs: `cluster_id`, `keys`, `coordinator` [host, port].

        Every task of this Ray may ask for it. The keys are those of a reader, which changes nothing; see
        `members.contracts_coordinator`.
        """
        return {
            "cluster_id": self._plan.cluster_id,
            "keys": self._plan.keys.reader(),
            "coordinator": await self.address(),
        }

    async def status(self) -> SupervisedView:
        """The coordinator's view of the cluster, the supervisor's `processes`, and the Ray nodes `left_out`."""
        service = await self._running()
        own: SupervisedView = {**await service.status(), "processes": self._supervisor.status()}
        return {**own, "left_out": self._machines.left_out()}

    async def scale(self, brokers: int | None, bookies: int | None) -> DesiredView:
        """Run so many brokers and bookies; None leaves a role as it is."""
        return await (await self._running()).desired.scale(brokers=brokers, bookies=bookies)

    async def drain(self, member: str) -> DesiredView:
        """Empty and end a broker or bookie."""
        return await (await self._running()).desired.drain(member=member)

    async def undrain(self, member: str) -> DesiredView:
        """Have a broker or bookie that drains stay after all."""
        return await (await self._running()).desired.undrain(member=member)

    async def restart_member(self, member: str) -> RestartView:
        """Restart a broker, a bookie or the admin; returns when all is as before."""
        await self._running()
        return await self._restarts.restart(member)

    async def restart_coordinator(self) -> None:
        """End this process in good order. Ray starts it again; the other processes run on."""
        await self._running()
        await self._restarts.prepare_coordinator()
        self._tasks.spawn(self._end_for_restart(), "end-for-restart")

    async def wait_settled(self, member: str) -> None:
        """Wait until all is well after the restart of a process."""
        await self._running()
        await self._restarts.settle(member)

    async def accept_lost_ledgers(self) -> list[list[int]]:
        """Give up the ledgers that restored metadata does not know; returns the (first, end) ranges of their ids."""
        return [list(one) for one in (await (await self._running()).office.ledger_ids.accept()).ranges]

    async def stop_cluster(self) -> None:
        """Stop admin, brokers, bookies, then the coordinator's service; the caller then kills this actor."""
        self._stopping = True
        await self._deputy.end()
        await self._reconciler.close()
        if self._service is not None:
            await self._service.cluster_stops()
        await self._supervisor.stop_all()
        await self._tasks.close()
        if self._service is not None:
            await self._service.close()
        if self._metadata is not None:
            await self._metadata.close()  # gives its lock back: the directory can be started again at once
        self._ended.set()

    async def wait_ended(self) -> str:
        """Return when the cluster was stopped."""
        await self._ended.wait()
        return "stopped"

    async def _end_for_restart(self) -> None:
        self._stopping = True
        try:
            # It would take office at once, and give it back. The next coordinator makes one with the installed release.
            await self._deputy.end()
            await self._reconciler.close()
            await self._supervisor.close()
            if self._service is not None:
                await self._service.close()
            if self._metadata is not None:
                await self._metadata.close()  # gives its lock back to the next process
        finally:
            logger.info("the coordinator ends, and Ray starts it again")
            os._exit(1)

    async def _running(self) -> "CoordinatorService":
        await self._ready.wait()
        assert self._service is not None
        return self._service

    async def _start(self) -> None:
        """Start the service, trying again forever: no other process would. Its lock may still be held by the process
        that is being replaced, or a database may be away.
        """
        node = self._plan.layout.coordinator(replace(self._plan.home, address=node_ip_address()))

        async def start() -> "tuple[CoordinatorService, MetadataStore]":
            self._check_machine()
            metadata = await assembly.open_metadata(self._env, self._plan)
            try:
                service = assembly.build_coordinator(self._env, self._plan, node, metadata)
                await service.start()
            except BaseException:  # a stop of the cluster cancels the start: the lock has to be free after it
                await metadata.close()
                raise
            return service, metadata

        def failed(error: Exception, delay_s: float) -> None:
            nonlocal node
            self._problem = f"{type(error).__name__}: {error}"
            logger.exception("the coordinator could not start")
            if isinstance(error, OSError):
                node = replace(node, port=0)  # another process took the port: any other will do, members ask for it

        service, self._metadata = await retry.forever(
            Backoff(self._env.random, START_RETRY_INITIAL_S, START_RETRY_MAX_S),
            start,
            retriable=retry.every_error,
            on_retry=failed,
        )
        self._service = service
        self._serving.set()
        self._tasks.spawn(self._watch(service), "watch-coordinator")
        reporting = report_coordinator(service, self._plan.cluster_id, self._plan.coordinator.node_id)
        self._tasks.spawn(reporting, "report-figures")
        if not self._plan.coordinator_is_bound:
            self._tasks.spawn(renew_lease(service.office), "renew-lease")
        self._launcher.epoch = service.office.epoch
        running_on = {node.node_id: node.ray_node_id for node in self._plan.members}
        if self._restarted:
            running_on = await self._look_around()
        await self._reconciler.start(service.office, running_on)
        self._ready.set()
        if not self._plan.coordinator_is_bound:
            self._deputy.start()

    def _check_machine(self) -> None:
        """Raise ClusterError where the metadata is a SQLite file and this is not the machine that has it."""
        home, here = self._plan.home.place_id, machine_id(self._plan.data_directory)
        if self._plan.coordinator_is_bound and home and here != home:
            raise ClusterError(
                f"the metadata is a SQLite file in the data directory {home}, but {node_ip_address()} has "
                f"{here or 'none'}: bring that machine back. With PostgreSQL the coordinator may run anywhere"
            )

    async def _look_around(self) -> dict[str, str]:
        """After a restart: which machines there are, and where members run. Tries again forever."""

        async def look() -> dict[str, str]:
            await self._machines.refresh()
            return await self._launcher.running_on()

        return await retry.forever(
            Backoff(self._env.random, START_RETRY_INITIAL_S, START_RETRY_MAX_S),
            look,
            retriable=retry.every_error,
            on_retry=lambda error, delay_s: logger.warning("the nodes of Ray could not be looked at: %s", error),
        )

    async def _watch(self, service: "CoordinatorService") -> None:
        """End the process when another coordinator took office. If this one is Ray's current one (it only seemed to be
        gone), Ray makes a new one, which becomes active in its turn.
        """
        await service.wait_ended()
        if not self._stopping:
            logger.error("this coordinator was superseded, so its process ends")
            os._exit(1)
