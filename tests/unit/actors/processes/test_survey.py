"""What the labels of a Ray node say."""

import pytest

from magnetar.actors.processes.survey import BOOKIES_LABEL, BROKERS_LABEL, only_bookie, takes, zone_of


@pytest.mark.parametrize(("value", "taken"), [("false", False), ("False", False), ("true", True), ("", True)])
def test_a_node_takes_members_unless_its_label_says_false(value: str, taken: bool) -> None:
    assert takes({BOOKIES_LABEL: value}, BOOKIES_LABEL) is taken
    assert takes({BOOKIES_LABEL: value}, BROKERS_LABEL), "another label"


def test_the_zone_is_that_of_the_first_label_that_a_node_has() -> None:
    assert zone_of({"topology.kubernetes.io/zone": "b", "magnetar/zone": "a"}) == "a"
    assert zone_of({"rack": "", "topology.kubernetes.io/zone": "b"}) == "b"
    assert zone_of({}) == ""


@pytest.mark.parametrize(("value", "only"), [("bookie-2", "bookie-2"), ("true", ""), ("False", ""), ("", "")])
def test_a_node_may_take_one_bookie_only(value: str, only: str) -> None:
    assert only_bookie({BOOKIES_LABEL: value}) == only
    assert only_bookie({}) == ""
