"""Ports: free ones are found, taken ones are named."""

import socket

import pytest

from magnetar.cluster import ports as ports_module
from magnetar.cluster.ports import PORTS, check_free, free_ports
from magnetar.protocol.errors import ClusterError


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
