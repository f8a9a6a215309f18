"""`magnetar perf consume`: consume as fast as possible, or at a rate, and measure end-to-end latencies.

The client is loaded when the command runs: other commands shall start without it.
"""

from typing import Annotated

import typer

from ..terminal.addresses import ListenerName, ServiceUrl, client_options, service_url_of
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
        from .consuming import ConsumerPlace, run

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
            url, found = service_url_of(context, service_url), client_options(context, listener_name, service_url)
            uvloop.run(run(url, places, options, rate / len(places), LoadLimits(number, duration), report, found))
