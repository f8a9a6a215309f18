"""A TCP proxy in front of a server that takes only so many bytes of a client in a second, as a slow uplink does."""

import asyncio
import socket
from typing import Self

CHUNK_BYTES = 16 << 10
WINDOW_BYTES = 32 << 10
"""Of the proxy's receive buffer: what lies in it counts as acknowledged to the client."""


class SlowLink:
    """Answers pass at once. `accepted` counts connections."""

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self.port = 0
        self.accepted = 0
        self._target = port
        self._bytes_per_s = bytes_per_s
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self) -> Self:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        self.port = listening.getsockname()[1]
        self._server = await asyncio.start_server(self._accepted, sock=listening, limit=CHUNK_BYTES)
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task, writer in list(self._tasks.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.ensure_future(_pass(reader, other_writer, CHUNK_BYTES / self._bytes_per_s)),
            asyncio.ensure_future(_pass(other_reader, writer, 0.0)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            other_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(pause_s * len(data) / CHUNK_BYTES)
