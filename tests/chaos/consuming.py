"""Consumers and readers of a chaos run, of each kind that there is, each noting what it is given and in which order.

`KIND:TOPIC:NAME` says which: `exclusive`, `shared` and `reader` take one message after the other, `listener` is called
with them, `batch` uses `batch_receive` on a Shared subscription, `cumulative` acknowledges what came before too,
`several` consumes topics joined by `+`. The blocking ones run in a thread each, the asynchronous ones (`exclusive`,
`shared`, `reader`) in coroutines.
"""

import asyncio
import threading
import time
from typing import Any

from .publishing import GAP_MIN_S, place_of

IDLE_S = 8.0
DRAIN_MAX_S = 90.0
_TURN_MS = 1000
_ERRORS_MAX = 100


class Deliveries:
    """What one consumer or reader was given: (key, sequence, place, how often delivered before) each."""

    def __init__(self, specification: str) -> None:
        self.kind, self.topic, self.name = specification.split(":")
        self.log: list[str] = []
        self.errors: list[str] = []
        self._mark = 0
        self._gaps: list[tuple[float, float]] = []
        self._last = time.monotonic()
        self._stop_by: float | None = None

    @property
    def reads(self) -> bool:
        """Whether it is a reader, which has nothing to acknowledge."""
        return self.kind == "reader"

    def take(self, message: Any) -> None:
        now = time.monotonic()
        if now - self._last >= GAP_MIN_S:
            self._gaps.append((self._last, now))
        self._last = now
        key, sequence, _ = message.data().split(b":", 2)
        place = place_of(message.message_id())
        self.log.append(f"{key.decode()} {int(sequence)} {place} {message.redelivery_count()}")

    def mark(self) -> None:
        """Remember how much has come until now."""
        self._mark = len(self.log)

    def fail(self, error: Exception, doing: str = "") -> None:
        """Note an error. Raises it when there were too many."""
        self.errors.append(f"{doing}{error!r}")
        if len(self.errors) > _ERRORS_MAX:
            raise error

    def done(self, stopping: threading.Event) -> bool:
        """Whether it was told to stop, and nothing came for a while."""
        if not stopping.is_set():
            return False
        now = time.monotonic()
        self._stop_by = self._stop_by or now + DRAIN_MAX_S
        return now > min(self._last + IDLE_S, self._stop_by)

    def report(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topics": self.topic.split("+"),
            "name": self.name,
            "log": self.log,
            "mark": self._mark,
            "gaps": self._gaps,
            "errors": self.errors,
        }


def options_of(module: Any, deliveries: Deliveries) -> dict[str, Any]:
    """Arguments of `subscribe`."""
    shared = deliveries.kind in ("shared", "batch")
    return {
        "topic": deliveries.topic.split("+") if deliveries.kind == "several" else deliveries.topic,
        "subscription_name": deliveries.name,
        "consumer_type": module.ConsumerType.Shared if shared else module.ConsumerType.Exclusive,
        "initial_position": module.InitialPosition.Earliest,
    }


class Consumption:
    """One in a thread of its own, by our blocking client or the official one."""

    def __init__(self, module: Any, client: Any, deliveries: Deliveries, stopping: threading.Event) -> None:
        self._module = module
        self._deliveries = deliveries
        self._stopping = stopping
        options: dict[str, Any] = {}
        if deliveries.kind == "listener":
            options["message_listener"] = self._listen
        elif deliveries.kind == "batch":
            options["batch_receive_policy"] = module.ConsumerBatchReceivePolicy(200, 1 << 20, _TURN_MS)
        self._consumer: Any = (
            client.create_reader(deliveries.topic, module.MessageId.earliest)
            if deliveries.reads
            else client.subscribe(**options_of(module, deliveries), **options)
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._deliveries.done(self._stopping):
            try:
                messages = self._receive()
            except self._module.Timeout:
                continue
            except Exception as error:
                self._deliveries.fail(error)
                time.sleep(0.5)
                continue
            for message in messages:
                self._deliveries.take(message)
            self._acknowledge(messages)

    def _receive(self) -> list[Any]:
        match self._deliveries.kind:
            case "reader":
                return [self._consumer.read_next(timeout_millis=_TURN_MS)]
            case "batch":
                return self._consumer.batch_receive()
            case "listener":
                time.sleep(_TURN_MS / 1000)  # its messages go to `_listen`
                return []
            case _:
                return [self._consumer.receive(timeout_millis=_TURN_MS)]

    def _listen(self, consumer: Any, message: Any) -> None:
        self._deliveries.take(message)
        self._consumer = consumer
        self._acknowledge([message])

    def _acknowledge(self, messages: list[Any]) -> None:
        if self._deliveries.reads:
            return
        try:
            for message in messages:
                if self._deliveries.kind == "cumulative":
                    self._consumer.acknowledge_cumulative(message)
                else:
                    self._consumer.acknowledge(message)
        except Exception as error:  # they will be delivered again
            self._deliveries.fail(error, "acknowledging: ")


async def consume_async(
    module: Any, client: Any, deliveries: Deliveries, ready: Any, stopping: threading.Event
) -> None:
    """One coroutine, by our asyncio client or the official one."""
    if deliveries.reads:
        consumer = await client.create_reader(deliveries.topic, module.MessageId.earliest)
        receive = consumer.read_next
    else:
        consumer = await client.subscribe(**options_of(module, deliveries))
        receive = consumer.receive
    ready()
    # A call that was given up may have taken a message with it, so the same one is waited for again.
    waiting: asyncio.Task[Any] | None = None
    while not deliveries.done(stopping):
        waiting = waiting or asyncio.ensure_future(receive())
        await asyncio.wait([waiting], timeout=_TURN_MS / 1000)
        if not waiting.done():
            continue
        try:
            message = waiting.result()
            deliveries.take(message)
        except Exception as error:
            deliveries.fail(error)
            await asyncio.sleep(0.5)
        else:
            await _acknowledge_async(consumer, deliveries, message)
        waiting = None
    if waiting is not None:
        waiting.cancel()


async def _acknowledge_async(consumer: Any, deliveries: Deliveries, message: Any) -> None:
    if not deliveries.reads:
        try:
            await consumer.acknowledge(message)
        except Exception as error:  # it will be delivered again
            deliveries.fail(error, "acknowledging: ")
