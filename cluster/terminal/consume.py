"""`magnetar consume`: print messages of a subscription, with the options of `pulsar-client consume`.

The client is loaded when the command runs: other commands shall start without it.

A received message as text, in the form of Pulsar's own tool.

What `magnetar consume` does: it prints messages, and acknowledges each after it was printed.

It ends after as many messages as it was asked for, with an error, or with Ctrl-C.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import typer

from ...client.aio.client import AsyncClient
from ...client.aio.consumer import AsyncConsumer
from ...client.consuming.message import Message
from ...protocol.errors import InvalidConfiguration
from .addresses import ListenerName, ServiceUrl, service_url_of
from .failures import clear_errors, errors
from .pacing import Pace, Tally, live
from .words import SchemaUse, StartPosition, SubscriptionModeName, SubscriptionTypeName

BOUNDARY = "----- got message -----"
ROW_BYTES = 16


def message_text(message: Message, *, hexadecimal: bool = False, decoded: bool = False) -> str:
    """One message, with the line that separates it from the one before."""
    key = message.partition_key() or "null"
    properties = ", ".join(f"{name}={value}" for name, value in message.properties().items())
    if message.has_null_value():
        content = "null"
    elif decoded:
        content = _value(message.value())
    else:
        content = _bytes(message.data(), hexadecimal)
    head = f"publishTime:[{message.publish_timestamp()}], eventTime:[{message.event_timestamp()}], key:[{key}]"
    return f"{BOUNDARY}\n{head}, properties:[{properties}], content:{content}"


def hex_dump(data: bytes) -> str:
    """Sixteen bytes a line: offset, bytes, and those that are printable."""
    lines: list[str] = []
    for offset in range(0, len(data), ROW_BYTES):
        row = data[offset : offset + ROW_BYTES]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{offset:08X} {row.hex(' ').upper():<{3 * ROW_BYTES - 1}} {printable}")
    return "\n".join(lines)


def content_text(data: bytes) -> str:
    """A payload as text. What could move the cursor or change the colours of a terminal is escaped."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return content_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return str(dataclasses.asdict(value))
    return str(dict(cast("Mapping[str, object]", value))) if isinstance(value, Mapping) else str(value)


def _bytes(data: bytes, hexadecimal: bool) -> str:
    if not hexadecimal:
        return content_text(data)
    return f"\n{hex_dump(data)}" if data else ""


@dataclass(frozen=True)
class Printing:
    """How many messages are printed, how, and how fast."""

    number: int
    rate: float
    hidden: bool
    hexadecimal: bool
    decoded: bool


async def receive(
    service_url: str,
    topics: str | re.Pattern[str],
    options: dict[str, object],
    printing: Printing,
    listener_name: str | None = None,
) -> None:
    """Print messages until there were enough. Raises what subscribing and receiving raise."""
    tally = Tally()
    try:
        async with AsyncClient(service_url, listener_name=listener_name) as client:
            consumer = await client.subscribe(topics, **options)  # type: ignore[arg-type]
            if not printing.hidden:
                await _print_all(consumer, printing, tally)
            else:
                async with live(tally, "received", errors.print):
                    await _print_all(consumer, printing, tally)
            await consumer.close()
    finally:
        errors.print(f"{tally.messages} messages successfully consumed", highlight=False)


async def _print_all(consumer: AsyncConsumer, printing: Printing, tally: Tally) -> None:
    pace = Pace(printing.rate)
    while not printing.number or tally.messages < printing.number:
        await pace.turn()
        message = await consumer.receive()
        if not printing.hidden:
            print(message_text(message, hexadecimal=printing.hexadecimal, decoded=printing.decoded), flush=True)
        await consumer.acknowledge(message)
        tally.add(len(message.data()))


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
        from .consume import Printing, receive
        from .keys import GivenKey

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
        uvloop.run(receive(service_url_of(context, service_url), topics, options, printing, listener_name))


def _pattern(topic: str) -> re.Pattern[str]:
    try:
        return re.compile(topic)
    except re.error as error:
        raise InvalidConfiguration(f"{topic!r} is no pattern: {error}") from None
