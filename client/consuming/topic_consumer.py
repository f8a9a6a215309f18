"""The consumer of a whole topic: one `PartitionConsumer` per partition, one receive queue for all.

An unpartitioned topic is the case of one.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import cast

from google.protobuf.message import Message as WireMessage

from ...protocol.errors import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    InvalidMessage,
    MagnetarError,
    OperationNotSupported,
)
from ...protocol.pulsar_pb2 import (
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandSeek,
    CommandSuccess,
    CommandUnsubscribe,
)
from ...protocol.topics import TopicName
from ...runtime.tasks import together
from ..core.configuration import ConsumerConfiguration, ConsumerType
from ..core.connection import Answer
from ..core.context import Core
from ..core.forking import inherited_error
from ..core.message_id import MessageId
from .message import Message, Messages, Opened, entry_of
from .partition_consumer import PartitionConsumer
from .receive_queue import ReceiveQueue
from .start_filter import StartFilter


class TopicConsumer:
    """See the module. Acknowledging may be done from any thread, the rest is for the loop's."""

    def __init__(self, core: Core, configuration: ConsumerConfiguration, start: StartFilter | None = None) -> None:
        """`start` makes it a reader's consumer: non-durable, beginning there."""
        self.configuration = configuration
        self.topic = TopicName.parse(configuration.topic)
        self.receive_queue = ReceiveQueue(core.handover)
        self.consumers: list[PartitionConsumer] = []
        self.core = core
        self._start = start
        self._by_partition: dict[int, PartitionConsumer] = {}
        self._ours: dict[object, None] = {}
        self._closed = False

    async def open(self) -> None:
        """Find the partitions and subscribe to all. Raises the first refusal; nothing is left open then."""
        configuration, topic = self.configuration, self.topic
        count = await self.core.lookup.partitions(topic.full)
        size = configuration.receiver_queue_size
        if count:
            if not size:
                raise InvalidConfiguration(
                    "receiver_queue_size is 0, but the topic is partitioned: set it to at least 1"
                )
            share = configuration.max_total_receiver_queue_size_across_partitions // count
            size = max(1, min(size, share))
            self.consumers = [self._make(topic.partition_topic(index), index, size) for index in range(count)]
        else:
            self.consumers = [self._make(topic, topic.partition, size)]
        self._by_partition = {consumer.partition: consumer for consumer in self.consumers}
        self._ours = dict.fromkeys(self.consumers)
        try:
            await together([consumer.open() for consumer in self.consumers])
        except BaseException:
            for consumer in self.consumers:
                await consumer.close()
            raise
        self.core.opened[self] = None

    def _make(self, topic: TopicName, partition: int, queue_size: int) -> PartitionConsumer:
        start = self._start
        if start is not None:
            start = StartFilter(start.target, start.inclusive)
        return PartitionConsumer(self.core, topic, partition, self.configuration, self.receive_queue, queue_size, start)

    @property
    def consumer_name(self) -> str:
        """The name given at creation, empty if none."""
        return self.configuration.consumer_name or ""

    @property
    def is_connected(self) -> bool:
        """Whether all partitions have their subscription in place."""
        return all(consumer.is_connected for consumer in self.consumers)

    async def close(self) -> None:
        """Send waiting acknowledgements and leave. May be called twice."""
        if not self._closed:
            self._closed = True
            self.core.opened.pop(self, None)
            self.receive_queue.fail(AlreadyClosed("the consumer is closed: subscribe again"))
            await asyncio.gather(*[consumer.close() for consumer in self.consumers])

    def inherited(self) -> None:
        """See `forking`."""
        self._closed = True
        error = inherited_error("consumer")
        self.receive_queue.inherited(self.core.handover, error)
        for consumer in self.consumers:
            consumer.inherited(error)

    def abandon(self, reason: MagnetarError) -> None:
        """Fail everything, at once."""
        self._closed = True
        self.core.opened.pop(self, None)
        self.receive_queue.fail(reason)
        for consumer in self.consumers:
            consumer.abandon(reason)

    def ask_for_one(self) -> None:
        """A caller waits on an empty receive queue; matters only without a receiver queue."""
        self.consumers[0].ask_for_one()

    # ---- Acknowledgement, any thread ----

    def acknowledge(self, message: Message | MessageId) -> None:
        """One message is done."""
        if type(message) is Message and message[0].source in self._ours and not self._closed:
            # One of ours is a PartitionConsumer. To say so in a way that costs something would cost it per message.
            message[0].source.acks.acknowledge(message)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        else:
            self._source(message).acks.acknowledge(message)

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """All these messages are done."""
        if isinstance(messages, Messages):
            for part in messages.parts:
                if not isinstance(part, Opened):
                    self._acknowledge_list([*part])
                elif part.entry.source in self._ours and not self._closed:
                    cast(PartitionConsumer, part.entry.source).acks.acknowledge_many(part)
                else:
                    self._acknowledge_list([*part])
        else:
            self._acknowledge_list([*messages])

    def _acknowledge_list(self, items: list[Message] | list[Message | MessageId]) -> None:
        if [*map(type, items)].count(Message) < len(items) or self._closed:
            for source, group in groupby(items, self._source):
                source.acks.acknowledge_many([*group])
            return
        received = cast(list[Message], items)
        sources = {entry.source for entry in {*map(entry_of, received)}}
        if len(sources) == 1:
            self._source(received[0]).acks.acknowledge_many(received)
            return
        for _, same_entry in groupby(received, entry_of):
            group = [*same_entry]
            self._source(group[0]).acks.acknowledge_many(group)

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Everything of the message's partition up to it is done."""
        if self.configuration.consumer_type is ConsumerType.Shared:
            raise CumulativeAcknowledgementNotAllowedError(
                "a Shared or Key_Shared subscription has no cumulative acknowledgement: acknowledge each message"
            )
        self._source(message).acks.acknowledge_cumulative(_id_of(message))

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have the message delivered again after the delay."""
        self._source(message).acks.negative_acknowledge(_id_of(message))

    def _source(self, message: Message | MessageId) -> PartitionConsumer:
        if self._closed:
            raise self.receive_queue.failure or AlreadyClosed("the consumer is closed: subscribe again")
        if isinstance(message, Message):
            source = message.source
            if isinstance(source, PartitionConsumer) and self._by_partition.get(source.partition) is source:
                return source
            message = message.message_id()
        if not isinstance(message, MessageId):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidMessage(f"acknowledge takes a Message or a MessageId, not {type(message).__name__}")
        consumer = self._by_partition.get(message.partition())
        if consumer is None:
            if len(self.consumers) > 1 or message.partition() >= 0:
                raise OperationNotSupported(
                    f"message {message.text} does not belong to {self.topic.full}: pass it to the consumer that "
                    "received it"
                )
            consumer = self.consumers[0]
        if message.batch_index() >= 0 and not message.batch_size():
            raise OperationNotSupported(
                f"message {message.text} is part of a batch of unknown size: use an id that a consumer gave"
            )
        return consumer

    # ---- Requests ----

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything unacknowledged delivered again."""
        for consumer in self.consumers:
            consumer.redeliver_all()

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription. A time (ms), earliest and latest move all partitions, another id its own one."""
        inclusive = self.configuration.start_message_id_inclusive
        if isinstance(target, MessageId):
            everywhere = target in (MessageId.earliest, MessageId.latest)
            consumers = self.consumers if everywhere else [self._source(target.entry)]
        elif isinstance(target, int) and not isinstance(target, bool) and target >= 0:  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            consumers = self.consumers
        else:
            raise InvalidConfiguration(f"seek takes a message id or milliseconds since the epoch, not {target!r}")
        for consumer in consumers:
            await self.seek_partition(consumer, target, inclusive)

    async def seek_partition(self, consumer: PartitionConsumer, target: MessageId | int, inclusive: bool) -> None:
        """Move the subscription of one partition."""

        def command(consumer_id: int, request_id: int) -> WireMessage:
            if isinstance(target, int):
                return CommandSeek(consumer_id=consumer_id, request_id=request_id, message_publish_time=target)
            place = target.entry.to_wire()
            return CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=place)

        await self.core.lookup.retry(f"seek on {consumer.topic.full}", consumer.ready_connection)
        consumer.begin_seek(target, inclusive)
        try:
            await self._request(consumer, f"seek on {consumer.topic.full}", command, CommandSuccess)
        except BaseException:
            consumer.end_seek(done=False)
            raise
        consumer.end_seek(done=True)

    async def last_message_ids(self, consumer: PartitionConsumer) -> CommandGetLastMessageIdResponse:
        """What a partition's broker says of the end of the topic and of the subscription's position."""
        return await self._request(
            consumer,
            f"the last message id of {consumer.topic.full}",
            lambda consumer_id, request_id: CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id),
            CommandGetLastMessageIdResponse,
        )

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message of an unpartitioned topic; earliest if it is empty."""
        if len(self.consumers) != 1:
            raise OperationNotSupported(
                "a partitioned topic has one last message per partition: ask a consumer of one partition"
            )
        consumer = self.consumers[0]
        found = MessageId.from_wire((await self.last_message_ids(consumer)).last_message_id)
        ledger_id, entry_id, index, _, size = found
        return MessageId(consumer.partition if entry_id >= 0 else -1, ledger_id, entry_id, index, size)

    async def unsubscribe(self) -> None:
        """Delete the subscription, and close."""
        for consumer in self.consumers:
            await self._request(
                consumer,
                f"unsubscribing from {consumer.topic.full}",
                lambda consumer_id, request_id: CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id),
                CommandSuccess,
            )
        await self.close()

    async def _request(
        self,
        consumer: PartitionConsumer,
        what: str,
        command: Callable[[int, int], WireMessage],
        answer_type: type[Answer],
    ) -> Answer:
        """Send what `command` makes of a consumer id and a request id, and return the answer."""

        async def attempt() -> Answer:
            connection = await consumer.ready_connection()
            request_id = connection.next_request_id()
            asked = command(consumer.registration.id, request_id)
            return await connection.request(asked, request_id, self.core.timeout_s, answer_type)

        return await self.core.lookup.retry(what, attempt)


def _id_of(message: Message | MessageId) -> MessageId:
    return message.message_id() if isinstance(message, Message) else message
