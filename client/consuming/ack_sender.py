"""Sending what a consumer acknowledges, positively and negatively, for one topic or partition.

Acknowledgements are collected from any thread with one append each (one for a whole list or batch). They are sent
together: 100 ms after the first, or when 1,000 wait (`ack_group_time_ms`, `ack_group_max`). Negatively acknowledged
entries are asked for again after their delay: one by one on a Shared subscription, all from the first unacknowledged on
otherwise. What could not be sent because there is no connection is sent first thing on the next.

The same queue carries entries that were not delivered (`undelivered`) and those delivered since (`opened`). So the loop
learns of these before it handles any acknowledgement of later messages.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import repeat
from typing import Protocol

from ...protocol.commands import ack, encode
from ...protocol.errors import OperationNotSupported
from ...protocol.message_id import Position
from ...protocol.plain_values import is_list
from ...protocol.pulsar_pb2 import CommandRedeliverUnacknowledgedMessages
from ..core.configuration import ConsumerConfiguration
from ..core.context import Core
from ..core.message_id import MessageId
from .ack_state import Acknowledgements
from .chunk_positions import ChunkPositions
from .message import Message, Opened, Run, run_at

logger = logging.getLogger(__name__)

ENTRIES_PER_COMMAND_MAX = 5_000
"""An acknowledged entry takes up to 25 bytes; commands stay far below the frame limit."""
DAMAGED_DELAY_MIN_S = 1.0
"""A damaged entry is asked for again after `negative_ack_redelivery_delay_ms`, but not before this time,"""
DAMAGED_DELAY_MAX_S = 3600.0
"""after twice the time whenever it comes damaged again, and at least so often."""
DAMAGED_MAX = 1_000
"""Of so many damaged entries it is remembered how often they came."""

_popleft = deque[object].popleft


class Wire(Protocol):
    """A connection, as far as acknowledgements go over it."""

    def write(self, data: bytes) -> None: ...


class AckRoute(Protocol):
    """Where a consumer is registered, as far as acknowledgements have to know."""

    @property
    def connection(self) -> Wire | None: ...
    @property
    def id(self) -> int: ...


class Acknowledging(Protocol):
    """A partition's consumer, as its acknowledgements see it."""

    @property
    def registration(self) -> AckRoute: ...

    def redeliver_all(self) -> None:
        """Have everything unacknowledged delivered again."""
        ...


class _UpTo:
    """Among what the application collected: everything up to a message."""

    __slots__ = ("message_id",)

    def __init__(self, message_id: MessageId) -> None:
        self.message_id = message_id


class _Undelivered:
    """Among what the application collected: an entry that it was not given."""

    __slots__ = ("position",)

    def __init__(self, position: Position) -> None:
        self.position = position


class _Opened:
    """Among what the application collected: an entry whose messages it is given."""

    __slots__ = ("position",)

    def __init__(self, position: Position) -> None:
        self.position = position


class ConsumerAcks:
    """See the module. `acknowledge` and `negative_acknowledge` may be called from any thread."""

    def __init__(self, core: Core, configuration: ConsumerConfiguration, consumer: Acknowledging) -> None:
        self._core = core
        self._consumer = consumer
        self._group_s = configuration.ack_group_time_ms / 1000
        self._group_max = configuration.ack_group_max
        self._negative_delay_s = configuration.negative_ack_redelivery_delay_ms / 1000
        self._one_by_one = not configuration.consumer_type.keeps_order
        self._state = Acknowledgements()
        self._collected: deque[object] = deque()
        """In the order of calls: messages, ids, lists of both, opened batches, `_UpTo`, `_Undelivered`, `_Opened`."""
        self._listed = 0
        """About how many are in the lists; what counts when the loop is told to hurry."""
        self._told = False
        self._timer: asyncio.TimerHandle | None = None
        self._notes_opened = False
        """Whether there ever was an entry since the last seek that could not be opened."""
        self._negative: dict[Position, float] = {}
        """When to ask for entries again."""
        self._due: list[tuple[float, Position]] = []
        """The same as a heap, with some that were withdrawn."""
        self._negative_timer: asyncio.TimerHandle | None = None
        self.on_negative_sent: Callable[[Sequence[Position]], None] | None = None
        """Called when entries that were negatively acknowledged are asked for again."""
        self._damaged: dict[Position, int] = {}
        """How often entries came damaged."""
        self.chunked = ChunkPositions()

    # ---- From the application, any thread ----

    def acknowledge(self, message: Message | MessageId) -> None:
        """One message is done."""
        self._collected.append(message)
        if not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer)
        elif len(self._collected) == self._group_max:
            self._core.handover.wake(self.flush)

    def acknowledge_many(self, messages: list[Message] | list[Message | MessageId] | Opened) -> None:
        """All these messages are done. A list is kept."""
        self._collected.append(messages)
        self._listed += len(messages)
        if self._listed >= self._group_max:
            self._listed = 0
            self._core.handover.wake(self.flush)
        elif not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Everything up to this message is done."""
        self._collected.append(_UpTo(message_id))
        if not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer)
        elif len(self._collected) == self._group_max:
            self._core.handover.wake(self.flush)

    def negative_acknowledge(self, message_id: MessageId) -> None:
        """The message failed: deliver it again after the delay."""
        self._core.handover.wake(self.redeliver_later, self.chunked.of(message_id))

    # ---- From the receive queue, under its lock, any thread ----

    def undelivered(self, position: Position, *, damaged: bool) -> None:
        """The application is about to be told that it cannot have this entry. A `damaged` one is asked for again."""
        self._notes_opened = True
        self._collected.append(_Undelivered(position))
        if damaged:
            self._core.handover.wake(self._ask_again, position)

    def opened(self, position: Position) -> None:
        """The application is about to be given the messages of this entry; for subscriptions that keep an order."""
        if self._notes_opened:
            self._collected.append(_Opened(position))
            if len(self._collected) == self._group_max:
                self._core.handover.wake(self.flush)

    # ---- On the loop ----

    def received(self, position: Position) -> None:
        """An entry came."""
        self._state.received(position)

    def acknowledge_entry(self, position: Position) -> None:
        """A whole entry is done."""
        self._collected.append(MessageId(-1, *position))
        self._start_timer()

    def redeliver_later(self, positions: Sequence[Position]) -> None:
        """Ask for these entries again after the delay of negative acknowledgements."""
        self._redeliver_in(positions, self._negative_delay_s)

    def subscribed(self) -> None:
        """There is a new subscription: the broker delivers everything unacknowledged anyway."""
        self._forget_negative()
        self.flush()
        self._state.forget_sent()

    def reset(self) -> None:
        """The application seeks: forget everything."""
        self._collected.clear()
        self._state.reset()
        self._forget_negative()
        self._damaged.clear()
        self.chunked.clear()
        self._notes_opened = False

    def flush(self) -> None:
        """Send everything that is complete."""
        self._stop_timer()
        self._told = False  # before draining: what is appended from here on tells the loop again
        self._drain()
        connection = self._consumer.registration.connection
        if connection is None or not self._state:
            return
        cumulative, complete = self._state.take()
        consumer_id = self._consumer.registration.id
        if cumulative is not None:
            connection.write(ack(consumer_id, [cumulative], cumulative=True))
        for start in range(0, len(complete), ENTRIES_PER_COMMAND_MAX):
            connection.write(ack(consumer_id, complete[start : start + ENTRIES_PER_COMMAND_MAX]))

    def close(self) -> None:
        """Send what waits; nothing is sent afterwards."""
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Send no more acknowledgements."""
        self._stop_timer()
        if self._negative_timer is not None:
            self._negative_timer.cancel()

    def send_redelivery(self, positions: Sequence[Position], epoch: int | None = None) -> None:
        """Ask for entries again; for all if none is named. What is sent again carries `epoch` (PIP 84)."""
        connection = self._consumer.registration.connection
        if connection is None:
            return
        if not positions:
            self._forget_negative()
        for start in range(0, len(positions) or 1, ENTRIES_PER_COMMAND_MAX):
            command = CommandRedeliverUnacknowledgedMessages(
                consumer_id=self._consumer.registration.id,
                message_ids=[
                    MessageId(-1, *position).to_wire()
                    for position in positions[start : start + ENTRIES_PER_COMMAND_MAX]
                ],
            )
            if epoch is not None:
                command.consumer_epoch = epoch
            connection.write(encode(command))

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._core.loop.call_later(self._group_s, self.flush)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drain(self) -> None:
        """Work off what the application collected."""
        collected = self._collected
        self._work_off([*map(_popleft, repeat(collected, len(collected)))])

    def _work_off(self, items: Sequence[object]) -> None:
        """Work off a part of it: runs of messages of one entry at once."""
        start, end = 0, len(items)
        while start < end:
            run = run_at(items, start)
            if run is not None:
                self._finish_run(run)
                start += run.end - run.first
                continue
            item = items[start]
            start += 1
            if isinstance(item, Message):
                self._finish(item.message_id())
            elif isinstance(item, MessageId):
                self._finish(item)
            elif isinstance(item, Opened):
                self._finish_run(item.run)
            elif is_list(item):
                self._work_off(item)
            else:
                assert isinstance(item, _UpTo | _Undelivered | _Opened)
                self._note(item)

    def _finish(self, message_id: MessageId) -> None:
        try:
            position = self._state.acknowledge(message_id)
        except OperationNotSupported as error:
            logger.error("an acknowledgement failed: %s", error)
        else:
            if position is not None:
                self._negative.pop(position, None)
                if self.chunked or type(message_id) is not MessageId:
                    for chunk in self.chunked.done(message_id):
                        self._state.acknowledge(MessageId(-1, *chunk))
                        self._negative.pop(chunk, None)

    def _note(self, item: _UpTo | _Undelivered | _Opened) -> None:
        if isinstance(item, _UpTo):
            self._finish_up_to(item.message_id)
        elif isinstance(item, _Opened):
            self._state.opened(item.position)
            self._damaged.pop(item.position, None)
        elif not self._one_by_one:
            self._state.undelivered(item.position)

    def _finish_run(self, run: Run) -> None:
        entry, first, end = run
        position = entry.position
        if self._state.acknowledge_run(position, entry.count, (1 << end) - (1 << first)):
            self._negative.pop(position, None)

    def _finish_up_to(self, message_id: MessageId) -> None:
        if self.chunked:
            # Chunks count as undelivered, so that they are spared; those of messages that end before are done.
            for chunk in self.chunked.done_up_to(message_id.position, self._state.is_undelivered):
                self._state.acknowledge(MessageId(-1, *chunk))
        self._state.acknowledge_cumulative(message_id)
        position = message_id.position
        if self._negative:
            kept = self._state.is_undelivered
            self._negative = {other: due for other, due in self._negative.items() if other > position or kept(other)}

    def _ask_again(self, position: Position) -> None:
        """An entry came damaged: it may be whole the next time. Each time the pause is twice as long."""
        times = self._damaged.pop(position, 0)
        self._damaged[position] = times + 1
        if len(self._damaged) > DAMAGED_MAX:
            del self._damaged[next(iter(self._damaged))]
        delay_s = max(self._negative_delay_s, DAMAGED_DELAY_MIN_S) * 2 ** min(times, 16)
        self._redeliver_in([position], min(delay_s, max(self._negative_delay_s, DAMAGED_DELAY_MAX_S)))

    def _redeliver_in(self, positions: Sequence[Position], delay_s: float) -> None:
        due = self._core.loop.time() + delay_s
        for position in positions:
            if position not in self._negative:
                self._negative[position] = due
                heappush(self._due, (due, position))
        self._set_negative_timer()

    def _forget_negative(self) -> None:
        self._negative.clear()
        self._due.clear()

    def _set_negative_timer(self) -> None:
        """Have `_redeliver_due` called when the first is due."""
        while self._due and self._negative.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)  # withdrawn
        timer = self._negative_timer
        if not self._due or (timer is not None and timer.when() <= self._due[0][0]):
            return
        if timer is not None:
            timer.cancel()
        self._negative_timer = self._core.loop.call_at(self._due[0][0], self._redeliver_due)

    def _redeliver_due(self) -> None:
        self._negative_timer = None
        self.flush()  # an acknowledgement that waits may have overtaken a negative one
        now = self._core.loop.time()
        due: list[Position] = []
        while self._due and self._due[0][0] <= now:
            when, position = heappop(self._due)
            if self._negative.get(position) == when:
                del self._negative[position]
                due.append(position)
        if due:
            if self.on_negative_sent is not None:
                self.on_negative_sent(due)
            if self._one_by_one:
                self.send_redelivery(due)
            else:
                self._consumer.redeliver_all()
        self._set_negative_timer()
