"""One worker of `magnetar.consume`: a Ray actor with a consumer of its own, which calls the function.

States: MAKING (the user's class is constructed, the consumer subscribes) → RUNNING → ENDED. `stop` ends any of them. A
call that runs then is finished, and its messages are settled. A process that is killed ends without a word: the broker
sees that its connection is gone, and gives what is not acknowledged to another worker.

What becomes of the messages of a call:

- The call returns: they are acknowledged.
- It raises, and `max_redeliver_count` allows another attempt: without order of keys they are negatively acknowledged,
  so any worker may get them after the back-off. With order of keys the same worker waits for the back-off and calls
  again. Meanwhile it hands out nothing else, so no later message of a key passes an earlier one.
- It raises in the last attempt: copies are stored in the dead letter topic, then the messages are acknowledged. If a
  copy cannot be stored, its message waits for the back-off as after any other failure.
- Its process dies: the pool reads which messages those were from the `handling_note`, and tells all workers how often
  each was being handled when a worker died. That counts as a delivery. Such a message is handled alone, so that it is
  blamed alone if it kills another worker. One that came too often becomes a dead letter without a call.

Invariants:

- One call runs at a time. What waits behind it is bounded by the receiver queue, whose permits the broker counts. Half
  as many, up to `TAKEN_MAX`, were taken from it. `look_ahead` says how large the queue is, unless the caller does.
- A message is acknowledged only behind a call that returned, or behind its copy in the dead letter topic.
- The function does not run on the loop unless it is a coroutine function (`call_thread`). So the worker answers
  `figures` and `stop` while it runs, and its connection stays alive.
"""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from ..client.aio.client import AsyncClient
from ..client.aio.consumer import AsyncConsumer, acknowledge_now, give_up, resize_receiver_queue
from ..client.consuming.message import Message
from ..client.core.configuration import (
    ConsumerBatchReceivePolicy,
    ConsumerConfiguration,
    ConsumerDeadLetterPolicy,
    ConsumerType,
)
from ..client.core.redelivery_backoff import RedeliveryBackoff
from ..protocol.errors import MagnetarError
from ..runtime.ray_calls import own_node_id
from .call_thread import CallThread
from .handling_note import HandlingNote, MessagePlace, place_of
from .look_ahead import LookAhead

logger = logging.getLogger(__name__)

T = TypeVar("T")

ACK_GROUP_TIME_MS = 20
"""What a killed process has handled in this time comes again."""
ERROR_TEXT_MAX = 500
"""Characters of an error in the figures."""
FUNCTION_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What a function may raise: also one that was a program once."""
TAKEN_MAX = 50
"""Messages that are taken from the receiver queue at once. Their values are decoded before the first call."""
REASON = "DEAD_LETTER_REASON"
"""The property of a dead letter that says why it is one, where it is not an error of the function."""
WORKER_DIED = "its worker died"


@dataclass(frozen=True)
class WorkOrder:
    """What all workers of one pool do. Ray pickles it to them."""

    topic: str
    subscription: str
    fn: Callable[..., object]
    constructor_args: tuple[object, ...]
    constructor_kwargs: Mapping[str, object]
    key_ordered: bool
    schema: object
    batch_size: int | None
    batch_wait_ms: int
    receiver_queue_size: int | None
    """None where the duration of the calls decides (`look_ahead`)."""
    backoff: RedeliveryBackoff
    dead_letters: ConsumerDeadLetterPolicy | None
    service_url: str | None
    more: Mapping[str, object]
    """Other options of the consumer."""

    def consumer_options(self, consumer_name: str) -> dict[str, Any]:
        """The arguments of `subscribe`."""
        count = self.batch_size or 1
        size = max(self.receiver_queue_size or 1, count)
        return {
            **self.more,
            "topic": self.topic,
            "subscription_name": self.subscription,
            "consumer_type": ConsumerType.KeyShared if self.key_ordered else ConsumerType.Shared,
            "schema": self.schema,
            "consumer_name": consumer_name,
            "receiver_queue_size": size,
            "max_total_receiver_queue_size_across_partitions": size,
            "batch_receive_policy": ConsumerBatchReceivePolicy(count, -1, self.batch_wait_ms),
            "negative_ack_redelivery_backoff": self.backoff,
            "dead_letter_policy": self.dead_letters,
            "batch_index_ack_enabled": True,
            "ack_group_time_ms": ACK_GROUP_TIME_MS,
        }

    def check(self) -> None:
        """Raise InvalidConfiguration, OperationNotSupported, InvalidTopicName, TypeError for what no consumer takes."""
        ConsumerConfiguration.of(self.consumer_options("worker"))


class WorkerFigures(NamedTuple):
    """What a worker has done."""

    is_ready: bool = False
    """Whether it has subscribed."""
    done: int = 0
    failed: int = 0
    dead_lettered: int = 0
    busy_s: float = 0.0
    """How long its calls ran."""
    entries: float = 0.0
    """How much of the backlog its calls were: a message of a batch counts as its share of the batch."""
    last_error: str = ""
    node_id: str = ""
    """Ray's id of the node where its note lies."""
    note_path: str = ""
    """Where it notes what it handles. Empty without dead letters, for which that counts."""


class _Call:
    """One call of the function."""

    __slots__ = ("argument", "duration_s", "messages")

    def __init__(self, messages: Sequence[Message], argument: object) -> None:
        self.messages = messages
        self.argument = argument
        self.duration_s = 0.0


class ConsumeWorker:
    """The actor. See the module."""

    def __init__(self, order: WorkOrder, name: str, deaths: Mapping[MessagePlace, int]) -> None:
        """`deaths` says how often messages were being handled when their worker died."""
        self._order = order
        self._name = name
        self._deaths = deaths
        self._note = None if order.dead_letters is None else HandlingNote(name)
        self._function: Callable[[object], object] = order.fn
        """The user's function, or later an object of the user's class."""
        self._on_loop = _is_coroutine_function(order.fn)
        self._thread = CallThread(self._make, self._returned)
        self._look_ahead = LookAhead(order.batch_size or 1)
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[object] | None = None
        """The task of `run`."""
        self._is_interruptible = False
        """Whether `run` waits for something that `stop` ends."""
        self._consumer: AsyncConsumer | None = None
        self._acks_sent_s = 0.0
        """When acknowledgements were sent at once."""
        self._figures = WorkerFigures()
        """But for what each call changes, which stands in the next three."""
        self._done = 0
        self._busy_s = 0.0
        self._entries = 0.0
        if self._note is not None:
            self._figures = WorkerFigures(node_id=own_node_id(), note_path=str(self._note.path))

    async def run(self) -> WorkerFigures:
        """Work until `stop`. Raises what the user's constructor raises, and why the subscription ended."""
        self._running = asyncio.current_task()
        client = AsyncClient(self._order.service_url)
        try:
            if await self._unless_stopped(self._begin(client)):
                while messages := await self._unless_stopped(self._receive()):
                    await self._work_off(self._parts(messages))
            return self._now()
        finally:
            self._thread.close()
            if self._note is not None:
                self._note.close()
            await client.close()

    async def stop(self) -> None:
        """Finish the call that runs, and end."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.stop()
        if self._is_interruptible:
            self._task().cancel()

    async def know_deaths(self, deaths: Mapping[MessagePlace, int]) -> None:
        """How often messages were being handled when their worker died, from now on."""
        self._deaths = deaths

    async def figures(self) -> WorkerFigures:
        """What it has done until now."""
        return self._now()

    def _now(self) -> WorkerFigures:
        """The figures, with the dead letters that the client itself moved: messages that came too often."""
        letters = None if self._consumer is None else self._consumer.get_stats().dead_letter_producer_stats
        return self._figures._replace(
            done=self._done,
            busy_s=self._busy_s,
            entries=self._entries,
            dead_lettered=0 if letters is None else letters.total_acks_received,
        )

    async def _unless_stopped(self, work: Coroutine[object, object, T]) -> T | None:
        """What the work gives, or None when the worker shall stop: then the work is cancelled."""
        if self._stopping.is_set():
            work.close()
            return None
        self._is_interruptible = True
        try:
            given = await work
        except asyncio.CancelledError:
            if not self._stopping.is_set() or self._task().uncancel():
                raise
            return None
        finally:
            self._is_interruptible = False
        return given

    def _task(self) -> asyncio.Task[object]:
        assert self._running is not None
        return self._running

    async def _begin(self, client: AsyncClient) -> bool:
        await self._construct()
        self._consumer = await client.subscribe(**self._order.consumer_options(self._name))
        self._figures = self._figures._replace(is_ready=True)
        return True

    async def _construct(self) -> None:
        """Make the user's object, where the function is a class. Raises what its constructor raises."""
        order, kind = self._order, self._order.fn
        if not inspect.isclass(kind):
            return

        def construct() -> Any:
            return kind(*order.constructor_args, **order.constructor_kwargs)

        # The constructor of an async class may need the loop, as in an actor of Ray.
        self._function = construct() if self._on_loop else await self._thread.work(construct)

    def _opened(self) -> AsyncConsumer:
        assert self._consumer is not None
        return self._consumer

    # -- messages ----------------------------------------------------------------------------------------------------

    async def _receive(self) -> Sequence[Message]:
        """The next messages. One that cannot be opened stays unacknowledged, is reported, and left out."""
        consumer = self._opened()
        while True:
            try:
                if self._order.batch_size is None:
                    size = self._order.receiver_queue_size or self._look_ahead.size
                    return [*await consumer.receive_many(min((size + 1) // 2, TAKEN_MAX))]
                if messages := await consumer.batch_receive():
                    return messages
            except MagnetarError as error:
                if "entry_id" not in error.details:  # the subscription has ended
                    raise
                self._failed(1, error)

    def _parts(self, messages: Sequence[Message]) -> deque[Sequence[Message]]:
        """The messages of each call, in order. One during which a worker died is handled alone."""
        if self._order.batch_size is None:
            return deque([one] for one in messages)
        if not self._deaths:
            return deque([messages])
        parts: deque[list[Message]] = deque()
        for message in messages:
            if parts and not self._died(message) and not self._died(parts[-1][0]):
                parts[-1].append(message)
            else:
                parts.append([message])
        return deque(parts)

    def _died(self, message: Message) -> int:
        """How often a worker died while it handled this message."""
        return self._deaths.get(place_of(message), 0) if self._deaths else 0

    async def _work_off(self, parts: deque[Sequence[Message]]) -> None:
        """Call with each part, until all are settled: acknowledged, dead letters, or given back. Or until `stop`."""
        while parts and not self._stopping.is_set():
            died = self._died(parts[0][0])
            if died and self._is_last(parts[0][0].redelivery_count() + died - 1):
                await self._bury(parts.popleft(), {REASON: WORKER_DIED})
                continue
            first = [*takewhile(lambda part: not self._died(part[0]), parts)] or [parts[0]]
            returned, error = await self._call_with(first)
            for _ in range(returned):
                parts.popleft()
            if error is not None:
                await self._after_error(parts.popleft(), error, died)

    async def _after_error(self, messages: Sequence[Message], error: BaseException, died: int) -> None:
        """Give the messages back. With order of keys, call until they are settled, or until `stop`."""
        attempt = 0
        failed: BaseException | None = error
        while failed is not None:
            self._failed(len(messages), failed)
            if not self._order.key_ordered:
                for message in messages:
                    await self._settle_failed(message)
                return
            if self._is_last(min(one.redelivery_count() for one in messages) + died + attempt):
                await self._bury(messages)
                return
            if not await self._pause(attempt):
                return
            attempt += 1
            _, failed = await self._call_with([messages])

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _call_with(self, parts: Sequence[Sequence[Message]]) -> tuple[int, BaseException | None]:
        """Call with one part after the other, and acknowledge those whose call returns.

        Returns how many that were, perhaps before the last one, and what the call with the next one raised.
        """
        calls: list[_Call] = []
        for messages in parts:
            try:
                values = [one if self._order.schema is None else one.value() for one in messages]
            except Exception as error:
                if not calls:
                    return 0, error
                break  # the others first
            calls.append(_Call(messages, values[0] if self._order.batch_size is None else values))
            if self._on_loop:
                break
        returned, given = (0, None) if self._on_loop else await self._thread.run(calls)
        if isinstance(given, BaseException):
            self._count([calls[returned]])
            return returned, given
        if self._on_loop or given is not None:
            error = await self._await_call(calls[returned], given)
            if error is not None:
                return returned, error
            returned += 1
        await self._opened().acknowledge_many(())  # waits for the receipts, if there are any
        return returned, None

    def _make(self, call: _Call) -> object:
        """One call, in the thread."""
        if self._note is not None:
            self._note.begin(call.messages)
        began_s = time.monotonic()
        try:
            return self._function(call.argument)
        finally:
            call.duration_s = time.monotonic() - began_s
            if self._note is not None:
                self._note.end()

    async def _await_call(self, call: _Call, given: object) -> BaseException | None:
        """On the loop: a call of a coroutine function, or what a plain function gave to be awaited."""
        if self._note is not None:
            self._note.begin(call.messages)
        began_s = time.monotonic()
        try:
            given = self._function(call.argument) if given is None else given
            if inspect.isawaitable(given):
                await given
        except asyncio.CancelledError as error:
            if self._task().cancelling():
                raise
            failed: BaseException | None = error  # the function's own
        except FUNCTION_ERRORS as error:
            failed = error
        else:
            failed = None
        finally:
            call.duration_s += time.monotonic() - began_s
            if self._note is not None:
                self._note.end()
        if failed is None:
            self._returned([call])
        else:
            self._count([call])
        return failed

    def _returned(self, calls: Sequence[_Call]) -> None:
        """Acknowledge the messages of calls that have returned."""
        # Now and then at once: the timer of the consumer would take a turn from the function that runs then.
        now_s = time.monotonic()
        at_once = now_s >= self._acks_sent_s + ACK_GROUP_TIME_MS / 1000
        if at_once:
            self._acks_sent_s = now_s
        acknowledge_now(self._opened(), [message for call in calls for message in call.messages], at_once=at_once)
        self._done += sum(len(call.messages) for call in calls)
        self._count(calls)

    def _count(self, calls: Sequence[_Call]) -> None:
        """Calls have ended, in whatever way."""
        for call in calls:
            self._busy_s += call.duration_s
            self._entries += sum(1 / max(1, one.message_id().batch_size()) for one in call.messages)
            if self._order.receiver_queue_size is None and self._look_ahead.called(call.duration_s, len(call.messages)):
                resize_receiver_queue(self._opened(), self._look_ahead.size)

    async def _settle_failed(self, message: Message) -> None:
        consumer = self._opened()
        if self._is_last(message.redelivery_count() + self._died(message)):
            try:
                await give_up(consumer, message)
                return
            except MagnetarError as error:
                self._not_stored(error)
        await consumer.negative_acknowledge(message)

    async def _bury(self, messages: Sequence[Message], properties: Mapping[str, str] | None = None) -> None:
        """Dead letters in order. What is not stored is tried again, because what follows must not pass it."""
        for message in messages:
            attempt = 0
            while True:
                try:
                    await give_up(self._opened(), message, properties)
                    break
                except MagnetarError as error:
                    self._not_stored(error)
                if not await self._pause(attempt):
                    return
                attempt += 1

    def _is_last(self, attempts_before: int) -> bool:
        policy = self._order.dead_letters
        return policy is not None and attempts_before >= policy.max_redeliver_count

    async def _pause(self, attempt: int) -> bool:
        """Wait for the back-off. Returns whether to go on: not when the worker shall stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._order.backoff.next(attempt) / 1000):
                await self._stopping.wait()
        return not self._stopping.is_set()

    def _failed(self, count: int, error: BaseException) -> None:
        logger.warning("%s: %d messages failed", self._name, count, exc_info=error)
        text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
        self._figures = self._figures._replace(failed=self._figures.failed + count, last_error=text)

    def _not_stored(self, error: MagnetarError) -> None:
        logger.warning("%s: a dead letter could not be stored, and is tried again: %s", self._name, error)
        self._figures = self._figures._replace(last_error=f"dead letter not stored: {error}"[:ERROR_TEXT_MAX])


def _is_coroutine_function(fn: Callable[..., object]) -> bool:
    """Whether a call of it, or of an object of this class, gives a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
