"""Placement and settings: bookies stay with their data, brokers spread, impossible wishes are refused."""

import dataclasses

import pytest

from magnetar.actors.processes.plan import ClusterPlan
from magnetar.cluster.planning import (
    Machine,
    Wanted,
    check_accepted,
    check_size,
    load_settings,
    place_bookies,
    plan_nodes,
)
from magnetar.protocol.errors import ClusterError, SettingError
from magnetar.runtime.settings.declarations import Settings

A = Machine("a", "10.0.0.1", {})
B = Machine("b", "10.0.0.2", {})


def names(placed: list[tuple[str, Machine]]) -> dict[str, str]:
    return {bookie: machine.ray_node_id for bookie, machine in placed}


def test_fresh_bookies_spread_over_the_machines() -> None:
    placed, lost = place_bookies(3, [A, B], [], "c")
    assert names(placed) == {"bookie-1": "a", "bookie-2": "b", "bookie-3": "a"}
    assert lost == []


def test_bookies_start_where_their_cookies_lie() -> None:
    b = Machine("b", "10.0.0.2", {"bookie-1": "c", "bookie-2": "c", "bookie-3": "c"})
    placed, lost = place_bookies(3, [A, b], ["bookie-1", "bookie-2", "bookie-3"], "c")
    assert names(placed) == {"bookie-1": "b", "bookie-2": "b", "bookie-3": "b"}
    assert lost == []


def test_a_registered_bookie_without_a_cookie_is_never_created_again() -> None:
    a = Machine("a", "10.0.0.1", {"bookie-1": "c"})
    placed, lost = place_bookies(3, [a], ["bookie-1", "bookie-2", "bookie-3"], "c")
    assert names(placed) == {"bookie-1": "a"}
    assert lost == ["bookie-2", "bookie-3"]
    placed, lost = place_bookies(4, [a], ["bookie-1", "bookie-2", "bookie-3"], "c")
    assert names(placed) == {"bookie-1": "a", "bookie-4": "a"}
    assert lost == ["bookie-2", "bookie-3"]


def test_bookies_whose_loss_is_accepted_start_empty_where_the_fewest_are() -> None:
    a = Machine("a", "10.0.0.1", {"bookie-1": "c", "bookie-2": "c"})
    registered = ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]
    placed, lost = place_bookies(3, [a, B], registered, "c", ["bookie-3"])
    assert names(placed) == {"bookie-1": "a", "bookie-2": "a", "bookie-3": "b"}
    assert lost == ["bookie-4"]
    placed, _ = place_bookies(3, [a, B], registered, "c", ["bookie-1"])
    assert names(placed) == {"bookie-1": "a", "bookie-2": "a"}, "one that is there stays where it is"
    nodes = plan_nodes(dataclasses.replace(wanted("127.0.0.1"), lost_instances={"bookie-1": "abc"}), [a], placed)
    assert {node.node_id: node.lost_instance for node in nodes if node.lost_instance} == {"bookie-1": "abc"}


def test_the_loss_of_a_bookie_that_never_was_is_refused() -> None:
    check_accepted(["bookie-1"], ["bookie-1"])
    with pytest.raises(ClusterError, match=r"bookie-7.*bookie-1, bookie-2"):
        check_accepted(["bookie-1", "bookie-7"], ["bookie-1", "bookie-2"])
    with pytest.raises(ClusterError, match="none yet"):
        check_accepted(["bookie-1"], [])


def test_more_cookies_than_asked_for_all_start() -> None:
    a = Machine("a", "10.0.0.1", {f"bookie-{n}": "c" for n in range(1, 12)})
    placed, _ = place_bookies(3, [a], [], "c")
    assert [bookie for bookie, _ in placed] == [f"bookie-{n}" for n in range(1, 12)]


def test_refuses_the_bookies_of_another_cluster() -> None:
    with pytest.raises(ClusterError, match=r"bookie-1.*belongs to cluster other"):
        place_bookies(1, [Machine("a", "10.0.0.1", {"bookie-1": "other"})], [], "c")


def test_refuses_a_bookie_that_lies_on_two_machines() -> None:
    machines = [Machine("a", "10.0.0.1", {"bookie-1": "c"}), Machine("b", "10.0.0.2", {"bookie-1": "c"})]
    with pytest.raises(ClusterError, match="one is a copy"):
        place_bookies(1, machines, [], "c")


def wanted(host: str, brokers: int = 3) -> Wanted:
    return Wanted(brokers, 1, host, [6650, 6651, 6652], 8080, 4000, "/data")


def test_brokers_of_one_machine_listen_on_port_plus_i() -> None:
    nodes = plan_nodes(wanted("127.0.0.1"), [A], [("bookie-1", A)])
    plan = ClusterPlan("c", b"s", Settings(), "sqlite://", tuple(nodes))
    assert plan.service_urls == [f"pulsar://127.0.0.1:{port}" for port in (6650, 6651, 6652)]
    assert plan.admin_url == "http://127.0.0.1:8080"
    assert plan.coordinator.directory == "/data/coordinator"
    assert [node.node_id for node in plan.members] == ["bookie-1", "broker-1", "broker-2", "broker-3", "admin"]
    assert {node.host for node in nodes} == {"127.0.0.1"}


def test_a_wildcard_binds_members_to_their_own_address_and_advertises_it() -> None:
    nodes = plan_nodes(wanted("0.0.0.0"), [A, B], [("bookie-1", B)])
    plan = ClusterPlan("c", b"s", Settings(), "sqlite://", tuple(nodes))
    assert plan.service_urls == ["pulsar://10.0.0.1:6650", "pulsar://10.0.0.2:6650", "pulsar://10.0.0.1:6651"]
    assert plan.admin_url == "http://10.0.0.1:8080"
    hosts = {node.node_id: node.host for node in nodes}
    assert hosts["coordinator"] == "10.0.0.1"
    assert hosts["bookie-1"] == "10.0.0.2"
    assert hosts["broker-1"] == "0.0.0.0"


def test_the_secret_is_not_shown() -> None:
    plan = ClusterPlan("c", b"do not show", Settings(), "postgresql://user:password@host/db", ())
    assert "do not show" not in repr(plan)
    assert "password" not in repr(plan)


def test_ensemble_as_three_numbers() -> None:
    settings = load_settings("5/3/2", environment={})
    assert (settings.ensemble_size, settings.write_quorum, settings.ack_quorum) == (5, 3, 2)


@pytest.mark.parametrize("text", ["3", "3/3", "3/3/2/1", "a/b/c", "3/-3/2", "", "2/3/2", "3/3/1"])
def test_impossible_ensembles_are_refused(text: str) -> None:
    with pytest.raises(SettingError):
        load_settings(text, environment={})


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(SettingError, match="maxMessageSize"):
        load_settings(given={"maxMesageSize": 1}, environment={})


def test_given_values_may_be_python_ones() -> None:
    settings = load_settings(given={"journalSyncData": False, "maxMessageSize": 1_000_000}, environment={})
    assert settings.journal_sync_data is False
    assert settings.max_message_size_bytes == 1_000_000


def test_too_few_bookies_or_brokers_are_refused() -> None:
    check_size(1, 2, Settings())
    with pytest.raises(ClusterError, match="1 bookies are too few"):
        check_size(1, 1, Settings())
    with pytest.raises(ClusterError, match="at least one broker"):
        check_size(0, 3, Settings())
