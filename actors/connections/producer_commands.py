"""What a client's producers say: PRODUCER, SEND, CLOSE_PRODUCER."""

import asyncio
from typing import TYPE_CHECKING

from ...protocol.commands import BROKER_REQUEST_ID, encode
from ...protocol.entries import message_count, parse_entry
from ...protocol.errors import (
    ChecksumError,
    MagnetarError,
    MessageTooBig,
    NotAllowedError,
    ProtocolError,
    ServiceUnitNotReady,
)
from ...protocol.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSuccess,
)
from ...protocol.topics import TopicName
from ..schemas.definition import SchemaDefinition
from ..security.authorization import CONSUME, PRODUCE, Scope
from ..topics.access_modes import AccessMode, AccessRequest
from ..topics.producer import AttachedProducer
from ..topics.publishing import Publishing
from ..topics.topic import SubscriptionStart
from . import limits
from .limits import check_number
from .link import Asked, CommandFamily, EntryHandler, Guarded, of_own
from .topic_schemas import schema_of_producer

if TYPE_CHECKING:
    from .connection import ServerConnection

READY_LIMIT_S = 20.0
"""So long a producer waits for a topic that does not take any yet. Clients give up after 30 s, and come again."""
LEDGER_FRAME_OVERHEAD_BYTES = 256  # what the internal add request puts around an entry, generously


class ProducerCommands(CommandFamily):
    """The producers of one connection, by producer id."""

    def __init__(self, connection: "ServerConnection") -> None:
        self.producers: dict[int, AttachedProducer] = {}
        self._connection = connection
        self._waiting: dict[int, tuple[AttachedProducer, CommandProducer]] = {}
        """Producers that wait for exclusive access, and what they asked with."""
        self._ready_waits: dict[int, asyncio.Task[None]] = {}
        """Producers that wait for a topic that does not take any yet."""
        self._creating: dict[int, bool] = {}  # id → whether its client has closed it meanwhile
        self._departed: dict[int, None] = {}  # sent away by the broker: their clients may have more on the way
        self._entry_size_max = connection.host.settings.bookie_frame_size_max_bytes - LEDGER_FRAME_OVERHEAD_BYTES

    def handlers(self) -> dict[int, Guarded]:
        return {
            BaseCommand.PRODUCER: Guarded(self.create, _asked),
            BaseCommand.CLOSE_PRODUCER: of_own(self.close),
        }

    def entry_handlers(self) -> dict[int, EntryHandler]:
        return {BaseCommand.SEND: self.send}

    # -- PRODUCER ------------------------------------------------------------------------------------------------

    def create(self, command: CommandProducer) -> None:
        connection, producer_id = self._connection, command.producer_id
        existing = self.producers.get(producer_id)
        if existing is not None:
            try:
                connection.write(_success(command, existing))
            except MagnetarError as error:
                connection.error(command.request_id, error)
            return
        try:
            if producer_id in self._creating or producer_id in self._waiting:
                raise ServiceUnitNotReady(
                    f"producer {producer_id} of this connection is being created already: wait for the answer"
                )
            number = len(self.producers) + len(self._waiting) + len(self._creating)
            check_number("producers", number, limits.PRODUCERS_MAX)
        except MagnetarError as error:
            connection.error(command.request_id, error)
            return
        self._creating[producer_id] = False
        connection.start(self._create(command), "producer", lambda error: self._create_failed(command, error))

    def _create_failed(self, command: CommandProducer, error: MagnetarError) -> None:
        self._creating.pop(command.producer_id, None)
        self._connection.error(command.request_id, error)

    async def _create(self, command: CommandProducer) -> bytes | None:
        connection, producer_id = self._connection, command.producer_id
        if command.txn_enabled:
            raise NotAllowedError("transactions are not supported: send without one")
        topic = await connection.host.topics.get(TopicName.parse(command.topic), create=True)
        producer = AttachedProducer(
            topic.publishing,
            connection,
            producer_id,
            command.producer_name or connection.host.new_producer_name(),
            user_provided_name=command.user_provided_producer_name and bool(command.producer_name),
            encrypted=command.encrypted,
            asks=AccessRequest(
                AccessMode(command.producer_access_mode),
                command.epoch,
                command.topic_epoch if command.HasField("topic_epoch") else None,
            ),
            metadata={item.key: item.value for item in command.metadata},
            connected_since_ms=connection.host.env.clock.now_ms(),
            now_s=asyncio.get_running_loop().time(),
        )
        topic.publishing.check(producer)
        definition = SchemaDefinition.of_wire(command.schema) if command.HasField("schema") else None
        producer.schema_version = await schema_of_producer(connection.host.schemas, topic, definition)
        initial = command.initial_subscription_name
        if initial and (initial, True) not in topic.subscriptions:
            if not topic.policies.auto_subscription_creation_override.allow:
                raise NotAllowedError("the initial subscription may not be created automatically")
            await topic.subscription(initial, durable=True, start=SubscriptionStart(earliest=True))
        if not topic.publishing.is_ready:
            await self._until_ready(topic.publishing, producer_id)
        ready = await topic.publishing.add_producer(producer, lambda error: self._turn(producer, error))
        cancelled = self._creating.pop(producer_id, True)
        if cancelled or connection.closed:
            topic.publishing.remove_producer(producer)
            return None
        try:
            connection.check(_asked(command))  # it may have been revoked meanwhile
        except MagnetarError:
            topic.publishing.remove_producer(producer)
            raise
        connection.audit("producer", command.topic)
        self._departed.pop(producer_id, None)
        if ready:
            answer = self._attached(command, producer)
            self.producers[producer_id] = producer
            return answer
        self._waiting[producer_id] = (producer, command)
        connection.write(_success(command, producer, ready=False))
        await topic.publishing.check_holder()
        return None

    async def _until_ready(self, publishing: Publishing, producer_id: int) -> None:
        """Wait until a topic takes producers, as long as the client wants that. Raises ServiceUnitNotReady."""
        waiting = asyncio.get_running_loop().create_task(publishing.ready())
        self._ready_waits[producer_id] = waiting
        try:
            await asyncio.wait([waiting], timeout=READY_LIMIT_S)
            if not waiting.done() or waiting.cancelled():
                raise ServiceUnitNotReady("the topic does not know its sequence ids yet: try again")
            waiting.result()
        finally:
            waiting.cancel()
            del self._ready_waits[producer_id]

    def _turn(self, producer: AttachedProducer, error: MagnetarError | None) -> None:
        """A producer that waited has exclusive access now, or will not get it."""
        waited = self._waiting.pop(producer.producer_id, None)
        if waited is None:
            return
        try:
            if error is not None:
                raise error
            answer = self._attached(waited[1], producer)
        except MagnetarError as refusal:
            self._connection.error(waited[1].request_id, refusal)
        else:
            self.producers[producer.producer_id] = producer
            self._connection.write(answer)

    def _attached(self, command: CommandProducer, producer: AttachedProducer) -> bytes:
        """The answer for a producer that was admitted. It leaves again when the topic cannot tell its sequence id."""
        try:
            return _success(command, producer)
        except MagnetarError:
            producer.publishing.remove_producer(producer)
            raise

    # -- SEND ----------------------------------------------------------------------------------------------------

    def send(self, command: CommandSend, entry: bytes) -> None:
        """One entry. Raises ProtocolError for a producer that was never there."""
        producer = self.producers.get(command.producer_id)
        if producer is None:
            if command.producer_id in self._departed:
                return
            raise ProtocolError(
                f"the client sent a message of producer {command.producer_id}, which this connection does not have"
            )
        try:
            metadata, _ = parse_entry(entry)
            if command.HasField("txnid_least_bits") or metadata.HasField("txnid_least_bits"):
                raise NotAllowedError("transactions are not supported: send without one")
            messages = message_count(metadata)
            if len(entry) > self._entry_size_max:
                raise MessageTooBig(
                    f"the entry has {len(entry)} bytes, but the broker accepts {self._entry_size_max}: send less, or "
                    "raise maxMessageSize"
                )
        except (ChecksumError, ProtocolError, MessageTooBig, NotAllowedError) as error:
            producer.publishing.refuse(producer, command.sequence_id, error)
            return
        producer.publishing.publish(
            producer, command.sequence_id, command.highest_sequence_id, messages, entry, metadata
        )

    # -- leaving -------------------------------------------------------------------------------------------------

    def close(self, command: CommandCloseProducer) -> None:
        connection, producer_id = self._connection, command.producer_id
        producer = self.producers.pop(producer_id, None)
        if producer is not None:
            closing = self._close(producer, command.request_id)
            connection.start(closing, "close producer", lambda error: self._close_refused(producer, command, error))
            return
        waiting = self._waiting.pop(producer_id, None)
        if waiting is not None:
            waiting[0].publishing.remove_producer(waiting[0])
        if producer_id in self._creating:
            self._creating[producer_id] = True
            self._end_ready_wait(producer_id)
        self._departed.pop(producer_id, None)
        # One that is not known was perhaps closed by the broker while this was on its way: what is wanted is so.
        connection.write(encode(CommandSuccess(request_id=command.request_id)))

    def _close_refused(self, producer: AttachedProducer, command: CommandCloseProducer, error: MagnetarError) -> None:
        """It stays, for its client to try again, and ends with the connection at the latest."""
        if self._connection.closed:
            producer.publishing.remove_producer(producer)
        else:
            self.producers.setdefault(command.producer_id, producer)
            self._connection.error(command.request_id, error)

    async def _close(self, producer: AttachedProducer, request_id: int) -> bytes:
        """Its last receipts go first."""
        await producer.drained()
        producer.publishing.remove_producer(producer)
        return encode(CommandSuccess(request_id=request_id))

    def producer_closed(self, producer: AttachedProducer) -> None:
        """The topic has closed it: tell its client, which will look up again."""
        producer_id = producer.producer_id
        if self.producers.get(producer_id) is producer:
            del self.producers[producer_id]
        elif producer_id in self._waiting and self._waiting[producer_id][0] is producer:
            del self._waiting[producer_id]
        else:
            return
        self._departed[producer_id] = None
        if len(self._departed) > limits.DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]
        self._connection.write(encode(CommandCloseProducer(producer_id=producer_id, request_id=BROKER_REQUEST_ID)))

    def permissions_changed(self) -> None:
        """Producers that may not publish any longer leave; their clients come again, and hear why."""
        for producer in [*self.producers.values(), *(producer for producer, _ in self._waiting.values())]:
            if not self._connection.permits([(PRODUCE, Scope.of_topic(producer.publishing.topic))]):
                producer.publishing.disconnect(producer)

    def _end_ready_wait(self, producer_id: int) -> None:
        waiting = self._ready_waits.get(producer_id)
        if waiting is not None:
            waiting.cancel()

    def connection_closed(self) -> None:
        for producer_id in list(self._ready_waits):
            self._end_ready_wait(producer_id)
        gone = [*self.producers.values(), *(producer for producer, _ in self._waiting.values())]
        self.producers, self._waiting = {}, {}
        for producer in gone:
            producer.publishing.remove_producer(producer)


def _asked(command: CommandProducer) -> Asked:
    """An initial subscription keeps messages for consumers, so it needs what a consumer needs."""
    topic = TopicName.parse(command.topic)
    yield PRODUCE, Scope.of_topic(topic)
    if command.initial_subscription_name:
        yield CONSUME, Scope.of_topic(topic, command.initial_subscription_name)


def _success(command: CommandProducer, producer: AttachedProducer, *, ready: bool = True) -> bytes:
    answer = CommandProducerSuccess(
        request_id=command.request_id,
        producer_name=producer.name,
        last_sequence_id=producer.publishing.last_sequence_id(producer.name) if ready else -1,
        schema_version=producer.schema_version,
        producer_ready=ready,
    )
    if ready and producer.topic_epoch is not None:
        answer.topic_epoch = producer.topic_epoch
    return encode(answer)
