"""An event loop for one input after the other: virtual time, connections in memory, nothing unheard.

Waiting costs nothing, because the clock jumps to the next timer. A coroutine that waits for something that cannot
come any more is a hang, and raises `Stuck`. Exceptions that nobody caught, and errors that were logged with a
traceback, fail the input.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.runtime.environment import Environment, SeededChance
from support.fakes.inline_offload import InlineOffload
from support.files.faulty_files import FaultyFiles


class Stuck(AssertionError):
    """Nothing is ready, no timer runs, and the input is not done."""


class Stumbled(AssertionError):
    """An exception of a kind that must not come out came out, or was logged."""


class FuzzLoop(asyncio.SelectorEventLoop):
    """See the module. `create_connection` leads to whoever listens on the port, else `connect` decides."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.connect: Callable[[asyncio.Protocol, str, int], None] | None = None
        self.listening: dict[int, Callable[[], Any]] = {}
        self._next_port = 20_000
        self.stumbles: list[str] = []
        self.set_exception_handler(self._unhandled)
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> list[Any]:
            if timeout is None:
                raise Stuck("nothing is ready and no timer runs")
            self.now += timeout
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        await asyncio.sleep(0.001)
        accept = self.listening.get(port)
        if accept is None and self.connect is None:
            raise ConnectionRefusedError("nobody listens")
        protocol = protocol_factory()
        if accept is not None:
            return link(protocol, accept()), protocol
        assert self.connect is not None
        self.connect(protocol, host, port)
        return protocol, protocol

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        if not port:
            self._next_port += 1
            port = self._next_port
        if port in self.listening:
            raise OSError(f"port {port} is taken")
        self.listening[port] = protocol_factory
        return _MemoryServer(self, host, port)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.stumbles.append(f"{context.get('message')}: {context.get('exception')!r}")


class _MemoryServer:
    """What `create_server` returns; itself its one socket."""

    def __init__(self, loop: FuzzLoop, host: str, port: int) -> None:
        self._loop = loop
        self._name = (host, port)
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None:
        self._loop.listening.pop(self._name[1], None)

    async def wait_closed(self) -> None: ...


class MemoryTransport:
    """One end of a connection; what is written goes to `heard`, in the order of writing, and is not kept."""

    def __init__(self, protocol: Any, heard: Callable[[bytes], None] | None = None) -> None:
        self._protocol = protocol
        self._heard = heard
        self.closing = False
        self.written_bytes = 0
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if not self.closing:
            self.written_bytes += len(data)
            if self._heard is not None:
                asyncio.get_running_loop().call_soon(self._heard, bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def feed(self, data: bytes) -> None:
        """Bytes from the peer. What the protocol raises is what asyncio would report as a fatal error."""
        if not self.closing:
            self._protocol.data_received(data)

    def close(self, error: Exception | None = None) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class _LinkedTransport(MemoryTransport):
    """One of two ends that hear each other; when one closes, so does the other, after what was written."""

    peer: "_LinkedTransport | None" = None

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol, self._carry)

    def _carry(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.feed(data)

    def close(self, error: Exception | None = None) -> None:
        if not self.closing:
            super().close(error)
            if self.peer is not None:
                asyncio.get_running_loop().call_soon(self.peer.close)


def link(one: Any, other: Any) -> MemoryTransport:
    """Connect two protocols; returns the transport of the first. What they write at once arrives with the next turn."""
    transport = _LinkedTransport(one)
    transport.peer = _LinkedTransport(other)
    transport.peer.peer = transport
    return transport


class FixedClock:
    """Wall-clock time that stands still."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def cpu_s(self) -> float:
        return 0.0


def make_env(files: Any = None) -> Environment:
    """The same world for every input."""
    return Environment(FixedClock(), SeededChance(1), InlineOffload(), files if files is not None else FaultyFiles())


class _Catcher(logging.Handler):
    """Collects what was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.caught: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self.caught.append(logging.Formatter().format(record))


_catcher = _Catcher()
_loop: FuzzLoop | None = None


def run(main: Coroutine[Any, Any, None], *, forgiven: tuple[str, ...] = ()) -> None:
    """Run one input to its end, on a loop that is kept. Raises what it raised, `Stuck` or `Stumbled`.

    `forgiven`: beginnings of log messages that are answers to a peer that holds the cluster's secret.
    """
    global _loop
    if _loop is None or _loop.is_closed():
        _loop = FuzzLoop()
    loop = _loop
    loop.connect = None
    loop.listening.clear()
    logger = logging.getLogger("magnetar")
    logger.addHandler(_catcher)
    propagate, logger.propagate = logger.propagate, False
    try:
        loop.run_until_complete(main)
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if left:
            raise Stumbled(f"tasks are left behind: {left}")
        if loop.listening:
            raise Stumbled(f"somebody still listens on {list(loop.listening)}")
    except BaseException:
        _catcher.caught.clear()
        close()  # it may hold anything now
        raise
    finally:
        logger.removeHandler(_catcher)
        logger.propagate = propagate
    stumbles = loop.stumbles + [text for text in _catcher.caught if not text.startswith(forgiven)]
    loop.stumbles.clear()
    _catcher.caught.clear()
    if stumbles:
        raise Stumbled("\n".join(stumbles))


def close() -> None:
    """Let go of the loop that is kept, and of whatever runs on it."""
    global _loop
    loop, _loop = _loop, None
    if loop is None or loop.is_closed():
        return

    async def end() -> None:
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with contextlib.suppress(Stuck):
        loop.run_until_complete(end())
    loop.close()


async def turns(count: int = 10) -> None:
    """Let what is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)
