"""TCP ports of a new cluster: which are free, and a clear word when one is not."""

import socket

from ..protocol.errors import ClusterError


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


def free_ports(host: str, count: int) -> list[int]:
    """`count` different ports on which no process listens now."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            probe = socket.socket(_family(host), socket.SOCK_STREAM)
            sockets.append(probe)
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
