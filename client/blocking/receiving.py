"""How blocking faces take messages from a receive queue: by a call that waits, or by a thread that calls a listener."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ...protocol.errors import MagnetarError, OperationNotSupported, Timeout
from ..consuming.listeners import LISTENER_STOP_TIMEOUT_S, log_failure, log_missing
from ..consuming.message import Message
from ..consuming.messages import Messages
from ..consuming.receive_queue import ReceiveQueue
from ..consuming.topic_consumer import TopicConsumer
from .loop import Running

T = TypeVar("T")


class Receiver:
    """Takes messages from a receive queue, and waits if there are none."""

    def __init__(self, running: Running, consumer: TopicConsumer) -> None:
        self._running = running
        self._consumer = consumer
        self._receive_queue = consumer.receive_queue
        self._wake = consumer.core.handover.wake

    def receive(self, timeout_millis: int | None) -> Message:
        """The next message. Raises Timeout, why it cannot be opened, or why there will be none."""
        return self._take(self._receive_queue.take, timeout_millis)

    def receive_many(self, messages_max: int, timeout_millis: int | None) -> Messages:
        """The next messages, at least one. Raises as `receive`."""
        return self._take(lambda: self._receive_queue.take_many(messages_max) or None, timeout_millis)

    def receive_unless_error(self, timeout_millis: int | None) -> Message | None:
        """As `receive`, but None if the next one cannot be opened: that is left for another call."""
        queue = self._receive_queue

        def take() -> list[Message | None] | None:
            message = queue.take(raises=False)
            return [message] if message is not None or queue.is_at_error else None

        return self._take(take, timeout_millis)[0]

    def _take(self, take: Callable[[], T | None], timeout_millis: int | None) -> T:
        """What `take` gives as soon as there is something."""
        if self._running.is_here():
            raise OperationNotSupported(
                "a callback runs on the client's loop and cannot wait for a message: call receive in another thread"
            )
        end = None if timeout_millis is None else time.monotonic() + timeout_millis / 1000
        queue = self._receive_queue
        while True:
            if queue.failure is not None:
                raise queue.failure
            taken = take()
            if taken is not None:
                return taken
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise Timeout(f"no message arrived within {timeout_millis} ms")
            if not self._consumer.configuration.receiver_queue_size:
                self._wake(self._consumer.ask_for_one)
            arrival = queue.arrival
            assert isinstance(arrival, threading.Condition)
            with arrival:
                queue.waiting += 1
                try:
                    if not queue.has_more() and queue.failure is None:
                        arrival.wait(left)
                finally:
                    queue.waiting -= 1


class Listener:
    """A thread that hands messages to the application, one at a time, until its consumer ends.

    What cannot be opened is logged and stays unacknowledged.
    """

    def __init__(
        self, topic: str, queue: ReceiveQueue, receive: Callable[[], Message], handle: Callable[[Message], object]
    ) -> None:
        self._topic = topic
        self._receive_queue = queue
        self._receive = receive
        self._handle = handle
        self._going = threading.Event()
        self._going.set()
        self._thread = threading.Thread(target=self._serve, name=f"magnetar-listener {topic}", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Rest after the message that is being handled."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def stop(self) -> None:
        """Wait for the end, after the consumer was closed."""
        self._going.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LISTENER_STOP_TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            try:
                self._going.wait()
                message = self._receive()
                if not self._going.is_set():
                    # Paused while it waited. In the queue the message becomes void when the application seeks.
                    self._receive_queue.put_back([message])
                    continue
            except MagnetarError as error:
                ended = self._receive_queue.failure is not None
                log_missing(self._topic, error, ended=ended)
                if ended:
                    return
                continue
            try:
                self._handle(message)
            except Exception:  # the application's; no caller waits for it
                log_failure(message)
