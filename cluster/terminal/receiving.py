"""What `magnetar consume` does: it prints messages as Pulsar's own tool does, and acknowledges each after that.

It ends after as many messages as it was asked for, with an error, or with Ctrl-C.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from ...client.aio.client import AsyncClient
from ...client.aio.consumer import AsyncConsumer
from ...client.consuming.message import Message
from .addresses import ClientOptions
from .failures import errors
from .pacing import Pace, Tally, live

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
    client_options: ClientOptions,
) -> None:
    """Print messages until there were enough. Raises what subscribing and receiving raise."""
    tally = Tally()
    try:
        async with AsyncClient(service_url, **client_options) as client:
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
