"""What should run after a start, where processes listen, and settings: impossible wishes are refused."""

import pytest

from magnetar.actors.desired.planner import Machine, Observed, RunOn, plan
from magnetar.actors.desired.record import DesiredState
from magnetar.actors.processes.plan import ClusterPlan, Layout, NodePlan, admin_url, service_urls, service_urls_tls
from magnetar.cluster.planning import check_accepted, check_size, desired_at_start, load_settings, settings_at_start
from magnetar.protocol.errors import ClusterError, NotAllowedError, SettingError
from magnetar.protocol.names import port_of_broker
from magnetar.runtime.settings.declarations import Settings

A = Machine("a", "10.0.0.1")
B = Machine("b", "10.0.0.2")
SETTINGS = Settings()


def test_a_new_cluster_has_two_brokers_and_three_bookies_by_default() -> None:
    assert desired_at_start(None, [], None, None, SETTINGS) == (DesiredState.of(2, 3), [])
    assert desired_at_start(None, [], 1, 4, SETTINGS) == (DesiredState.of(1, 4), [])


def test_a_cluster_of_an_older_version_keeps_all_bookies_that_it_has() -> None:
    found, told = desired_at_start(None, ["bookie-2", "bookie-7", "lost+found"], None, 4, SETTINGS)
    assert found.bookie_ids == ["bookie-2", "bookie-7", "bookie-8", "bookie-9"] and told == []
    found, _ = desired_at_start(None, [f"bookie-{n}" for n in range(1, 12)], None, None, SETTINGS)
    assert len(found.bookies) == 11


def test_a_start_without_numbers_keeps_what_ran_last() -> None:
    before = DesiredState.of(3, 5)
    assert desired_at_start(before, [], None, None, SETTINGS) == (before, [])
    assert desired_at_start(before, [], 3, 5, SETTINGS) == (before, [])


def test_a_start_with_other_numbers_changes_what_runs_and_says_so() -> None:
    found, told = desired_at_start(DesiredState.of(3, 4), [], 2, 5, SETTINGS)
    assert (found.broker_ids, found.bookies) == (["broker-1", "broker-2"], (1, 2, 3, 4, 5))
    assert told == [
        "the cluster had 3 brokers; it has 2 from now on",
        "the cluster had 4 bookies; it has 5 from now on",
    ]
    found, told = desired_at_start(DesiredState.of(3, 4), [], None, 3, SETTINGS)
    assert found.draining == {"bookie-4"} and len(found.bookies) == 4
    assert told[-1] == "bookie-4 drains: its ledgers are copied to other bookies"


def test_brokers_that_were_to_drain_are_gone_after_a_start_and_bookies_drain_on() -> None:
    before = DesiredState.of(3, 4).drained("broker-1", 3).drained("bookie-2", 3)
    found, told = desired_at_start(before, [], None, None, SETTINGS)
    assert found.broker_ids == ["broker-2", "broker-3"] and found.draining == {"bookie-2"}
    assert told == ["bookie-2 drains: its ledgers are copied to other bookies"]


def test_a_start_that_would_leave_too_few_bookies_is_refused() -> None:
    with pytest.raises(NotAllowedError, match=r"bookie-3.*2 bookies would remain.*need 3"):
        desired_at_start(DesiredState.of(1, 3), [], None, 2, SETTINGS)


def test_the_loss_of_a_bookie_that_never_was_is_refused() -> None:
    check_accepted(["bookie-1"], ["bookie-1"])
    with pytest.raises(ClusterError, match=r"bookie-7.*bookie-1, bookie-2"):
        check_accepted(["bookie-1", "bookie-7"], ["bookie-1", "bookie-2"])
    with pytest.raises(ClusterError, match="none yet"):
        check_accepted(["bookie-1"], [])


def layout(host: str) -> Layout:
    return Layout(host, 6650, 8080, 4000, "/data", {"bookie-1": "abc"})


def placed(host: str, machines: list[Machine]) -> dict[str, NodePlan]:
    targets = plan("c", DesiredState.of(3, 1), Observed(machines))
    return {one: layout(host).member(one, run.machine) for one, run in targets.items() if isinstance(run, RunOn)}


@pytest.mark.promise("30.19")
def test_broker_n_listens_on_the_nth_port_wherever_it_runs() -> None:
    nodes = placed("127.0.0.1", [A])
    assert service_urls(nodes, Settings()) == [f"pulsar://127.0.0.1:{port}" for port in (6650, 6652, 6653)]
    assert [port_of_broker(6700, number) for number in (1, 2, 3)] == [6700, 6701, 6702], "as in k8s"
    assert [port_of_broker(6649, number) for number in (1, 2, 3)] == [6649, 6650, 6652], "never Pulsar's port for TLS"
    assert port_of_broker(6651, 1) == 6651, "unless it is asked for"
    assert admin_url(nodes, Settings()) == "http://127.0.0.1:8080"
    assert layout("127.0.0.1").coordinator(A).directory == "/data/coordinator"
    assert list(nodes) == ["bookie-1", "broker-1", "broker-2", "broker-3", "admin"]
    assert {node.host for node in nodes.values()} == {"127.0.0.1"}
    assert (nodes["bookie-1"].lost_instance, nodes["bookie-1"].directory) == ("abc", "/data/bookie-1")


def test_urls_have_tls_where_the_processes_have_it() -> None:
    files = {"tls_certificate_path": "c", "tls_key_path": "k"}
    nodes = placed("127.0.0.1", [A])
    assert service_urls_tls(nodes, Settings()) == []
    both = Settings(broker_port_tls=6651, admin_port_tls=8443, **files)
    assert service_urls(nodes, both)[0] == "pulsar://127.0.0.1:6650"
    assert service_urls_tls(nodes, both) == [f"pulsar+ssl://127.0.0.1:{port}" for port in (6651, 7652, 7653)]
    assert admin_url(nodes, both) == "http://127.0.0.1:8080"
    only = Settings(broker_tls_only=True, admin_tls_only=True, **files)
    assert service_urls(nodes, only) == [f"pulsar+ssl://127.0.0.1:{port}" for port in (6650, 6652, 6653)]
    assert service_urls_tls(nodes, only) == service_urls(nodes, only)
    assert admin_url(nodes, only) == "https://127.0.0.1:8080"


@pytest.mark.promise("30.19")
def test_a_wildcard_binds_members_to_their_own_address_and_advertises_it() -> None:
    nodes = placed("0.0.0.0", [A, B])
    assert service_urls(nodes, Settings()) == [
        "pulsar://10.0.0.1:6650",
        "pulsar://10.0.0.2:6652",
        "pulsar://10.0.0.1:6653",
    ]
    assert admin_url(nodes, Settings()) == "http://10.0.0.1:8080"
    assert layout("0.0.0.0").coordinator(A).host == "10.0.0.1"
    assert nodes["bookie-1"].host == "10.0.0.1"
    assert nodes["broker-1"].host == "0.0.0.0"


def test_the_secret_is_not_shown() -> None:
    plan = ClusterPlan("c", b"do not show", Settings(), "postgresql://user:password@host/db", layout("::"), (A,), ())
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


# ---- Settings from one start to the next ----

SMALL = {"maxMessageSize": 1_048_576}


@pytest.mark.parametrize("given", [{}, SMALL])
def test_a_new_cluster_stores_what_it_was_given_and_says_nothing(given: dict[str, int]) -> None:
    """So does one of an older release, which stored nothing."""
    settings, stored, told = settings_at_start(None, given)
    assert stored == given and told == []
    assert settings.max_message_size_bytes == given.get("maxMessageSize", 5_242_880)


def test_a_start_without_settings_takes_the_stored_ones_and_says_so() -> None:
    settings, stored, told = settings_at_start(SMALL, {})
    assert settings.max_message_size_bytes == 1_048_576 and stored == SMALL
    assert told == ["settings of the last start: maxMessageSize=1048576"]


def test_a_start_with_other_settings_says_old_and_new() -> None:
    given = {"maxMessageSize": 2_097_152, "allowAutoTopicCreation": False}
    settings, stored, told = settings_at_start({**SMALL, "clusterName": "west"}, given)
    assert (settings.max_message_size_bytes, settings.cluster_name) == (2_097_152, "west")
    assert stored == {**given, "clusterName": "west"}
    assert told == [
        "setting maxMessageSize: 1048576 -> 2097152",
        "setting allowAutoTopicCreation: true -> false",
        "settings of the last start: clusterName=west",
    ]


def test_a_start_with_the_same_settings_says_nothing() -> None:
    assert settings_at_start(SMALL, SMALL)[1:] == (SMALL, [])


def test_a_setting_that_gets_its_default_is_no_longer_stored() -> None:
    _, stored, told = settings_at_start(SMALL, {"maxMessageSize": 5_242_880})
    assert stored == {} and told == ["setting maxMessageSize: 1048576 -> 5242880"]


def test_names_of_a_newer_release_are_kept_without_an_effect() -> None:
    """An older release runs for a while after a step back."""
    settings, stored, told = settings_at_start({"ofTomorrow": 3, **SMALL}, SMALL)
    assert settings.max_message_size_bytes == 1_048_576 and stored == {"ofTomorrow": 3, **SMALL}
    assert told == ["settings of a newer release, which have no effect in this one: ofTomorrow=3"]


def test_given_settings_that_do_not_fit_the_stored_ones_name_them() -> None:
    with pytest.raises(SettingError, match=r"at least 1,024 above.*last start count as well: maxMessageSize=1048576\."):
        settings_at_start(SMALL, {"nettyMaxFrameSizeBytes": 1_048_576})
    with pytest.raises(SettingError) as refused:
        settings_at_start(None, {"nettyMaxFrameSizeBytes": 1_048_576})
    assert "last start" not in str(refused.value)


def test_a_stored_value_that_this_release_refuses_can_be_replaced() -> None:
    with pytest.raises(SettingError, match="maxMessageSize=-1"):
        settings_at_start({"maxMessageSize": -1}, {})
    settings, stored, _ = settings_at_start({"maxMessageSize": -1}, SMALL)
    assert settings.max_message_size_bytes == 1_048_576 and stored == SMALL
