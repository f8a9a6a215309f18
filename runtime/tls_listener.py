"""A listening socket for TLS, with bounds on what strangers may make it do.

Until its handshake is done, a peer is a stranger. It costs a socket, a task and a timer, and gets `HANDSHAKE_S`. There
are `HANDSHAKES_MAX` of them; one more ends the oldest. So peers that connect and say nothing keep nobody out for long.
The accepting service sees a peer behind its handshake only, with its certificate.

The first byte is looked at before it is taken. A peer that begins with something else than a TLS handshake does not
speak TLS. `answer_plain` makes the protocol for it, which says so in words that such a peer understands.

`ServerContexts.current` is asked at each handshake. asyncio's own server keeps one context, so it is not used here.
`accept` fails when the process has no file descriptor left; the listener then tries again after `ACCEPT_AGAIN_S`.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.addresses import address_text
from .repeated_warnings import RepeatedWarnings
from .tasks import Tasks
from .tls_contexts import ServerContexts

logger = logging.getLogger(__name__)

HANDSHAKES_MAX = 256
"""Handshakes of one socket that are under way."""
HANDSHAKE_S = 10.0
SHUTDOWN_S = 5.0
"""How long a peer may take to answer the end of TLS."""
ACCEPT_AGAIN_S = 1.0
REASONS_MAX = 32
"""Reasons of failures that are logged apart; others share a line."""
HANDSHAKE_RECORD = 0x16
"""The first byte of every TLS connection."""

MakeProtocol = Callable[[], asyncio.BaseProtocol]


class TlsListener:
    """See the module. `make_protocol` is called when a handshake begins, `connection_made` of what it makes is called
    when it is done.
    """

    def __init__(self, contexts: ServerContexts, make_protocol: MakeProtocol, answer_plain: MakeProtocol) -> None:
        self._contexts = contexts
        self._make_protocol = make_protocol
        self._answer_plain = answer_plain
        self._sockets: list[socket.socket] = []
        self._tasks = Tasks()
        self._accepting: list[asyncio.Task[None]] = []
        self._under_way: dict[asyncio.Task[None], None] = {}
        """Handshakes, the oldest first."""
        self._warnings: dict[str, RepeatedWarnings] = {}
        """By reason, so that one that comes often hides no other."""

    @property
    def port(self) -> int:
        """The port; the real one, if any free one was asked for."""
        return self._sockets[0].getsockname()[1]

    async def open(self, host: str, port: int, *, backlog: int, shared: bool = False) -> None:
        """Listen on every address of `host`. `shared`: others may listen on the same port. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._listen(socket.socket(family, kind, protocol), address, backlog, shared)
        except BaseException:
            for listening in self._sockets:
                listening.close()
            raise
        for listening in self._sockets:
            task = self._tasks.spawn(self._accept(listening), f"accept TLS on port {self.port}")
            task.add_done_callback(lambda _, listening=listening: listening.close())
            self._accepting.append(task)

    def close(self) -> None:
        """Accept no more connections. Those whose handshake is done stay."""
        for task in self._accepting:
            task.cancel()  # the socket is closed behind it: not while the loop waits for it

    async def wait_closed(self) -> None:
        """End the handshakes that are under way."""
        await self._tasks.close()

    def _listen(self, listening: socket.socket, address: object, backlog: int, shared: bool) -> None:
        self._sockets.append(listening)
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)  # type: ignore[arg-type]
        listening.listen(backlog)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                self._warn("accept", f"no connection can be accepted: {error}")
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._under_way) >= HANDSHAKES_MAX:
                oldest = next(iter(self._under_way))
                del self._under_way[oldest]
                oldest.cancel()
            stranger = _Stranger(accepted, address_text(peer[:2]))
            task = self._tasks.spawn(self._begin(stranger), "TLS handshake")
            self._under_way[task] = None
            task.add_done_callback(lambda ended, stranger=stranger: self._ended(ended, stranger))
            await asyncio.sleep(0)  # while more peers wait, accepting does not

    def _ended(self, task: asyncio.Task[None], stranger: "_Stranger") -> None:
        self._under_way.pop(task, None)
        if not stranger.handed_over:
            stranger.socket.close()

    async def _begin(self, stranger: "_Stranger") -> None:
        """From an accepted socket to a protocol. It may be cancelled before it begins."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                first = await _first_byte(stranger.socket)
                if not first:
                    return
                stranger.handed_over = True
                if first[0] != HANDSHAKE_RECORD:
                    self._warn("plain", f"{stranger.peer} does not speak TLS, but this port does")
                    await loop.connect_accepted_socket(self._answer_plain, stranger.socket)
                    return
                await loop.connect_accepted_socket(
                    self._make_protocol,
                    stranger.socket,
                    ssl=self._contexts.current,
                    ssl_handshake_timeout=2 * HANDSHAKE_S,  # the other limit comes first, and says so
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
        except TimeoutError:
            self._warn("slow", f"{stranger.peer} did not end its TLS handshake within {HANDSHAKE_S:g} s")
        except OSError as error:
            reason = explain(error)
            self._warn(reason, f"the TLS handshake of {stranger.peer} failed: {reason}")

    def _warn(self, reason: str, text: str) -> None:
        known = reason if reason in self._warnings or len(self._warnings) < REASONS_MAX else ""
        if known not in self._warnings:
            self._warnings[known] = RepeatedWarnings(logger, asyncio.get_running_loop().time)
        self._warnings[known].note(text)


@dataclass
class _Stranger:
    """A peer whose handshake is not done. The socket is the transport's once it is handed over."""

    socket: socket.socket
    peer: str
    handed_over: bool = False


def explain(error: OSError) -> str:
    """Why a handshake with a client failed, in plain words."""
    reasons = {
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, but tlsRequireTrustedClientCertOnConnect asks "
        "for one",
        "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the CA of this certificate: give it the CA, or another "
        "certificate to this server",
        "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses this certificate: its host name may be missing in it",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses this certificate: its host name may be missing in it",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this certificate has expired",
        "UNSUPPORTED_PROTOCOL": "it offers no version of TLS that is allowed (tlsProtocols)",
        "NO_SHARED_CIPHER": "it offers no cipher suite that is allowed (tlsCiphers)",
    }
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return reasons.get(error.reason or "", error.reason or str(error))
    if isinstance(error, ConnectionError):
        return "it ended the connection: perhaps it does not trust this certificate"
    return error.strerror or str(error) or type(error).__name__


async def _first_byte(accepted: socket.socket) -> bytes:
    """The first byte that the peer sends, which stays unread; empty when it sends none. Raises OSError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            pass
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(accepted, _wake, readable)
        try:
            await readable
        finally:
            loop.remove_reader(accepted)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
