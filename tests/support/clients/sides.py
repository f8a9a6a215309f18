"""The faces of our client and the official client under one set of names, so that one test serves all.

`connect` gives a `Side`: the module whose names the test uses, and a client with blocking calls. The asyncio face gets
them from `OnLoop`, which runs each call on a loop in a thread of its own.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pulsar

import magnetar
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.aio.producer import AsyncProducer
from magnetar.client.aio.reader import AsyncReader
from magnetar.client.aio.table_view import AsyncTableView

CALL_MAX_S = 60.0
FACES = ("ours", "asyncio", "official")
_OF_A_LOOP = (AsyncConsumer, AsyncProducer, AsyncReader, AsyncTableView)


class OnLoop:
    """An object of the asyncio face, called from a thread that is not its loop's."""

    def __init__(self, called: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._called = called
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._called, name)

        def call(*arguments: Any, **options: Any) -> Any:
            async def on_loop() -> Any:
                result = method(*arguments, **options)
                return await result if inspect.isawaitable(result) else result

            result = asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(CALL_MAX_S)
            return OnLoop(result, self._loop) if isinstance(result, _OF_A_LOOP) else result

        return call


@dataclass
class Side:
    """One face: its names, and a connected client."""

    face: str
    module: ModuleType
    client: Any

    def values(self, consumer: Any, count: int, *, acknowledge: bool = False) -> list[bytes]:
        """What the next messages hold."""
        messages = [consumer.receive(10_000) for _ in range(count)]
        for message in messages if acknowledge else ():
            consumer.acknowledge(message)
        return [message.data() for message in messages]

    def what_comes(self, consumer: Any, within_ms: int = 200) -> list[Any]:
        """All messages that come, acknowledged, until none has come for `within_ms`."""
        found: list[Any] = []
        with contextlib.suppress(self.module.Timeout):
            while True:
                found.append(consumer.receive(within_ms))
                consumer.acknowledge(found[-1])
        return found


@contextlib.contextmanager
def connect(service_url: str, face: str, **options: Any) -> Iterator[Side]:
    """A client of the face; it is closed at the end."""
    options.setdefault("operation_timeout_seconds", 20)
    if face == "asyncio":
        with _loop_in_a_thread() as loop:
            client = OnLoop(magnetar.AsyncClient(service_url, **options), loop)
            try:
                yield Side(face, magnetar, client)
            finally:
                client.close()
        return
    module: ModuleType = magnetar if face == "ours" else pulsar
    if module is pulsar:
        options["logger"] = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    connected: Any = module.Client(service_url, **options)
    try:
        yield Side(face, module, connected)
    finally:
        with contextlib.suppress(pulsar.AlreadyClosed):
            connected.close()


@contextlib.contextmanager
def _loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="asyncio-face", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
