"""Entries as they came, for readers that decode them: in order, each once, with their permits freed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.client.consuming.entry_feed import EntryFeed
from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.consuming.receive_queue import ReceiveQueue
from magnetar.client.consuming.topic_consumer import TopicConsumer
from magnetar.client.core.threading_bridge import SameThread
from magnetar.protocol.errors import AlreadyClosed, ChecksumError
from magnetar.protocol.pulsar_pb2 import MessageMetadata


class Source:
    """A partition that counts the permits of entries that are handed out, and refuses damaged ones."""

    def __init__(self) -> None:
        self.generation = 0
        self.freed = 0

    def hand_out(self, entry: ReceivedEntry) -> None:
        self.freed += entry.permits
        if entry.failure is not None:
            raise entry.failure


def entry(source: Source, entry_id: int, count: int = 1) -> ReceivedEntry:
    header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    return ReceivedEntry("t", -1, 1, entry_id, header, b"", source=source, generation=source.generation)


def feed_of(queue: ReceiveQueue) -> EntryFeed:
    consumer: Any = SimpleNamespace(receive_queue=queue)
    return EntryFeed(cast(TopicConsumer, consumer))


def test_entries_come_in_order_without_those_that_are_void() -> None:
    async def run() -> None:
        source, queue = Source(), ReceiveQueue(SameThread())
        feed = feed_of(queue)
        queue.arrive(entry(source, 0, 5))
        source.generation += 1  # the partition has subscribed again: what was queued comes again
        for entry_id in range(3):
            queue.arrive(entry(source, entry_id, 5))
        assert [(await feed.receive()).entry_id for _ in range(2)] == [0, 1]
        taken = feed.take()
        assert taken is not None and taken.entry_id == 2
        assert feed.take() is None and source.freed == 15

    asyncio.run(run())


def test_a_cancelled_wait_takes_no_entry() -> None:
    async def run() -> None:
        source, queue = Source(), ReceiveQueue(SameThread())
        feed = feed_of(queue)
        waiting = asyncio.ensure_future(feed.receive())
        await asyncio.sleep(0)
        assert queue.waiting == 1
        queue.arrive(entry(source, 7))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert queue.waiting == 0 and (await feed.receive()).entry_id == 7

    asyncio.run(run())


def test_a_damaged_entry_is_an_error_and_so_is_the_end() -> None:
    async def run() -> None:
        source, queue = Source(), ReceiveQueue(SameThread())
        feed = feed_of(queue)
        damaged = entry(source, 0)
        damaged.failure = ChecksumError("damaged")
        queue.arrive(damaged)
        queue.arrive(entry(source, 1))
        with pytest.raises(ChecksumError, match="damaged"):
            await feed.receive()
        assert (await feed.receive()).entry_id == 1
        waiting = asyncio.ensure_future(feed.receive())
        await asyncio.sleep(0)
        queue.fail(AlreadyClosed("closed"))
        with pytest.raises(AlreadyClosed):
            await waiting

    asyncio.run(run())
