"""A consumer, of one topic or of several: one `PartitionConsumer` per partition, one receive queue for all.

An unpartitioned topic is the case of one. `TopicSet` has the partitions, `TopicDiscovery` finds the topics. Messages of
one partition come in order; between partitions and topics there is no order.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from google.protobuf.message import Message as WireMessage

from ...protocol.errors import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    MagnetarError,
    OperationNotSupported,
)
from ...protocol.message_id import EARLIEST_POSITION
from ...protocol.pulsar_pb2 import (
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandSeek,
    CommandSuccess,
    CommandUnsubscribe,
)
from ...runtime.tasks import together
from ..core.configuration import ConsumerConfiguration, InitialPosition, SubscriptionMode
from ..core.connection import Answer
from ..core.context import Core
from ..core.failover_events import FailoverEvents
from ..core.forking import inherited_error
from ..core.message_id import MessageId, TopicMessageId, start_of
from ..statistics.figures import ConsumerStats, ProducerStats
from ..statistics.intervals import Counts, rate
from .ack_sender import ConsumerAcks
from .interception import ConsumerInterception
from .message import Message, Opened, ReceivedEntry, entry_of
from .messages import Messages
from .partition_consumer import PartitionConsumer
from .receive_counts import NOTHING_WAITS, ReceiveFigures
from .receive_queue import ReceiveQueue
from .start_filter import StartFilter
from .topic_discovery import TopicDiscovery
from .topic_set import TopicSet

if TYPE_CHECKING:
    from .listeners import LoopListener

logger = logging.getLogger(__name__)

LetterStats = tuple[ProducerStats | None, ProducerStats | None]
"""Of the producers of dead letters and of retry letters."""


class ConsumerStatistics:
    """The statistics of a whole consumer: those of its partitions added up, and what belongs to none of them.

    `describe` says for the log which consumer it is.
    """

    def __init__(self, core: Core, queue: ReceiveQueue, topics: TopicSet, describe: Callable[[], str]) -> None:
        self.refused = 0
        """Acknowledgements that belong to no partition of ours, or came after the end."""
        self.letters: Callable[[], LetterStats] = lambda: (None, None)
        """Asked for the statistics of letters."""
        self._refused_before = 0
        """How many of them there were when the interval began."""
        self._core = core
        self._queue = queue
        self._topics = topics
        self._describe = describe

    def stats(self) -> ConsumerStats:
        """What was received and acknowledged so far. May be called from any thread."""
        figures: dict[str, ReceiveFigures] = {}
        now_s = self._core.loop.time()
        with self._queue.lock:
            waiting = self._queue.waiting_of_sources()
            for consumer in [*self._topics.consumers]:
                counts = self._queue.counts.get(consumer)
                if counts is not None:
                    here = waiting.get(consumer, NOTHING_WAITS)
                    figures[consumer.topic.full] = counts.figures(now_s, here, _acks(consumer))
        partitions: dict[str, ConsumerStats] = {}
        if self._topics.several or any(self._topics.partitions.copy().values()):
            partitions = {name: _added_up([one]) for name, one in figures.items()}
        refused = (self.refused - self._refused_before, self.refused)
        return _added_up([*figures.values()], partitions, refused, self.letters())

    def end_interval(self, now_s: float) -> None:
        """An interval has ended: log what it had, if anything."""
        ended = self.stats() if logger.isEnabledFor(logging.INFO) else None
        self._refused_before = self.refused
        with self._queue.lock:
            waiting = self._queue.waiting_of_sources()
            for consumer in self._topics.consumers:
                counts = self._queue.counts.get(consumer)
                if counts is not None:
                    counts.end_interval(now_s, waiting.get(consumer, NOTHING_WAITS), _acks(consumer))
        if ended is not None and (ended.num_msgs_received or ended.num_acks_sent or ended.num_receive_failed):
            _log(self._describe(), ended, self.stats())


def _acks(consumer: PartitionConsumer) -> tuple[int, int]:
    """How many acknowledgements a partition's consumer sent, and how many failed."""
    acks = consumer.acks
    return acks.acked, acks.refused + (0 if acks.receipts is None else acks.receipts.failed)


def _added_up(
    figures: Sequence[ReceiveFigures],
    partitions: Mapping[str, ConsumerStats] | None = None,
    refused: tuple[int, int] = (0, 0),
    letters: LetterStats = (None, None),
) -> ConsumerStats:
    """The figures of partitions, added up. `refused` are acknowledgements of no partition, in this interval and in
    all."""
    messages, size_bytes, failed, acks, acks_failed = _sums([one.current for one in figures])
    total_messages, total_bytes, total_failed, total_acks, total_acks_failed = _sums([one.total for one in figures])
    return ConsumerStats(
        num_msgs_received=messages,
        num_bytes_received=size_bytes,
        rate_msgs_received=sum(rate(one.last[0], one.last_s) for one in figures),
        rate_bytes_received=sum(rate(one.last[1], one.last_s) for one in figures),
        num_acks_sent=acks,
        num_acks_failed=acks_failed + refused[0],
        num_receive_failed=failed,
        total_msgs_received=total_messages,
        total_bytes_received=total_bytes,
        total_received_failed=total_failed,
        total_acks_sent=total_acks,
        total_acks_failed=total_acks_failed + refused[1],
        msg_num_in_receiver_queue=sum(one.waiting for one in figures),
        partition_stats=partitions or {},
        dead_letter_producer_stats=letters[0],
        retry_letter_producer_stats=letters[1],
    )


def _sums(counts: Sequence[Counts]) -> Counts:
    return tuple(map(sum, zip(*counts, strict=True))) or (0, 0, 0, 0, 0)


def _log(what: str, ended: ConsumerStats, now: ConsumerStats) -> None:
    """Log an interval: its counts, and its rates as they are known since it has ended."""
    logger.info(
        "consumer %s received %d messages (%.1f/s, %.3f MB/s), and could not open %d entries; it acknowledged %d "
        "messages, and %d acknowledgements failed; %d messages wait",
        what,
        ended.num_msgs_received,
        now.rate_msgs_received,
        now.rate_bytes_received / 1_000_000,
        ended.num_receive_failed,
        ended.num_acks_sent,
        ended.num_acks_failed,
        now.msg_num_in_receiver_queue,
    )


SeekTarget: TypeAlias = MessageId | int | Callable[[str], MessageId | int]


class LetterHandling(Protocol):
    """What a consumer does with messages that the application cannot handle; see `client/letters`. For the loop."""

    def takes(self, entry: ReceivedEntry) -> bool:
        """Whether an entry that came goes another way than into the receive queue.

        It may come back by `ReceiveQueue.admit`; until then it takes its permits.
        """
        ...

    def queued(self, source: object) -> int:
        """How many messages of `source` wait there."""
        ...

    def discard(self, source: object) -> int:
        """Drop what waits there of `source`; returns how many messages that were."""
        ...

    async def reconsume_later(
        self, message: Message, delay: timedelta | int, properties: Mapping[str, str] | None
    ) -> None:
        """Store a copy for another attempt, then acknowledge the message."""
        ...

    async def give_up(self, message: Message, properties: Mapping[str, str] | None = None) -> None:
        """Store a copy in the dead letter topic, then acknowledge the message."""
        ...

    async def close(self) -> None:
        """Finish what is under way."""
        ...


class TopicConsumer:
    """See the module. Acknowledging may be done from any thread, the rest is for the loop's."""

    def __init__(
        self,
        core: Core,
        configuration: ConsumerConfiguration,
        start: StartFilter | None = None,
        also: Sequence[str] = (),
    ) -> None:
        """`start` makes it a reader's consumer: non-durable, beginning there. `also` names topics to take besides.

        Raises InvalidTopicName, InvalidConfiguration.
        """
        self.configuration = configuration
        if start is None and configuration.subscription_mode is SubscriptionMode.NonDurable:
            # As in Pulsar's clients: where to begin is the client's to say, and it goes on there on each connection.
            latest = configuration.initial_position is InitialPosition.Latest
            start = StartFilter(MessageId.latest if latest else MessageId.earliest, False)
        self.receive_queue = ReceiveQueue(core.handover)
        if configuration.consumer_event_listener is not None:
            self.receive_queue.events = FailoverEvents()
        self.core = core
        if configuration.takes_several_topics and not configuration.receiver_queue_size:
            raise InvalidConfiguration(
                "receiver_queue_size is 0, but the consumer takes several topics: set it to at least 1"
            )
        creates = core.configuration.allow_auto_topic_creation and not isinstance(configuration.topic, re.Pattern)
        self.topics = TopicSet(core, configuration, self.receive_queue, start, creates=creates)
        self._discovery = TopicDiscovery(core, configuration, self.topics, also)
        self.letters: LetterHandling | None = None
        """What is done with messages that the application cannot handle; set before it is opened."""
        self.listening: LoopListener | None = None
        """The listener, if it runs on the loop."""
        self.interception: ConsumerInterception | None = None
        """The face says which face interceptors are told."""
        if configuration.interceptors:
            self.interception = ConsumerInterception(
                configuration.interceptors, self.topics.several, lambda: self.topic_text
            )
            self.receive_queue.screen = self.interception.before_consume
            self.topics.on_made = self.interception.watch
        self._ours = self.topics.ours if self.interception is None else {}
        """Sources whose messages need nothing but the acknowledgement. With interceptors there are none."""
        self.statistics = ConsumerStatistics(
            core, self.receive_queue, self.topics, lambda: f"{self.consumer_name} on {self.topic_text}"
        )
        self._closed = False
        self._preparing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find the topics and partitions and subscribe to all. Raises the first refusal; nothing is left open then."""
        try:
            await self._discovery.open()
        except BaseException:
            await self.topics.close()
            raise
        self.core.enter(self)

    @property
    def consumers(self) -> list[PartitionConsumer]:
        """Of all partitions of all topics."""
        return self.topics.consumers

    @property
    def topic_text(self) -> str:
        """The full name of the topic; several are joined by commas, and a pattern is itself."""
        return self._discovery.text

    @property
    def consumer_name(self) -> str:
        """The name given at creation, empty if none."""
        return self.configuration.consumer_name or ""

    @property
    def is_connected(self) -> bool:
        """Whether all partitions have their subscription in place."""
        return all(consumer.is_connected for consumer in self.consumers)

    def end_interval(self, now_s: float) -> None:
        """An interval of the statistics has ended, and the next one begins."""
        self.statistics.end_interval(now_s)

    async def close(self) -> None:
        """Let a listener end, send waiting acknowledgements and leave. May be called twice."""
        if self.listening is not None:
            await self.listening.stop()
        if not self._closed:
            self._closed = True
            self.core.opened.pop(self, None)
            self.receive_queue.fail(AlreadyClosed("the consumer is closed: subscribe again"))
            self.topics.closed = True
            await self._discovery.close()
            if self.letters is not None:
                await self.letters.close()
            await self.topics.close()
            if self.interception is not None:
                self.interception.close()

    def inherited(self) -> None:
        """See `forking`."""
        self._closed = self.topics.closed = True
        error = inherited_error("consumer")
        self.receive_queue.inherited(self.core.handover, error)
        for consumer in self.consumers:
            consumer.inherited(error)

    def abandon(self, reason: MagnetarError) -> None:
        """Fail everything, at once."""
        self._closed = self.topics.closed = True
        self.core.opened.pop(self, None)
        self.receive_queue.fail(reason)
        for consumer in self.consumers:
            consumer.abandon(reason)

    def ask_for_one(self) -> None:
        """A caller waits on an empty receive queue; matters only without a receiver queue."""
        for consumer in self.consumers[:1]:  # a pattern may match nothing yet
            consumer.permits.ask_for_one()

    async def prepare(self) -> None:
        """Fetch the schema of the next entry, have a thread decode a large one; one at a time for all callers.

        It goes on when its caller is cancelled: two threads that open one entry would spoil it for each other.
        """
        task = self._preparing
        if task is None or task.done():
            entry = self.receive_queue.unprepared()
            if entry is None:
                return
            task = self._preparing = self.core.tasks.spawn(self._prepare(entry), f"prepare an entry of {entry.topic}")
        await asyncio.wait({task})
        if not task.cancelled():  # it is when the client closes
            task.result()

    async def _prepare(self, entry: ReceivedEntry) -> None:
        if entry.reading is not None and entry.reading.lacks(entry):
            await entry.reading.load(entry)
        if entry.is_large:
            size_max = self.core.configuration.decompressed_size_max_bytes
            await self.core.environment.offload.run(entry.prepare, size_max)

    # ---- Acknowledgement, any thread ----

    def acknowledge(self, message: Message | MessageId) -> None:
        if type(message) is Message and message[0].source in self._ours and not self._closed:
            # One of ours is a PartitionConsumer. To say so in a way that costs something would cost it per message.
            message[0].source.acks.acknowledge(message)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        elif self.interception is None:
            self._acks_of(message).acknowledge(message)
        else:
            with self.interception.tells([message]):
                self._acks_of(message).acknowledge(message)

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """All these messages are done."""
        if self.interception is not None:
            told = [*messages]
            with self.interception.tells(told):
                self._acknowledge_list(told)
        elif isinstance(messages, Messages):
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
            for acks, group in groupby(items, self._acks_of):
                acks.acknowledge_many([*group])
            return
        received = cast(list[Message], items)
        sources = {entry.source for entry in {*map(entry_of, received)}}
        if len(sources) == 1:
            self._acks_of(received[0]).acknowledge_many(received)
            return
        for _, same_entry in groupby(received, entry_of):
            group = [*same_entry]
            self._acks_of(group[0]).acknowledge_many(group)

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Everything of the message's partition up to it is done."""
        if self.interception is None:
            if not self.configuration.consumer_type.keeps_order:
                raise _without_order()
            self._acks_of(message).acknowledge_cumulative(_id_of(message))
            return
        with self.interception.tells([message], cumulative=True):
            if not self.configuration.consumer_type.keeps_order:
                raise _without_order()
            self._acks_of(message).acknowledge_cumulative(_id_of(message))

    async def receipts(self) -> None:
        """Until all that was acknowledged before the call has its receipt, with `ack_receipt_enabled`. On the loop.

        Raises the broker's error, ConnectionClosed, Timeout, and why a subscription ended.
        """
        awaited = [one.acks.receipts for one in self.consumers]
        await together([one.receive() for one in awaited if one is not None])

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have the message delivered again after the delay."""
        redelivery_count = message.redelivery_count() if isinstance(message, Message) else 0
        self._source(message).acks.negative_acknowledge(_id_of(message), redelivery_count)

    def _acks_of(self, message: Message | MessageId) -> ConsumerAcks:
        try:
            return self._source(message).acks
        except MagnetarError:
            self.statistics.refused += 1
            raise

    def _source(self, message: Message | MessageId) -> PartitionConsumer:
        if self._closed:
            raise self.receive_queue.failure or AlreadyClosed("the consumer is closed: subscribe again")
        return self.topics.source_of(message)

    # ---- Requests ----

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything unacknowledged delivered again."""
        for consumer in self.consumers:
            consumer.redeliver_all()

    async def seek(self, target: SeekTarget) -> None:
        """Move the subscription. A time (ms), earliest and latest move all partitions, another id its own one.

        A function gets the full name of each topic or partition, and returns a time or an id for it.
        """
        inclusive = self.configuration.start_message_id_inclusive
        if callable(target):
            chosen = [(consumer, _checked_target(target(consumer.topic.full))) for consumer in self.consumers]
        else:
            target = _checked_target(target)
            if isinstance(target, MessageId) and target not in (MessageId.earliest, MessageId.latest):
                chosen = [(self._source(target.whole_entry), target)]
            else:
                chosen = [(consumer, target) for consumer in self.consumers]
        for consumer, place in chosen:
            await self.seek_partition(consumer, place, inclusive)

    async def seek_partition(self, consumer: PartitionConsumer, target: MessageId | int, inclusive: bool) -> None:
        """Move the subscription of one partition."""

        def command(consumer_id: int, request_id: int) -> WireMessage:
            if isinstance(target, int):
                return CommandSeek(consumer_id=consumer_id, request_id=request_id, message_publish_time=target)
            place = start_of(target).to_wire()
            return CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=place)

        end = EARLIEST_POSITION
        if (
            not consumer.durable
            and consumer.topic.persistent
            and (isinstance(target, int) or target == MessageId.latest)
        ):
            end = MessageId.from_wire((await self.ask_last_message_id(consumer)).last_message_id).position
        await self.core.lookup.retry(f"seek on {consumer.topic.full}", consumer.registration.ready_connection)
        consumer.begin_seek(target, inclusive, end)
        try:
            await self._request(consumer, f"seek on {consumer.topic.full}", command, CommandSuccess)
        except BaseException:
            consumer.end_seek(done=False)
            raise
        consumer.end_seek(done=True)

    async def ask_last_message_id(self, consumer: PartitionConsumer) -> CommandGetLastMessageIdResponse:
        """What a partition's broker says of the end of the topic and of the subscription's position."""
        return await self._request(
            consumer,
            f"the last message id of {consumer.topic.full}",
            lambda consumer_id, request_id: CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id),
            CommandGetLastMessageIdResponse,
        )

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message of an unpartitioned topic; earliest if it is empty."""
        if self.topics.several:
            raise OperationNotSupported("several topics have one last message each: ask for last_message_ids")
        if len(self.consumers) != 1:
            raise OperationNotSupported(
                "a partitioned topic has one last message per partition: ask for last_message_ids"
            )
        return await _last_message_id(self, self.consumers[0])

    async def last_message_ids(self) -> list[TopicMessageId]:
        """The id of the last message of each topic or partition, earliest where there is none."""
        consumers = list(self.consumers)
        found = await together([_last_message_id(self, consumer) for consumer in consumers])
        return [TopicMessageId.of(one.topic.full, last) for one, last in zip(consumers, found, strict=True)]

    async def unsubscribe(self) -> None:
        """Delete the subscription, and close."""
        await self._discovery.close()
        for consumer in list(self.consumers):
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
            connection = await consumer.registration.ready_connection()
            request_id = connection.next_request_id()
            asked = command(consumer.registration.id, request_id)
            return await connection.request(asked, request_id, self.core.timeout_s, answer_type)

        return await self.core.lookup.retry(what, attempt)


def _checked_target(target: object) -> MessageId | int:
    if isinstance(target, MessageId) or (isinstance(target, int) and not isinstance(target, bool) and target >= 0):
        return target
    raise InvalidConfiguration(
        f"seek takes a message id, milliseconds since the epoch, or a function from a topic to one of them, "
        f"not {target!r}"
    )


async def _last_message_id(of: TopicConsumer, consumer: PartitionConsumer) -> MessageId:
    found = MessageId.from_wire((await of.ask_last_message_id(consumer)).last_message_id)
    ledger_id, entry_id, index, _, size = found
    return MessageId(consumer.partition if entry_id >= 0 else -1, ledger_id, entry_id, index, size)


def _without_order() -> CumulativeAcknowledgementNotAllowedError:
    return CumulativeAcknowledgementNotAllowedError(
        "a Shared or Key_Shared subscription has no cumulative acknowledgement: acknowledge each message"
    )


def _id_of(message: Message | MessageId) -> MessageId:
    return message.message_id() if isinstance(message, Message) else message
