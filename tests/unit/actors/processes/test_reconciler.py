"""What the reconciler tells the supervisor, and whom it works for."""

from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.desired.planner import Machine
from magnetar.actors.desired.record import DesiredState
from magnetar.actors.processes.plan import ClusterPlan, Layout
from magnetar.actors.processes.reconciler import OneMachine, Reconciler
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from support.servers.coordination import eventually

MACHINE = Machine("", "127.0.0.1")


class Told:
    """A supervisor that only remembers what should run."""

    def __init__(self) -> None:
        self.release: Any = None
        self.on_moved: Callable[[], None] | None = None
        self.told: dict[str, Any] = {}

    def retarget(self, targets: Mapping[str, Any]) -> None:
        self.told = dict(targets)

    def targets(self) -> dict[str, Any]:
        return self.told

    def assigned_to(self) -> dict[str, str]:
        return dict.fromkeys(self.told, "")

    running_on = assigned_to

    async def wait_gone(self, member: str) -> None:
        assert member not in self.told


class Desired:
    """What should run, in the hands of one coordinator."""

    def __init__(self, state: DesiredState) -> None:
        self.state = state
        self.on_change: list[Callable[[], None]] = []

    def set_leaving(self, members: object) -> None:
        """Nothing leaves."""


def new_office(state: DesiredState) -> Any:
    async def registered_instances() -> dict[str, str]:
        return {}

    return SimpleNamespace(
        desired=Desired(state),
        drains=SimpleNamespace(processes=None),
        registered_instances=registered_instances,
    )


class World:
    """A reconciler with its first coordinator."""

    def __init__(self, env: Environment) -> None:
        layout = Layout("127.0.0.1", 6650, 8080, 7000, "/data")
        plan = ClusterPlan("c", b"secret", Settings(), "", layout, (MACHINE,), ())
        self.supervisor: Any = Told()
        self.state = DesiredState.of(2, 3).drained("broker-2", 3)
        self.office = new_office(self.state)
        eraser: Any = None
        self.reconciler = Reconciler[object](env, plan, self.supervisor, OneMachine(MACHINE), eraser)

    def runs(self, member: str) -> bool:
        return member in self.supervisor.told


@pytest.fixture
async def world() -> AsyncIterator[World]:
    env = Environment.real()
    found = World(env)
    await found.reconciler.start(found.office, {})
    yield found
    await found.reconciler.close()
    env.close()


async def look_again(world: World) -> None:
    """Wait until it has compared once more."""
    told = world.supervisor.told
    world.reconciler._wake.set()
    await eventually(lambda: world.supervisor.told is not told)


async def test_a_member_that_a_drain_ended_is_not_started_until_it_is_resumed(world: World) -> None:
    assert world.runs("broker-2")
    await world.reconciler.end("broker-2")
    await look_again(world)
    assert not world.runs("broker-2")
    world.reconciler.resume("broker-2")
    await eventually(lambda: world.runs("broker-2"))


async def test_the_next_coordinator_finds_no_member_ended_by_the_one_before(world: World) -> None:
    await world.reconciler.end("broker-2")
    await look_again(world)
    assert not world.runs("broker-2")
    world.reconciler.follow(new_office(world.state.undrained("broker-2")))
    await eventually(lambda: world.runs("broker-2"))


async def test_a_pass_that_fails_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.actors.processes.reconciler.PASS_RETRY_S", 0.01)
    failures: list[None] = []
    registered_instances = world.office.registered_instances

    async def fails_twice() -> dict[str, str]:
        if len(failures) < 2:
            failures.append(None)
            raise ValueError("a defect")
        found: dict[str, str] = await registered_instances()
        return found

    world.office.registered_instances = fails_twice
    world.office.desired.state = world.state.scaled(3, None, 3)
    world.office.desired.on_change[0]()
    await eventually(lambda: world.runs("broker-3"))
    assert len(failures) == 2
