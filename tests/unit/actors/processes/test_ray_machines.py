"""The watch of Ray's nodes: one that cannot be looked at keeps nothing else waiting, and is used when it can be."""

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from magnetar.actors.processes import ray_machines
from magnetar.actors.processes.ray_machines import RayMachines
from magnetar.runtime.environment import Environment
from support.fakes.ray_nodes import FakeNodes
from support.servers.coordination import eventually

PROBLEM = "the cookie cannot be read"


@pytest.fixture
def env() -> Iterator[Environment]:
    found = Environment.real()
    yield found
    found.close()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> FakeNodes:
    monkeypatch.setattr(ray_machines, "NODES_POLL_S", 0.01)
    monkeypatch.setattr(ray_machines, "LOOK_AGAIN_INITIAL_S", 0.01)
    return FakeNodes(monkeypatch, "a", "b")


def names(watch: RayMachines) -> list[str]:
    return [machine.ray_node_id for machine in watch.machines]


async def test_a_node_with_a_problem_is_a_machine_with_that_problem(env: Environment, nodes: FakeNodes) -> None:
    watch = RayMachines(env, "/data", ())
    nodes.problems["b"] = PROBLEM
    await watch.refresh()
    assert [(machine.ray_node_id, machine.problem) for machine in watch.machines] == [("a", ""), ("b", PROBLEM)]
    assert watch.left_out() == [{"ray_node_id": "b", "address": "at-b", "problem": PROBLEM}]


async def test_a_node_that_leaves_is_noticed_while_another_has_a_problem(env: Environment, nodes: FakeNodes) -> None:
    watch = RayMachines(env, "/data", ())
    await watch.refresh()
    changes: list[list[str]] = []
    watch.on_change = lambda: changes.append(names(watch))
    nodes.alive = ["a", "bad"]
    nodes.problems["bad"] = PROBLEM
    await watch.refresh()
    assert changes == [["a"], ["a", "bad"]], "departures come first"


@pytest.mark.parametrize("error", [OSError("no answer"), ValueError("a defect")])
async def test_a_survey_that_fails_keeps_no_departure_back(
    env: Environment, nodes: FakeNodes, error: Exception
) -> None:
    def fail() -> None:
        raise error

    watch = RayMachines(env, "/data", ())
    await watch.refresh()
    nodes.on_survey = fail
    nodes.alive = ["a", "new"]
    watch.start()
    await eventually(lambda: names(watch) == ["a"])
    nodes.on_survey = lambda: None
    await eventually(lambda: names(watch) == ["a", "new"])
    await watch.close()


async def test_a_departure_is_noticed_while_a_survey_waits_for_a_silent_node(
    env: Environment, nodes: FakeNodes
) -> None:
    watch = RayMachines(env, "/data", ())
    await watch.refresh()
    answered = threading.Event()

    def wait() -> None:
        answered.wait(10)

    nodes.on_survey = wait
    nodes.alive = ["a", "b", "silent"]
    nodes.silent["silent"] = "it did not answer"
    watch.start()
    await eventually(lambda: nodes.surveys[-1] == ["silent"])
    nodes.alive = ["a", "silent"]
    await eventually(lambda: names(watch) == ["a"])
    assert not answered.is_set()
    answered.set()
    await eventually(lambda: [one["problem"] for one in watch.left_out()] == ["it did not answer"])
    assert names(watch) == ["a"], "Ray may not know yet that the node is lost"
    await watch.close()


async def test_what_a_survey_found_of_a_node_that_is_gone_meanwhile_is_forgotten(
    env: Environment, nodes: FakeNodes
) -> None:
    watch = RayMachines(env, "/data", ())
    await watch.refresh()
    nodes.alive = ["a", "b", "c"]
    nodes.problems["c"] = PROBLEM
    loop = asyncio.get_running_loop()

    def leaves() -> None:
        nodes.alive = ["a", "b"]
        asyncio.run_coroutine_threadsafe(watch._read(), loop).result(10)

    nodes.on_survey = leaves
    await watch.refresh()
    assert names(watch) == ["a", "b"] and watch.left_out() == []


@pytest.mark.parametrize("silent", [False, True])
async def test_a_node_is_used_when_the_reason_is_gone_and_logged_once(
    env: Environment, nodes: FakeNodes, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = nodes.silent if silent else nodes.problems
    reasons["b"] = PROBLEM
    watch = RayMachines(env, "/data", ())
    with caplog.at_level(logging.INFO):
        watch.start()
        await eventually(lambda: len(nodes.surveys) >= 4)
        assert nodes.surveys[1:4] == [["b"]] * 3, "those that are well are not surveyed again"
        assert names(watch) == (["a"] if silent else ["a", "b"])
        del reasons["b"]
        await eventually(lambda: names(watch) == ["a", "b"] and not watch.left_out())
        await watch.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"the Ray node at-b (b) is left out, and is looked at again: {PROBLEM}"]
    assert "the Ray node at-b (b) could be looked at, and is used" in caplog.messages


async def test_the_pause_before_the_next_look_grows(
    env: Environment, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_machines, "LOOK_AGAIN_INITIAL_S", 2.0)
    nodes.problems["b"] = PROBLEM
    watch = RayMachines(env, "/data", ())
    loop = asyncio.get_running_loop()
    for pause_s in (2.0, 4.0, 8.0):
        await watch.refresh()
        surveys = len(nodes.surveys)
        await watch.refresh()
        assert len(nodes.surveys) == surveys, "not before its time"
        wait_s = watch._left_out["b"].not_before - loop.time()
        assert 0.8 * pause_s - 0.5 < wait_s <= pause_s
        watch._left_out["b"].not_before = loop.time()


async def test_a_machine_with_a_problem_that_the_start_found_is_looked_at_again(
    env: Environment, nodes: FakeNodes
) -> None:
    nodes.problems["b"] = PROBLEM
    watch = RayMachines(env, "/data", [nodes.machine("a"), nodes.machine("b")])
    assert [one["address"] for one in watch.left_out()] == ["at-b"], "status shows it before the first look"
    nodes.problems.clear()
    await watch.refresh()
    assert nodes.surveys == [["b"]] and watch.left_out() == []


async def test_a_usable_node_that_is_silent_later_stays_as_it_is(env: Environment, nodes: FakeNodes) -> None:
    watch = RayMachines(env, "/data", ())
    await watch.refresh()
    watch.data_awaited = True
    nodes.silent["b"] = "it did not answer"
    await watch.refresh()
    assert nodes.surveys[-1] == ["a", "b"]
    assert names(watch) == ["a", "b"] and watch.left_out() == []


async def test_the_first_refresh_ends_also_when_all_nodes_have_a_problem(env: Environment, nodes: FakeNodes) -> None:
    nodes.problems = {"a": PROBLEM, "b": PROBLEM}
    watch = RayMachines(env, "/data", ())
    await watch.refresh()
    assert names(watch) == ["a", "b"]


async def test_only_one_node_is_watched_where_the_cluster_has_one(env: Environment, nodes: FakeNodes) -> None:
    watch = RayMachines(env, "/data", (), only="at-a")
    await watch.refresh()
    assert names(watch) == ["a"] and nodes.surveys == [["a"]]


async def test_a_node_that_drains_is_marked(env: Environment, nodes: FakeNodes) -> None:
    watch = RayMachines(env, "/data", ())
    nodes.leaving = {"b"}
    await watch.refresh()
    assert [machine.leaving for machine in watch.machines] == [False, True]
