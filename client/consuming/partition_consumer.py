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

Chunks become messages before they are queued (`ChunkReceiver`).

An entry that cannot be opened (`undelivered`) frees its permits like any other and is never acknowledged; `receive`
fails with the reason. A durable subscription keeps it: cumulative acknowledgement leaves it out (`acknowledgements`).

`Permits` has the flow permits, and their invariant.

The class of a consumer's entries: what all of them have in common is said once.

Values are decoded by the consumer's schema, with the definition that each was written with. An entry says the version
of its writer's schema. A consumer on the loop fetches what it lacks before it hands the message out, because
`Message.value` cannot wait there. Other threads fetch it when they ask for the value. A failure to fetch it is what
`value` raises; the payload is there all the same.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from functools import partial

from ...protocol.ack_sets import open_messages
from ...protocol.commands import flow
from ...protocol.entries import parse_entry, parse_metadata
from ...protocol.errors import (
    AlreadyClosed,
    ChecksumError,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    TopicNotFound,
)
from ...protocol.message_id import EARLIEST_POSITION, Position, position_of
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
from ..core.threading_bridge import Handover
from ..crypto.decryption import Discarded, MessageDecryptor
from ..crypto.keys import ConsumerCryptoFailureAction
from ..schemas.key_value import key_bytes
from ..schemas.schema import Schema, SchemaInfo
from .ack_sender import ConsumerAcks
from .chunks import ChunkOutcome, IncompleteMessages, is_chunk
from .message import Message, ReceivedEntry
from .receive_queue import ReceiveQueue
from .start_filter import StartFilter
from .undelivered import not_delivered, unreadable

logger = logging.getLogger(__name__)


class Permits:
    """The flow permits of one partition's consumer: how many messages its broker may send.

    Invariant, with a receiver queue: permits at the broker + messages in unopened entries + `_credit` = `queue_size` (a
    batch may exceed it by its own size, because brokers send whole batches). Without a queue, a caller that waits asks
    for one message.

    While the consumer is paused, no permit goes out: what is freed stays in `_credit`, and `resume` sends it. What the
    broker may send already still comes, up to the size of the queue. Below zero `_credit` says by how much the queue
    became smaller than what fills it.

    `free` may be called from any thread, the rest from the loop's.
    """

    def __init__(
        self, registration: Registration[ConsumerEndpoint], queue: ReceiveQueue, queue_size: int, handover: Handover
    ) -> None:
        self.queue_size = queue_size
        self.outstanding = 0
        """Permits at the broker, without a queue; below zero after a batch of several messages."""
        self._registration = registration
        self._receive_queue = queue
        self._handover = handover
        self._credit = 0
        """Messages that left the queue, and whose permits are not sent yet; changed under the receive queue's lock."""
        self._subscriptions = 0

    def begin(self, source: object) -> int:
        """The broker has answered a SUBSCRIBE and has no permits. Returns those for the free part of the queue."""
        self.outstanding = 0
        with self._receive_queue.lock:
            # At once with the credit: what is opened in between counts once.
            self._subscriptions += 1
            free = max(0, self.queue_size - self._receive_queue.queued(source))
            self._credit = free if self._receive_queue.paused else 0
            return free - self._credit

    def free(self, count: int) -> None:
        """So many messages left the queue; tell the broker when it is half empty. Called under the receive queue's
        lock.
        """
        if not self.queue_size:
            return
        self._credit += count
        if self._credit >= (self.queue_size // 2 or 1) and not self._receive_queue.paused:
            self._handover.wake(self.send, self._credit, self._subscriptions)
            self._credit = 0

    def resize(self, queue_size: int) -> None:
        """Let so many messages wait in the queue, at least one, from now on. There must be a queue.

        The broker is told of more room at once. Where there is less, what is freed next is kept back.
        """
        with self._receive_queue.lock:
            self._credit += queue_size - self.queue_size
            self.queue_size = queue_size
            self.free(0)

    def send(self, permits: int, subscription: int | None = None) -> None:
        """Grant permits to the broker, unless they are of an earlier subscription, whose permits ended with it."""
        connection = self._registration.connection
        if connection is not None and subscription in (None, self._subscriptions):
            connection.write(flow(self._registration.id, permits))

    def free_at_once(self, count: int) -> None:
        """So many messages were dropped from the queue: the broker sends others at once, unless paused."""
        if not self._receive_queue.paused:
            self.send(count)
            return
        with self._receive_queue.lock:
            self.free(count)

    def ask_for_one(self) -> None:
        """Without a queue: a caller waits for a message, so ask for one unless that is in progress."""
        if self.queue_size or self.outstanding > 0 or self._receive_queue.paused:
            return
        connection = self._registration.connection
        if connection is not None:
            connection.write(flow(self._registration.id, 1 - self.outstanding))
            self.outstanding = 1

    def resume(self) -> None:
        """The consumer is no longer paused: grant what was freed meanwhile."""
        with self._receive_queue.lock:
            if self._receive_queue.paused:
                return
            permits, self._credit = self._credit, 0
        if permits:
            self.send(permits)
        elif self._receive_queue.waiting:
            self.ask_for_one()


class EntryOfSeveral(ReceivedEntry):
    """An entry of a consumer of several topics."""

    __slots__ = ()
    names_topic = True


def entry_kind(core: Core, configuration: ConsumerConfiguration) -> type[ReceivedEntry]:
    """The class of the entries of one consumer."""
    reader, action = configuration.crypto_key_reader, configuration.crypto_failure_action
    if configuration.schema is not None:

        class DecodingEntry(EntryWithSchema):
            """An entry of a consumer with a schema. It may decrypt, too."""

            __slots__ = ()
            names_topic = configuration.takes_several_topics
            crypto = None if reader is None else MessageDecryptor(reader, action)
            reading = SchemaReading(core, configuration.schema)

        return DecodingEntry
    if reader is None and action is ConsumerCryptoFailureAction.FAIL:
        return EntryOfSeveral if configuration.takes_several_topics else ReceivedEntry

    class DecryptingEntry(ReceivedEntry):
        """An entry of a consumer that decrypts, or that does not fail when it cannot."""

        __slots__ = ()
        names_topic = configuration.takes_several_topics
        crypto = MessageDecryptor(reader, action)

    return DecryptingEntry


def first_delivery_of(kind: type[ReceivedEntry]) -> type[ReceivedEntry]:
    """The class of those entries of a consumer that came for the first time."""

    class FirstDelivery(kind):
        """An entry whose broker said that it sent it for the first time."""

        __slots__ = ()
        is_first_delivery = True

    return FirstDelivery


class EntryWithSchema(ReceivedEntry):
    __slots__ = ("writer",)

    writer: SchemaInfo | MagnetarError | None
    """What it was written with, or why that is not known; None until it was asked for."""


class SchemaReading:
    """Finds the definition that an entry was written with."""

    def __init__(self, core: Core, schema: Schema) -> None:
        self._core = core
        self._schema = schema

    def lacks(self, entry: ReceivedEntry) -> bool:
        """Whether the definition that the entry was written with has to be fetched."""
        return self._schema.needs_writer and bool(entry.metadata.schema_version) and self._known(entry) is None

    def _known(self, entry: ReceivedEntry) -> SchemaInfo | MagnetarError | None:
        assert isinstance(entry, EntryWithSchema)
        found = getattr(entry, "writer", None)
        if found is None:
            found = entry.writer = self._core.schemas.known(entry.topic, entry.metadata.schema_version)
        return found

    async def load(self, entry: ReceivedEntry) -> None:
        """Fetch that definition. Never raises: `value` does."""
        assert isinstance(entry, EntryWithSchema)
        try:
            entry.writer = await self._core.schemas.get(entry.topic, entry.metadata.schema_version)
        except MagnetarError as error:
            entry.writer = error

    def _writer(self, entry: ReceivedEntry) -> SchemaInfo | None:
        """What the entry was written with, None if it does not say. Raises why that is not known."""
        if not self._schema.needs_writer or not entry.metadata.schema_version:
            return None
        found = self._known(entry)
        if found is None:
            found = self._core.handover.wait_for(self._core.schemas.get(entry.topic, entry.metadata.schema_version))
        if isinstance(found, MagnetarError):
            raise found
        return found

    def value(self, message: Message) -> object:
        """See `Message.value`."""
        return value_of(message, self._schema, None if message.has_null_value() else self._writer(message.entry))

    def of_pickle(self, entry: ReceivedEntry) -> "WrittenWith":
        """What decodes it in another process."""
        try:
            return WrittenWith(self._schema, self._writer(entry))
        except MagnetarError as error:
            return WrittenWith(self._schema, error)


class WrittenWith:
    """Decodes the messages of one entry that came out of a pickle."""

    def __init__(self, schema: Schema, writer: SchemaInfo | MagnetarError | None) -> None:
        self._schema = schema
        self._writer = writer

    def lacks(self, entry: ReceivedEntry) -> bool:
        """Nothing: it travelled with the entry."""
        return False

    async def load(self, entry: ReceivedEntry) -> None:
        """Nothing: it travelled with the entry."""

    def value(self, message: Message) -> object:
        """See `Message.value`."""
        if isinstance(self._writer, MagnetarError):
            raise self._writer
        return value_of(message, self._schema, self._writer)

    def of_pickle(self, entry: ReceivedEntry) -> "WrittenWith":
        """What decodes it in another process."""
        return self


def value_of(message: Message, schema: Schema, writer: SchemaInfo | None) -> object:
    """The value of a message. Raises SchemaSerializationError."""
    if message.has_null_value():
        return None
    if message.entry.undecrypted:
        return message.data()
    if not (schema.separates_key or schema.learns):
        return schema.decode(message.data(), writer)
    single = message[3]
    key = key_bytes(single.partition_key) if single is not None and single.partition_key_b64_encoded else None
    return schema.decode_with_key(key, message.data(), writer)


AWAITED_MAX = 1_000
"""So many damaged entries are remembered."""


class ChunkReceiver:
    """The chunks that a partition's consumer has received, on the loop: puts messages together and has the rest done.

    What `chunks` decides is carried out here: chunks are acknowledged or asked for again, and a timer drops what is
    incomplete for too long. A chunk that is kept gives its permit back at once. The permit of a whole message is that
    of the chunk which completes it, and comes back when the application reaches the message.

    On a subscription that keeps an order, all chunks but the last count as undelivered until their message is
    acknowledged. So a cumulative acknowledgement of a message whose last chunk lies before theirs does not delete them.
    """

    def __init__(
        self, core: Core, configuration: ConsumerConfiguration, acks: ConsumerAcks, name: str, *, keeps_order: bool
    ) -> None:
        self._core = core
        self._acks = acks
        self._name = name
        self._keeps_order = keeps_order
        self._messages = IncompleteMessages(
            configuration.max_pending_chunked_message,
            configuration.auto_ack_oldest_chunked_message_on_queue_full,
            configuration.expire_time_of_incomplete_chunked_message_ms / 1000,
            core.configuration.decompressed_size_max_bytes,
        )
        self.awaited: dict[Position, None] = {}
        """Entries that came damaged, in that order."""
        self._timer: asyncio.TimerHandle | None = None

    def arrive(self, chunk: ReceivedEntry) -> ReceivedEntry | None:
        """A chunk came. Returns what is for the receive queue: a whole message, or a chunk that makes no sense."""
        if self._keeps_order and chunk.metadata.chunk_id + 1 < chunk.metadata.num_chunks_from_msg:
            self._acks.undelivered(chunk.position, damaged=False)
        outcome = self._messages.arrive(chunk, self._core.loop.time())
        self._carry_out(outcome)
        self._set_timer()
        if outcome.whole is not None and outcome.whole.chunks:
            self._acks.chunked.put(tuple([part.position for part in outcome.whole.chunks]))
        return outcome.whole

    def damaged(self, position: Position) -> None:
        """An entry came damaged, and will come again: it may be the missing chunk of any message. None expires until
        it has come."""
        self.awaited[position] = None
        if len(self.awaited) > AWAITED_MAX:
            del self.awaited[next(iter(self.awaited))]

    def came(self, position: Position) -> None:
        """An entry came undamaged."""
        if self.awaited.pop(position, self) is None and not self.awaited:
            self._messages.restart(self._core.loop.time())
            self._set_timer()

    def first_position(self) -> Position | None:
        """Where the first chunk of those lies that are here."""
        return min(self._messages.positions(), default=None)

    def clear(self) -> None:
        """What is here comes again, or is not wanted."""
        self._messages.clear()
        self.awaited.clear()
        self._set_timer()

    def _carry_out(self, outcome: ChunkOutcome) -> None:
        for position in outcome.done:
            self._acks.acknowledge_entry(position)
        if outcome.again:
            logger.warning("%s holds too many incomplete messages; it asks for the oldest again", self._name)
            self._acks.redeliver_later(outcome.again)

    def _set_timer(self) -> None:
        due_s = self._messages.next_expiry_s if not self.awaited else None
        if self._timer is not None:
            if due_s is not None and self._timer.when() <= due_s:
                return  # it looks again then
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = self._core.loop.call_at(due_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.awaited:
            return
        outcome = self._messages.expire(self._core.loop.time())
        if outcome.done:
            logger.warning(
                "%s acknowledges %d chunks whose messages did not become complete in time",
                self._name,
                len(outcome.done),
            )
        self._carry_out(outcome)
        self._set_timer()


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
        self._topic_name = topic.full
        self.partition = partition
        self.name = configuration.consumer_name or ""
        self.generation = 0
        self.registration: Registration[ConsumerEndpoint] = Registration(
            core, topic, KIND, self, self.register, self._fail, self._ends
        )
        self.acks = ConsumerAcks(core, configuration, self)
        keeps_order = start is None and configuration.consumer_type.keeps_order
        self._chunks = ChunkReceiver(core, configuration, self.acks, topic.full, keeps_order=keeps_order)
        self._core = core
        self._configuration = configuration
        self._receive_queue = queue
        self.permits = Permits(self.registration, queue, queue_size, core.handover)
        self._entry_of = entry_kind(core, configuration)
        marks = configuration.marks_first_deliveries
        self._first_entry_of = first_delivery_of(self._entry_of) if marks else None
        """For entries that came for the first time, if the broker is asked about that."""
        creates = core.configuration.allow_auto_topic_creation
        self._ends_with_topic = not creates or isinstance(configuration.topic, re.Pattern)
        """Whether it never has its broker create the topic, and ends when the topic is deleted."""
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
        connection = self.registration.let_go()
        if connection is not None:
            await self.registration.close_on_broker(connection)

    def abandon(self, reason: MagnetarError) -> None:
        """End without a word to the broker."""
        if self.registration.failure is None:
            self.registration.end(RegistrationState.CLOSED, reason)
            self._chunks.clear()
            self.acks.abandon()

    def inherited(self, error: MagnetarError) -> None:
        """See `forking`."""
        self.registration.inherited(error)

    def _fail(self, error: MagnetarError) -> None:
        """The broker's refusal is final."""
        self._receive_queue.source_failed(self, self.registration.end(RegistrationState.FAILED, error))

    def _ends(self, error: MagnetarError) -> bool:
        """Whether a refusal ends a consumer that was subscribed before; see `Registration`.

        A pattern's consumer of a deleted topic ends: the topic is found again when it is created.
        """
        if isinstance(error, TopicNotFound) and self._ends_with_topic:
            return True
        self._missing = self._missing or isinstance(error, TopicNotFound)
        if self.refused is not None and isinstance(error, TopicNotFound | NotAllowedError):
            self.refused(self.topic)
        return False

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
                self._filter = start.placed(position_of(place), alone=self._keeps_queue)

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
        if self._ends_with_topic:
            command.force_topic_creation = False  # a topic that was deleted must not come back by this
        if self.name:
            command.consumer_name = self.name
        if configuration.schema is not None and configuration.schema.info is not None:
            command.schema.CopyFrom(configuration.schema.info.to_wire())
        if configuration.priority_level:
            command.priority_level = configuration.priority_level
        if configuration.is_read_compacted:
            command.read_compacted = True
        if configuration.marks_first_deliveries:
            command.marks_first_deliveries = True
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

    # ---- In ----

    def message(self, command: CommandMessage, entry: bytes) -> None:
        if self._epoch and command.HasField("consumer_epoch") and command.consumer_epoch < self._epoch:
            # Sent before the broker knew of the redelivery. What was thrown away for that lies before it and comes
            # later: an application that went on here and acknowledged cumulatively would never see it.
            self._pass_over(entry, command)
            return
        if self._seeking and not self._subscribed:
            # From before the seek. If that fails, it comes again.
            self._pass_over(entry, command)
            return
        position = position_of(command.message_id)
        entry_of = self._entry_of
        if self._first_entry_of is not None and command.first_delivery:
            entry_of = self._first_entry_of
        try:
            metadata, payload = parse_entry(entry)
            received = entry_of(
                self._topic_name,
                self.partition,
                *position,
                metadata,
                payload,
                redelivery_count=command.redelivery_count,
                ack_set=tuple([word & 0xFFFFFFFFFFFFFFFF for word in command.ack_set]) if command.ack_set else (),
                source=self,
                generation=self.generation,
            )
        except (ChecksumError, ProtocolError) as error:
            received = self._entry_of(
                self._topic_name,
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
        if self._receive_queue.progress.waiting:
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
        """The messages of an entry that the application has come to; called under the receive queue's lock."""
        self.permits.free(entry.permits)
        entry.permits = 0  # a call that is interrupted here leaves the entry in the queue, and another one opens it
        try:
            messages = entry.open(self._core.configuration.decompressed_size_max_bytes)
        except Discarded as error:
            self._discards.note(f"entry {entry.position} of {self.topic.full} is discarded: {error}")
            self.acks.acknowledge(MessageId(self.partition, *entry.position))
            return []
        except Exception as error:  # of any kind: an undecodable entry must not count as delivered
            raise self._not_opened(entry, error) from error
        self._note_opened(entry)
        return messages

    def hand_out(self, entry: ReceivedEntry) -> None:
        """The application takes an entry as it came, and opens it itself; called under the receive queue's lock.

        Raises why it is damaged.
        """
        self.permits.free(entry.permits)
        entry.permits = 0
        if entry.failure is not None:
            raise self._not_opened(entry, entry.failure) from entry.failure
        self._note_opened(entry)

    def _not_opened(self, entry: ReceivedEntry, error: Exception) -> MagnetarError:
        why = unreadable(error)
        logger.error("entry %s of %s cannot be decoded: %s", entry.position, self.topic.full, why)
        if self._durable:
            self.acks.undelivered(entry.position, damaged=isinstance(why, ChecksumError))
        return not_delivered(self.topic.full, MessageId(self.partition, *entry.position), why, self._durable)

    def _note_opened(self, entry: ReceivedEntry) -> None:
        if self._durable and self._epoch and self.acks.notes_opened:
            # Cumulative acknowledgement deletes, so it matters what it covers.
            self.acks.opened(entry.position)
        if self.acks.timeouts is not None:
            self.acks.given(entry)

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

    def incomplete_from(self) -> list[Position]:
        """Where the first chunk lies of those whose messages are not complete: one place, or none."""
        first = self._chunks.first_position()
        return [] if first is None else [first]

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
