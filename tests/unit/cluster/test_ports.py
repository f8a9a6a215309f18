"""Ports: free ones are found, taken ones are named."""

import socket

import pytest

from magnetar.cluster import ports as ports_module
from magnetar.cluster.ports import PORTS, check_free, free_ports, is_loopback
from magnetar.cluster.preparing import StartOptions, check_reachable
from magnetar.protocol.errors import ClusterError
from magnetar.runtime.settings.declarations import Settings


def test_a_taken_port_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"broker-1 .*port {port} .*--port"):
            check_free("127.0.0.1", port, "broker-1", "--port")


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports("127.0.0.1", 5)
    assert len(set(ports)) == 5
    for port in ports:
        check_free("127.0.0.1", port, "a test", "--port")
        assert port in PORTS


def test_too_few_free_ports_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    monkeypatch.setattr(ports_module, "PORTS", range(port, port + 1))
    with pytest.raises(ClusterError, match="too few free ports"):
        free_ports("127.0.0.1", 2)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("a.localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False), ("localhost.example", False),
    ],
)  # fmt: skip
def test_loopback_is_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


ASKED = {"authenticationEnabled": True, "authenticationProviders": "tls"}
BOUND = {"advertisedListeners": "a:pulsar://example.com:1", "bindAddresses": "a:pulsar://0.0.0.0:1"}


@pytest.mark.promise("30.33")
@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (StartOptions(), False),
        (StartOptions(host="0.0.0.0"), True),
        (StartOptions(host="0.0.0.0", insecure=True), False),
        (StartOptions({"authenticationEnabled": True, "authenticationProviders": "tls"}, host="0.0.0.0"), False),
        (StartOptions({**ASKED, "anonymousUserRole": "guest"}, host="0.0.0.0"), True),
        (StartOptions({**ASKED, "anonymousUserRole": "guest", "authorizationEnabled": True}, host="0.0.0.0"), False),
        (StartOptions(BOUND), True),
        (StartOptions(BOUND, insecure=True), False),
    ],
)
def test_a_cluster_that_asks_nobody_is_reached_from_this_machine_only(options: StartOptions, refused: bool) -> None:
    settings = Settings.from_dict(options.settings)
    if not refused:
        check_reachable(options, settings)
        return
    with pytest.raises(ClusterError, match="pass --insecure"):
        check_reachable(options, settings)
