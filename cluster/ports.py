"""TCP ports of a new cluster: which are free, and a clear word when one is not."""

import ipaddress
import random
import socket

from ..protocol.errors import ClusterError

PORT_MAX = 65_535


def check_port(port: int, option: str) -> None:
    """Raise ClusterError for a number that no port has."""
    if not 0 <= port <= PORT_MAX:
        raise ClusterError(f"{option}: {port} is no port: choose 1 to {PORT_MAX}, or 0 for any free one")


def check_host(host: str) -> None:
    """Raise ClusterError if this machine cannot listen on `host`."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ClusterError(
                f"--host: this machine does not have the address {host[:200]} ({reason}): choose one that it has, or "
                "0.0.0.0 for all"
            ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def check_free(host: str, port: int, purpose: str, option: str) -> None:
    """Raise ClusterError if `port` cannot be bound; the message names the `option` that changes it."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"{purpose} cannot listen on port {port} of {host} ({error.strerror}): "
                f"stop the process that uses the port, or choose another port with {option}"
            ) from error


PORTS = range(20_000, 32_768)
"""Above those that Ray gives to its workers, and below those that Linux gives to connections and to listeners that ask
for any port. One of these could be taken before the process that shall listen on it has started, or while it restarts.
"""
TRIES_MAX = 1_000


def free_ports(host: str, count: int) -> list[int]:
    """`count` different ports of `PORTS` on which no process listens now. Raises ClusterError when none is found."""
    sockets: list[socket.socket] = []
    chance = random.SystemRandom()
    try:
        for _ in range(TRIES_MAX):
            if len(sockets) == count:
                return [probe.getsockname()[1] for probe in sockets]
            probe = socket.socket(_family(host), socket.SOCK_STREAM)
            try:
                probe.bind((host, chance.choice(PORTS)))
            except OSError:
                probe.close()
            else:
                sockets.append(probe)
        raise ClusterError(
            f"{host} has too few free ports from {PORTS.start} to {PORTS.stop - 1}: free some, or choose ports"
        )
    finally:
        for probe in sockets:
            probe.close()


def free_range(host: str, count: int) -> int:
    """The first of `count` ports of `PORTS` in a row on which no process listens now. Raises ClusterError."""
    chance = random.SystemRandom()
    for _ in range(TRIES_MAX):
        first = chance.randrange(PORTS.start, PORTS.stop - count)
        sockets: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                probe = socket.socket(_family(host), socket.SOCK_STREAM)
                sockets.append(probe)
                probe.bind((host, port))
        except OSError:
            continue
        else:
            return first
        finally:
            for probe in sockets:
                probe.close()
    raise ClusterError(f"{host} has no {count} free ports in a row from {PORTS.start} on: free some, or choose ports")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
