"""Clients that speak TLS to a broker, which has none: they are told at once, and the broker logs one clear line."""

import logging
import socket
import ssl
import time

import pulsar
import pytest

from magnetar.protocol.errors import TlsError
from support.clients.sides import connect
from support.servers.embedded_cluster import EmbeddedCluster


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_tls_handshake_is_answered_with_an_alert(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context()
    with socket.create_connection(cluster.brokers[1].address, timeout=30) as plain:
        port = plain.getsockname()[1]
        with pytest.raises(ssl.SSLError, match=r"(?i)alert handshake failure"):
            context.wrap_socket(plain, server_hostname="localhost")
    (line,) = [line for line in lines(caplog) if f":{port}" in line]
    assert "speaks TLS" in line and "pulsar:// in place of pulsar+ssl://, because this broker has no TLS" in line


def test_a_hello_in_pieces_is_answered_too(cluster: EmbeddedCluster) -> None:
    with socket.create_connection(cluster.brokers[1].address, timeout=30) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"\x16\x03\x01\x02":  # the broker may see them one by one, or some together
            plain.sendall(bytes((byte,)))
        assert plain.recv(100) == bytes((21, 3, 1, 0, 2, 2, 40)) and plain.recv(100) == b""


def test_other_nonsense_gets_no_alert(cluster: EmbeddedCluster) -> None:
    with socket.create_connection(cluster.brokers[1].address, timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert plain.recv(100) == b""


def test_the_official_client_ends_at_once(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    url = cluster.service_url.replace("pulsar://", "pulsar+ssl://")
    with connect(url, "official", operation_timeout_seconds=30, tls_allow_insecure_connection=True) as side:
        begun = time.monotonic()
        with pytest.raises(pulsar.ConnectError):
            side.client.create_producer("t")
        assert time.monotonic() - begun < 15, "half of its time-out"
    assert any("speaks TLS" in line for line in lines(caplog))


@pytest.mark.parametrize("face", ["ours", "asyncio"])
def test_our_client_says_that_this_port_has_no_tls(cluster: EmbeddedCluster, face: str) -> None:
    url = cluster.service_url.replace("pulsar://", "pulsar+ssl://")
    with connect(url, face) as side, pytest.raises(TlsError, match="this may be its port without TLS"):
        side.client.create_producer("t")
