"""`magnetar consume`: print messages of a subscription, with the options of `pulsar-client consume`.

The client is loaded when the command runs: other commands shall start without it.
"""

import re
from typing import Annotated

import typer

from ...protocol.errors import InvalidConfiguration
from .addresses import ListenerName, ServiceUrl, client_options, service_url_of
from .failures import clear_errors
from .words import SchemaUse, StartPosition, SubscriptionModeName, SubscriptionTypeName

ConsumeTopic = Annotated[str, typer.Argument(help="The topic, in any form of its name; a pattern with --regex.")]
ConsumeSubscription = Annotated[str, typer.Option("-s", "--subscription-name", help="The subscription.")]
ConsumeNumber = Annotated[int, typer.Option("-n", "--num-messages", min=0, help="How many messages; 0 = without end.")]
ConsumeType = Annotated[
    SubscriptionTypeName,
    typer.Option("-t", "--subscription-type", case_sensitive=False, help="Type of the subscription."),
]
ConsumeMode = Annotated[
    SubscriptionModeName,
    typer.Option("-m", "--subscription-mode", case_sensitive=False, help="Whether it outlives the command."),
]
ConsumeBegin = Annotated[
    StartPosition, typer.Option("-p", "--subscription-position", case_sensitive=False, help="Where a new one begins.")
]
ConsumeRegex = Annotated[bool, typer.Option("--regex", help="The topic is a pattern: consume all topics that match.")]
ConsumeHex = Annotated[bool, typer.Option("--hex", help="Print contents as hexadecimal numbers.")]
ConsumeHide = Annotated[bool, typer.Option("--hide-content", help="Print the rate of each second instead of messages.")]
ConsumeRate = Annotated[
    float, typer.Option("-r", "--rate", min=0, help="Messages per second; 0 = as fast as possible.")
]
ConsumeQueueSize = Annotated[
    int, typer.Option("-q", "--queue-size", min=0, help="Receive queue; 0 = the client's default.")
]
ConsumeChunksMax = Annotated[
    int, typer.Option("-mc", "--max_chunked_msg", min=0, help="Incomplete messages to keep; 0 = the client's default.")
]
ConsumeAckOldest = Annotated[
    bool, typer.Option("-ac", "--auto_ack_chunk_q_full", help="Beyond that, acknowledge the oldest incomplete one.")
]
ConsumePrivateKey = Annotated[
    str | None, typer.Option("-ekv", "--encryption-key-value", help="Path or URI of the private key.", metavar="URI")
]
ConsumeSchemas = Annotated[
    SchemaUse, typer.Option("-st", "--schema-type", help="auto_consume decodes values as the topic's schema says.")
]


def consume(
    context: typer.Context,
    topic: ConsumeTopic,
    subscription: ConsumeSubscription,
    number: ConsumeNumber = 1,
    kind: ConsumeType = SubscriptionTypeName.EXCLUSIVE,
    mode: ConsumeMode = SubscriptionModeName.DURABLE,
    position: ConsumeBegin = StartPosition.LATEST,
    regex: ConsumeRegex = False,
    hexadecimal: ConsumeHex = False,
    hide_content: ConsumeHide = False,
    rate: ConsumeRate = 0.0,
    queue_size: ConsumeQueueSize = 0,
    chunks_max: ConsumeChunksMax = 0,
    ack_oldest: ConsumeAckOldest = False,
    private_key: ConsumePrivateKey = None,
    schema: ConsumeSchemas = SchemaUse.BYTES,
    service_url: ServiceUrl = None,
    listener_name: ListenerName = None,
) -> None:
    """Print messages of a subscription, and acknowledge them."""
    with clear_errors():
        import uvloop

        from ...client.core.configuration import ConsumerType, InitialPosition, SubscriptionMode
        from ...client.schemas.automatic import AutoConsumeSchema
        from .keys import GivenKey
        from .receiving import Printing, receive

        options: dict[str, object] = {"auto_ack_oldest_chunked_message_on_queue_full": ack_oldest}
        if queue_size:
            options["receiver_queue_size"] = queue_size
        if chunks_max:
            options["max_pending_chunked_message"] = chunks_max
        if private_key is not None:
            options["crypto_key_reader"] = GivenKey(private_key)
        if schema is SchemaUse.AUTO_CONSUME:
            options["schema"] = AutoConsumeSchema()
        options["subscription_name"] = subscription
        options["consumer_type"] = ConsumerType[kind.client_name]
        options["initial_position"] = InitialPosition[position.value]
        options["subscription_mode"] = SubscriptionMode[mode.value]
        printing = Printing(number, rate, hide_content, hexadecimal, schema is SchemaUse.AUTO_CONSUME)
        topics = _pattern(topic) if regex else topic
        found = client_options(context, listener_name, service_url)
        uvloop.run(receive(service_url_of(context, service_url), topics, options, printing, found))


def _pattern(topic: str) -> re.Pattern[str]:
    try:
        return re.compile(topic)
    except re.error as error:
        raise InvalidConfiguration(f"{topic!r} is no pattern: {error}") from None
