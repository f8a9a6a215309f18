"""The supervisor against a launcher in memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from magnetar.actors.processes import supervisor as supervisor_module
from magnetar.actors.processes.plan import NodePlan
from magnetar.actors.processes.supervisor import Supervisor
from magnetar.protocol.errors import ClusterError
from magnetar.runtime.environment import Environment


class Process:
    def __init__(self, node: NodePlan) -> None:
        self.node = node
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.events: list[str] = []


class MemoryLauncher:
    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.refusals: dict[str, list[Exception]] = {}
        self.adoptable: dict[str, Process] = {}
        self.launched = asyncio.Condition()
        self.order: list[str] = []

    async def adopt(self, node: NodePlan) -> Any | None:
        return self.adoptable.get(node.node_id)

    async def launch(self, node: NodePlan) -> Any:
        refusals = self.refusals.get(node.node_id)
        if refusals:
            raise refusals.pop(0)
        process = Process(node)
        async with self.launched:
            self.processes.append(process)
            self.launched.notify_all()
        return process

    async def ended(self, handle: Process) -> str:
        return await asyncio.shield(handle.end)

    async def close(self, handle: Process) -> None:
        self.order.append(f"close {handle.node.node_id}")
        if handle.events == ["stuck"]:
            raise RuntimeError("stuck")

    async def kill(self, handle: Process) -> None:
        self.order.append(f"kill {handle.node.node_id}")

    async def wait_for(self, count: int) -> None:
        async with self.launched, asyncio.timeout(5):
            await self.launched.wait_for(lambda: len(self.processes) >= count)


def node(role: str, node_id: str) -> NodePlan:
    return NodePlan(role, node_id, "127.0.0.1")


def targets(nodes: list[NodePlan]) -> dict[str, NodePlan | str]:
    return {one.node_id: one for one in nodes}


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    environment = Environment.real(threads_max=1)
    yield environment
    environment.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_DELAY_INITIAL_S", 0.001)


async def test_starts_every_node_and_restarts_the_one_that_dies(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1"), node("broker", "broker-1")]))
    assert await supervisor.wait_ready(5) == {}
    launcher.processes[1].end.set_result("killed by signal 9")
    await launcher.wait_for(3)
    assert launcher.processes[2].node.node_id == "broker-1"
    assert await supervisor.wait_ready(5) == {}
    restarts = {record["node_id"]: record["restarts"] for record in supervisor.status()}
    assert restarts == {"bookie-1": 0, "broker-1": 1}
    await supervisor.close()


async def test_adopts_what_runs_already(env: Environment) -> None:
    launcher = MemoryLauncher()
    launcher.adoptable["bookie-1"] = Process(node("bookie", "bookie-1"))
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    assert launcher.processes == []
    launcher.adoptable.pop("bookie-1").end.set_result("died")
    await launcher.wait_for(1)
    await supervisor.close()


async def test_tries_again_when_a_start_fails_and_says_why(env: Environment) -> None:
    launcher = MemoryLauncher()
    launcher.refusals["bookie-1"] = [OSError("no disk"), OSError("still no disk")]
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    assert supervisor.status()[0]["restarts"] == 2
    await supervisor.close()


async def test_names_the_problem_of_a_node_that_never_runs(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_DELAY_INITIAL_S", 5.0)
    launcher = MemoryLauncher()
    launcher.refusals["bookie-2"] = [OSError("no disk")]
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1"), node("bookie", "bookie-2")]))
    assert await supervisor.wait_ready(0.05) == {"bookie-2": "OSError: no disk"}
    await supervisor.close()


async def test_stops_in_order_and_kills_who_does_not_close(env: Environment) -> None:
    launcher = MemoryLauncher()
    nodes = [node("bookie", "bookie-1"), node("broker", "broker-1"), node("admin", "admin")]
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets(nodes))
    assert await supervisor.wait_ready(5) == {}
    launcher.processes[1].events.append("stuck")
    await supervisor.stop_all()
    assert launcher.order == [
        "close admin", "kill admin", "close broker-1", "kill broker-1", "close bookie-1", "kill bookie-1",
    ]  # fmt: skip
    assert len(launcher.processes) == 3, "nothing is restarted after stop_all"


async def test_gives_up_waiting_for_a_node_that_always_fails(env: Environment) -> None:
    launcher = MemoryLauncher()
    launcher.refusals["bookie-2"] = [OSError(f"attempt {number}") for number in range(100)]
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1"), node("bookie", "bookie-2")]))
    async with asyncio.timeout(5):
        problems = await supervisor.wait_ready(60)
    assert list(problems) == ["bookie-2"]
    assert "attempt" in problems["bookie-2"]
    await supervisor.close()


async def test_a_member_that_gets_another_machine_is_released_closed_and_started_there(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)

    async def release(node: NodePlan) -> None:
        launcher.order.append(f"release {node.node_id}")

    supervisor.release = release
    here, there = node("broker", "broker-1"), replace(node("broker", "broker-1"), ray_node_id="other")
    supervisor.retarget(targets([here]))
    assert await supervisor.wait_ready(5) == {}
    supervisor.retarget(targets([there]))
    assert supervisor.assigned_to() == {"broker-1": "other"}
    await launcher.wait_for(2)
    assert launcher.order == ["release broker-1", "close broker-1", "kill broker-1", "kill broker-1"]
    assert launcher.processes[1].node is there
    assert await supervisor.wait_ready(5) == {}
    assert supervisor.running_on() == {"broker-1": "other"}
    assert supervisor.status()[0]["restarts"] == 0, "a move is no failure"
    await supervisor.close()


async def test_a_bookie_whose_machine_is_gone_is_absent_and_not_counted_as_restarting(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    supervisor.retarget({"bookie-1": "its data lies on no Ray node that is alive"})
    launcher.processes[0].end.set_result("the node is gone")
    assert await supervisor.wait_ready(5) == {}, "it is not waited for"
    (found,) = supervisor.status()
    while found["state"] != "absent":
        await asyncio.sleep(0)
        (found,) = supervisor.status()
    assert (found["problem"], found["restarts"]) == ("its data lies on no Ray node that is alive", 0)
    supervisor.retarget(targets([replace(node("bookie", "bookie-1"), ray_node_id="the same machine, anew")]))
    await launcher.wait_for(2)
    assert await supervisor.wait_ready(5) == {}
    await supervisor.close()


async def test_a_member_that_is_not_wanted_any_more_is_closed_and_forgotten(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("broker", "broker-1"), node("broker", "broker-2")]))
    assert await supervisor.wait_ready(5) == {}
    supervisor.retarget(targets([node("broker", "broker-1")]))
    async with asyncio.timeout(5):
        await supervisor.wait_gone("broker-2")
    assert [one["node_id"] for one in supervisor.status()] == ["broker-1"]
    assert launcher.order[:2] == ["close broker-2", "kill broker-2"]
    supervisor.retarget(targets([node("broker", "broker-1"), node("broker", "broker-2")]))
    await launcher.wait_for(3)
    await supervisor.close()


async def test_another_machine_ends_the_pause_after_a_failed_start(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_DELAY_INITIAL_S", 60.0)
    monkeypatch.setattr(supervisor_module, "RESTART_DELAY_MAX_S", 60.0)
    launcher = MemoryLauncher()
    launcher.refusals["broker-1"] = [OSError("the node is gone")]
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("broker", "broker-1")]))
    assert await supervisor.wait_ready(0.05) == {"broker-1": "OSError: the node is gone"}
    supervisor.retarget(targets([replace(node("broker", "broker-1"), ray_node_id="other")]))
    assert await supervisor.wait_ready(5) == {}
    await supervisor.close()


async def test_a_restart_closes_the_process_and_starts_it_where_it_was(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    released: list[str] = []

    async def release(one: NodePlan) -> None:
        released.append(one.node_id)

    supervisor.release = release
    supervisor.retarget(targets([node("broker", "broker-1"), node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    former = next(process for process in launcher.processes if process.node.node_id == "broker-1")
    async with asyncio.timeout(5):
        await supervisor.restart("broker-1")
    assert released == ["broker-1"]
    assert launcher.order[0] == "close broker-1"
    assert launcher.processes[2].node == former.node
    assert {record["node_id"]: (record["state"], record["restarts"]) for record in supervisor.status()} == {
        "broker-1": ("running", 0),
        "bookie-1": ("running", 0),
    }
    await supervisor.close()


async def test_a_restart_waits_until_a_start_succeeds(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    launcher.refusals["bookie-1"] = [OSError("no disk"), OSError("still no disk")]
    async with asyncio.timeout(5):
        await supervisor.restart("bookie-1")
    assert launcher.refusals["bookie-1"] == []
    assert len(launcher.processes) == 2
    await supervisor.close()


async def test_a_restart_gives_up_after_some_failed_starts_and_the_supervisor_does_not(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    launcher.refusals["bookie-1"] = [OSError("no disk")] * (supervisor_module.FAILED_STARTS_MAX + 1)
    async with asyncio.timeout(5):
        with pytest.raises(ClusterError, match="bookie-1 cannot be started: OSError: no disk"):
            await supervisor.restart("bookie-1")
        await launcher.wait_for(2)
    assert launcher.refusals["bookie-1"] == []
    await supervisor.close()


async def test_only_what_runs_is_restarted(env: Environment) -> None:
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget({"bookie-1": "its disk is gone"})
    assert await supervisor.wait_ready(5) == {}
    with pytest.raises(ClusterError, match="bookie-1 does not run: its disk is gone"):
        await supervisor.restart("bookie-1")
    with pytest.raises(ClusterError, match="bookie-2 does not run: it is no process of this cluster"):
        await supervisor.restart("bookie-2")
    await supervisor.close()


async def test_a_member_that_is_no_longer_wanted_ends_its_restart(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_DELAY_INITIAL_S", 10.0)
    launcher = MemoryLauncher()
    supervisor = Supervisor(env, launcher)
    supervisor.retarget(targets([node("bookie", "bookie-1")]))
    assert await supervisor.wait_ready(5) == {}
    launcher.refusals["bookie-1"] = [OSError("no disk")]
    restart = asyncio.create_task(supervisor.restart("bookie-1"))
    async with asyncio.timeout(5):
        while supervisor.status()[0]["restarts"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        supervisor.retarget({})
        with pytest.raises(ClusterError, match="bookie-1 was to end"):
            await restart
    await supervisor.close()
