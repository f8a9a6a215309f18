"""A TCP proxy in front of a server, which can swallow what passes: each direction on its own, and new connections."""

import asyncio
from typing import Self


class BlackHole:
    """`swallows_requests`, `swallows_answers` and `swallows_connections` are there to be changed by tests.

    Swallowed bytes wait, as in TCP: they pass when the hole is closed again. A swallowed connection is accepted by the
    kernel, and nothing else happens to it.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.accepted = 0
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        self._requests.set()
        self._answers.set()
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def cut(self, *, requests: bool = True, answers: bool = True, connections: bool = True) -> None:
        """Swallow these from now on."""
        for event, wanted in ((self._requests, requests), (self._answers, answers), (self._open, connections)):
            if wanted:
                event.clear()

    def heal(self) -> None:
        for event in (self._requests, self._answers, self._open):
            event.set()

    def swallow_what_stands(self) -> tuple[asyncio.Event, asyncio.Event]:
        """The connections that stand are dead for good, as when a firewall forgets them. New ones work. Returns what
        the dead ones wait for.
        """
        dead = self._requests, self._answers
        self.cut(connections=False)
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        self.heal()
        return dead

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(3):  # what was just accepted is made a turn of the loop later
            for task, writer in self._tasks.items():
                if not writer.transport.is_closing():
                    writer.transport.abort()
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._open.wait()
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
            there = asyncio.ensure_future(_pass(reader, other_writer, self._requests))
            back = asyncio.ensure_future(_pass(other_reader, writer, self._answers))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                other_writer.transport.abort()
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        finally:
            writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    while data := await reader.read(65536):
        await passes.wait()
        writer.write(data)
        await writer.drain()
