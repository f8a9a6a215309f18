"""Advertised addresses: what each broker makes of the settings, and which settings are refused."""

from typing import Any

import pytest

from magnetar.protocol.errors import SettingError
from magnetar.runtime.settings.declarations import Settings
from magnetar.runtime.settings.placeholders import BrokerPlace
from support.checks.document_examples import block

LISTENERS = "internal:pulsar://{host}:{port},external:pulsar://broker-{number}.example.com:{number+30000}"


def place(**changes: Any) -> BrokerPlace:
    return BrokerPlace(**{"broker": "broker-3", "host": "10.0.0.7", "port": 6652, "environment": {}, **changes})


def told(listeners: str = "", where: BrokerPlace | None = None, **settings: Any) -> Any:
    return Settings(advertised_listeners=listeners, **settings).advertised(where or place())


def test_without_settings_a_broker_tells_the_address_of_its_node() -> None:
    assert told() == ("pulsar://10.0.0.7:6652", "", {}, [])
    assert told(where=place(host="fd00::7")).url == "pulsar://[fd00::7]:6652"


def test_the_advertised_address_takes_the_place_of_the_nodes() -> None:
    assert told(advertised_address="broker.example.com").url == "pulsar://broker.example.com:6652"
    assert told(advertised_address="{broker}.example.com").url == "pulsar://broker-3.example.com:6652"
    assert told(advertised_address="[fd00::1]").url == "pulsar://[fd00::1]:6652"


@pytest.mark.promise("30.18")
def test_each_broker_fills_the_placeholders_in_for_itself() -> None:
    found = told(LISTENERS)
    assert found.url == "pulsar://10.0.0.7:6652"
    assert {name: one.first.url for name, one in found.listeners.items()} == {
        "internal": "pulsar://10.0.0.7:6652",
        "external": "pulsar://broker-3.example.com:30003",
    }
    assert told("a:pulsar://{host}:{port-6000}", place(host="fd00::7")).url == "pulsar://[fd00::7]:652"


def test_the_environment_of_the_node_may_hold_an_address_or_all_of_the_setting() -> None:
    environment = {"POD_IP": "10.1.2.3", "ALL": "in:pulsar://a:1 , out:pulsar+proxy://b:2"}
    assert told("in:pulsar://{env:POD_IP}:{port}", place(environment=environment)).url == "pulsar://10.1.2.3:6652"
    found = told("{env:ALL}", place(environment=environment))
    assert {name: one.first.url for name, one in found.listeners.items()} == {
        "in": "pulsar://a:1",
        "out": "pulsar+proxy://b:2",
    }


def test_a_variable_that_the_node_lacks_is_named_with_broker_and_node() -> None:
    for environment in ({}, {"POD_IP": " "}):
        with pytest.raises(SettingError, match=r"broker-3 on 10\.0\.0\.7 has no variable POD_IP"):
            told("in:pulsar://{env:POD_IP}:{port}", place(environment=environment))


def test_the_internal_listener_is_the_named_one_else_the_first_that_does_not_forward() -> None:
    text = "web:pulsar+proxy://w:1,a:pulsar://a:1,b:pulsar://b:1"
    assert told(text).url == "pulsar://a:1"
    assert told(text, internal_listener_name="b").url == "pulsar://b:1"
    assert told("web:pulsar+proxy://w:1").url == "pulsar://10.0.0.7:6652"
    assert told(internal_listener_name="b").url == "pulsar://10.0.0.7:6652"  # as Pulsar: without listeners it is unused


def test_a_bind_address_belongs_to_a_listener() -> None:
    found = told(LISTENERS, bind_addresses="external:pulsar://0.0.0.0:{port+1000}, internal:pulsar://[::]:9")
    assert [(one.name, one.address) for one in found.binds] == [
        ("external", ("0.0.0.0", 7652)),
        ("internal", ("::", 9)),
    ]


MALFORMED = [
    ("no name", "pulsar://a:1", "does not begin with the name"),
    ("an empty name", ":pulsar://a:1", "does not begin with the name"),
    ("only a name", "a", "does not begin with the name"),
    ("an impossible name", "a b:pulsar://a:1", "no name of a listener"),
    ("a long name", f"{'a' * 101}:pulsar://a:1", "no name of a listener"),
    ("no scheme", "a:b:1", "another scheme"),
    ("TLS twice", "a:pulsar+ssl://a:1,a:pulsar+ssl://b:1", "the listener a twice"),
    ("TLS beside a forwarding URL", "a:pulsar+proxy://a:1,a:pulsar+ssl://b:1", "forwards, so it needs no"),
    ("TLS before a forwarding URL", "a:pulsar+ssl://a:1,a:pulsar+proxy://b:1", "forwards, so it needs no"),
    ("a scheme of the web", "a:http://a:1", "another scheme"),
    ("no port", "a:pulsar://a", "not host:port"),
    ("port zero", "a:pulsar://a:0", "not host:port"),
    ("a port that is too large", "a:pulsar://a:65536", "not host:port"),
    ("a very long port", f"a:pulsar://a:{'0' * 5000}1", "not host:port"),
    ("a port in other digits", "a:pulsar://a:٣", "not host:port"),
    ("no host", "a:pulsar://:1", "not host:port"),
    ("a path", "a:pulsar://a:1/b", "not host:port"),
    ("a user", "a:pulsar://user@a:1", "no host name"),
    ("a space", "a:pulsar://a b:1", "no host name"),
    ("a line end", "a:pulsar://a\nb:1", "no host name"),
    ("an IPv6 address without brackets", "a:pulsar://::1:5", "without brackets"),
    ("a name twice", "a:pulsar://a:1,a:pulsar://b:1", "the listener a twice"),
    ("an address twice", "a:pulsar://a:1,b:pulsar://a:1", "to both a and b"),
    ("an unknown placeholder", "a:pulsar://{hostname}:1", "unknown placeholder {hostname}"),
    ("a number that is no number", "a:pulsar://a:{number+x}", "unknown placeholder"),
    ("a variable without a name", "a:pulsar://{env:}:1", "unknown placeholder"),
    ("a brace", "a:pulsar://{host:1", "a brace"),
    ("a closing brace", "a:pulsar://host}:1", "a brace"),
    ("too many", ",".join(f"l{n}:pulsar://a:{n + 1}" for n in range(101)), "101 entries"),
]


@pytest.mark.promise("30.18")
@pytest.mark.parametrize(("text", "message"), [one[1:] for one in MALFORMED], ids=[one[0] for one in MALFORMED])
def test_malformed_listeners_are_refused_when_the_cluster_starts(text: str, message: str) -> None:
    with pytest.raises(SettingError, match="advertisedListeners") as refused:
        Settings(advertised_listeners=text)
    assert message in str(refused.value) and len(str(refused.value)) < 600


@pytest.mark.promise("30.18")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advertised_listeners": "a:pulsar://a:1", "internal_listener_name": "b"}, "does not have"),
        ({"advertised_listeners": "a:pulsar+proxy://a:1", "internal_listener_name": "a"}, "forwards"),
        ({"advertised_listeners": "a:pulsar://a:1", "bind_addresses": "b:pulsar://0.0.0.0:2"}, "does not have"),
        ({"bind_addresses": "b:pulsar://0.0.0.0:2"}, "does not have"),
        ({"advertised_listeners": "a:pulsar://a:1", "bind_addresses": "a:pulsar+proxy://0.0.0.0:2"}, "takes pulsar"),
        (
            {
                "advertised_listeners": "a:pulsar://a:1,b:pulsar://b:1",
                "bind_addresses": "a:pulsar://h:2,b:pulsar://h:2",
            },
            "twice",
        ),
        ({"advertised_address": "a b"}, "no host name"),
        ({"advertised_address": "pulsar://a"}, "no host name"),
        ({"advertised_address": "a:6650"}, "no host name"),
        ({"advertised_address": "{nothing}"}, "unknown placeholder"),
    ],
)
def test_addresses_that_do_not_fit_each_other_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings(**settings)
    assert message in str(refused.value)


def test_what_a_variable_holds_is_checked_by_the_broker() -> None:
    with pytest.raises(SettingError, match="not host:port"):
        told("a:pulsar://{env:ADDRESS}", place(environment={"ADDRESS": "a"}))
    with pytest.raises(SettingError, match="not host:port"):
        told("a:pulsar://a:{port+60000}")


def test_the_settings_of_the_guide_give_each_broker_its_addresses() -> None:
    page = "docs/operations/starting.md"
    given = [
        dict(line.split("=", 1) for line in block(page, "settings", name, "properties").splitlines())
        for name in ("direct", "forwarding")
    ]
    direct, forwarding = (Settings.load(environment={}, overrides=one).advertised(place()) for one in given)
    assert direct.url == forwarding.url == "pulsar://10.0.0.7:6652"
    assert direct.listeners["external"].first.url == "pulsar://broker-3.example.com:6652"
    assert forwarding.listeners["external"].first.url == "pulsar+proxy://pulsar.example.com:6600"
    assert [one.address for one in forwarding.binds] == [("0.0.0.0", 6600)]


def test_a_listener_has_one_address_without_tls_and_one_with_it() -> None:
    found = told(
        "in:pulsar://{host}:{port},in:pulsar+ssl://{host}:{portTls},out:pulsar+ssl://b:1", place(port_tls=7653)
    )
    assert (found.url, found.url_tls) == ("pulsar://10.0.0.7:6652", "pulsar+ssl://10.0.0.7:7653")
    only = found.listeners["out"]
    assert only.plain is None and only.first.url == "pulsar+ssl://b:1" and only.first.direct and only.first.tls
    found = told("in:pulsar+ssl://a:1")
    assert (found.url, found.url_tls, found.first) == ("", "pulsar+ssl://a:1", "pulsar+ssl://a:1")


def test_the_port_for_tls_is_told_with_the_address_of_the_node() -> None:
    assert told(where=place(port_tls=7653))[:2] == ("pulsar://10.0.0.7:6652", "pulsar+ssl://10.0.0.7:7653")
    only = Settings().advertised(place(), tls_only=True)
    assert only[:2] == ("", "pulsar+ssl://10.0.0.7:6652") and only.first == only.url_tls
