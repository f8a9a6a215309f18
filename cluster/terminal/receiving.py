"""What `magnetar consume` does: it prints messages, and acknowledges each after it was printed.

It ends after as many messages as it was asked for, with an error, or with Ctrl-C.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...client.aio.client import AsyncClient
from ...client.aio.consumer import AsyncConsumer
from ...client.aio.reader import AsyncReader
from ...client.consuming.message import Message
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
            if "start_message_id" in options:
                source = await client.create_reader(topics, **options)  # type: ignore[arg-type]
            else:
                source = await client.subscribe(topics, **options)  # type: ignore[arg-type]
            take, done = _calls(source)
            if not printing.hidden:
                await _print_all(take, done, printing, tally)
            else:
                async with live(tally, "received", errors.print):
                    await _print_all(take, done, printing, tally)
            await source.close()
    finally:
        errors.print(f"{tally.messages} messages successfully consumed", highlight=False)


Take = Callable[[], Awaitable[Message]]
Done = Callable[[Message], Awaitable[None]]


def _calls(source: AsyncConsumer | AsyncReader) -> tuple[Take, Done]:
    """How to take a message, and to say that it was printed."""
    if isinstance(source, AsyncConsumer):
        return source.receive, source.acknowledge

    async def nothing(message: Message) -> None:
        """A reader keeps no place that outlives it."""

    return source.read_next, nothing


async def _print_all(take: Take, done: Done, printing: Printing, tally: Tally) -> None:
    pace = Pace(printing.rate)
    while not printing.number or tally.messages < printing.number:
        await pace.turn()
        message = await take()
        if not printing.hidden:
            print(message_text(message, hexadecimal=printing.hexadecimal, decoded=printing.decoded), flush=True)
        await done(message)
        tally.add(len(message.data()))
