"""What `magnetar perf produce` does: it publishes until the limits say that the run is over.

With a rate, the latency of a message counts from the moment when its turn came, not from the moment when it was sent.
So a client that falls behind shows up in the latencies. Without a rate it counts from the send.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ...client.aio.client import AsyncClient
from ...client.aio.producer import AsyncProducer
from ...client.core.message_id import MessageId
from ...client.core.results import Result
from ...client.producing.partition_producer import Failing
from ...protocol.errors import MagnetarError
from ..terminal.addresses import ClientOptions
from .keys import KeyMode, keys_of
from .limits import LoadLimits
from .report import Report

TICK_S = 0.001
"""Messages of one tick are handed to the client together, and share one latency."""
BURST = 100
"""As many at a time without a rate."""


@dataclass(frozen=True)
class Load:
    """What one producer sends."""

    rate: float
    payloads: list[bytes]
    keys: KeyMode | None
    outstanding: int
    end_on_failure: bool


async def run(
    service_url: str,
    topics: list[str],
    options: dict[str, object],
    load: Load,
    limits: LoadLimits,
    report: Report,
    client_options: ClientOptions,
) -> None:
    """Publish to each of the topics until the limits say that it is over. Raises the first error."""
    async with AsyncClient(service_url, **client_options) as client:
        made = [await client.create_producer(topic, **options) for topic in topics]  # type: ignore[arg-type]
        failures: list[MagnetarError] = []
        limits.begin()
        async with report.live(), asyncio.TaskGroup() as group:
            for producer in made:
                group.create_task(_publish(Publisher(producer, load, limits, report, failures)))
        if failures:
            raise failures[0]


class Publisher:
    """One producer under load."""

    def __init__(
        self, producer: AsyncProducer, load: Load, limits: LoadLimits, report: Report, failures: list[MagnetarError]
    ) -> None:
        self.producer = producer
        self.load = load
        self.limits = limits
        self.report = report
        self.failures = failures
        """Of all producers; the first is raised in the end."""
        self._payloads = _endless(load.payloads)
        self._keys = keys_of(load.keys)
        self.places = asyncio.Semaphore(load.outstanding)
        """Of messages with keys: the client does not wait for space when it takes single messages."""

    async def send(self, messages: int, turn_s: float) -> None:
        """Send so many messages whose turn came at `turn_s`; waits for space."""
        contents = [next(self._payloads) for _ in range(messages)]
        size_bytes = sum(map(len, contents)) / messages
        try:
            if self._keys is None:
                await self.producer.send_many(contents, Receipts(self, turn_s, size_bytes))
                return
            receipts = KeyedReceipts(self, turn_s, size_bytes)
            for content in contents:
                await self.places.acquire()
                self.producer.send_async(content, receipts, partition_key=next(self._keys))
        except MagnetarError as error:
            self.fail(error)
            self.limits.end()  # the producer itself has failed: it takes no more messages

    def fail(self, error: MagnetarError) -> None:
        """A message was not stored."""
        self.report.failures += 1
        if not self.failures:
            self.failures.append(error)
        if self.load.end_on_failure:
            self.limits.end()


class Receipts(Failing):
    """The callback of messages that were sent together."""

    __slots__ = ("_arrived", "_arrived_s", "_publisher", "_size_bytes", "_turn_s")

    def __init__(self, publisher: Publisher, turn_s: float, size_bytes: float) -> None:
        self._publisher = publisher
        self._turn_s = turn_s
        self._size_bytes = size_bytes
        self._arrived = 0
        self._arrived_s = 0.0

    def __call__(self, result: Result, message_id: MessageId) -> None:
        if not self._arrived:
            # Receipts of one entry come together: they are counted once.
            self._arrived_s = time.monotonic()
            asyncio.get_running_loop().call_soon(self._count)
        self._arrived += 1

    def _count(self) -> None:
        messages, self._arrived = self._arrived, 0
        report = self._publisher.report
        report.add(messages, round(messages * self._size_bytes))
        report.record(self._arrived_s - self._turn_s, messages)

    def fail(self, error: MagnetarError) -> None:
        self._publisher.fail(error)


class KeyedReceipts(Receipts):
    """The same for messages with keys, which take a place each."""

    __slots__ = ()

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._publisher.places.release()
        super().__call__(result, message_id)

    def fail(self, error: MagnetarError) -> None:
        self._publisher.places.release()
        super().fail(error)


async def _publish(publisher: Publisher) -> None:
    """Send until the limits say that it is over, then wait for all receipts."""
    rate, limits = publisher.load.rate, publisher.limits
    burst = max(1, int(rate * TICK_S)) if rate else BURST
    begin_s = time.monotonic()
    sent = 0
    while not limits.over:
        now_s = time.monotonic()
        turn_s, wanted = now_s, burst
        if rate:
            due = int((now_s - begin_s) * rate) + 1 - sent
            if due <= 0:
                await asyncio.sleep(limits.left_s(begin_s + sent / rate - now_s))
                continue
            wanted = min(due, burst)
            turn_s = begin_s + (sent + (wanted - 1) / 2) / rate
        messages = limits.take(wanted)
        if messages:
            await publisher.send(messages, turn_s)
            sent += messages
            await asyncio.sleep(0)  # receipts have their turn, too
    try:
        await publisher.producer.flush()
    except MagnetarError as error:
        publisher.failures.append(error)


def _endless(payloads: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from payloads
