"""What listeners of both faces have in common: refusals, and what is logged when the application's function fails.

A listener gets the messages of one consumer or reader, one at a time and in the order of the receive queue. The
blocking face calls it on a thread (`blocking/receiving.py`), the asyncio face in a task (`LoopListener`). The
client never acknowledges for it: a message whose listener fails stays unacknowledged.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Protocol

from ...protocol.errors import InvalidConfiguration, MagnetarError
from ..consuming.message import Message

logger = logging.getLogger(__name__)

LISTENER_STOP_TIMEOUT_S = 5.0
"""For so long closing waits for the message that a listener is handling."""


class PausableListener(Protocol):
    """A listener, as the face of its consumer uses it."""

    def pause(self) -> None:
        """Rest after the message that is being handled. A second call does nothing."""
        ...

    def resume(self) -> None:
        """Go on. A second call does nothing."""
        ...

    def stop(self) -> object:
        """Wait for the end; on a loop, return what waits."""
        ...


def check_called_on_thread(name: str, listener: Callable[..., object] | None) -> None:
    """Refuse a coroutine function: on a thread nobody awaits what it returns, and no message would be handled."""
    if any(map(inspect.iscoroutinefunction, (listener, type(listener).__call__))):
        raise InvalidConfiguration(
            f"{name} is a coroutine function, which a blocking client cannot await: pass a plain function, "
            "or use AsyncClient"
        )


def consumer_has_listener() -> InvalidConfiguration:
    """Why a consumer with a listener refuses to receive."""
    return InvalidConfiguration(
        "this consumer has a listener, which gets its messages: subscribe without one to call receive"
    )


def reader_has_listener() -> InvalidConfiguration:
    """Why a reader with a listener refuses to read."""
    return InvalidConfiguration(
        "this reader has a listener, which gets its messages: create it without one to call read_next"
    )


def log_failure(message: Message) -> None:
    """Log what a listener raised, within the `except` block: no caller waits for it."""
    logger.exception(
        "a listener on %s failed with message %s, which the client does not acknowledge",
        message.topic_name(),
        message.message_id().text,
    )


def log_missing(topic: str, error: MagnetarError, *, ended: bool) -> None:
    """Log why a listener misses a message, or gets no further one."""
    if ended:
        logger.info("the listener on %s ends: %s", topic, error)
    else:
        logger.error("the listener on %s gets no message: %s", topic, error)
