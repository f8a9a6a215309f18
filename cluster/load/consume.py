"""`magnetar perf consume`: consume as fast as possible, or at a rate, and measure end-to-end latencies.

The client is loaded when the command runs: other commands shall start without it.
"""

from typing import Annotated

import typer

from ..terminal.addresses import ServiceUrl, service_url_of
from ..terminal.failures import clear_errors
from ..terminal.words import Position, SubscriptionType
from .limits import Limits
from .options import Duration, EveryS, Figures, HistogramFile, Number, PlotFile, Topic, Topics, WarmUp, names_of

Subscription = Annotated[
    str, typer.Option("-s", "--subscriber-name", help="The subscription; with several, the beginning of their names.")
]
Subscriptions = Annotated[int, typer.Option("-ns", "--num-subscriptions", min=1, help="Subscriptions of each topic.")]
Consumers = Annotated[int, typer.Option("-n", "--num-consumers", min=1, help="Consumers of each subscription.")]
Type = Annotated[
    SubscriptionType, typer.Option("-st", "--subscription-type", case_sensitive=False, help="Type of subscriptions.")
]
Begin = Annotated[
    Position, typer.Option("-sp", "--subscription-position", case_sensitive=False, help="Where new ones begin.")
]
QueueSize = Annotated[int, typer.Option("-q", "--receiver-queue-size", min=1, help="Receive queue of a consumer.")]
Rate = Annotated[float, typer.Option("-r", "--rate", min=0, help="Messages per second of all; 0 = no limit.")]
AckDelay = Annotated[
    int, typer.Option("--acks-delay-millis", min=0, help="Milliseconds that the client gathers acknowledgements.")
]


def consume(
    context: typer.Context,
    topic: Topic,
    subscription: Subscription = "sub",
    topics: Topics = 1,
    subscriptions: Subscriptions = 1,
    consumers: Consumers = 1,
    kind: Type = SubscriptionType.EXCLUSIVE,
    position: Begin = Position.LATEST,
    queue_size: QueueSize = 1_000,
    rate: Rate = 0.0,
    ack_delay_ms: AckDelay = 100,
    number: Number = 0,
    duration: Duration = 0.0,
    every_s: EveryS = 10.0,
    warmup_s: WarmUp = 0.0,
    histogram_file: HistogramFile = None,
    plot_file: PlotFile = None,
    service_url: ServiceUrl = None,
) -> None:
    """Consume messages, and show rates and end-to-end latencies."""
    with clear_errors():
        import uvloop

        from ...client.core.configuration import ConsumerType, InitialPosition
        from .consuming import Place, run

        places = [
            Place(name, called)
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
            uvloop.run(run(url, places, options, rate / len(places), Limits(number, duration), report))
