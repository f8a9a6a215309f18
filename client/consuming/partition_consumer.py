"""The consumer of one topic or partition, on the loop: permits out, entries in, acknowledgements out.

`Registration` has the states. When it becomes READY, permits for the free part of the queue are granted. It is
CONNECTING again when the connection ends or the broker closes the consumer, which it also does after every seek. It
stays so while the broker refuses, as while the topic is deleted: it may be created again.

A durable subscription gets everything unacknowledged again from its new broker, so its queue is emptied at each
SUBSCRIBE (`generation` makes what was queued void). A non-durable Exclusive or Failover one, as a reader has it, goes
on after the last entry that arrived. It keeps its queue: no message twice, none left out. A non-durable Shared one
empties its queue, too, and names the first entry that it had queued. The broker begins there if the subscription has
ended with its last consumer. Before anything has arrived, each of them begins at the same start again. Where only the
broker knows the start (the end of the topic, a publish time), the first SUBSCRIBE asks for the place.

Chunks become messages before they are queued (`chunk_receiver`).

An entry that cannot be opened (`undelivered`) frees its permits like any other and is never acknowledged; `receive`
fails with the reason. A durable subscription keeps it: cumulative acknowledgement leaves it out (`acknowledgements`).

`permits` has the flow permits, and their invariant.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ...protocol.ack_sets import open_messages
from ...protocol.entries import parse_entry, parse_metadata
from ...protocol.errors import (
    AlreadyClosed,
    ChecksumError,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    TopicNotFound,
)
from ...protocol.message_id import EARLIEST_POSITION, Position, signed64
from ...protocol.pulsar_pb2 import (
    CommandCloseConsumer,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandSubscribe,
    CommandSuccess,
    KeyValue,
    MessageIdData,
    MessageMetadata,
)
from ...protocol.topics import TopicName
from ...runtime.repeated_warnings import RepeatedWarnings
from ..core.configuration import ConsumerConfiguration, ConsumerType, InitialPosition
from ..core.connection import ClientConnection, ConsumerEndpoint
from ..core.context import Core
from ..core.key_shared_policy import ConsumerKeySharedPolicy
from ..core.message_id import MessageId
from ..core.registration import Registration, RegistrationKind, RegistrationState
from ..crypto.decryption import Discarded
from .ack_sender import ConsumerAcks
from .chunk_receiver import ChunkReceiver
from .chunks import is_chunk
from .entry_kinds import entry_kind
from .message import Message, ReceivedEntry
from .permits import Permits
from .receive_queue import ReceiveQueue
from .start_filter import StartFilter
from .undelivered import not_delivered, unreadable

logger = logging.getLogger(__name__)

KIND: RegistrationKind[ConsumerEndpoint] = RegistrationKind(
    "consumer",
    "subscribed",
    lambda connection: connection.consumers,
    lambda consumer_id, request_id: CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id),
)


class PartitionConsumer:
    """See the module. `open_entry` may be called from any thread, the rest from the loop's."""

    def __init__(
        self,
        core: Core,
        topic: TopicName,
        partition: int,
        configuration: ConsumerConfiguration,
        queue: ReceiveQueue,
        queue_size: int,
        start: StartFilter | None = None,
    ) -> None:
        """`start` makes the subscription a non-durable one that begins there."""
        self.topic = topic
        self.partition = partition
        self.name = configuration.consumer_name or ""
        self.generation = 0
        self.acks = ConsumerAcks(core, configuration, self)
        keeps_order = start is None and configuration.consumer_type.keeps_order
        self._chunks = ChunkReceiver(core, configuration, self.acks, topic.full, keeps_order=keeps_order)
        self.registration = Registration(core, topic, KIND, self, self.register, self._fail, self._ends)
        self._core = core
        self._configuration = configuration
        self._receive_queue = queue
        self.permits = Permits(self.registration, queue, queue_size, core.handover)
        self._entry_of = entry_kind(core, configuration)
        self._durable = start is None
        self._keeps_queue = start is not None and configuration.consumer_type.keeps_order
        """Whether it goes on after the last entry that arrived. Of a Shared subscription others may get that entry."""
        self.refused: Callable[[TopicName], None] | None = None
        """Told that the broker has no such topic any longer, or has it with partitions."""
        self.active_changed: Callable[[bool], None] | None = None
        if queue.events is not None:
            self.active_changed = partial(queue.events.changed, partition)
        self._epoch = 1 if configuration.consumer_type.keeps_order else 0
        """Of an ordered subscription: counts our requests for redelivery; the broker says with a message what it knew
        of them when it sent that. It begins with 1: a broker may leave 0 out, and one without epochs leaves out all.
        Other subscriptions have none, that is 0."""
        self._filter = start
        self._seeking = False
        """Whether a seek has not been answered yet."""
        self._unsought: StartFilter | None = None
        """Where to go on if a seek fails."""
        self._target: tuple[MessageId | int, bool] = (MessageId.earliest, True)
        """Of the last seek."""
        self._end: Position = EARLIEST_POSITION
        """The last entry of the topic when the last seek was sent."""
        self._last_arrived: tuple[int, int] | None = None
        self._resumed_at: tuple[int, int] | None = None
        """Of a non-durable subscription: the entry that the last SUBSCRIBE named, until something behind it comes."""
        self._sought = False
        """Whether our own seek is what the next SUBSCRIBE comes from."""
        self._subscribed = False
        """Whether there was a SUBSCRIBE since the last seek was sent."""
        self._missing = False
        """Whether the topic did not exist at an attempt since the last SUBSCRIBE: it can only be a new one then."""
        self._ready_waiters: deque[asyncio.Future[None]] = deque()
        self._discards = RepeatedWarnings(logger, core.loop.time)
        """Of entries that cannot be decrypted: there may be one for every message."""

    # ---- Life ----

    async def open(self) -> None:
        """Subscribe. Raises the broker's refusal, ConnectError or Timeout."""
        await self._core.lookup.retry(f"subscribing to {self.topic.full}", self.register)

    @property
    def is_connected(self) -> bool:
        """Whether the subscription is in place at a broker."""
        return self.registration.connection is not None

    @property
    def durable(self) -> bool:
        """Whether the broker keeps the subscription's position."""
        return self._durable

    def has_come(self, last: MessageId) -> bool:
        """Whether nothing up to `last`, which the broker has, is still on its way.

        What came may lie in the receive queue, be with the application, or have been passed over.
        """
        if last.entry_id() < 0:
            return True
        if self._seeking:
            return False
        if self._last_arrived is not None:
            return last.position <= self._last_arrived
        return self._filter is not None and self._filter.is_reached(last)

    async def close(self) -> None:
        """Send the acknowledgements that wait, then leave the subscription. Never raises."""
        if self.registration.failure is not None:
            return
        self.acks.close()
        self._chunks.clear()
        self._discards.flush(f"entries of {self.topic.full} were discarded")
        self.registration.end(RegistrationState.CLOSED, AlreadyClosed("the consumer is closed: subscribe again"))
        self._wake_waiters()
        connection = self.registration.let_go()
        if connection is not None:
            await self.registration.close_on_broker(connection)

    def abandon(self, reason: MagnetarError) -> None:
        """End without a word to the broker."""
        if self.registration.failure is None:
            self.registration.end(RegistrationState.CLOSED, reason)
            self._chunks.clear()
            self.acks.abandon()
            self._wake_waiters()

    def inherited(self, error: MagnetarError) -> None:
        """See `forking`."""
        self.registration.inherited(error)

    def _fail(self, error: MagnetarError) -> None:
        """The broker's refusal is final."""
        self._receive_queue.source_failed(self, self.registration.end(RegistrationState.FAILED, error))
        self._wake_waiters()

    def _ends(self, error: MagnetarError) -> bool:
        """Whether a refusal ends a consumer that was subscribed before; see `Registration`.

        A pattern's consumer of a deleted topic ends: the topic is found again when it is created.
        """
        if isinstance(error, TopicNotFound) and isinstance(self._configuration.topic, re.Pattern):
            return True
        self._missing = self._missing or isinstance(error, TopicNotFound)
        if self.refused is not None and isinstance(error, TopicNotFound | NotAllowedError):
            self.refused(self.topic)
        return False

    async def ready_connection(self) -> ClientConnection:
        """The connection that the subscription lives on, as soon as it does. Raises why it never will."""
        while (connection := self.registration.connection) is None:
            self.registration.check()
            waiter: asyncio.Future[None] = self._core.loop.create_future()
            self._ready_waiters.append(waiter)
            await waiter
        return connection

    def _wake_waiters(self) -> None:
        while self._ready_waiters:
            waiter = self._ready_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # ---- Connection ----

    async def register(self) -> None:
        """Subscribe at the topic's broker once; see `Registration.attempt`."""
        await self.registration.attempt(self._command, CommandSuccess, self._learn_start)
        connection = self.registration.connection
        assert connection is not None
        self._missing = False
        self._subscribed = True
        if not self._keeps_queue:
            self._void_queue()
            if self._durable and not self._sought:
                # The seek that moved the subscription may have moved it back: from here on every message is wanted.
                self._filter = None
            self._sought = False
        else:
            self._resumed_at = self._last_arrived
        granted = self.permits.begin(self)
        # First what is acknowledged, so that it is not delivered again.
        self.acks.subscribed()
        if granted:
            self.permits.send(granted)
        if self._receive_queue.waiting:
            self.permits.ask_for_one()
        self._wake_waiters()

    async def _learn_start(self, connection: ClientConnection, consumer_id: int) -> None:
        """Ask where a non-durable subscription stands whose start only the broker knows.

        It has no permits yet, so nothing comes before the answer. Without the place, a subscription that got nothing
        until its topic moved would begin at the end of the topic again, and miss what was published before.
        """
        start = self._filter
        if self._durable or start is None or start.is_placed or self._last_arrived is not None:
            return
        if not self.topic.persistent:
            return  # nothing is stored that could be missed
        request_id = connection.next_request_id()
        asked = CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
        answer = await self.registration.ask(connection, asked, request_id, CommandGetLastMessageIdResponse)
        if self._filter is start:
            exact = answer.HasField("consumer_mark_delete_position")
            place = answer.consumer_mark_delete_position if exact else answer.last_message_id
            if exact or not start.publish_time:
                self._filter = start.placed(
                    (signed64(place.ledgerId), signed64(place.entryId)), alone=self._keeps_queue
                )

    def _command(self, consumer_id: int, request_id: int) -> CommandSubscribe:
        configuration = self._configuration
        # Whatever is in a topic that was created again came after this consumer subscribed to its predecessor.
        begin = InitialPosition.Earliest if self._missing else configuration.initial_position
        command = CommandSubscribe(
            topic=self.topic.full,
            subscription=configuration.subscription_name,
            subType=configuration.consumer_type.value,  # pyright: ignore[reportArgumentType]
            consumer_id=consumer_id,
            request_id=request_id,
            durable=self._durable,
            initialPosition=begin.value,  # pyright: ignore[reportArgumentType]
            metadata=[KeyValue(key=key, value=value) for key, value in configuration.properties.items()],
        )
        if isinstance(configuration.topic, re.Pattern):
            command.force_topic_creation = False  # a topic that was deleted must not come back by this
        if self.name:
            command.consumer_name = self.name
        if configuration.schema is not None and configuration.schema.info is not None:
            command.schema.CopyFrom(configuration.schema.info.to_wire())
        if configuration.priority_level:
            command.priority_level = configuration.priority_level
        if configuration.is_read_compacted:
            command.read_compacted = True
        if not self._durable:
            command.start_message_id.CopyFrom(_start(self._resuming_at, self._filter))
        if self._epoch:
            command.consumer_epoch = self._epoch
        if configuration.consumer_type is ConsumerType.KeyShared:
            policy = configuration.key_shared_policy or ConsumerKeySharedPolicy()
            command.keySharedMeta.CopyFrom(policy.to_wire())
        return command

    @property
    def _resuming_at(self) -> tuple[int, int] | None:
        """Of a non-durable subscription: the entry to go on with, None at the beginning."""
        first = None if self._keeps_queue else self._receive_queue.first(self)
        if first is None:
            return self._last_arrived
        return first.message_id().position if isinstance(first, Message) else first.position

    def _void_queue(self) -> int:
        self.generation += 1
        self._chunks.clear()
        return self._receive_queue.discard(self)

    def connection_lost(self, connection: ClientConnection, reason: MagnetarError) -> None:
        """The connection has ended: go on on another one."""
        self.registration.lost(connection)

    def closed_by_broker(self, connection: ClientConnection) -> None:
        """The broker gave the topic away, or the subscription was moved by a seek."""
        self.registration.lost(connection)

    # ---- In ----

    def message(self, command: CommandMessage, entry: bytes) -> None:
        """An entry came."""
        if self._epoch and command.HasField("consumer_epoch") and command.consumer_epoch < self._epoch:
            # Sent before the broker knew of the redelivery. What was thrown away for that lies before it and comes
            # later: an application that went on here and acknowledged cumulatively would never see it.
            self._pass_over(entry, command)
            return
        if self._seeking and not self._subscribed:
            # From before the seek. If that fails, it comes again.
            self._pass_over(entry, command)
            return
        where = command.message_id
        position = (signed64(where.ledgerId), signed64(where.entryId))
        try:
            metadata, payload = parse_entry(entry)
            received = self._entry_of(
                self.topic.full,
                self.partition,
                *position,
                metadata,
                payload,
                redelivery_count=command.redelivery_count,
                ack_set=tuple(word & 0xFFFFFFFFFFFFFFFF for word in command.ack_set),
                source=self,
                generation=self.generation,
            )
        except (ChecksumError, ProtocolError) as error:
            received = self._entry_of(
                self.topic.full,
                self.partition,
                *position,
                MessageMetadata(),
                b"",
                source=self,
                generation=self.generation,
            )
            # It fails the call whose turn it is.
            received.failure = error
            received.count = received.permits = _permits_perhaps(entry, command)
            self._chunks.damaged(position)
        else:
            if self._chunks.awaited:
                self._chunks.came(position)
        self.permits.outstanding -= received.permits
        if self._resumed_at is not None and not self._seeking:
            if position <= self._resumed_at:  # it is queued, or with the application: not acknowledged for it here
                self.leave_out(received.permits)
                return
            self._resumed_at = None
        self._last_arrived = position
        if self._receive_queue.progress.waited_for:
            self._core.loop.call_soon(self._receive_queue.progress.notify_all)
        self.acks.received(position)
        if (received.ack_set or self._configuration.batch_index_ack_enabled) and received.batched:
            self.acks.came(received)
        if received.failure is None and is_chunk(received):
            self._chunk_arrived(received)
        elif self._filter is None or received.failure is not None or self._passes(self._filter, received):
            self._receive_queue.arrive(received)

    def _chunk_arrived(self, chunk: ReceivedEntry) -> None:
        """A chunk came: the filter looks at it, and then at the message that it may complete."""
        start = self._filter
        if start is not None and not self._passes(start, chunk):
            return
        message = self._chunks.arrive(chunk)
        if message is None:
            self.leave_out(chunk.permits)
        elif start is None or self._passes(start, message):
            self._receive_queue.arrive(message)

    def _passes(self, start: StartFilter, received: ReceivedEntry) -> bool:
        """Whether what came is wanted, if only in part."""
        if start.drops(received):
            self.leave_out(received.permits)
            if self._epoch and not self._seeking:
                # Done, as far as the application is concerned. On a Shared subscription another consumer may just have
                # sought back to it: there it stays unacknowledged and comes again.
                self.acks.acknowledge_entry(received.position)
            return False
        received.wanted = start.wanted(received)
        if start.is_passed(received):
            self._filter = None
        return True

    def _pass_over(self, entry: bytes, command: CommandMessage) -> None:
        """An entry came that goes no further."""
        count = _permits_perhaps(entry, command)
        self.permits.outstanding -= count
        self.leave_out(count)

    def leave_out(self, messages: int) -> None:
        """What came is not for the application: have the broker send something else instead."""
        with self._receive_queue.lock:
            self.permits.free(messages)
        self.permits.ask_for_one()

    def open_entry(self, entry: ReceivedEntry) -> Sequence[Message]:
        """See `receive_queue.Source`; called under the receive queue's lock."""
        self.permits.free(entry.permits)
        entry.permits = 0  # a call that is interrupted here leaves the entry in the queue, and another one opens it
        try:
            messages = entry.open(self._core.configuration.decompressed_size_max_bytes)
        except Discarded as error:
            self._discards.note(f"entry {entry.position} of {self.topic.full} is discarded: {error}")
            self.acks.acknowledge(MessageId(self.partition, *entry.position))
            return []
        except Exception as error:  # of any kind: an undecodable entry must not count as delivered
            why = unreadable(error)
            logger.error("entry %s of %s cannot be decoded: %s", entry.position, self.topic.full, why)
            if self._durable:
                self.acks.undelivered(entry.position, damaged=isinstance(why, ChecksumError))
            place = MessageId(self.partition, *entry.position)
            raise not_delivered(self.topic.full, place, why, self._durable) from error
        if self._durable and self._epoch:  # cumulative acknowledgement deletes, so it matters what it covers
            self.acks.opened(entry.position)
        if self.acks.timeouts is not None:
            self.acks.given(entry)
        return messages

    # ---- Moving ----

    def redeliver_all(self) -> None:
        """Have everything unacknowledged delivered again; what is queued is dropped."""
        if self.registration.connection is None:
            return  # the next subscription begins with it anyway
        dropped = self._void_queue()
        if self._epoch:
            self._epoch += 1
        self.acks.send_redelivery((), self._epoch or None)
        if dropped:
            self.permits.free_at_once(dropped)

    def begin_seek(self, target: MessageId | int, inclusive: bool, end: Position = EARLIEST_POSITION) -> None:
        """A seek is about to be sent: from here on nothing that is queued or still comes is wanted.

        `end` is the last entry of the topic, as far as it matters to a non-durable subscription.
        """
        self._sought = self._seeking = True
        self._subscribed = False
        self._unsought = self._here()
        self._target, self._end = (target, inclusive), end
        self._set_filter(target, inclusive)
        self._forget_queue()

    def _here(self) -> StartFilter | None:
        """A filter that lets pass what the application does not have yet. A durable subscription needs none."""
        first = self._receive_queue.first(self)
        incomplete = self._chunks.first_position()
        if incomplete is not None and not self._durable:
            return StartFilter(MessageId(self.partition, *incomplete), True)
        if self._durable or (isinstance(first, ReceivedEntry) and first.wanted is not None):
            return self._filter
        if isinstance(first, Message):
            return StartFilter(first.message_id(), True)
        if first is not None:
            return StartFilter(MessageId(self.partition, *first.position), True)
        if self._last_arrived is not None and (self._filter is None or self._filter.is_placed):
            return StartFilter(MessageId(self.partition, *self._last_arrived), False)
        return self._filter

    def _set_filter(self, target: MessageId | int, inclusive: bool) -> None:
        if isinstance(target, int):
            self._filter = None if self._durable else StartFilter(MessageId.earliest, True, target, self._end)
        elif target == MessageId.latest:
            # A broker that does not know of the seek must not begin at a later end.
            place = MessageId(self.partition, *self._end) if self.topic.persistent else target
            self._filter = None if self._durable else StartFilter(place, False)
        else:
            self._filter = None if self._durable and target == MessageId.earliest else StartFilter(target, inclusive)

    def _forget_queue(self) -> None:
        dropped = self._void_queue()
        self._last_arrived = self._resumed_at = None
        self.acks.reset()
        with self._receive_queue.lock:
            self.permits.free(dropped)

    def end_seek(self, done: bool) -> None:
        """The broker has answered. What arrived in between is from before."""
        self._seeking = False
        if done:
            # A non-durable subscription has nothing to forget: what was made meanwhile began at the target.
            if self._durable:
                self._set_filter(*self._target)
                self._forget_queue()
        else:
            self._sought = False
            self._filter = self._unsought
            self._last_arrived = self._resumed_at = None
            self.redeliver_all()


def _permits_perhaps(entry: bytes, command: CommandMessage) -> int:
    """How many permits an entry took that may be unreadable."""
    try:
        count = max(1, parse_metadata(entry).num_messages_in_batch)
    except ProtocolError:
        return 1
    return open_messages(command.ack_set, count) if command.ack_set else count


def _start(last_arrived: tuple[int, int] | None, start: StartFilter | None) -> MessageIdData:
    """Where a non-durable subscription begins: with the last entry that arrived, or at the wanted start.

    The broker begins with the entry that the id names. What came of it before is dropped here.
    """
    if last_arrived is not None:
        return MessageId(-1, *last_arrived).to_wire()
    assert start is not None
    return start.begin.to_wire()
