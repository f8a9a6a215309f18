"""Sending what a consumer acknowledges, positively and negatively, for one topic or partition.

Acknowledgements are collected from any thread with one append each (one for a whole list or batch). They are sent
together: 100 ms after the first, or when 1,000 wait (`ack_group_time_ms`, `ack_group_max`). Negatively acknowledged
entries are asked for again after their delay (`negative_acks`), unacknowledged ones after the time-out, if there is one
(`ack_timeout`): one by one on a Shared subscription, all from the first unacknowledged on otherwise. What could not be
sent because there is no connection is sent first thing on the next.

The same queue carries entries that were not delivered (`undelivered`), those delivered since (`opened`), and with a
time-out all that are delivered (`given`). So the loop learns of these before it handles any acknowledgement of their
messages, or of later ones.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from ...protocol.commands import ack, encode
from ...protocol.errors import OperationNotSupported
from ...protocol.message_id import Position
from ...protocol.plain_values import is_list
from ...protocol.pulsar_pb2 import CommandRedeliverUnacknowledgedMessages
from ..acknowledging.ack_receipts import AckedPart, AckReceipts
from ..acknowledging.ack_state import Acknowledgements
from ..acknowledging.ack_timeout import AckTimeouts, UnackedTracker
from ..acknowledging.chunk_positions import ChunkPositions
from ..acknowledging.negative_acks import NegativeAcks
from ..core.configuration import ConsumerConfiguration
from ..core.connection import ClientConnection
from ..core.context import Core
from ..core.message_id import MessageId
from .message import Message, Opened, ReceivedEntry, Run
from .messages import run_at

if TYPE_CHECKING:
    from .partition_consumer import PartitionConsumer

logger = logging.getLogger(__name__)

ENTRIES_PER_COMMAND_MAX = 5_000
"""An acknowledged entry takes up to 25 bytes; commands stay far below the frame limit."""

PARTS_PER_COMMAND_MAX = 500
"""A part of a batch of 1,000 messages takes up to 190 bytes."""

_popleft = deque[object].popleft


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


class _Given:
    """Among what the application collected: an entry that the acknowledgement time-out begins for."""

    __slots__ = ("position", "redelivery_count")

    def __init__(self, position: Position, redelivery_count: int) -> None:
        self.position = position
        self.redelivery_count = redelivery_count


class _Opened:
    """Among what the application collected: an entry whose messages it is given."""

    __slots__ = ("position",)

    def __init__(self, position: Position) -> None:
        self.position = position


class ConsumerAcks:
    """See the module. `acknowledge` and `negative_acknowledge` may be called from any thread."""

    def __init__(self, core: Core, configuration: ConsumerConfiguration, consumer: "PartitionConsumer") -> None:
        self._core = core
        self._consumer = consumer
        self._group_s = configuration.ack_group_time_ms / 1000
        self._group_max = configuration.ack_group_max
        self._one_by_one = not configuration.consumer_type.keeps_order
        self._state = Acknowledgements(configuration.batch_index_ack_enabled)
        self.received = self._state.received
        """Called with the position of each entry that comes."""
        self._collected: deque[object] = deque()
        """In the order of calls: messages, ids, lists of both, opened batches, `_UpTo`, `_Undelivered`, `_Opened`."""
        self._listed = 0
        """About how many are in the lists; what counts when the loop is told to hurry."""
        self.acked = 0
        """Messages that were acknowledged, and cumulative acknowledgements."""
        self.refused = 0
        """Acknowledgements by an id that cannot be acknowledged."""
        self._told = False
        self._timer: asyncio.TimerHandle | None = None
        self.notes_opened = False
        """Whether there ever was an entry since the last seek that could not be opened."""
        self._negative = NegativeAcks(
            core.loop,
            configuration.negative_ack_redelivery_delay_ms / 1000,
            configuration.negative_ack_redelivery_backoff,
            self.flush,
            lambda due: self._ask_for(due, self.on_negative_sent),
        )
        self.on_negative_sent: Callable[[Sequence[Position]], None] | None = None
        """Called when entries that were negatively acknowledged are asked for again."""
        self.chunked = ChunkPositions()
        self.on_timeout_sent: Callable[[Sequence[Position]], None] | None = None
        """Called when entries that were not acknowledged in time are asked for again."""
        self.timeouts: AckTimeouts | None = None
        """None without an acknowledgement time-out."""
        if configuration.unacked_messages_timeout_ms:
            tracker = UnackedTracker(
                configuration.unacked_messages_timeout_ms / 1000,
                configuration.ack_timeout_tick_time_ms / 1000,
                configuration.ack_timeout_redelivery_backoff,
            )
            self.timeouts = AckTimeouts(
                core.loop, tracker, self.flush, lambda due: self._ask_for(due, self.on_timeout_sent)
            )
        self.receipts: AckReceipts | None = None
        """None unless calls that acknowledge wait for the broker's answer."""
        if configuration.ack_receipt_enabled:
            self.receipts = AckReceipts(core, consumer.registration, self.flush, lambda: bool(self._state))

    # ---- From the application, any thread ----

    def acknowledge(self, message: Message | MessageId) -> None:
        self._collected.append(message)
        if not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer_if_told)
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
            self._core.handover.wake(self._start_timer_if_told)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Everything up to this message is done."""
        self._collected.append(_UpTo(message_id))
        if not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer_if_told)
        elif len(self._collected) == self._group_max:
            self._core.handover.wake(self.flush)

    def negative_acknowledge(self, message_id: MessageId, redelivery_count: int) -> None:
        """The message failed: deliver it again after the delay."""
        self._core.handover.wake(self.redeliver_later, self.chunked.of(message_id), redelivery_count)

    # ---- From the receive queue, under its lock, any thread ----

    def undelivered(self, position: Position, *, damaged: bool) -> None:
        """The application is about to be told that it cannot have this entry. A `damaged` one is asked for again."""
        self.notes_opened = True
        self._collected.append(_Undelivered(position))
        if damaged:
            self._core.handover.wake(self._negative.add_damaged, position)

    def opened(self, position: Position) -> None:
        """The application is about to be given the messages of this entry; for subscriptions that keep an order. Called
        only while `notes_opened`."""
        self._collected.append(_Opened(position))
        if len(self._collected) == self._group_max:
            self._core.handover.wake(self.flush)

    def given(self, entry: ReceivedEntry) -> None:
        """The application is about to be given the messages of this entry; for consumers with a time-out."""
        self._collected.append(_Given(entry.position, entry.redelivery_count))
        if not self._told:
            self._told = True
            self._core.handover.wake(self._start_timer_if_told)

    # ---- On the loop ----

    def came(self, entry: ReceivedEntry) -> None:
        """A batch came: what is acknowledged of it is left out."""
        entry.ack_set = tuple(
            word & 0xFFFFFFFFFFFFFFFF for word in self._state.came(entry.position, entry.count, entry.ack_set)
        )

    def acknowledge_entry(self, position: Position) -> None:
        """A whole entry is done."""
        self._collected.append(MessageId(-1, *position))
        self._start_timer()

    def redeliver_later(self, positions: Sequence[Position], redelivery_count: int = 0) -> None:
        """Ask for these entries again after the delay of negative acknowledgements."""
        if self.timeouts is not None:
            self._drain()  # they may not be tracked yet
            for position in positions:
                self.timeouts.tracker.forget(position)
        self._negative.add(positions, redelivery_count)

    def subscribed(self) -> None:
        """There is a new subscription: the broker delivers everything unacknowledged anyway."""
        self.flush()
        self._comes_anyway()
        self._state.forget_sent()

    def reset(self) -> None:
        """The application seeks: forget everything."""
        self._collected.clear()
        self._state.reset()
        self._comes_anyway()
        self._negative.reset()
        self.chunked.clear()
        self.notes_opened = False

    def flush(self) -> None:
        """Send everything that is complete."""
        self._stop_timer()
        self._told = False  # before draining: what is appended from here on tells the loop again
        self._drain()
        connection = self._consumer.registration.connection
        if connection is None or not self._state:
            return
        send = partial(_send, connection, self._consumer.registration.id, self.receipts)
        cumulative, complete = self._state.take()
        if cumulative is not None:
            send([cumulative], cumulative=True)
        for start in range(0, len(complete), ENTRIES_PER_COMMAND_MAX):
            send(complete[start : start + ENTRIES_PER_COMMAND_MAX])
        parts = self._state.take_parts()
        for start in range(0, len(parts), PARTS_PER_COMMAND_MAX):
            send((), parts[start : start + PARTS_PER_COMMAND_MAX])

    def close(self) -> None:
        """Send what waits; nothing is sent afterwards."""
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Send no more acknowledgements."""
        self._stop_timer()
        self._negative.stop()
        if self.timeouts is not None:
            self.timeouts.stop()

    def send_redelivery(self, positions: Sequence[Position], epoch: int | None = None) -> None:
        """Ask for entries again; for all if none is named. What is sent again carries `epoch` (PIP 84)."""
        connection = self._consumer.registration.connection
        if connection is None:
            return
        if not positions:
            self._comes_anyway()
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

    def _comes_anyway(self) -> None:
        """Everything unacknowledged is delivered again."""
        self._negative.clear()
        if self.timeouts is not None:
            self.timeouts.tracker.clear()

    def _ask_for(self, positions: list[Position], told: Callable[[Sequence[Position]], None] | None) -> None:
        """Have these entries delivered again, or all on a subscription that keeps an order."""
        if told is not None:
            told(positions)
        if self._one_by_one:
            if self.chunked:
                positions = [part for position in positions for part in self.chunked.of(MessageId(-1, *position))]
            self.send_redelivery(positions)
        else:
            self._consumer.redeliver_all()

    def _start_timer_if_told(self) -> None:
        """The loop was told of something, which a flush may have sent meanwhile."""
        if self._told:
            self._start_timer()

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
            item = items[start]
            if type(item) is Message and item[1] >= 0 and (run := run_at(items, start)) is not None:
                self._finish_run(run)
                start += run.end - run.first
                continue
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
                assert isinstance(item, _UpTo | _Undelivered | _Given | _Opened)
                self._note(item)

    def _finish(self, message_id: MessageId) -> None:
        try:
            position = self._state.acknowledge(message_id)
        except OperationNotSupported as error:
            self.refused += 1
            logger.error("an acknowledgement failed: %s", error)
        else:
            if position is not None:
                self.acked += message_id[4] or 1  # the size of its batch
                self._done(position)
                if self.chunked.by_last or type(message_id) is not MessageId:
                    for chunk in self.chunked.done(message_id):
                        self._state.acknowledge(MessageId(-1, *chunk))
                        self._negative.withdraw(chunk)

    def _done(self, position: Position) -> None:
        self._negative.withdraw(position)
        if self.timeouts is not None:
            self.timeouts.tracker.forget(position)

    def _note(self, item: _UpTo | _Undelivered | _Given | _Opened) -> None:
        if isinstance(item, _UpTo):
            self._finish_up_to(item.message_id)
        elif isinstance(item, _Given):
            if self.timeouts is not None:
                self.timeouts.track(item.position, item.redelivery_count)
        elif isinstance(item, _Opened):
            self._state.opened(item.position)
            self._negative.came_whole(item.position)
        elif not self._one_by_one:
            self._state.undelivered(item.position)

    def _finish_run(self, run: Run) -> None:
        entry, first, end = run
        position = entry.position
        if self._state.acknowledge_run(position, entry.count, (1 << end) - (1 << first)):
            self.acked += entry.count
            self._done(position)

    def _finish_up_to(self, message_id: MessageId) -> None:
        if self.chunked:
            # Chunks count as undelivered, so that they are spared; those of messages that end before are done.
            for chunk in self.chunked.done_up_to(message_id.position, self._state.is_undelivered):
                self._state.acknowledge(MessageId(-1, *chunk))
        self._state.acknowledge_cumulative(message_id)
        self.acked += 1
        position = message_id.position
        kept = self._state.is_undelivered
        self._negative.withdraw_up_to(position, kept)
        if self.timeouts is not None:
            whole = message_id.batch_index() < 0 or message_id.batch_index() == message_id.batch_size() - 1
            self.timeouts.tracker.forget_up_to(position if whole else (position[0], position[1] - 1))


def _send(
    connection: ClientConnection,
    consumer_id: int,
    receipts: AckReceipts | None,
    positions: Sequence[Position],
    parts: Sequence[AckedPart] = (),
    *,
    cumulative: bool = False,
) -> None:
    if receipts is None:
        connection.write(ack(consumer_id, positions, cumulative=cumulative, partial=parts))
    else:
        receipts.send(connection, consumer_id, positions, parts, cumulative=cumulative)
