"""What `magnetar perf consume` does: it consumes until the limits say that the run is over.

A latency is the time from a message's publish time, by the producer's clock, to its arrival here. Both clocks count in
milliseconds. Run the producer on this machine, or keep the clocks of both in step.
"""

import asyncio
import time
from dataclasses import dataclass

from ...client.aio.client import AsyncClient
from ...client.aio.consumer import AsyncConsumer
from ...protocol.errors import Timeout
from ..terminal.addresses import ClientOptions
from .limits import LoadLimits
from .report import Report

TAKEN_MAX = 1_000
"""Messages that are taken from the client together."""
WAIT_MS = 200
"""A consumer without messages looks this often whether the run is over."""


@dataclass(frozen=True)
class ConsumerPlace:
    """A subscription of a topic; a run has a consumer for each."""

    topic: str
    subscription: str


async def run(
    service_url: str,
    places: list[ConsumerPlace],
    options: dict[str, object],
    rate: float,
    limits: LoadLimits,
    report: Report,
    client_options: ClientOptions,
) -> None:
    """Consume until the limits say that it is over. Raises the first error."""
    async with AsyncClient(service_url, **client_options) as client:
        made = [
            await client.subscribe(place.topic, place.subscription, **options)  # type: ignore[arg-type]
            for place in places
        ]
        limits.begin()
        async with report.live():
            try:
                async with asyncio.TaskGroup() as group:
                    for consumer in made:
                        group.create_task(_consume(consumer, rate, limits, report))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None


async def _consume(consumer: AsyncConsumer, rate: float, limits: LoadLimits, report: Report) -> None:
    begin_s = time.monotonic()
    taken = 0
    while not limits.over:
        if rate and (ahead_s := begin_s + taken / rate - time.monotonic()) > 0:
            await asyncio.sleep(limits.left_s(ahead_s))
            continue
        wanted = min(TAKEN_MAX, max(1, int(rate / 100))) if rate else TAKEN_MAX
        try:
            messages = await consumer.receive_many(wanted, timeout_millis=WAIT_MS)
        except Timeout:
            continue
        now_ms = time.time() * 1000
        kept = limits.take(len(messages))  # another consumer may have reached the end meanwhile
        sizes = 0
        by_time: dict[int, int] = {}
        for message in messages[:kept]:
            sizes += len(message.data())
            published_ms = message.publish_timestamp()
            by_time[published_ms] = by_time.get(published_ms, 0) + 1
        for published_ms, count in by_time.items():
            report.record((now_ms - published_ms) / 1000, count)
        report.add(kept, sizes)
        taken += kept
        await consumer.acknowledge_many(messages[:kept])
