"""Settings: Pulsar's names outside, nearest name on a typo, impossible values refused."""

import dataclasses
import pickle

import pytest

from magnetar.protocol.errors import SettingError
from magnetar.runtime.settings.declarations import Settings
from magnetar.runtime.settings.text import absent_feature


@pytest.mark.promise("2.13", "2.15", "15.9")
def test_the_defaults_are_pulsars():
    values = Settings().to_dict()
    assert values["maxMessageSize"] == 5_242_880
    assert values["nettyMaxFrameSizeBytes"] == 5_253_120
    assert values["managedLedgerMaxEntriesPerLedger"] == 50_000
    assert values["managedLedgerMaxSizePerLedgerMbytes"] == 2048
    assert values["allowAutoTopicCreation"] is True


@pytest.mark.promise("2.14")
def test_the_last_source_wins(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("# comment\n\nmaxMessageSize=2000\nallowAutoTopicCreation = false\nkeepAliveIntervalSeconds=7.5\n")
    environment = {"MAGNETAR_maxMessageSize": "3000", "PATH": "/bin", "MAGNETAR_HOME": "/x"}
    settings = Settings.load(str(file), environment, {"maxMessageSize": "4000"})
    assert settings.max_message_size_bytes == 4000
    assert settings.allow_auto_topic_creation is False
    assert settings.keep_alive_interval_s == 7.5
    assert Settings.load(str(file), environment).max_message_size_bytes == 3000


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(SettingError, match=r"unknown setting maxMesageSize \(did you mean maxMessageSize\?\)"):
        Settings.load(None, {}, {"maxMesageSize": "1"})


def test_all_unknown_names_of_a_file_are_told_at_once_and_missing_features_by_name(tmp_path):
    """As in a `broker.conf` of Pulsar."""
    file = tmp_path / "broker.conf"
    names = (
        "zookeeperServers", "tlsEnabled", "tlsProvider",
        "brokerClientAuthenticationPlugin", "saslJaasClientAllowedIds",
        "functionsWorkerEnabled", "managedLedgerOffloadDriver", "transactionCoordinatorEnabled",
        "webSocketServiceEnabled", "replicatorPrefix", "maxMesageSize", "xyzzy",
    )  # fmt: skip
    file.write_text("maxMessageSize=1048576\n" + "".join(f"{name}=1\n" for name in names))
    with pytest.raises(SettingError) as refused:
        Settings.load(str(file), {})
    message = str(refused.value)
    assert message.startswith(f"{file}: unknown settings maxMesageSize (did you mean maxMessageSize?), xyzzy; ")
    assert message.count("did you mean") == 1, "nothing is suggested in place of a missing feature"
    assert "no TLS by key stores or providers, so take away tlsEnabled, tlsProvider" in message
    assert "so take away brokerClientAuthenticationPlugin, saslJaasClientAllowedIds" in message
    for feature in ("ZooKeeper", "functions", "tiered storage", "transactions", "WebSocket proxy", "geo-replication"):
        assert f"Magnetar has no {feature}, so" in message
    assert all(name in message for name in names)


def test_no_setting_passes_for_one_of_a_missing_feature():
    """A slip in its name would get no suggestion."""
    ours = [name for name in Settings().to_dict() if absent_feature(name)]
    assert ours == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"maxMessageSize": "big"}, "whole number"),
        ({"allowAutoTopicCreation": "yes"}, "true or false"),
        ({"keepAliveIntervalSeconds": "soon"}, "a number"),
        ({"keepAliveIntervalSeconds": "nan"}, "between"),
        ({"maxMessageSize": "-1"}, "between"),
        ({"allowAutoTopicCreationType": "odd"}, "one of"),
        ({"managedLedgerDefaultAckQuorum": "4"}, "ensemble size >= write quorum >= ack quorum"),
        ({"managedLedgerDefaultAckQuorum": "1"}, "loses entries when one disk fails"),
        ({"maxMessageSize": "5253000"}, "nettyMaxFrameSizeBytes"),
        ({"diskUsageThreshold": "0.5"}, "below"),
        ({"sessionTimeoutSeconds": "0.6"}, "heartbeat"),
    ],
)
def test_impossible_values_are_refused(values, message):
    with pytest.raises(SettingError, match=message):
        Settings.load(None, {}, values)


def test_an_ack_quorum_of_one_must_be_asked_for():
    settings = Settings.load(None, {}, {"managedLedgerDefaultAckQuorum": "1", "allowAckQuorumOfOne": "true"})
    assert settings.ack_quorum == 1


def test_a_bad_file_is_named(tmp_path):
    file = tmp_path / "x.conf"
    file.write_text("maxMessageSize\n")
    with pytest.raises(SettingError, match=r"x\.conf, line 1"):
        Settings.load(str(file), {})
    with pytest.raises(SettingError, match="cannot be read"):
        Settings.load(str(tmp_path / "absent"), {})


def test_settings_travel():
    settings = Settings(max_message_size_bytes=4096)
    assert Settings.from_dict(settings.to_dict()) == settings == pickle.loads(pickle.dumps(settings))


def test_intervals_of_bookkeeper_are_given_in_milliseconds_as_bookkeeper_does():
    settings = Settings.load(
        None, {}, {"gcWaitTime": "900000", "diskCheckInterval": "10000", "logSizeLimit": "67108864"}
    )
    assert settings == Settings()
    assert (settings.gc_interval_ms, settings.disk_check_interval_ms) == (900_000, 10_000)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gcWaitSeconds", "gcWaitTime"),
        ("addEntryTimeoutSeconds", "addEntryTimeoutSec"),
        ("diskCheckIntervalSeconds", "diskCheckInterval"),
        ("lostBookieRecoveryDelaySeconds", "lostBookieRecoveryDelay"),
    ],
)
def test_a_name_that_is_nearly_bookkeepers_is_refused_with_bookkeepers(old, new):
    with pytest.raises(SettingError, match=rf"unknown setting {old} \(did you mean {new}\?\)"):
        Settings.load(None, {}, {old: "5"})


def test_every_field_has_an_origin_and_only_shared_names_have_an_original_default():
    for item in dataclasses.fields(Settings):
        assert item.metadata["origin"] in ("pulsar", "bookkeeper", "magnetar"), item.name
        assert item.metadata["origin"] != "magnetar" or not item.metadata["original"], item.name


def test_every_field_is_described_and_every_hostile_value_is_legal():
    names = set()
    for item in dataclasses.fields(Settings):
        assert item.metadata["doc"].endswith("."), item.name
        names.add(item.metadata["name"])
        if item.metadata["hostile"] is not None:
            dataclasses.replace(Settings(), **{item.name: item.metadata["hostile"]})
    assert len(names) == len(dataclasses.fields(Settings))
