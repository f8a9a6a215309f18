"""The members of a simulated cluster as its real supervisor and reconciler keep them: by the desired state.

Each coordinator that takes office has a supervisor and a reconciler of its own, which end with its process. They find
the members that run (`adopt`), begin those that should (`launch`), and end those that should not. A fault that keeps a
node down (`SimCluster.stop`) keeps it from being launched until it says `begin`.

There are a few machines. A member runs on one of them, and a bookie's disk lies there. A machine may be about to leave.
A bookie says on which machine it runs. Machines have no other effect: each node keeps its own name in the network.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import NamedTuple

from magnetar.actors.coordinator.office import Office
from magnetar.actors.desired.planner import CookieFound, Machine
from magnetar.actors.desired.record import DesiredState
from magnetar.actors.processes.plan import ClusterPlan, Layout, NodePlan
from magnetar.actors.processes.reconciler import Reconciler
from magnetar.actors.processes.restarts import Restarts
from magnetar.actors.processes.supervisor import Supervisor
from magnetar.protocol.errors import ServiceUnitNotReady
from magnetar.protocol.names import ROLE_ADMIN
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned, unpack
from support.files.faulty_files import FaultyFiles
from support.stores.memory_store import MemoryMetadataStore

from .cluster import CLUSTER_ID, Node, SimCluster
from .process import Process

LAUNCH_LIMIT_S = 20.0
LOOK_S = 0.05
BROKER_PORT = 6650


class MemberProcess:
    """A supervisor's handle: one incarnation of a member. The admin has none, because no workload needs one."""

    def __init__(self, node: Node | None, process: Process | None) -> None:
        self.node = node
        self.process = process

    @property
    def alive(self) -> bool:
        return self.process is None or self.process.alive


class Carrier(NamedTuple):
    """What carries a coordinator's service, and the members' processes beside it."""

    process: Process
    office: Office
    supervisor: Supervisor[MemberProcess]
    reconciler: Reconciler[MemberProcess]
    restarts: Restarts[MemberProcess]


class Supervision:
    """See the module. To be made before the cluster starts."""

    def __init__(self, cluster: SimCluster, machines: int) -> None:
        self.on_retired: Callable[[Node], None] = lambda node: None
        """Told when the desired state no longer names a member."""
        self.on_erased: Callable[[Node], None] = lambda node: None
        """Told just before the directory of a bookie is emptied."""
        self.on_close: Callable[[Node, Carrier], None] = lambda node, carrier: None
        """Told just before a member is asked to close, and by which coordinator."""
        self.on_back: Callable[[Node], None] = lambda node: None
        """Told when a coordinator finds that a member runs."""
        self.carrier: Carrier | None = None
        """That of the coordinator which took office last."""
        self.launch_s = 0.0
        """How long a process takes to begin."""
        self.desired = DesiredState.of(len(cluster.brokers), len(cluster.bookies))
        """As it is stored, or will be."""
        self.closed: dict[Process, None] = {}
        """Processes whose services were closed. They may be alive: the coordinator that closed one may be gone."""
        self.leaving: dict[str, None] = {}
        """Machines that are about to go."""
        self.machine_names = [f"machine-{number}" for number in range(1, machines + 1)]
        self.runs_on: dict[str, str] = {}
        """Member → the machine on which it runs, or ran last."""
        self.cluster = cluster
        self._retired: dict[str, Node] = {}
        self._erased: dict[str, None] = {}
        """Bookies whose directories were emptied."""
        self._had_cookie: dict[str, Node] = {}
        """Bookies that were registered when the desired state forgot them."""
        self._watches: list[Machines] = []
        cluster.supervision = self
        cluster.on_record.append(self._metadata_changed)
        names = [node.name for node in (*cluster.brokers, *cluster.bookies)]
        self.runs_on |= {name: self.machine_names[place % machines] for place, name in enumerate(names)}

    async def created(self, store: MemoryMetadataStore) -> None:
        """The cluster's metadata is new: write what `magnetar start` writes."""
        await store.put(metadata_keys.DESIRED_STATE, self.desired.pack(), None)

    async def begin(self, process: Process, office: Office) -> None:
        """A coordinator has taken office. To be called in its process."""
        machines = Machines(self, process)
        self._watches = [watch for watch in self._watches if watch.process.alive] + [machines]
        launcher = Launcher(self, process)
        layout = Layout("0.0.0.0", BROKER_PORT, 8080, 7000, "/data")
        found = machines.machines
        plan = ClusterPlan(CLUSTER_ID, b"", self.cluster.settings, "memory:", layout, tuple(found), ())
        supervisor = Supervisor[MemberProcess](process.env, launcher)
        reconciler = Reconciler(process.env, plan, supervisor, machines, launcher)
        restarts = Restarts(supervisor, reconciler)
        launcher.carrier = self.carrier = Carrier(process, office, supervisor, reconciler, restarts)
        await reconciler.start(office, dict(self.runs_on))

    async def end_coordinator(self, carrier: Carrier) -> None:
        """End a coordinator as `CoordinatorActor` does. To be called in its process; the next one begins by itself."""
        await carrier.restarts.prepare_coordinator()
        await carrier.reconciler.close()
        await carrier.supervisor.close()
        await self.cluster.coordinator.service.close()
        carrier.process.kill()

    def leave(self, machine: str, *, leaves: bool) -> None:
        """A machine is about to go, or stays after all."""
        if leaves:
            self.leaving[machine] = None
        else:
            self.leaving.pop(machine, None)
        for watch in self._watches:
            if watch.process.alive:
                watch.process.loop.call_soon(watch.changed, context=watch.context)

    def member(self, name: str) -> Node:
        """Who is to begin. One that a superseded coordinator begins, and is retired, is waited for by nobody."""
        member = self.cluster.member(name)
        if name not in self.desired:
            self.cluster.retire(member)
            member.wanted = True
            self._retired[name] = member
        return member

    def erase(self, bookie: str) -> None:
        """A directory is emptied. A superseded coordinator may empty that of a retired bookie a second time."""
        node = self._retired.get(bookie) or self.member(bookie)
        self.on_erased(node)
        node.disk = FaultyFiles(0)
        self._erased[bookie] = None

    def unsettled(self) -> list[str]:
        """What of the desired state is not so yet."""
        there = {node.name: node for node in (*self.cluster.brokers, *self.cluster.bookies)}
        wanted = [*self.desired.broker_ids, *self.desired.bookie_ids]
        missing = [name for name in wanted if name not in there or not (there[name].ready or there[name].gone)]
        return sorted(self.desired.draining) + missing + self._left_of_retired()

    @property
    def retired_bookies(self) -> list[Node]:
        """Bookies that the desired state has forgotten, and whose directories were not emptied."""
        return [node for name, node in self._had_cookie.items() if name not in self._erased]

    def cookie_of(self, bookie: str) -> Versioned | None:
        """The record of a bookie's cookie."""
        return self.cluster.records.by_key.get(metadata_keys.bookie(bookie))

    def _left_of_retired(self) -> list[str]:
        """Cookies and directories of bookies that the desired state has forgotten."""
        cookies = [f"the cookie of {name}" for name in self._had_cookie if self.cookie_of(name) is not None]
        return cookies + [f"the directory of {node.name}" for node in self.retired_bookies]

    def _metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if key != metadata_keys.DESIRED_STATE or after is None:
            return
        self.desired = DesiredState.unpack(after.value)
        for node in (*self.cluster.brokers, *self.cluster.bookies):
            if node.name not in self.desired:
                self.on_retired(node)
                self.cluster.retire(node)
                self._retired[node.name] = node
                if self.cookie_of(node.name) is not None:
                    self._had_cookie[node.name] = node


class Machines:
    """The machines, as one coordinator sees them."""

    def __init__(self, supervision: Supervision, process: Process) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.data_awaited = False
        self.process = process
        self._supervision = supervision
        self.context = copy_context()

    @property
    def machines(self) -> Sequence[Machine]:
        """All, with the cookies on their disks."""
        supervision = self._supervision
        cookies: dict[str, dict[str, CookieFound]] = {name: {} for name in supervision.machine_names}
        for node in (*supervision.cluster.bookies, *supervision.retired_bookies):
            record = supervision.cookie_of(node.name)
            if record is not None:  # a look at the disk could meet a failure that is meant for the bookie
                found = CookieFound(CLUSTER_ID, str(unpack(record.value)["instance"]))
                cookies[supervision.runs_on[node.name]][node.name] = found
        return [
            Machine(name, name, cookies[name], leaving=name in supervision.leaving)
            for name in supervision.machine_names
        ]

    def changed(self) -> None:
        self.on_change()

    def start(self) -> None:
        """They say by themselves when they change."""

    async def close(self) -> None:
        """Nothing is watched."""


class Launcher:
    """Begins and ends members for one coordinator, for as long as its process lives."""

    def __init__(self, supervision: Supervision, process: Process) -> None:
        self._supervision = supervision
        self._cluster = supervision.cluster
        self._process = process
        self.carrier: Carrier | None = None

    async def adopt(self, node: NodePlan) -> MemberProcess | None:
        """The process that runs, once its service has started."""
        if node.role == ROLE_ADMIN:
            return MemberProcess(None, None)
        member = self._supervision.member(node.node_id)
        if not member.running:
            return None
        return await self._started(member)

    async def launch(self, node: NodePlan) -> MemberProcess:
        if node.role == ROLE_ADMIN:
            return MemberProcess(None, None)
        member = self._supervision.member(node.node_id)
        self._supervision.runs_on[member.name] = node.ray_node_id
        while not member.wanted:  # a fault keeps it down
            if member.gone:
                raise ServiceUnitNotReady(f"{member.name} is gone for good")
            await asyncio.sleep(LOOK_S)
        if self._supervision.launch_s:
            await asyncio.sleep(self._supervision.launch_s)
        self._cluster.launch(member)
        process = member.process
        try:
            found = await self._started(member)
        except BaseException:
            if process is not None and self._process.alive:
                process.kill()
            raise
        if found is None:
            raise ServiceUnitNotReady(f"{member.name} ended while it started")
        return found

    async def _started(self, member: Node) -> MemberProcess | None:
        process = member.process
        async with asyncio.timeout(LAUNCH_LIMIT_S):
            while process is not None and process.alive and member.process is process:
                if member.ready:
                    self._supervision.on_back(member)
                    return MemberProcess(member, process)
                await asyncio.sleep(LOOK_S)
        return None

    async def ended(self, handle: MemberProcess) -> str:
        closed = self._supervision.closed
        while handle.alive and handle.process not in closed:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(LOOK_S)
        return "its process ended" if not handle.alive else "its service was closed"

    async def close(self, handle: MemberProcess) -> None:
        """Ask the service to close; returns when it has, or its process has ended."""
        node, process = handle.node, handle.process
        if node is None or process is None or not process.alive:
            return
        assert self.carrier is not None
        self._supervision.on_close(node, self.carrier)
        closing = process.spawn(self._close(node, process), "close")
        while process.alive and not closing.done():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
            raise error

    async def _close(self, node: Node, process: Process) -> None:
        """In the member's process: it goes on when the coordinator ends."""
        try:
            await node.service.close()
        finally:
            self._supervision.closed[process] = None

    async def kill(self, handle: MemberProcess) -> None:
        if handle.process is not None and self._process.alive:
            handle.process.kill()

    async def erase(self, node: NodePlan) -> None:
        """Empty the disk of a retired bookie."""
        if self._process.alive:
            self._supervision.erase(node.node_id)
