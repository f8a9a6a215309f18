"""Bugs of readers, of what they are told of the end, and of calls that are cancelled."""

from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from magnetar.actors.connections.consumer_commands import ConsumerCommands
from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.client.aio.reader import AsyncReader
from magnetar.client.aio.table_view import AsyncTableView
from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.consuming.partition_consumer import PartitionConsumer
from magnetar.client.consuming.receive_queue import ReceiveQueue
from magnetar.client.consuming.start_filter import StartFilter
from magnetar.client.core.context import Core
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.message_id import EARLIEST_POSITION, Position, WireMessageId

from .mutant import Mutant, replace


def _forget_the_start(stack: ExitStack) -> None:
    async def learn_start(self: PartitionConsumer, connection: Any, consumer_id: int) -> None:
        """Nothing is asked."""

    replace(stack, PartitionConsumer, "_learn_start", learn_start)


def _ask_all_for_their_time(stack: ExitStack) -> None:
    dropping = StartFilter.drops

    def drops(self: StartFilter, entry: ReceivedEntry) -> bool:
        return entry.metadata.publish_time < self.publish_time or dropping(self, entry)

    replace(stack, StartFilter, "drops", drops)


def _keep_what_was_taken(stack: ExitStack) -> None:
    def put_back(self: ReceiveQueue, messages: Sequence[Message]) -> None:
        """It stays with the call that was cancelled."""

    replace(stack, ReceiveQueue, "put_back", put_back)


def _wait_for_what_does_not_come(stack: ExitStack) -> None:
    """A reader is at the end when it was given the last entry, and not when that came and was passed over."""
    arrive = ReceiveQueue.arrive
    has_come = PartitionConsumer.has_come

    def arriving(self: ReceiveQueue, entry: Any) -> None:
        entry.source.last_given = entry.position
        arrive(self, entry)

    def came(self: Any, last: MessageId) -> bool:
        given: Position = self.__dict__.get("last_given", EARLIEST_POSITION)
        return has_come(self, last) and (self._last_arrived is None or last.position <= given)

    replace(stack, ReceiveQueue, "arrive", arriving)
    replace(stack, PartitionConsumer, "has_come", came)


def _show_the_view_early(stack: ExitStack) -> None:
    async def create(core: Core, reader: AsyncReader) -> AsyncTableView:
        made = AsyncTableView(core, reader)
        while await reader._reader._has_message():
            made._state.apply(await reader.read_next())
        made._task = core.tasks.spawn(made._follow(), "table view")
        return made

    replace(stack, AsyncTableView, "create", create)


def _repeat_the_first_end(stack: ExitStack) -> None:
    answering = ConsumerCommands._last_message_id
    ends: WeakKeyDictionary[AttachedConsumer, WireMessageId] = WeakKeyDictionary()

    async def answer(self: Any, attached: Any, command: Any) -> bytes:
        consumer, subscription = attached
        if consumer not in ends:
            ends[consumer] = await subscription.topic.last_message_id(compacted=consumer.read_compacted)

        async def last_message_id(*, compacted: bool) -> WireMessageId:
            return ends[consumer]

        topic = SimpleNamespace(last_message_id=last_message_id)
        told: Any = SimpleNamespace(topic=topic, mark_delete_position=subscription.mark_delete_position)
        return await answering(self, (consumer, told), command)

    replace(stack, ConsumerCommands, "_last_message_id", answer)


READERS = (
    Mutant(
        "forgotten start",
        "a reader at the end of its topic that has received nothing begins at the end again after each move",
        "I4",
        _forget_the_start,
        scenario="tailing",
    ),
    Mutant(
        "sought clock",
        "a reader that sought a time drops all that its producers' clocks place before it, for good",
        "I4",
        _ask_all_for_their_time,
        scenario="tailing",
    ),
    Mutant(
        "cancelled call",
        "a cancelled `batch_receive` keeps the messages that it had taken",
        "I7",
        _keep_what_was_taken,
        scenario="tailing",
    ),
    Mutant(
        "awaited end",
        "a reader waits for a last entry that came and will not be delivered",
        "I8",
        _wait_for_what_does_not_come,
        "viewing",
    ),
    Mutant(
        "early view",
        "a table view is there before it has read to the end of its topic",
        "I1",
        _show_the_view_early,
        "viewing",
    ),
    Mutant(
        "first end",
        "a broker answers each reader with the end of the log that it told it first",
        "I1",
        _repeat_the_first_end,
        "cluster",
    ),
)
