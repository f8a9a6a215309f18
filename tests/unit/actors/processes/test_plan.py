"""The plan of a cluster outlives the release that made it: Ray keeps it pickled for the coordinator's next start."""

import dataclasses
import pickle

import pytest

from magnetar.actors.desired.planner import Machine
from magnetar.actors.processes.plan import ClusterPlan, Layout, MemberPlan, NodePlan
from magnetar.runtime.settings.declarations import Settings

CARRIED = [ClusterPlan, MemberPlan, NodePlan, Layout, Machine, Settings]
FROM_THE_START = {"Layout.lost_instances", "Machine.cookies"}
"""Fields with a `default_factory` that every plan has."""


@pytest.mark.parametrize("carried", CARRIED)
def test_fields_of_plans_have_plain_defaults_that_older_plans_get(carried: type) -> None:
    made = {
        f"{carried.__name__}.{one.name}"
        for one in dataclasses.fields(carried)
        if one.default_factory is not dataclasses.MISSING
    }
    assert made <= FROM_THE_START


def test_a_plan_of_an_older_release_has_the_defaults_of_newer_fields() -> None:
    plan = NodePlan("bookie", "bookie-1", "127.0.0.1", zone="a")
    older = {name: value for name, value in vars(plan).items() if name != "zone"}
    found = pickle.loads(pickle.dumps(_Old(older)))
    assert isinstance(found, NodePlan)
    assert found == NodePlan("bookie", "bookie-1", "127.0.0.1")


class _Old:
    """Pickles as a NodePlan that lacks fields."""

    def __init__(self, state: dict[str, object]) -> None:
        self._state = state

    def __reduce__(self) -> tuple[object, tuple[type], dict[str, object]]:
        return _bare, (NodePlan,), self._state


def _bare(kind: type) -> object:
    return object.__new__(kind)
