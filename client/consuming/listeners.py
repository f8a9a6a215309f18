"""Listeners: the task that calls one on a loop, and what it has in common with the thread of the blocking face.

A listener gets the messages of one consumer or reader, one at a time and in the order of the receive queue. The
asyncio face calls it in a task (`LoopListener`), the blocking face on a thread (`blocking/receiving.py`). The
client never acknowledges for it: a message whose listener fails stays unacknowledged.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import InvalidConfiguration, MagnetarError
from .message import Message

if TYPE_CHECKING:
    from .topic_consumer import TopicConsumer

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


TURN_S = 0.001
"""After so long the loop gets a turn, even if the listener never waits."""


_within: ContextVar["LoopListener | None"] = ContextVar("_within", default=None)
"""The listener that the running task belongs to."""


class LoopListener:
    """How the asyncio face calls a listener: a task takes messages one at a time and awaits what the listener returns.

    States of the task, and what leads from one to the next:

    - *waiting* for a message, or for `resume`. A message that has come, while not paused, is taken: handling.
    - *handling* one message. The listener's end, with or without an error, leads back to waiting.
    - *ended*: by `stop`, because no more messages will come, or because the task was cancelled.

    The task's context says which listener it is. Tasks that a listener starts inherit that, so `stop` does not wait for
    a listener that waits for it, as in `await asyncio.gather(consumer.close(), …)`.

    Invariants: a message is taken only when it is handed over at once, with no `await` in between. So pausing, stopping
    and cancelling lose none: what was not handed over is still in the receive queue. Only while waiting does `stop`
    cancel the task. A listener that handles a message gets `LISTENER_STOP_TIMEOUT_S`; then it is cancelled, too.

    For the loop's thread.
    """

    def __init__(
        self,
        consumer: "TopicConsumer",
        arrival: Callable[[], Awaitable[None]],
        take: Callable[[], Message | None],
        handle: Callable[[Message], object],
    ) -> None:
        """Start. `arrival` waits until there may be a message, `take` gives it; both raise why there is none."""
        core = consumer.core
        self._consumer = consumer
        self._loop = core.loop
        self._arrival = arrival
        self._take = take
        self._handle = handle
        self._going = asyncio.Event()
        self._going.set()
        self._stopping = False
        self._handling = False
        self._turn_began_s = 0.0
        self._task = core.tasks.spawn(self._serve(), f"listener on {consumer.topic_text}"[:200])

    def pause(self) -> None:
        """Rest after the message that is being handled. A second call does nothing."""
        self._going.clear()

    def resume(self) -> None:
        """Go on. A second call does nothing."""
        self._going.set()

    async def stop(self) -> None:
        """Hand no further message over. Wait for the one that is being handled, unless the listener itself calls.

        A listener that takes longer than `LISTENER_STOP_TIMEOUT_S` is cancelled.
        """
        self._stopping = True
        task = self._task
        if task.done() or task is asyncio.current_task():
            return
        if not self._handling:
            task.cancel()
        if _within.get() is self:
            return
        await asyncio.wait({task}, timeout=LISTENER_STOP_TIMEOUT_S)
        if not task.done():
            logger.warning(
                "the listener on %s still handles its message after %s s: it is cancelled",
                self._consumer.topic_text,
                LISTENER_STOP_TIMEOUT_S,
            )
            task.cancel()

    async def _serve(self) -> None:
        _within.set(self)
        try:
            while not self._stopping:
                message = await self._next()
                if message is not None:
                    await self._hand_over(message)
        except MagnetarError as error:
            log_missing(self._consumer.topic_text, error, ended=True)
        except asyncio.CancelledError:
            if not self._stopping and self._consumer.receive_queue.failure is None:
                logger.warning(
                    "the listener on %s was cancelled: it gets no more messages until the application subscribes again",
                    self._consumer.topic_text,
                )
            raise

    async def _next(self) -> Message | None:
        """The next message to be handled, or None if there was none for the listener. Raises why there will be none."""
        try:
            await self._going.wait()
            await self._arrival()
            return self._take() if self._going.is_set() else None
        except MagnetarError as error:
            if self._consumer.receive_queue.failure is not None:
                raise
            log_missing(self._consumer.topic_text, error, ended=False)
            return None

    async def _hand_over(self, message: Message) -> None:
        self._handling = True
        try:
            outcome = self._handle(message)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log_failure(message)  # of something that the listener awaited: the listener itself was not cancelled
        except Exception:  # the application's; no caller waits for it
            log_failure(message)
        finally:
            self._handling = False
        if self._loop.time() - self._turn_began_s >= TURN_S:
            await asyncio.sleep(0)
            self._turn_began_s = self._loop.time()
