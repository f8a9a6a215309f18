"""What the reconciler tells the supervisor, and whom it works for."""

from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.desired.planner import CookieFound, Machine
from magnetar.actors.desired.record import DesiredState
from magnetar.actors.processes.plan import ClusterPlan, Layout, NodePlan
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
        self.retired: dict[str, None] = {}
        self.on_change: list[Callable[[], None]] = []

    def set_leaving(self, members: object) -> None:
        """Nothing leaves."""


class Erasing:
    """Removes directories, or fails."""

    def __init__(self) -> None:
        self.erased: list[str] = []
        self.fails = 0

    async def erase(self, node: NodePlan) -> None:
        self.erased.append(node.directory)
        if self.fails:
            self.fails -= 1
            raise OSError("the disk is read-only")


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
        self.eraser = Erasing()
        self.machines = OneMachine(MACHINE)
        self.reconciler = Reconciler[object](env, plan, self.supervisor, self.machines, self.eraser)

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


# -- directories of retired bookies ------------------------------------------------------------------------------------


async def test_the_directory_of_a_retired_bookie_is_removed_also_after_another_pass(world: World) -> None:
    world.office.desired.state = world.state.without("bookie-3")
    world.office.desired.retired["bookie-3"] = None
    await look_again(world)
    assert not world.runs("bookie-3")
    assert await world.reconciler.erase("bookie-3") == ""
    assert world.eraser.erased == ["/data/bookie-3"]


async def test_a_bookie_of_a_former_coordinator_is_found_by_its_cookie(world: World) -> None:
    world.machines.machines = [Machine("", "127.0.0.1", {"bookie-9": CookieFound("c", "i")})]
    assert await world.reconciler.erase("bookie-9") == ""
    assert world.eraser.erased == ["/data/bookie-9"]


@pytest.mark.parametrize("cookies", [{}, {"bookie-9": CookieFound("of another cluster", "i")}])
async def test_a_directory_that_no_machine_shows_is_not_removed(
    world: World, cookies: Mapping[str, CookieFound]
) -> None:
    world.machines.machines = [Machine("", "127.0.0.1", cookies)]
    assert "no machine that is alive has its cookie" in await world.reconciler.erase("bookie-9")
    assert world.eraser.erased == []


async def test_the_directory_on_a_machine_that_is_away_is_named(world: World) -> None:
    world.machines.machines = [Machine("other", "10.0.0.2")]
    reason = await world.reconciler.erase("bookie-3")
    assert reason == "its machine 127.0.0.1 is away: remove /data/bookie-3 there by hand"
    assert world.eraser.erased == []


@pytest.mark.parametrize(("fails", "tries", "says"), [(1, 2, ""), (9, 3, "read-only. Remove it by hand")])
async def test_a_directory_that_cannot_be_removed_is_tried_again_and_named(
    world: World, fails: int, tries: int, says: str
) -> None:
    world.eraser.fails = fails
    reason = await world.reconciler.erase("bookie-3")
    assert len(world.eraser.erased) == tries and reason.endswith(says) and bool(reason) is bool(says)


# -- a machine that could not be looked at -----------------------------------------------------------------------------

HOME = Machine("a", "10.0.0.1", {"bookie-1": CookieFound("c", "i1")}, place_id="home")
BAD = Machine("b", "10.0.0.2", problem="its disk is damaged", unread=("bookie-2",))


class Erased:
    """Remembers whose directories were emptied."""

    def __init__(self) -> None:
        self.bookies: list[str] = []

    async def erase(self, node: NodePlan) -> None:
        self.bookies.append(node.node_id)


async def test_a_bookie_on_a_machine_with_a_problem_waits_and_is_not_erased() -> None:
    env = Environment.real()
    machines = OneMachine(HOME)
    machines.machines = (HOME, BAD)
    layout = Layout("127.0.0.1", 6650, 8080, 7000, "/data")
    plan = ClusterPlan("c", b"secret", Settings(), "", layout, (HOME, BAD), ())
    office = new_office(DesiredState.of(1, 2))

    async def registered_instances() -> dict[str, str]:
        return {"bookie-1": "i1", "bookie-2": "i2"}

    office.registered_instances = registered_instances
    told: Any = Told()
    erased = Erased()
    reconciler = Reconciler[object](env, plan, told, machines, erased)
    await reconciler.start(office, {})
    try:
        assert told.told["bookie-1"].ray_node_id == "a"
        assert isinstance(told.told["bookie-2"], str) and "10.0.0.2" in told.told["bookie-2"], "it waits"
        assert machines.data_awaited, "all machines are looked at again"
        assert "bookie-2" not in reconciler.nodes
        machines.machines = (HOME, Machine("b", "10.0.0.2", {"bookie-2": CookieFound("c", "i2")}, place_id="other"))
        machines.on_change()
        await eventually(lambda: not isinstance(told.told["bookie-2"], str))
        assert told.told["bookie-2"].ray_node_id == "b"
        assert not machines.data_awaited and not erased.bookies
    finally:
        await reconciler.close()
        env.close()
