"""The producer of one topic or partition, on the loop: entries out, receipts in, in order.

`Registration` has the states. While it is CONNECTING, what is published waits, also while the topic is deleted and not
created again. When it becomes READY, everything without a receipt is sent again, in order. When it ends, everything
pending fails, and so does everything new.

Invariants: `inflight` holds, in order of sending, every entry whose outcome the application does not know. A receipt
for its head completes the head. An earlier receipt is stale. A later one means that something was lost, and ends the
connection. An entry fails by time-out only after all before it have ended. A message in chunks (`chunking`) ends with
its last chunk, or fails as a whole. With `stop_on_failure` the first failure of an entry ends the producer: what lies
behind it fails, too, and the topic then has no gap in the messages of this producer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ...protocol.commands import send_header, varint
from ...protocol.compression import CompressionType, compress
from ...protocol.entries import build_entry
from ...protocol.errors import (
    AlreadyClosed,
    InvalidMessage,
    MagnetarError,
    MessageTooBig,
    ProducerBlockedQuotaExceededException,
    ProducerFenced,
    ProtocolError,
    Timeout,
    TopicNotFound,
    TopicTerminated,
    exception_for_server_error,
    is_retriable,
)
from ...protocol.message_id import position_of
from ...protocol.pulsar_pb2 import (
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    KeyValue,
    MessageMetadata,
)
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ..core.configuration import ProducerConfiguration
from ..core.connection import MESSAGE_SIZE_DEFAULT_BYTES, ClientConnection, ProducerEndpoint
from ..core.context import Core
from ..core.message_id import ChunkedMessageId, MessageId, batch_ids
from ..core.pending_pool import PendingPool
from ..core.registration import Registration, RegistrationKind, RegistrationState
from ..core.results import Result
from ..crypto.encryption import MessageEncryptor
from ..schemas.schema import EncodedKey
from .chunking import Chunk, cut, in_order, take_back
from .outbox import Batch, Flush, Outbox, SendCallback, ignore
from .outgoing import Outgoing
from .send_counts import SendCounts

logger = logging.getLogger(__name__)

_COMPRESSION = b"\x40"
_UNCOMPRESSED_SIZE = b"\x48"
_BATCH_COUNT = b"\x58"
_SCHEMA_VERSION = b"\x82\x01"
_HIGHEST_SEQUENCE_ID = b"\xc0\x01"


class EntryEncoder:
    """Encodes for one producer. The metadata's frequent fields are written by hand (protobuf allows any order)."""

    def __init__(
        self, compression: CompressionType, *, chunking: bool = False, encryptor: MessageEncryptor | None = None
    ) -> None:
        self._compression = compression
        self._chunking = chunking
        self._encryptor = encryptor
        self._producer = ""
        self._name = b""
        self.size_max_bytes = MESSAGE_SIZE_DEFAULT_BYTES

    def registered_as(self, name: str, schema_version: bytes) -> None:
        """The producer's name and the version of its schema (empty without one): entries carry them from now on."""
        self._producer = name
        encoded = name.encode()
        self._name = b"\x0a" + varint(len(encoded)) + encoded
        if schema_version:
            self._name += _SCHEMA_VERSION + varint(len(schema_version)) + schema_version

    def encode(self, batch: Batch, now_ms: int) -> list[bytes]:
        """The entry of `batch`, published at `now_ms`; several if it has to be cut into chunks.

        Raises MessageTooBig, TypeError or ValueError.
        """
        payload = batch.payload()
        fields = [self._name, b"\x10", varint(batch.first_sequence_id), b"\x18", varint(now_ms)]
        if batch.batched:
            count = len(batch.callbacks)
            fields += (_BATCH_COUNT, varint(count))
            if count > 1:
                fields += (_HIGHEST_SEQUENCE_ID, varint(batch.last_sequence_id))
        if self._compression:
            fields += (_COMPRESSION, varint(self._compression), _UNCOMPRESSED_SIZE, varint(len(payload)))
            payload = compress(self._compression, payload)
        if batch.attributes is not None:
            fields.append(_attributes(batch.attributes, batch.batched).SerializePartialToString())
        metadata = b"".join(fields)
        size, build = len(metadata) + len(payload), build_entry
        if self._encryptor is not None:
            size += self._encryptor.overhead_bytes
            build = self._encryptor.build
        if size > self.size_max_bytes:
            if self._chunking:
                uuid = f"{self._producer}-{batch.first_sequence_id}"
                entry_max = self.size_max_bytes - (size - len(metadata) - len(payload))
                return cut(entry_max, uuid, metadata, payload, build)
            raise MessageTooBig(
                f"the message has {size} bytes, but the broker accepts {self.size_max_bytes}: send less, or raise "
                "maxMessageSize",
                size_bytes=size,
                size_max_bytes=self.size_max_bytes,
            )
        return [build(metadata, payload)]


def _attributes(attributes: Outgoing, batched: bool) -> MessageMetadata:
    """The fields of a message, or of a batch's first message, that the entry's metadata shows."""
    metadata = MessageMetadata()
    if attributes.partition_key is not None:
        metadata.partition_key = attributes.partition_key
        if type(attributes.partition_key) is EncodedKey:
            metadata.partition_key_b64_encoded = True
    if attributes.ordering_key is not None:
        metadata.ordering_key = attributes.ordering_key.encode("utf-8", "surrogateescape")
    if attributes.schema_version:
        metadata.schema_version = attributes.schema_version  # behind the producer's own: the last one counts
    if batched:
        return metadata
    if attributes.properties:
        metadata.properties.extend([KeyValue(key=key, value=value) for key, value in attributes.properties.items()])
    if attributes.event_timestamp:
        metadata.event_time = attributes.event_timestamp
    if attributes.content is None:
        metadata.null_value = True
    if attributes.deliver_at_ms is not None:
        metadata.deliver_at_time = attributes.deliver_at_ms
    return metadata


BATCH_MARGIN_BYTES = 4096
"""Room for an entry's metadata below the largest message size."""
RESEND_PART_BYTES = 1 << 20
REFUSED_PAUSE_INITIAL_S = 0.01
REFUSED_PAUSE_MAX_S = 1.0

KIND: RegistrationKind[ProducerEndpoint] = RegistrationKind(
    "producer",
    "registered",
    lambda connection: connection.producers,
    lambda producer_id, request_id: CommandCloseProducer(producer_id=producer_id, request_id=request_id),
)


class Failing:
    """A callback of our own that is told the error itself, not just its name."""

    def __call__(self, result: Result, message_id: MessageId) -> None:
        raise NotImplementedError

    def fail(self, error: MagnetarError) -> None:
        """The message was not stored, or its outcome is unknown."""
        raise NotImplementedError


class PartitionProducer:
    """See the module. Everything but `outbox` is for the loop's thread."""

    def __init__(
        self,
        core: Core,
        topic: TopicName,
        configuration: ProducerConfiguration,
        pending_max: int,
        make_outbox: Callable[..., Outbox] = Outbox,
        pool: PendingPool | None = None,
        encryptor: MessageEncryptor | None = None,
    ) -> None:
        self.topic = topic
        self.counts = SendCounts(core.loop.time())
        self.name = configuration.producer_name or ""
        self.last_sequence_id = -1
        self.started = False
        """Whether it registers, or has: a partition may be begun with its first message only."""
        self.outbox = make_outbox(
            core.handover,
            self.pump,
            pending_max=pending_max,
            batching=configuration.batching_enabled,
            messages_max=configuration.batching_max_messages,
            bytes_max=configuration.batching_max_allowed_size_in_bytes,
            pool=pool,
        )
        if configuration.initial_sequence_id is not None:
            self.outbox.next_sequence_id = configuration.initial_sequence_id + 1
        self.on_open_batch = self._tick_alone
        """Called when an open batch appeared and the delay timer has to start."""
        self._core = core
        self._configuration = configuration
        self._encoder = EntryEncoder(
            configuration.compression_type, chunking=configuration.chunking_enabled, encryptor=encryptor
        )
        self._timeout_s = configuration.send_timeout_millis / 1000
        self.registration: Registration[ProducerEndpoint] = Registration(
            core, topic, KIND, self, self.register, self._fail, self._ends
        )
        self._epoch = 0
        self._topic_epoch: int | None = None
        """Of the access that this producer has, or had: with it the broker knows whether another one had it since."""
        self._registered = False
        self.inflight: deque[Batch] = deque()
        """See the module."""
        self._flushes: list[Flush] = []
        self._refusals: Backoff | None = None
        """The pauses before registering again; None since the last receipt."""
        self._last_refusal: MagnetarError | None = None
        """Why the broker stored nothing when it was last asked; None once it stored something."""
        self._expiry: asyncio.TimerHandle | None = None

    # ---- Life ----

    async def open(self) -> None:
        """Register with the topic's broker. Raises the broker's refusal, ConnectError or Timeout."""
        self.started = True
        await self.registration.open(f"creating a producer on {self.topic.full}")

    @property
    def is_connected(self) -> bool:
        """Whether entries go out at this moment."""
        return self.registration.connection is not None

    @property
    def awaited_sequence_id(self) -> int | None:
        """Of the oldest entry without a receipt; None without one."""
        return self.inflight[0].first_sequence_id if self.inflight else None

    def send_entry(self, entry: Batch) -> asyncio.Future[None]:
        """Send a batch whose messages are encoded and numbered, behind everything that was sent before.

        The future ends with the entry's receipt, or with the first failure among all that is pending up to it. Raises
        why the producer takes nothing, and ProducerQueueIsFull.
        """
        self.registration.check()
        if not self.outbox.add_entry(entry):
            raise self.outbox.failure or self.outbox.full_error()
        flush = Flush(self._core.loop.create_future())
        self._flushes.append(flush)
        entry.flushes = [flush]
        self.pump()
        return flush.future

    async def flush(self) -> None:
        """Until everything published so far has its receipt. Raises the first failure among it."""
        self.outbox.seal()
        self.pump()
        self.registration.check()
        if not self.inflight:
            return
        flush = Flush(self._core.loop.create_future())
        self._flushes.append(flush)
        last = self.inflight[-1]
        last.flushes = [*(last.flushes or ()), flush]
        await flush.future

    async def close(self) -> None:
        """Flush pending messages (up to the operation time-out) and close the producer on the broker. Never raises.

        When this is cancelled, what is pending fails and the broker is told at once.
        """
        try:
            if self.registration.failure is None:
                async with asyncio.timeout(self._core.timeout_s):
                    await self.flush()
        except (MagnetarError, TimeoutError) as error:
            logger.warning("the producer on %s closes with unsent messages: %s", self.topic.full, error)
        except asyncio.CancelledError:
            connection = self._leave()
            if connection is not None:
                self.registration.leave_at_once(connection)
            raise
        connection = self._leave()
        if connection is not None:
            await self.registration.close_on_broker(connection)

    def _leave(self) -> ClientConnection | None:
        """End here; returns the connection whose broker must still be told."""
        self.abandon(AlreadyClosed("the producer is closed: create a new one"))
        return self.registration.let_go()

    def abandon(self, reason: MagnetarError) -> None:
        """Close without a word to the broker: everything pending and everything new fails with `reason`."""
        self._finish(RegistrationState.CLOSED, reason)

    def _fail(self, error: MagnetarError) -> None:
        """The broker's refusal is final: everything pending and everything new fails with `error`."""
        self._finish(RegistrationState.FAILED, error)

    def _finish(self, state: RegistrationState, error: MagnetarError) -> None:
        self.outbox.refuse(self.registration.end(state, error))
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        while self.inflight:
            self._end(take_back(self.inflight), error)
        self.outbox.seal()
        self.pump()

    def inherited(self, error: MagnetarError) -> None:
        """See `forking`. Nobody is called back: who published it waits in the parent process."""
        self.registration.inherited(error)
        self.outbox.inherited(self._core.handover, error)

    # ---- Connection ----

    async def register(self) -> None:
        """Register with the topic's broker once; see `Registration.attempt`."""
        if not self._core.configuration.allow_auto_topic_creation:
            # PRODUCER, unlike SUBSCRIBE, has no field for it: so ask before, which raises TopicNotFound.
            await self._core.lookup.partitions(self.topic.full, create=False)
        self._registered_at(await self.registration.attempt(self._command, CommandProducerSuccess))

    def _command(self, producer_id: int, request_id: int) -> CommandProducer:
        configuration = self._configuration
        command = CommandProducer(
            topic=self.topic.full,
            producer_id=producer_id,
            request_id=request_id,
            epoch=self._epoch,
            encrypted=bool(configuration.encryption_keys),
            user_provided_producer_name=bool(configuration.producer_name),
            metadata=[KeyValue(key=key, value=value) for key, value in configuration.properties.items()],
            producer_access_mode=configuration.access_mode.value,  # pyright: ignore[reportArgumentType]
        )
        if self.name:
            command.producer_name = self.name
        if self._topic_epoch is not None:
            command.topic_epoch = self._topic_epoch
        if configuration.schema is not None and configuration.schema.info is not None:
            command.schema.CopyFrom(configuration.schema.info.to_wire())
        if configuration.initial_subscription_name is not None:
            command.initial_subscription_name = configuration.initial_subscription_name
        return command

    def _registered_at(self, answer: CommandProducerSuccess) -> None:
        connection = self.registration.connection
        assert connection is not None
        self._epoch += 1
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        self.name = answer.producer_name
        schema = self._configuration.schema
        version = answer.schema_version if schema is not None and schema.info is not None else b""
        self._encoder.registered_as(answer.producer_name, version)
        self._encoder.size_max_bytes = connection.message_size_max_bytes
        self.outbox.limit_bytes(connection.message_size_max_bytes - BATCH_MARGIN_BYTES)
        if not self._registered:
            self._registered = True
            initial = self._configuration.initial_sequence_id
            self.last_sequence_id = answer.last_sequence_id if initial is None else initial
            if not self.inflight:  # else it was begun with them
                self.outbox.next_sequence_id = self.last_sequence_id + 1
            early, self.inflight = self.inflight, deque()
            self._send(early)
        else:
            for part in in_portions((self._header(batch), batch.entry) for batch in self.inflight):
                connection.writelines(part)
        self.pump()

    # ---- Out ----

    def pump(self) -> None:
        """Encode and send what the outbox has."""
        batches, start_timer = self.outbox.take()
        if start_timer:
            self.on_open_batch(self)
        if not batches:
            return
        failure = self.registration.failure
        if failure is not None:
            for batch in batches:
                self._tell(batch, failure)
            return
        deadline = self._core.loop.time() + self._timeout_s
        for batch in batches:
            batch.deadline = deadline
        if self._registered:
            self._send(batches)
        else:  # the first messages of a partition that is begun with them
            self.started = True
            self.inflight.extend(batches)
            self.registration.reconnect()
        if self._expiry is None and self._timeout_s > 0 and self.inflight:
            self._expiry = self._core.loop.call_at(self.inflight[0].deadline, self._expire)

    def _send(self, batches: Iterable[Batch]) -> None:
        """Encode batches, and send them if there is a connection."""
        connection = self.registration.connection
        parts: list[bytes] = []
        now_ms = self._core.environment.clock.now_ms()
        stopped: MagnetarError | None = None
        for batch in batches:
            try:
                if stopped is not None:
                    raise stopped
                entries = self._encoder.encode(batch, now_ms)
            except (MagnetarError, TypeError, ValueError) as error:
                ours = isinstance(error, MagnetarError)
                refusal = error if ours else InvalidMessage(f"the message cannot be encoded: {error}")
                self._tell(batch, refusal)
                for flush in batch.flushes or ():
                    flush.error = flush.error or refusal
                self._end_flushes(batch)
                if self._configuration.stop_on_failure:
                    stopped = refusal
                continue
            batch.payloads = []
            self.counts.sent(len(batch.callbacks), batch.size_bytes)
            if len(entries) == 1:
                batch.entry = entries[0]
                self.inflight.append(batch)
                if connection is not None:
                    parts += (self._header(batch), batch.entry)
                continue
            for part in in_order(batch, entries):
                part.deadline = batch.deadline
                self.inflight.append(part)
                if connection is not None:
                    parts += (self._header(part), part.entry)
        if stopped is not None:
            self._fail(stopped)
        elif parts and connection is not None:
            connection.writelines(parts)

    def _header(self, batch: Batch) -> bytes:
        if batch.chunks is not None:
            return send_header(self.registration.id, batch.first_sequence_id, 0, 1, len(batch.entry), is_chunk=True)
        count = len(batch.callbacks)
        highest = batch.last_sequence_id if count > 1 else 0
        return send_header(self.registration.id, batch.first_sequence_id, highest, count, len(batch.entry))

    def _tick_alone(self, producer: "PartitionProducer") -> None:
        delay_s = self._configuration.batching_max_publish_delay_ms / 1000
        self._core.loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        if self.outbox.tick():
            self.pump()
            self._tick_alone(self)

    # ---- In ----

    def receipt(self, command: CommandSendReceipt) -> None:
        """An entry is stored."""
        if not self.inflight or command.sequence_id < self.inflight[0].first_sequence_id:
            return  # timed out in the meantime
        batch = self.inflight[0]
        if command.sequence_id != batch.first_sequence_id:
            connection = self.registration.connection
            if connection is not None:
                connection.close(ProtocolError("the broker sent a receipt before the receipt of an earlier message"))
            return
        self.inflight.popleft()
        self._refusals = self._last_refusal = None
        self.counts.receipt(self._core.loop.time() - batch.deadline + self._timeout_s)
        ledger_id, entry_id = position_of(command.message_id)
        if batch.chunks is not None:
            batch.chunks.append((ledger_id, entry_id))
            if isinstance(batch, Chunk):
                return
        if batch.last_sequence_id > self.last_sequence_id:
            self.last_sequence_id = batch.last_sequence_id
        callbacks = batch.callbacks
        self.outbox.release(len(callbacks), batch.memory_bytes)
        if batch.chunks is not None:
            _call(callbacks, Result.Ok, [ChunkedMessageId(self.topic.partition, (*batch.chunks,))])
        elif not batch.batched:
            _call(callbacks, Result.Ok, [MessageId(self.topic.partition, ledger_id, entry_id)])
        elif callbacks[0] is not ignore or callbacks.count(ignore) < len(callbacks):
            _call(callbacks, Result.Ok, batch_ids(ledger_id, entry_id, self.topic.partition, len(callbacks)))
        if batch.flushes is not None:
            self._end_flushes(batch)

    def send_error(self, command: CommandSendError) -> None:
        """The broker refused an entry."""
        if not self.inflight or command.sequence_id != self.inflight[0].first_sequence_id:
            return
        error = exception_for_server_error(command.error, command.message)
        if is_retriable(error) and self.registration.connection is not None:
            # The broker may have stored later entries. The producer sends again from this entry, so that order holds.
            logger.info(
                "the broker refused an entry for %s, and the producer sends it again: %s", self.topic.full, error
            )
            self._last_refusal = error
            connection = self.registration.let_go()
            self.registration.reconnect(lambda: self._start_over(connection))
        elif isinstance(error, TopicTerminated | ProducerFenced) or self._configuration.stop_on_failure:
            self._fail(error)
        else:
            self._end(take_back(self.inflight), error)

    def _ends(self, error: MagnetarError) -> bool:
        """Whether a refusal ends a producer that was registered before; see `Registration`.

        As with the official client, a used-up backlog quota fails what is pending, and the producer goes on.
        """
        if isinstance(error, TopicTerminated | ProducerFenced):
            return True
        if isinstance(error, TopicNotFound) and not self._core.configuration.allow_auto_topic_creation:
            return True
        self._last_refusal = error
        if isinstance(error, ProducerBlockedQuotaExceededException):
            if self._configuration.stop_on_failure:
                return True
            pending, self.inflight = self.inflight, deque()  # a callback may publish again at once
            while pending:
                self._end(take_back(pending), error)
        return False

    async def _start_over(self, connection: ClientConnection | None) -> None:
        if connection is not None:
            await self.registration.close_on_broker(connection)
        # A registration that succeeds says nothing about storing: while the topic cannot store, only receipts end
        # the growing of the pauses.
        if self._refusals is None:
            self._refusals = Backoff(self._core.environment.random, REFUSED_PAUSE_INITIAL_S, REFUSED_PAUSE_MAX_S)
        await asyncio.sleep(self._refusals.next_delay_s())

    # ---- Ends ----

    def _expire(self) -> None:
        self._expiry = None
        now = self._core.loop.time()
        while self.inflight and self.inflight[0].deadline <= now:
            text = (
                f"the broker sent no receipt for a message to {self.topic.full} within {self._timeout_s:g} s; the "
                "message may have been stored"
            )
            if self._last_refusal is not None:
                text += f". The broker's last error: {self._last_refusal}"
            if self._configuration.stop_on_failure:
                self._fail(Timeout(text))
            else:
                self._end(take_back(self.inflight), Timeout(text))
        if self.inflight:
            self._expiry = self._core.loop.call_at(self.inflight[0].deadline, self._expire)

    def _end(self, batch: Batch, error: MagnetarError) -> None:
        """The batch at the head fails as a whole; callers that wait for it or for a later batch get the error."""
        for flush in self._flushes:
            flush.error = flush.error or error
        self._tell(batch, error)
        if batch.flushes is not None:
            self._end_flushes(batch)

    def _tell(self, batch: Batch, error: MagnetarError) -> None:
        self.counts.failed += len(batch.callbacks)
        self.outbox.release(len(batch.callbacks), batch.memory_bytes)
        result = Result.of(error)
        nowhere = MessageId()
        for callback in batch.callbacks:
            if isinstance(callback, Failing):
                callback.fail(error)
            else:
                _call([callback], result, [nowhere])

    def _end_flushes(self, batch: Batch) -> None:
        for flush in batch.flushes or ():
            self._flushes.remove(flush)
            if flush.future.done():
                continue
            if flush.error is not None:
                flush.future.set_exception(flush.error)
            else:
                flush.future.set_result(None)


def in_portions(frames: Iterable[tuple[bytes, bytes]]) -> Iterator[list[bytes]]:
    """Headers and entries, in handy portions."""
    parts: list[bytes] = []
    size = 0
    for header, entry in frames:
        parts += (header, entry)
        size += len(entry)
        if size >= RESEND_PART_BYTES:
            yield parts
            parts, size = [], 0
    if parts:
        yield parts


def _call(callbacks: list[SendCallback], result: Result, ids: Iterable[MessageId]) -> None:
    """Call each with its id. A callback that raises is reported and keeps the others from nothing."""
    pairs = zip(callbacks, ids, strict=True)
    while True:
        try:
            for callback, message_id in pairs:
                callback(result, message_id)
            return
        except Exception:  # the application's; no caller waits for it
            logger.exception("a send callback failed")
