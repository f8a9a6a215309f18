"""What `magnetar consume` does: it prints messages, and acknowledges each after it was printed.

It ends after as many messages as it was asked for, with an error, or with Ctrl-C.
"""

import re
from dataclasses import dataclass

from ...client.aio.client import AsyncClient
from ...client.aio.consumer import AsyncConsumer
from .failures import errors
from .pacing import Pace, Tally, live
from .shown import message_text


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
