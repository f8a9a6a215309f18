"""Sending what a consumer acknowledges, positively and negatively, for one topic or partition.

Acknowledgements are collected from any thread with one append each and go out together: 100 ms after the first, or
when 1,000 wait (`ack_group_time_ms`, `ack_group_max`). Negatively acknowledged entries are asked for again after their
delay: one by one on a Shared subscription, all from the first unacknowledged on otherwise. What could not be sent
because there is no connection is sent first thing on the next.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from ..protocol.commands import ack, encode
from ..protocol.errors import OperationNotSupported
from ..protocol.pulsar_pb2 import CommandRedeliverUnacknowledgedMessages
from .acknowledgements import Acknowledgements, Position
from .configuration import ConsumerConfiguration, ConsumerType
from .core import Core
from .message import Message
from .message_id import MessageId

logger = logging.getLogger(__name__)

ENTRIES_PER_COMMAND_MAX = 5_000
"""An acknowledged entry takes up to 25 bytes; commands stay far below the frame limit."""


class Wire(Protocol):
    """A connection, as far as acknowledgements go over it."""

    def write(self, data: bytes) -> None: ...


class Acknowledging(Protocol):
    """A partition's consumer, as its acknowledgements see it."""

    consumer_id: int

    @property
    def connection(self) -> Wire | None: ...

    def redeliver_all(self) -> None:
        """Have everything unacknowledged delivered again."""
        ...


class _UpTo:
    """Among what the application collected: everything up to a message."""

    __slots__ = ("message_id",)

    def __init__(self, message_id: MessageId) -> None:
        self.message_id = message_id


class ConsumerAcks:
    """See the module. `acknowledge` and `negative_acknowledge` may be called from any thread."""

    def __init__(self, core: Core, configuration: ConsumerConfiguration, consumer: Acknowledging) -> None:
        self._core = core
        self._consumer = consumer
        self._group_s = configuration.ack_group_time_ms / 1000
        self._group_max = configuration.ack_group_max
        self._negative_delay_s = configuration.negative_ack_redelivery_delay_ms / 1000
        self._one_by_one = configuration.consumer_type is ConsumerType.Shared
        self._state = Acknowledgements()
        self._collected: deque[Message | MessageId | _UpTo] = deque()
        self._told = False
        self._timer: asyncio.TimerHandle | None = None
        self._negative: dict[Position, float] = {}
        self._negative_timer: asyncio.TimerHandle | None = None

    # ---- From the application, any thread ----

    def acknowledge(self, message: Message | MessageId) -> None:
        """One message is done."""
        self._collected.append(message)
        if not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer)
        elif len(self._collected) == self._group_max:
            self._core.handover.wake(self.flush)

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """All these messages are done."""
        self._collected.extend(messages)
        if len(self._collected) >= self._group_max:
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
        self._core.handover.wake(self._negative_acknowledge, message_id.position)

    # ---- On the loop ----

    def received(self, position: Position) -> None:
        """An entry came."""
        self._state.received(position)

    def acknowledge_entry(self, position: Position) -> None:
        """A whole entry is done."""
        self._collected.append(MessageId(-1, *position))
        self._start_timer()

    def subscribed(self) -> None:
        """There is a new subscription: the broker delivers everything unacknowledged anyway."""
        self._negative.clear()
        self.flush()
        self._state.forget_sent()

    def reset(self) -> None:
        """The application seeks: forget everything."""
        self._collected.clear()
        self._state.reset()
        self._negative.clear()

    def flush(self) -> None:
        """Send everything that is complete."""
        self._stop_timer()
        self._told = False  # before draining: what is appended from here on tells the loop again
        self._drain()
        connection = self._consumer.connection
        if connection is None or not self._state:
            return
        cumulative, complete = self._state.take()
        consumer_id = self._consumer.consumer_id
        if cumulative is not None:
            connection.write(ack(consumer_id, [cumulative], cumulative=True))
        for start in range(0, len(complete), ENTRIES_PER_COMMAND_MAX):
            connection.write(ack(consumer_id, complete[start : start + ENTRIES_PER_COMMAND_MAX]))

    def close(self) -> None:
        """Send what waits; nothing is sent afterwards."""
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Send nothing any more."""
        self._stop_timer()
        if self._negative_timer is not None:
            self._negative_timer.cancel()

    def send_redelivery(self, positions: Sequence[Position], epoch: int | None = None) -> None:
        """Ask for entries again; for all if none is named. What is sent again carries `epoch` (PIP 84)."""
        connection = self._consumer.connection
        if connection is None:
            return
        if not positions:
            self._negative.clear()
        for start in range(0, len(positions) or 1, ENTRIES_PER_COMMAND_MAX):
            command = CommandRedeliverUnacknowledgedMessages(
                consumer_id=self._consumer.consumer_id,
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
        """Work off what the application collected: runs of messages of one entry at once."""
        collected, state = self._collected, self._state
        run: list[int] = []
        run_position: Position | None = None
        run_size = 0
        while collected:
            item = collected.popleft()
            if isinstance(item, _UpTo):
                if run_position is not None:
                    self._finish_run(run_position, run_size, run)
                    run_position = None
                self._finish_up_to(item.message_id)
                continue
            ledger_id, entry_id, index, _, size = item.message_id() if isinstance(item, Message) else item
            position = (ledger_id, entry_id)
            if position == run_position and 0 <= index < size == run_size:
                run.append(index)
                continue
            if run_position is not None:
                self._finish_run(run_position, run_size, run)
                run_position = None
            if 0 <= index < size:
                run_position, run_size, run = position, size, [index]
                continue
            try:
                state.acknowledge(MessageId(-1, ledger_id, entry_id, index, size))
            except OperationNotSupported as error:
                logger.error("not acknowledged: %s", error)
            else:
                self._negative.pop(position, None)
        if run_position is not None:
            self._finish_run(run_position, run_size, run)

    def _finish_run(self, position: Position, size: int, indexes: list[int]) -> None:
        if self._state.acknowledge_run(position, size, indexes):
            self._negative.pop(position, None)

    def _finish_up_to(self, message_id: MessageId) -> None:
        self._state.acknowledge_cumulative(message_id)
        position = message_id.position
        if self._negative:
            self._negative = {other: due for other, due in self._negative.items() if other > position}

    def _negative_acknowledge(self, position: Position) -> None:
        loop = self._core.loop
        if position not in self._negative:
            self._negative[position] = loop.time() + self._negative_delay_s
        if self._negative_timer is None:
            self._negative_timer = loop.call_later(self._negative_delay_s, self._redeliver_due)

    def _redeliver_due(self) -> None:
        self._negative_timer = None
        self.flush()  # an acknowledgement that waits may have overtaken a negative one
        now = self._core.loop.time()
        due: list[Position] = []
        for position, when in self._negative.items():  # in the order of their times: the delay is one for all
            if when > now:
                break
            due.append(position)
        for position in due:
            del self._negative[position]
        if due:
            if self._one_by_one:
                self.send_redelivery(due)
            else:
                self._consumer.redeliver_all()
        if self._negative:
            first = next(iter(self._negative.values()))
            self._negative_timer = self._core.loop.call_at(first, self._redeliver_due)
