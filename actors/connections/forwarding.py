"""Forwarding: a client that cannot reach the owner of a topic gets there through any other broker.

The client names the owner in CONNECT (`proxy_to_broker_url`), as Pulsar's clients do after a lookup that says so. The
broker connects to the owner, hands CONNECT on, and from then on passes bytes both ways without looking into them. So
the client and the owner have their protocol, their PINGs and their back-pressure from end to end.

A broker never forwards to an address that a client chose. The text in CONNECT only selects among the live brokers of
the cluster. The broker connects to where the selected one registered. What is handed on names no target, so the owner
never forwards it again, and there are no circles.

Clients speak TLS with the broker that forwards, if they want it. That broker uses TLS with an owner that has nothing
else, and shows no certificate: the owner would take it for the client's.

`TRANSITIONS` has the states. Invariants: The client is read only in OPEN, so nothing comes before CONNECT. A side is
read only while less than BUFFER_MAX_BYTES wait for the other side, beside the chunk that was read last. When the
client ends its bytes, the end is passed on behind them, and the owner may still answer. When the owner ends, the client
gets what is left, and both sockets are closed, the second at most LINGER_S after the first. When nothing has come from
either side for `brokerProxyReadTimeoutMs`, both are gone, because otherwise one would have sent a PING.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

from ...protocol.addresses import Address, address_text
from ...protocol.commands import BROKER_REQUEST_ID, encode
from ...protocol.errors import NotAllowedError, ServiceUnitNotReady, TooManyLookupRequestException, server_error_code
from ...protocol.pulsar_pb2 import CommandConnect, CommandError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.settings.listeners import TLS
from ...runtime.tasks import Tasks
from ...runtime.tls_contexts import BadTlsFiles, ClientContexts, ClientTls
from ...runtime.transitions import check_transition
from ..members.broker_addresses import addressed, target_address
from ..members.contracts_coordinator import BrokerInfo

logger = logging.getLogger(__name__)

BUFFER_MAX_BYTES = 256 << 10
"""Bytes that wait for one side before the other is read no longer."""
LINGER_S = 5.0
"""How long the side that is left may take to read what was sent to it."""
KEEP_ALIVES = 3
LOOKS_PER_TIMEOUT = 4
"""A silent connection is found within a quarter of the time-out."""


class ForwardingState(enum.Enum):
    """See `TRANSITIONS`."""

    CONNECTING = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[ForwardingState, Collection[ForwardingState]] = {
    ForwardingState.CONNECTING: (
        ForwardingState.OPEN,  # the owner has accepted the connection
        ForwardingState.CLOSING,  # it has not, in time; or the client is gone
    ),
    ForwardingState.OPEN: (
        ForwardingState.CLOSING,  # a side is gone, the owner has sent its end, or nothing comes any longer
    ),
    ForwardingState.CLOSING: (ForwardingState.CLOSED,),  # both sockets are closed
    ForwardingState.CLOSED: (),
}


class Forwards:
    """The forwarded connections of one broker, and who may be their target.

    `brokers` are the live brokers of the cluster; it raises ServiceUnitNotReady when this broker does not know them.
    `is_here` tells whether an address is one of this broker itself.
    """

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        brokers: Callable[[], Iterable[BrokerInfo]],
        is_here: Callable[[Address], bool],
    ) -> None:
        self.settings = settings
        self.contexts = ClientContexts(env, ClientTls(settings.tls_trust_path, insecure=settings.tls_insecure))
        """For owners that have TLS only."""
        self.open: dict[Forwarding, None] = {}
        self.tasks = Tasks()
        self._brokers = brokers
        self._is_here = is_here

    def target(self, text: str) -> BrokerInfo | None:
        """The broker that a client names in CONNECT, None for this one.

        Raises NotAllowedError, TooManyLookupRequestException, and ServiceUnitNotReady for what no live broker has.
        """
        try:
            wanted = target_address(text)
        except ValueError as error:
            raise NotAllowedError(f"proxy_to_broker_url {text[:100]!r} {error}") from None
        if self._is_here(wanted):
            return None
        found = next((one for one in self._brokers() if addressed(one.data, one.url, wanted)), None)
        if found is None:
            raise ServiceUnitNotReady(
                f"no live broker of this cluster has the address {address_text(wanted)[:100]}: look the topic up again"
            )
        limit = self.settings.proxy_connections_max
        if not limit:
            raise NotAllowedError("this broker does not forward (brokerProxyMaxConnections=0): connect to the owner")
        if len(self.open) >= limit:
            raise TooManyLookupRequestException(
                f"this broker forwards {limit} connections already: try another one, or raise brokerProxyMaxConnections"
            )
        return found

    def begin(
        self, target: BrokerInfo, connect: CommandConnect, client: asyncio.Transport, ended: Callable[[], None]
    ) -> None:
        """Take a client's connection over and forward it. `ended` is called once, when it is closed."""
        forwarding = Forwarding(self, target, connect, client, ended)
        self.open[forwarding] = None
        self.tasks.spawn(forwarding.connect(), f"forward to {target.id}")

    async def close(self) -> None:
        """End all."""
        await self.tasks.close()
        for forwarding in list(self.open):
            forwarding.abort()


class Forwarding:
    """One forwarded connection; see the module."""

    def __init__(
        self,
        forwards: Forwards,
        target: BrokerInfo,
        connect: CommandConnect,
        client: asyncio.Transport,
        ended: Callable[[], None],
    ) -> None:
        self.state = ForwardingState.CONNECTING
        self.heard = False
        """Whether a byte has come since the last look."""
        self._forwards = forwards
        self._target = target
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._connect = CommandConnect()
        self._connect.CopyFrom(connect)
        self._connect.ClearField("proxy_to_broker_url")
        self._owner = _Side(self, is_owner=True)
        self._client = _Side(self, is_owner=False)
        self._owner.other, self._client.other = self._client, self._owner
        self._timer: asyncio.TimerHandle | None = None
        self._silent_looks = 0
        client.pause_reading()
        client.set_protocol(self._client)
        self._client.connection_made(client)

    async def connect(self) -> None:
        """Connect to the owner; tell the client if it cannot be reached."""
        settings = self._forwards.settings
        try:
            async with asyncio.timeout(settings.proxy_connect_timeout_ms / 1000):
                target = self._target
                context, name = None, None
                if target.url.startswith(f"{TLS}://"):
                    context = await self._forwards.contexts.newest()
                    name = target_address(target.url)[0]  # clients find that in the certificate, too
                await self._loop.create_connection(
                    lambda: self._owner, target.host, target.port, ssl=context, server_hostname=name
                )
        except (OSError, TimeoutError, BadTlsFiles) as error:
            reason = str(error) or "no answer in time"
            logger.warning("a connection could not be forwarded to %s: %s", self._target.id, reason)
            self._refuse(f"{self._target.id} cannot be reached: {reason}")
        except BaseException:
            self.abort()
            raise

    def connected(self) -> None:
        """The owner has accepted."""
        if self.state is not ForwardingState.CONNECTING:
            self._owner.abort()
            return
        self._become(ForwardingState.OPEN)
        self._owner.write(encode(self._connect))
        self._client.resume()
        self._look_later()

    def side_lost(self, side: "_Side") -> None:
        """One socket is closed: the other follows, behind what waits in it."""
        self.close()
        if side.other.closed and self.state is ForwardingState.CLOSING:
            self._finish()

    def close(self) -> None:
        """End both sides, behind what waits for them; what one does not read within LINGER_S is lost."""
        if self.state in (ForwardingState.CLOSING, ForwardingState.CLOSED):
            return
        self._become(ForwardingState.CLOSING)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.abort)
        self._client.close()
        self._owner.close()

    def abort(self) -> None:
        """End both sides at once."""
        self.close()
        self._client.abort()
        self._owner.abort()

    def _refuse(self, reason: str) -> None:
        error = ServiceUnitNotReady(reason)
        self._client.write(
            encode(CommandError(request_id=BROKER_REQUEST_ID, error=server_error_code(error), message=str(error)))  # type: ignore[arg-type]
        )
        self.close()

    def _look_later(self) -> None:
        settings = self._forwards.settings
        limit_s = max(settings.proxy_read_timeout_ms / 1000, KEEP_ALIVES * settings.keep_alive_interval_s)
        self._timer = self._loop.call_later(limit_s / LOOKS_PER_TIMEOUT, self._look)

    def _look(self) -> None:
        self._silent_looks = 0 if self.heard else self._silent_looks + 1
        self.heard = False
        if self._silent_looks > LOOKS_PER_TIMEOUT:
            logger.info("a connection forwarded to %s is closed: neither side sends anything", self._target.id)
            self.abort()
            return
        self._look_later()

    def _finish(self) -> None:
        self._become(ForwardingState.CLOSED)
        if self._timer is not None:
            self._timer.cancel()
        self._forwards.open.pop(self, None)
        self._ended()

    def _become(self, state: ForwardingState) -> None:
        check_transition(TRANSITIONS, f"the connection forwarded to {self._target.id}", self.state, state)
        self.state = state


class _Side(asyncio.Protocol):
    """The socket of one side: of the client, or of the owner."""

    other: "_Side"

    def __init__(self, forwarding: Forwarding, *, is_owner: bool) -> None:
        self.closed = True
        """Whether there is no open socket: not yet, or no longer."""
        self._forwarding = forwarding
        self._is_owner = is_owner
        self._transport: asyncio.Transport | None = None
        self._tls = False

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.closed = False
        self._tls = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=BUFFER_MAX_BYTES)
        if self._is_owner:
            self._forwarding.connected()

    def data_received(self, data: bytes) -> None:
        self._forwarding.heard = True
        self.other.write(data)

    def eof_received(self) -> bool:
        if self._is_owner:
            self._forwarding.close()
        else:
            self.other.write_end()
        return not self._tls  # asyncio ends both halves of a connection with TLS

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._forwarding.side_lost(self)

    # -- for the other side --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def write_end(self) -> None:
        """Pass the end of the bytes on."""
        if self._transport is not None and not self.closed and self._transport.can_write_eof():
            self._transport.write_eof()

    def pause(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.abort()
