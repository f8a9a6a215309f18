"""What `magnetar produce` does: it sends messages in order, a window of them at a time.

It ends when the last message has its receipt. It ends with the first error, and says how many messages were stored.
"""

import asyncio
from dataclasses import dataclass

from ...client.aio.client import AsyncClient
from ...client.aio.producer import AsyncProducer
from ...client.core.message_id import MessageId
from ...client.core.results import Result
from ...client.producing.partition_producer import Failing
from ...protocol.errors import MagnetarError
from .contents import Contents
from .failures import errors
from .pacing import Pace, Tally, live

WINDOW = 1_000
"""Messages without a receipt at a time."""


@dataclass(frozen=True)
class Sending:
    """What is sent, and how."""

    topic: str
    contents: Contents
    times: int
    rate: float
    options: dict[str, object]
    """Of the producer."""


async def send(service_url: str, sending: Sending, listener_name: str | None = None) -> None:
    """Send everything. Raises what creating the producer and the first failed message raise."""
    tally = Tally()
    try:
        async with AsyncClient(service_url, listener_name=listener_name) as client:
            producer = await client.create_producer(
                sending.topic,
                schema=sending.contents.schema,
                max_pending_messages=WINDOW,
                **sending.options,  # type: ignore[arg-type]
            )
            async with live(tally, "produced", errors.print):
                await _send_all(producer, sending, tally)
            await producer.close()
    finally:
        print(f"{tally.messages} messages successfully produced", flush=True)


async def _send_all(producer: AsyncProducer, sending: Sending, tally: Tally) -> None:
    contents = sending.contents
    key, pace, window = contents.message_key, Pace(sending.rate), Window(WINDOW, tally)
    for _ in range(sending.times):
        for payload in contents.payloads:
            await pace.turn()
            receipt = await window.place(len(payload))
            producer.send_async(
                contents.value(payload), receipt, properties=contents.properties or None, partition_key=key
            )
    await window.drain(producer)


class Window:
    """Bounds the messages without a receipt, counts those that were stored, and keeps the first error."""

    def __init__(self, size: int, tally: Tally) -> None:
        self.tally = tally
        self.error: MagnetarError | None = None
        self._size = size
        self._places = asyncio.Semaphore(size)

    async def place(self, size_bytes: int) -> "Receipt":
        """Wait for a place; returns the callback of one message. Raises the first error."""
        await self._places.acquire()
        if self.error is not None:
            raise self.error
        return Receipt(self, size_bytes)

    async def drain(self, producer: AsyncProducer) -> None:
        """Wait until all have their receipts. Raises the first error."""
        await producer.flush()
        for _ in range(self._size):
            await self._places.acquire()
        if self.error is not None:
            raise self.error

    def free(self) -> None:
        self._places.release()


class Receipt(Failing):
    """The callback of one message."""

    __slots__ = ("_size_bytes", "_window")

    def __init__(self, window: Window, size_bytes: int) -> None:
        self._window = window
        self._size_bytes = size_bytes

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._window.tally.add(self._size_bytes)
        self._window.free()

    def fail(self, error: MagnetarError) -> None:
        if self._window.error is None:
            self._window.error = error
        self._window.free()
