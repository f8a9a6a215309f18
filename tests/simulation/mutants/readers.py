"""Bugs of readers, and of calls that are cancelled."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.consuming.partition_consumer import PartitionConsumer
from magnetar.client.consuming.receive_queue import ReceiveQueue
from magnetar.client.consuming.start_filter import StartFilter

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
)
