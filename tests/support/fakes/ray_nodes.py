"""Nodes of a Ray that is not there, and what surveys find on them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from ray.exceptions import RayTaskError

from magnetar.actors.desired.planner import Machine
from magnetar.actors.processes.survey import Surveyed
from magnetar.runtime.ray_calls import RayNode

T = TypeVar("T")


def ray_node(name: str, *, alive: bool = True) -> RayNode:
    """A node with the id `name`, at the address `at-<name>`."""
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": f"at-{name}", "Resources": {}}


class FakeNodes:
    """The nodes that Ray names, in the place of what `ray_machines` calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.alive = list(names)
        self.leaving: set[str] = set()
        self.problems: dict[str, str] = {}
        self.silent: dict[str, str] = {}
        self.surveys: list[list[str]] = []
        """The nodes of each survey."""
        self.on_survey: Callable[[], None] = lambda: None
        module = "magnetar.actors.processes.ray_machines"
        monkeypatch.setattr(f"{module}._read_nodes", lambda: ([ray_node(one) for one in self.alive], set(self.leaving)))
        monkeypatch.setattr(f"{module}.survey", self._survey)

    def _survey(self, nodes: Sequence[RayNode], data_directory: str) -> Surveyed:
        self.surveys.append([node["NodeID"] for node in nodes])
        self.on_survey()
        machines = [self.machine(node["NodeID"]) for node in nodes if node["NodeID"] not in self.silent]
        return Surveyed(machines, {one: self.silent[one] for one in self.surveys[-1] if one in self.silent})

    def machine(self, name: str) -> Machine:
        """What a survey finds there."""
        return replace(Machine(name, f"at-{name}"), problem=self.problems.get(name, ""))


class FakeTasks:
    """Ray's tasks: a function for each node that gives its answer. `install` has the survey call them."""

    def __init__(self, **answers: Callable[[str], object]) -> None:
        self.answers = answers
        self.pending: set[str] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = "magnetar.actors.processes.survey"
        monkeypatch.setattr(f"{module}._begin_on", lambda nodes, function, *arguments: list(nodes))
        monkeypatch.setattr(f"{module}.wait_for", lambda answers, timeout_s: [x for x in answers if x in self.pending])
        monkeypatch.setattr(f"{module}.ask", self._ask)

    def _ask(self, node: str) -> object:
        try:
            return self.answers[node](node)
        except OSError:
            raise
        except Exception as error:
            raise RayTaskError("look", "the traceback of the other side", error) from error
