"""`magnetar perf produce`: publish at a rate, or as fast as possible, and measure latencies.

The client is loaded when the command runs: other commands shall start without it.

What `magnetar perf produce` does: it publishes until the limits say that the run is over.

With a rate, the latency of a message counts from the moment when its turn came, not from the moment when it was sent.
So a client that falls behind shows up in the latencies. Without a rate it counts from the send.

Keys of the messages of a measured run.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, repeat
from pathlib import Path
from typing import Annotated

import typer

from ...client.aio.client import AsyncClient
from ...client.aio.producer import AsyncProducer
from ...client.core.message_id import MessageId
from ...client.core.results import Result
from ...client.producing.partition_producer import Failing
from ...protocol.errors import InvalidConfiguration, MagnetarError
from ..terminal.addresses import ListenerName, ServiceUrl, service_url_of
from ..terminal.failures import clear_errors
from .limits import LoadLimits
from .options import (
    Figures,
    PerfDuration,
    PerfEveryS,
    PerfHistogramFile,
    PerfNumber,
    PerfPlotFile,
    PerfTopic,
    PerfTopics,
    PerfWarmUp,
    names_of,
)
from .report import Report

KEYS = 10_000
"""Different keys that random keys are drawn from."""


class KeyMode(StrEnum):
    """Where the keys of messages come from."""

    AUTO_INCREMENT = "autoIncrement"
    RANDOM = "random"


def keys_of(mode: KeyMode | None) -> Iterator[str] | None:
    """Keys without end; None for messages without keys."""
    if mode is None:
        return None
    chance = random.Random(1)
    return map(str, count()) if mode is KeyMode.AUTO_INCREMENT else (str(chance.randrange(KEYS)) for _ in repeat(0))


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
    listener_name: str | None = None,
) -> None:
    """Publish to each of the topics until the limits say that it is over. Raises the first error."""
    async with AsyncClient(service_url, listener_name=listener_name) as client:
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


class Compression(StrEnum):
    """How batches are compressed."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLIB = "ZLIB"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


PerfProduceRate = Annotated[
    float, typer.Option("-r", "--rate", min=0, help="Messages per second of all producers; 0 = as fast as possible.")
]
PerfProduceSize = Annotated[int, typer.Option("-s", "--size", min=0, help="Bytes of a message.")]
PerfProduceProducers = Annotated[int, typer.Option("-n", "--num-producers", min=1, help="Producers on each topic.")]
PerfProduceOutstanding = Annotated[
    int, typer.Option("-o", "--max-outstanding", min=1, help="Messages without a receipt, per producer and partition.")
]
PerfProduceBatchTime = Annotated[
    float, typer.Option("-b", "--batch-time-window", min=0, help="Milliseconds that a batch waits.")
]
PerfProduceBatchMessages = Annotated[
    int, typer.Option("-bm", "--batch-max-messages", min=1, help="Messages of a batch.")
]
PerfProduceBatchBytes = Annotated[int, typer.Option("-bb", "--batch-max-bytes", min=1, help="Bytes of a batch.")]
PerfProduceNoBatches = Annotated[
    bool, typer.Option("-db", "--disable-batching", help="Send each message in an entry of its own.")
]
PerfProduceChunking = Annotated[
    bool, typer.Option("-ch", "--chunking", help="Send messages that are too large in chunks.")
]
PerfProduceCompressed = Annotated[
    Compression, typer.Option("-z", "--compression", case_sensitive=False, help="How batches are compressed.")
]
PerfProducePayloadFile = Annotated[
    Path | None, typer.Option("-f", "--payload-file", help="Send the parts of this file in turn, not random bytes.")
]
PerfProduceDelimiter = Annotated[
    str, typer.Option("-e", "--payload-delimiter", help="What separates the parts of the file.")
]
PerfProduceKeys = Annotated[
    KeyMode | None, typer.Option("-mk", "--message-key-generation-mode", help="Give messages keys of this kind.")
]
PerfProduceEndOnFailure = Annotated[
    bool, typer.Option("--exit-on-failure", help="End with the first message that fails.")
]


def produce(
    context: typer.Context,
    topic: PerfTopic,
    rate: PerfProduceRate = 100.0,
    size: PerfProduceSize = 1024,
    topics: PerfTopics = 1,
    producers: PerfProduceProducers = 1,
    number: PerfNumber = 0,
    duration: PerfDuration = 0.0,
    outstanding: PerfProduceOutstanding = 10_000,
    batch_time_ms: PerfProduceBatchTime = 1.0,
    batch_messages: PerfProduceBatchMessages = 1_000,
    batch_bytes: PerfProduceBatchBytes = 4 << 20,
    no_batches: PerfProduceNoBatches = False,
    chunking: PerfProduceChunking = False,
    compression: PerfProduceCompressed = Compression.NONE,
    payload_file: PerfProducePayloadFile = None,
    delimiter: PerfProduceDelimiter = "\\n",
    keys: PerfProduceKeys = None,
    end_on_failure: PerfProduceEndOnFailure = False,
    every_s: PerfEveryS = 10.0,
    warmup_s: PerfWarmUp = 1.0,
    histogram_file: PerfHistogramFile = None,
    plot_file: PerfPlotFile = None,
    service_url: ServiceUrl = None,
    listener_name: ListenerName = None,
) -> None:
    """Publish messages, and show rates and latencies."""
    with clear_errors():
        import uvloop

        from ...client.core.configuration import CompressionType
        from .produce import Load, run

        payloads = _parts(payload_file, delimiter) if payload_file is not None else [random.Random(1).randbytes(size)]
        options: dict[str, object] = {
            "batching_enabled": not (no_batches or chunking),
            "chunking_enabled": chunking,
            "batching_max_publish_delay_ms": max(1, round(batch_time_ms)),
            "batching_max_messages": batch_messages,
            "batching_max_allowed_size_in_bytes": batch_bytes,
            "max_pending_messages": outstanding,
            "max_pending_messages_across_partitions": 1 << 30,
            "block_if_queue_full": True,
            "compression_type": CompressionType[compression.value],
        }
        load = Load(rate / (topics * producers), payloads, keys, outstanding, end_on_failure)
        names = [name for name in names_of(topic, topics) for _ in range(producers)]
        with Figures(every_s, warmup_s, histogram_file, plot_file).report("produced") as report:
            url = service_url_of(context, service_url)
            uvloop.run(run(url, names, options, load, LoadLimits(number, duration), report, listener_name))


def _parts(path: Path, delimiter: str) -> list[bytes]:
    """The parts of a file that are not empty. Raises InvalidConfiguration, OSError."""
    separator = delimiter.encode().decode("unicode_escape").encode()
    parts = [part for part in path.read_bytes().split(separator) if part] if separator else [path.read_bytes()]
    if not any(parts):
        raise InvalidConfiguration(f"{path} holds nothing to send: put payloads into it")
    return parts
