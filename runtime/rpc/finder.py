"""The way to a server that may move: where it is found, or where it was, whichever answers first.

On a node that was cut off, Ray's calls hang for up to a minute after the network is back. The kernel sends what they
wait for again after ever longer pauses. A new connection to where the server was comes at once.
"""

import asyncio
from collections.abc import Awaitable, Callable

from .connection import Locate, RpcConnection

LOCATE_PATIENCE_S = 0.2
"""How long finding the server may take before it is looked for where it was, too."""

Open = Callable[[str, int], Awaitable[RpcConnection]]


class ServerFinder:
    """Connects by `open`, to what `locate` answers or to where it has connected before."""

    def __init__(self, locate: Locate, open: Open) -> None:
        self._locate = locate
        self._open = open
        self._last: tuple[str, int] | None = None

    def forget(self) -> None:
        """The server that was connected to last is of no use."""
        self._last = None

    async def connect(self) -> RpcConnection:
        """A connection of which the handshake is done. Raises what `locate` and `open` raise when finding fails."""
        located = asyncio.ensure_future(self._connect_located())
        tries = [located]
        won: asyncio.Future[tuple[tuple[str, int], RpcConnection]] | None = None
        try:
            if self._last is not None:
                await asyncio.wait(tries, timeout=LOCATE_PATIENCE_S)
                if not located.done():
                    tries.append(asyncio.ensure_future(self._connect_to(self._last)))
            pending = set(tries)
            while won is None and pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                won = next((one for one in done if one.exception() is None), None)
            self._last, connection = (won or located).result()
            return connection
        finally:
            for one in tries:
                one.cancel()
            await asyncio.wait(tries)
            for one in tries:
                if one is not won and not one.cancelled() and one.exception() is None:
                    one.result()[1].close()

    async def _connect_located(self) -> tuple[tuple[str, int], RpcConnection]:
        return await self._connect_to(await self._locate())

    async def _connect_to(self, address: tuple[str, int]) -> tuple[tuple[str, int], RpcConnection]:
        return address, await self._open(*address)
