"""`magnetar perf consume`: consume as fast as possible, or at a rate, and measure end-to-end latencies.

The client is loaded when the command runs: other commands shall start without it.

What `magnetar perf consume` does: it consumes until the limits say that the run is over.

A latency is the time from a message's publish time, by the producer's clock, to its arrival here. Both clocks count in
milliseconds. Run the producer on this machine, or keep the clocks of both in step.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from ...client.aio.client import AsyncClient
from ...client.aio.consumer import AsyncConsumer
from ...protocol.errors import Timeout
from ..terminal.addresses import ListenerName, ServiceUrl, service_url_of
from ..terminal.failures import clear_errors
from ..terminal.words import StartPosition, SubscriptionTypeName
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
    listener_name: str | None = None,
) -> None:
    """Consume until the limits say that it is over. Raises the first error."""
    async with AsyncClient(service_url, listener_name=listener_name) as client:
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


PerfConsumeSubscription = Annotated[
    str, typer.Option("-s", "--subscriber-name", help="The subscription; with several, the beginning of their names.")
]
PerfConsumeSubscriptions = Annotated[
    int, typer.Option("-ns", "--num-subscriptions", min=1, help="Subscriptions of each topic.")
]
PerfConsumeConsumers = Annotated[
    int, typer.Option("-n", "--num-consumers", min=1, help="Consumers of each subscription.")
]
PerfConsumeType = Annotated[
    SubscriptionTypeName,
    typer.Option("-st", "--subscription-type", case_sensitive=False, help="Type of subscriptions."),
]
PerfConsumeBegin = Annotated[
    StartPosition, typer.Option("-sp", "--subscription-position", case_sensitive=False, help="Where new ones begin.")
]
PerfConsumeQueueSize = Annotated[
    int, typer.Option("-q", "--receiver-queue-size", min=1, help="Receive queue of a consumer.")
]
PerfConsumeRate = Annotated[
    float, typer.Option("-r", "--rate", min=0, help="Messages per second of all; 0 = no limit.")
]
PerfConsumeAckDelay = Annotated[
    int, typer.Option("--acks-delay-millis", min=0, help="Milliseconds that the client gathers acknowledgements.")
]


def consume(
    context: typer.Context,
    topic: PerfTopic,
    subscription: PerfConsumeSubscription = "sub",
    topics: PerfTopics = 1,
    subscriptions: PerfConsumeSubscriptions = 1,
    consumers: PerfConsumeConsumers = 1,
    kind: PerfConsumeType = SubscriptionTypeName.EXCLUSIVE,
    position: PerfConsumeBegin = StartPosition.LATEST,
    queue_size: PerfConsumeQueueSize = 1_000,
    rate: PerfConsumeRate = 0.0,
    ack_delay_ms: PerfConsumeAckDelay = 100,
    number: PerfNumber = 0,
    duration: PerfDuration = 0.0,
    every_s: PerfEveryS = 10.0,
    warmup_s: PerfWarmUp = 0.0,
    histogram_file: PerfHistogramFile = None,
    plot_file: PerfPlotFile = None,
    service_url: ServiceUrl = None,
    listener_name: ListenerName = None,
) -> None:
    """Consume messages, and show rates and end-to-end latencies."""
    with clear_errors():
        import uvloop

        from ...client.core.configuration import ConsumerType, InitialPosition
        from .consume import ConsumerPlace, run

        places = [
            ConsumerPlace(name, called)
            for name in names_of(topic, topics)
            for called in names_of(subscription, subscriptions)
            for _ in range(consumers)
        ]
        options: dict[str, object] = {
            "consumer_type": ConsumerType[kind.client_name],
            "initial_position": InitialPosition[position.value],
            "receiver_queue_size": queue_size,
            "ack_group_time_ms": ack_delay_ms,
        }
        with Figures(every_s, warmup_s, histogram_file, plot_file).report("received") as report:
            url = service_url_of(context, service_url)
            uvloop.run(
                run(url, places, options, rate / len(places), LoadLimits(number, duration), report, listener_name)
            )
