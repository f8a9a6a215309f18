"""Requests to bookies over one persistent, pipelined connection each.

The connection to a bookie is made on first use. Requests that arrive meanwhile wait for it. When it cannot be made they
fail. During the pause before the next try, further requests fail at once, so that a dead bookie costs no caller time.

`TRANSITIONS` has the states of a channel. A suspect bookie that the directory still lists is tried again in the
background with growing pauses. When its address changes it is tried at once. `usable` leaves suspects out.

The caller times out adds that a bookie leaves unanswered. `report_slow` then ends the connection, so that all other
requests to the same bookie fail too.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ...protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    LedgerEnd,
    decode_ledger_end,
    decode_read_answer,
    encode_ledger,
    encode_read,
    error_for_status,
)
from ...protocol.errors import BookieUnavailable, EntryUnknown, MagnetarError
from ...protocol.rpc_frames import STATUS_DISCONNECTED
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.rpc.connection import ResponseCallback, RpcConnection, rpc_connect
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from .bookie_directory import BookieDirectory, BookieInfo
from .lost_bookies import LostBookies

logger = logging.getLogger(__name__)

RECONNECT_INITIAL_S = 0.05
RECONNECT_MAX_S = 5.0
CONNECT_TIMEOUT_S = 3.0
WAITING_REQUESTS_MAX = 100_000
LOOKS = 4
"""So often a writer looks for missing answers before it calls a bookie late. Looks are counted, and not seconds: a
process that stood still has read no answers, and must not take that for a failure of all bookies."""
OVERLOADED_RETRY_S = 0.05
"""A bookie that answers OVERLOADED gets the entry again after this time."""


Connect = Callable[[BookieInfo], Awaitable[RpcConnection]]


class ReadAnswer(NamedTuple):
    """`next_entry` is the first id not examined; `entries` are unverified ledger entries, ascending."""

    next_entry: int
    entries: list[memoryview]


class ChannelState(enum.Enum):
    """See `TRANSITIONS`."""

    IDLE = enum.auto()
    CONNECTING = enum.auto()
    CONNECTED = enum.auto()
    SUSPECT = enum.auto()


TRANSITIONS: Mapping[ChannelState, Collection[ChannelState]] = {
    ChannelState.IDLE: (ChannelState.CONNECTING,),  # the first request
    ChannelState.CONNECTING: (
        ChannelState.CONNECTED,
        ChannelState.SUSPECT,  # the bookie cannot be reached
    ),
    ChannelState.CONNECTED: (ChannelState.SUSPECT,),  # the connection ended
    ChannelState.SUSPECT: (ChannelState.CONNECTING,),  # the pause is over, or the bookie moved
}


class _Channel:
    """The connection to one bookie."""

    def __init__(self, bookie_id: str, backoff: Backoff) -> None:
        self.bookie_id = bookie_id
        self.state = ChannelState.IDLE
        self.connection: RpcConnection | None = None
        self.address: tuple[str, int] | None = None
        self.waiting: list[tuple[int, Sequence[bytes], ResponseCallback]] = []
        self.backoff = backoff
        self.retry: asyncio.TimerHandle | None = None

    def become(self, state: ChannelState) -> None:
        check_transition(TRANSITIONS, f"the channel to {self.bookie_id}", self.state, state)
        self.state = state

    @property
    def suspect(self) -> bool:
        return self.state is ChannelState.SUSPECT or (self.state is ChannelState.CONNECTING and self.retry is not None)


class BookieClient:
    """See the module. `connect` is replaced only by tests."""

    def __init__(
        self,
        env: Environment,
        identity: Identity,
        keys: Keys,
        settings: Settings,
        directory: BookieDirectory,
        *,
        connect: Connect | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.on_usable: dict[Callable[[], None], None] = {}  # every open topic has one here: O(1) to leave
        """Called when a bookie may have become usable: reconnected, or listed again."""
        self.lost = LostBookies(directory, settings.lost_bookie_grace_s)
        self._env = env
        self._identity = identity
        self._keys = keys
        self._connect = connect or self._connect_rpc
        self._channels: dict[str, _Channel] = {}
        self._tasks = Tasks()
        self._closed = False
        directory.on_change.append(self._directory_changed)

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, bookie_id: str, parts: Sequence[bytes], callback: ResponseCallback) -> None:
        """Send an ADD (`bookie_wire.encode_add`). `callback(status, payload)` comes once, never from within this call.

        STATUS_DISCONNECTED means that the outcome is unknown.
        """
        channel = self._channels.get(bookie_id)
        if channel is not None and channel.connection is not None:
            channel.connection.request(BookieOp.ADD, parts, callback)
        else:
            self._request_later(bookie_id, BookieOp.ADD, parts, callback)

    async def read(
        self,
        bookie_id: str,
        ledger_id: int,
        nonce: int,
        first: int,
        last: int,
        bytes_max: int,
        *,
        fence: bool = False,
        timeout_s: float | None = None,
    ) -> ReadAnswer:
        """Read entries `first`…`last` (inclusive) that this bookie holds, fencing the ledger first if asked to.

        Raises NoSuchEntry, NoSuchLedger (definite), EntryUnknown (limbo, time-out, lost connection), EntryCorrupt,
        ForeignLedger (under this id it holds a ledger with another nonce), BookieUnavailable.
        """
        payload = await self._ask(
            bookie_id,
            BookieOp.READ,
            encode_read(ledger_id, nonce, first, last, bytes_max, fence),
            timeout_s if timeout_s is not None else self.settings.read_entry_timeout_s,
            ledger_id,
        )
        return ReadAnswer(*decode_read_answer(payload))

    async def fence(self, bookie_id: str, ledger_id: int, nonce: int, *, timeout_s: float | None = None) -> LedgerEnd:
        """Fence a ledger at one bookie; answers what it stores of it. Raises like `read`."""
        return await self._ledger_end(BookieOp.FENCE, bookie_id, ledger_id, nonce, timeout_s)

    async def read_lac(
        self, bookie_id: str, ledger_id: int, nonce: int, *, timeout_s: float | None = None
    ) -> LedgerEnd:
        """What one bookie stores of a ledger, without fencing it. Raises like `read`."""
        return await self._ledger_end(BookieOp.READ_LAC, bookie_id, ledger_id, nonce, timeout_s)

    # -- which bookies can be used -------------------------------------------------------------------------------

    def usable(self) -> list[str]:
        """Bookies that the coordinator lists as writable and that are not suspect, sorted."""
        return sorted(
            info.id for info in self.directory.bookies.values() if info.writable and not self.is_suspect(info.id)
        )

    def unusable(self) -> list[str]:
        """For each bookie that new ledgers cannot use now, why not."""
        return [
            f"{info.id} {_why_not_writable(info)}" if not info.writable else f"{info.id} did not answer"
            for info in sorted(self.directory.bookies.values())
            if not info.writable or self.is_suspect(info.id)
        ]

    def is_suspect(self, bookie_id: str) -> bool:
        """Whether the last try to reach it failed."""
        channel = self._channels.get(bookie_id)
        return channel is not None and channel.suspect

    def report_slow(self, bookie_id: str) -> None:
        """A bookie left a request unanswered for too long: end its connection and hold it for suspect."""
        channel = self._channels.get(bookie_id)
        if channel is not None and channel.connection is not None:
            logger.warning("bookie %s does not answer in time, so its connection is closed", bookie_id)
            channel.connection.close(BookieUnavailable(f"bookie {bookie_id} does not answer in time"))

    async def close(self) -> None:
        """End all connections; pending requests get STATUS_DISCONNECTED."""
        if self._closed:
            return
        self._closed = True
        self.directory.on_change.remove(self._directory_changed)
        self.lost.close()
        closing: list[RpcConnection] = []
        for channel in self._channels.values():
            if channel.retry is not None:
                channel.retry.cancel()
            self._fail_waiting(channel)
            if channel.connection is not None:
                closing.append(channel.connection)
                channel.connection.close()
        await self._tasks.close()
        for connection in closing:
            await connection.wait_closed()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _ledger_end(
        self, op: BookieOp, bookie_id: str, ledger_id: int, nonce: int, timeout_s: float | None
    ) -> LedgerEnd:
        limit_s = timeout_s if timeout_s is not None else self.settings.read_entry_timeout_s
        return decode_ledger_end(await self._ask(bookie_id, op, encode_ledger(ledger_id, nonce), limit_s, ledger_id))

    async def _ask(self, bookie_id: str, op: BookieOp, request: bytes, timeout_s: float, ledger_id: int) -> bytes:
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def answered(status: int, payload: bytes) -> None:
            if not answer.done():
                answer.set_result((status, payload))

        channel = self._channels.get(bookie_id)
        if channel is not None and channel.connection is not None:
            channel.connection.request(op, (request,), answered)
        else:
            self._request_later(bookie_id, op, (request,), answered)
        try:
            async with asyncio.timeout(timeout_s):
                status, payload = await answer
        except TimeoutError:
            raise EntryUnknown(
                f"bookie {bookie_id} did not answer {op.name} of ledger {ledger_id} within {timeout_s} s",
                bookie=bookie_id,
                ledger_id=ledger_id,
            ) from None
        if status != BookieStatus.OK:
            raise error_for_status(status, bookie=bookie_id, ledger_id=ledger_id)
        return payload

    def _request_later(self, bookie_id: str, op: int, parts: Sequence[bytes], callback: ResponseCallback) -> None:
        channel = self._channels.get(bookie_id)
        if channel is None:
            channel = self._channels[bookie_id] = _Channel(
                bookie_id, Backoff(self._env.random, RECONNECT_INITIAL_S, RECONNECT_MAX_S)
            )
        if channel.state is ChannelState.IDLE:
            self._start_connecting(channel)
        if (
            channel.state is ChannelState.CONNECTING
            and not channel.suspect
            and len(channel.waiting) < WAITING_REQUESTS_MAX
        ):
            channel.waiting.append((op, parts, callback))
        else:
            asyncio.get_running_loop().call_soon(callback, STATUS_DISCONNECTED, b"")

    def _start_connecting(self, channel: _Channel) -> None:
        info = self.directory.get(channel.bookie_id)
        if self._closed or info is None:
            return
        channel.become(ChannelState.CONNECTING)
        channel.address = (info.host, info.port)
        self._tasks.spawn(self._run_connect(channel, info), f"connect-{channel.bookie_id}")

    async def _run_connect(self, channel: _Channel, info: BookieInfo) -> None:
        try:
            connection = await self._connect(info)
        except (MagnetarError, OSError) as error:
            if not channel.suspect:
                logger.info("bookie %s cannot be reached: %s", channel.bookie_id, error)
            self._lost(channel)
            return
        if channel.retry is not None:
            channel.retry.cancel()
            channel.retry = None
        connection.on_close.append(lambda closed: self._connection_closed(channel, closed))
        channel.connection = connection
        channel.become(ChannelState.CONNECTED)
        channel.backoff.reset()
        waiting, channel.waiting = channel.waiting, []
        for op, parts, callback in waiting:
            connection.request(op, parts, callback)
        if connection.closed:
            self._connection_closed(channel, connection)
            return
        for listener in list(self.on_usable):
            listener()

    async def _connect_rpc(self, info: BookieInfo) -> RpcConnection:
        return await rpc_connect(
            self._env,
            info.host,
            info.port,
            self._identity,
            self._keys,
            expected_node_id=info.id,
            frame_size_max=self.settings.bookie_frame_size_max_bytes + self.settings.bookie_read_bytes_max,
            timeout_s=CONNECT_TIMEOUT_S,
        )

    def _connection_closed(self, channel: _Channel, connection: RpcConnection) -> None:
        if channel.connection is connection:
            channel.connection = None
            self._lost(channel)

    def _lost(self, channel: _Channel) -> None:
        """The bookie is suspect from now on; try again later if the coordinator still lists it."""
        channel.become(ChannelState.SUSPECT)
        self._fail_waiting(channel)
        if channel.retry is not None:
            channel.retry.cancel()
            channel.retry = None
        if not self._closed:
            channel.retry = asyncio.get_running_loop().call_later(channel.backoff.next_delay_s(), self._retry, channel)

    def _retry(self, channel: _Channel) -> None:
        if channel.state is ChannelState.SUSPECT:
            self._start_connecting(channel)
            if channel.state is ChannelState.SUSPECT:
                channel.retry = None  # not listed: `_directory_changed` starts again

    def _fail_waiting(self, channel: _Channel) -> None:
        waiting, channel.waiting = channel.waiting, []
        for _, _, callback in waiting:
            asyncio.get_running_loop().call_soon(callback, STATUS_DISCONNECTED, b"")

    def _directory_changed(self) -> None:
        for channel in list(self._channels.values()):
            info = self.directory.get(channel.bookie_id)
            if info is None:
                if channel.state is ChannelState.SUSPECT and channel.retry is not None:
                    channel.retry.cancel()
                    channel.retry = None
                continue
            moved = channel.address is not None and channel.address != (info.host, info.port)
            if moved and channel.connection is not None:
                channel.connection.close(BookieUnavailable(f"bookie {channel.bookie_id} has another address now"))
            if channel.state is ChannelState.SUSPECT and (moved or channel.retry is None):
                if channel.retry is not None:
                    channel.retry.cancel()
                    channel.retry = None
                channel.backoff.reset()
                self._start_connecting(channel)
        for listener in list(self.on_usable):
            listener()


def _why_not_writable(info: BookieInfo) -> str:
    if info.draining:
        return "is being drained"
    if info.limbo:
        return "is in limbo: it may have lost data"
    return "is read-only: its disk is full, and stays so until less than diskUsageWarnThreshold of it is used"
