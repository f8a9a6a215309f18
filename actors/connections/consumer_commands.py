"""What a client's consumers say: SUBSCRIBE, FLOW, ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES, SEEK, GET_LAST_MESSAGE_ID,
UNSUBSCRIBE, CLOSE_CONSUMER, CONSUMER_STATS.

Answers are those of Pulsar's broker 4.2.4, with two exceptions, both for the sake of a client that would wait in vain.
An acknowledgement with receipt of a consumer that is not there is refused at once; Pulsar does not answer it. A seek
that fails because the topic is moving is refused with ServiceNotReady, so that it is tried again, and not with
UnknownError.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.bounds import ACK_IDS_MAX, ACK_SET_WORDS_MAX, check_count
from ...protocol.commands import BROKER_REQUEST_ID, encode
from ...protocol.errors import (
    BrokerMetadataError,
    ConsumerNotFound,
    CumulativeAcknowledgementNotAllowedError,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    ServiceUnitNotReady,
    UnknownError,
    server_error_code,
)
from ...protocol.message_id import Position, WireMessageId, position_of, signed64, unsigned64
from ...protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandConsumerStatsResponse,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandSuccess,
    CommandUnsubscribe,
    KeySharedMode,
    MessageIdData,
    ServerError,
)
from ...protocol.schema_types import SchemaType
from ...protocol.system_topics import is_system_topic
from ...protocol.topics import TopicName
from ...runtime.meter import time_text
from ..dispatch.consumer import AttachedConsumer, CompactedReader, KeySharedOptions
from ..rates.subscribe import SubscribingConsumer
from ..schemas.definition import SchemaDefinition
from ..security.authorization import CONSUME, Scope
from ..topics.batch_index_acks import PartOfBatch
from ..topics.loaded_topics import Topic
from ..topics.persistent import check_subscription_type
from ..topics.subscription_members import SubscriptionMembers
from ..topics.topic import SubscriptionStart
from . import limits
from .limits import check_number
from .link import Asked, CommandFamily, Guarded, of_own
from .topic_schemas import check_schema_of_consumer

if TYPE_CHECKING:
    from .connection import ServerConnection

logger = logging.getLogger(__name__)

ConsumerRequest = CommandSeek | CommandGetLastMessageId | CommandUnsubscribe

PERMITS_MAX = 1 << 31
SUBSCRIPTION_PROPERTIES_MAX_BYTES = 16 << 10
"""Pulsar has no bound of its own here. They stand in the metadata store and in every snapshot of the cursor."""


class Attached(NamedTuple):
    """A consumer and the subscription it is attached to."""

    consumer: AttachedConsumer
    subscription: SubscriptionMembers


class ConsumerCommands(CommandFamily):
    """The consumers of one connection, by consumer id."""

    def __init__(self, connection: "ServerConnection") -> None:
        self.consumers: dict[int, Attached] = {}
        self._connection = connection
        self._creating: dict[int, bool] = {}  # id → whether its client has closed it meanwhile

    def handlers(self) -> dict[int, Guarded]:
        return {
            BaseCommand.SUBSCRIBE: Guarded(self.subscribe, _asked),
            BaseCommand.FLOW: of_own(self.flow),
            BaseCommand.ACK: of_own(self.acknowledge),
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: of_own(self.redeliver),
            BaseCommand.SEEK: of_own(self.seek),
            BaseCommand.GET_LAST_MESSAGE_ID: of_own(self.last_message_id),
            BaseCommand.UNSUBSCRIBE: of_own(self.unsubscribe),
            BaseCommand.CLOSE_CONSUMER: of_own(self.close),
            BaseCommand.CONSUMER_STATS: of_own(self.stats),
        }

    # -- SUBSCRIBE -----------------------------------------------------------------------------------------------

    def subscribe(self, command: CommandSubscribe) -> None:
        connection, consumer_id = self._connection, command.consumer_id
        if consumer_id in self.consumers:
            connection.write(encode(CommandSuccess(request_id=command.request_id)))
            return
        try:
            if consumer_id in self._creating:
                raise ServiceUnitNotReady(
                    f"consumer {consumer_id} of this connection is being created already: wait for the answer"
                )
            check_number("consumers", len(self.consumers) + len(self._creating), limits.CONSUMERS_MAX)
        except MagnetarError as error:
            connection.error(command.request_id, error)
            return
        self._creating[consumer_id] = False
        connection.start(self._subscribe(command), "subscribe", lambda error: self._subscribe_failed(command, error))

    def _subscribe_failed(self, command: CommandSubscribe, error: MagnetarError) -> None:
        self._creating.pop(command.consumer_id, None)
        about = f"subscription {command.subscription} of {command.topic}"
        self._connection.error(command.request_id, error, about=about if command.topic not in str(error) else "")
        if server_error_code(error) == ServerError.ServiceNotReady:
            # C++ and Python clients mean to try again, but stay without a subscription until the broker closes the
            # consumer, and wait until their time-out. Others have forgotten it by now and ignore this.
            self._tell_closed(command.consumer_id)

    async def _subscribe(self, command: CommandSubscribe) -> bytes | None:
        connection, host = self._connection, self._connection.host
        name = TopicName.parse(command.topic)
        _check(command, name, host.settings.consumer_metadata_max_chars)
        topic = await host.topics.get(name, create=command.force_topic_creation)
        check_subscription_type(topic, command.subType)
        self._check_rate(topic, command)
        definition = SchemaDefinition.of_wire(command.schema) if command.HasField("schema") else None
        await check_schema_of_consumer(host.schemas, topic, definition)
        start_id = command.start_message_id if command.HasField("start_message_id") else None
        subscription = await topic.subscription(
            command.subscription,
            durable=command.durable,
            start=SubscriptionStart(
                command.initialPosition == CommandSubscribe.Earliest,
                WireMessageId.from_data(start_id) if start_id is not None else None,
                command.start_message_rollback_duration_sec,
                compacted=command.read_compacted,
            ),
            properties={item.key: item.value for item in command.subscription_properties},
            create=not command.durable or topic.policies.auto_subscription_creation_override.allow,
        )
        made_by = CompactedReader if command.read_compacted else AttachedConsumer
        consumer = made_by(
            connection,
            command.consumer_id,
            command.consumer_name or host.env.random.hex(5),
            priority_level=command.priority_level,
            partition=name.partition,
            epoch=_epoch_of(command),
            metadata={item.key: item.value for item in command.metadata},
            connected_since_ms=host.env.clock.now_ms(),
            now_s=asyncio.get_running_loop().time(),
        )
        consumer.key_shared = _key_shared(command)
        consumer.takes_any_schema = definition is not None and definition.type is SchemaType.AUTO_CONSUME
        consumer.marks_first_deliveries = command.marks_first_deliveries
        await subscription.attach(consumer, command.subType)
        cancelled = self._creating.pop(command.consumer_id, True)
        if cancelled or connection.closed:
            subscription.detach(consumer)
            return None
        try:
            connection.check(_asked(command))  # it may have been revoked meanwhile
        except MagnetarError:
            subscription.detach(consumer)
            raise
        connection.audit("subscribe", f"{command.topic} {command.subscription}")
        self.consumers[command.consumer_id] = Attached(consumer, subscription)
        return encode(CommandSuccess(request_id=command.request_id))

    def _check_rate(self, topic: Topic, command: CommandSubscribe) -> None:
        """Raise NotAllowedError when the consumer subscribes too often. Consumers of system topics never do."""
        rate = topic.policies.subscribe_rate
        if not rate.is_limit or not topic.name.persistent or is_system_topic(topic.name.full):
            return
        host = self._connection.remote_address.rpartition(":")[0]
        consumer = SubscribingConsumer(topic.name.full, host, command.consumer_name, command.consumer_id)
        self._connection.host.topics.common.subscribes.check(rate, consumer, asyncio.get_running_loop().time())

    # -- the flow of messages ------------------------------------------------------------------------------------

    def flow(self, command: CommandFlow) -> None:
        """FLOW of a consumer that has just been closed is late, not wrong."""
        attached = self.consumers.get(command.consumer_id)
        if attached is not None:
            consumer, subscription = attached
            subscription.flow(consumer, min(command.messagePermits, PERMITS_MAX - consumer.permits))

    def acknowledge(self, command: CommandAck) -> None:
        attached = self.consumers.get(command.consumer_id)
        wants_answer = command.HasField("request_id")
        if attached is None:
            if wants_answer:
                self._acknowledge_failed(command, ConsumerNotFound(_unknown(command.consumer_id)))
            return
        consumer, subscription = attached
        if command.HasField("validation_error"):
            logger.warning(
                "consumer %s discards %s: %s",
                consumer.name,
                [position_of(item) for item in command.message_id],
                CommandAck.ValidationError.Name(command.validation_error),
            )
        try:
            if command.HasField("txnid_least_bits") or command.HasField("txnid_most_bits"):
                raise NotAllowedError("transactions are not supported: acknowledge without one")
            check_count("message_id", len(command.message_id), ACK_IDS_MAX)
            if command.ack_type == CommandAck.Cumulative:
                if len(command.message_id) != 1:
                    raise NotAllowedError("a cumulative acknowledgement must name one message")
                parts = _parts_of_batches(command)
                try:
                    subscription.acknowledge_cumulative(consumer, _done_up_to(command.message_id[0]))
                    subscription.acknowledge(consumer, [], parts)
                except CumulativeAcknowledgementNotAllowedError as error:
                    # No client sends that. Pulsar leaves it out and gives the receipt all the same.
                    logger.warning("an acknowledgement of consumer %s is ignored: %s", consumer.name, error)
            else:
                whole = [(item.ledgerId, item.entryId) for item in command.message_id if not any(item.ack_set)]
                parts = _parts_of_batches(command) if len(whole) < len(command.message_id) else ()
                subscription.acknowledge(consumer, whole, parts)
        except MagnetarError as error:
            if wants_answer:
                self._acknowledge_failed(command, error)
            else:
                logger.warning("an acknowledgement of consumer %s was refused: %s", consumer.name, error)
            return
        if wants_answer:
            self._connection.start(
                self._acknowledged(subscription, command),
                "acknowledge",
                lambda error: self._acknowledge_failed(command, error),
            )

    async def _acknowledged(self, subscription: SubscriptionMembers, command: CommandAck) -> bytes:
        """The receipt follows the durable write of the cursor."""
        await subscription.flush()
        return encode(CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id))

    def _acknowledge_failed(self, command: CommandAck, error: MagnetarError) -> None:
        self._connection.write(
            encode(
                CommandAckResponse(
                    consumer_id=command.consumer_id,
                    request_id=command.request_id,
                    error=server_error_code(error),  # type: ignore[arg-type]
                    message=str(error),
                )
            )
        )

    def redeliver(self, command: CommandRedeliverUnacknowledgedMessages) -> None:
        attached = self.consumers.get(command.consumer_id)
        if attached is None:
            return
        consumer, subscription = attached
        epoch = _epoch_of(command)
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        try:
            check_count("message_ids", len(command.message_ids), ACK_IDS_MAX)
        except NotAllowedError as error:
            raise ProtocolError(f"consumer {consumer.name} asks for too much at once: {error}") from error
        positions = [position_of(item) for item in command.message_ids] or None
        subscription.redeliver(consumer, positions)

    # -- requests ------------------------------------------------------------------------------------------------

    def seek(self, command: CommandSeek) -> None:
        if not command.HasField("message_id") and not command.HasField("message_publish_time"):
            error = BrokerMetadataError("the seek names no place: give a message id or a publish time")
            self._connection.error(command.request_id, error)
            return
        attached = self._find(command)
        if attached is None:
            return
        subscription = attached.subscription
        self._connection.audit("seek", f"{subscription.topic.name.full} {subscription.name}")
        if command.HasField("message_id"):
            position = position_of(command.message_id)
            moving = subscription.seek(position=position, ack_set=command.message_id.ack_set)
        else:
            moving = subscription.seek(publish_time_ms=command.message_publish_time)
        self._start(command, _sought(moving, command.request_id), "seek")

    def last_message_id(self, command: CommandGetLastMessageId) -> None:
        attached = self._find(command)
        if attached is not None:
            self._start(command, self._last_message_id(attached, command), "get last message id")

    async def _last_message_id(self, attached: Attached, command: CommandGetLastMessageId) -> bytes:
        consumer, subscription = attached
        last = await subscription.topic.last_message_id(compacted=consumer.read_compacted)
        ledger_id, entry_id = subscription.mark_delete_position
        mark_delete = WireMessageId(ledger_id, entry_id, last.partition)
        return encode(
            CommandGetLastMessageIdResponse(
                last_message_id=last.to_data(),
                request_id=command.request_id,
                consumer_mark_delete_position=mark_delete.to_data(),
            )
        )

    def stats(self, command: CommandConsumerStats) -> None:
        """Figures of one consumer and its subscription; the same as those that `stats` of the topic shows."""
        response = CommandConsumerStatsResponse(request_id=command.request_id)
        attached = self.consumers.get(command.consumer_id)
        if attached is None:
            response.error_code = ServerError.ConsumerNotFound
            response.error_message = _unknown(command.consumer_id)
        else:
            consumer, subscription = attached
            figures = consumer.figures(asyncio.get_running_loop().time())
            response.msgRateOut = figures.message_rate
            response.msgThroughputOut = figures.byte_rate
            response.msgRateRedeliver = figures.redelivery_rate
            response.messageAckRate = figures.acknowledge_rate
            response.consumerName = figures.name
            response.address = figures.address
            response.connectedSince = time_text(figures.connected_since_ms)
            response.availablePermits = unsigned64(figures.permits)
            response.unackedMessages = figures.unacked_messages
            response.blockedConsumerOnUnackedMsgs = figures.blocked
            response.type = subscription.type_name
            response.msgRateExpired = 0.0
            response.msgBacklog = subscription.backlog_entries
        self._connection.write(encode(response))

    def unsubscribe(self, command: CommandUnsubscribe) -> None:
        attached = self._find(command)
        if attached is not None:
            self._start(command, self._unsubscribe(attached, command), "unsubscribe")

    async def _unsubscribe(self, attached: Attached, command: CommandUnsubscribe) -> bytes:
        consumer, subscription = attached
        self._connection.audit("unsubscribe", f"{subscription.topic.name.full} {subscription.name}")
        await subscription.remove(consumer, force=command.force)
        self._drop(consumer)
        return encode(CommandSuccess(request_id=command.request_id))

    # -- leaving -------------------------------------------------------------------------------------------------

    def close(self, command: CommandCloseConsumer) -> None:
        attached = self.consumers.pop(command.consumer_id, None)
        if attached is not None:
            attached.subscription.detach(attached.consumer)
        elif command.consumer_id in self._creating:
            self._creating[command.consumer_id] = True
        # One that is not known was perhaps closed by the broker while this was on its way: what is wanted is so.
        self._connection.write(encode(CommandSuccess(request_id=command.request_id)))

    def consumer_closed(self, consumer: AttachedConsumer) -> None:
        """The topic has closed it: tell its client, which will look up again."""
        if self._drop(consumer):
            self._tell_closed(consumer.consumer_id)

    def permissions_changed(self) -> None:
        """Consumers that may not consume any longer leave; their clients come again, and hear why."""
        for consumer, subscription in list(self.consumers.values()):
            scope = Scope.of_topic(subscription.topic.name, subscription.name)
            if not self._connection.permits([(CONSUME, scope)]):
                self.consumer_closed(consumer)
                subscription.detach(consumer)

    def connection_closed(self) -> None:
        consumers, self.consumers = self.consumers, {}
        for consumer, subscription in consumers.values():
            subscription.detach(consumer)

    def wake(self) -> None:
        """The connection can be written again."""
        for attached in self.consumers.values():
            attached.subscription.wake()

    # -- inside --------------------------------------------------------------------------------------------------

    def _find(self, command: ConsumerRequest) -> Attached | None:
        attached = self.consumers.get(command.consumer_id)
        if attached is None:
            self._connection.error(command.request_id, BrokerMetadataError(_unknown(command.consumer_id)))
        return attached

    def _start(self, command: ConsumerRequest, coroutine: Coroutine[object, object, bytes], name: str) -> None:
        self._connection.start(coroutine, name, lambda error: self._connection.error(command.request_id, error))

    def _tell_closed(self, consumer_id: int) -> None:
        self._connection.write(encode(CommandCloseConsumer(consumer_id=consumer_id, request_id=BROKER_REQUEST_ID)))

    def _drop(self, consumer: AttachedConsumer) -> bool:
        """Forget it; answers whether it was known. Its id may stand for another one by now."""
        attached = self.consumers.get(consumer.consumer_id)
        if attached is None or attached.consumer is not consumer:
            return False
        del self.consumers[consumer.consumer_id]
        return True


def _asked(command: CommandSubscribe) -> Asked:
    yield CONSUME, Scope.of_topic(TopicName.parse(command.topic), command.subscription)


def _unknown(consumer_id: int) -> str:
    return f"consumer {consumer_id} of this connection does not exist: subscribe again"


def _check(command: CommandSubscribe, name: TopicName, metadata_max_chars: int) -> None:
    """Raise NotAllowedError for what no subscription can be, BrokerMetadataError for what is too large to be kept."""
    if sum(len(item.key) + len(item.value) for item in command.metadata) > metadata_max_chars:
        raise BrokerMetadataError(f"the consumer's metadata has more than {metadata_max_chars} characters: shorten it")
    if sum(item.ByteSize() for item in command.subscription_properties) > SUBSCRIPTION_PROPERTIES_MAX_BYTES:
        limit = SUBSCRIPTION_PROPERTIES_MAX_BYTES
        raise BrokerMetadataError(
            f"the properties of subscription {command.subscription} have more than {limit} bytes: shorten them"
        )
    if not command.subscription:
        raise NotAllowedError("the name of the subscription is empty: give one")
    if command.read_compacted and command.subType not in (CommandSubscribe.Exclusive, CommandSubscribe.Failover):
        raise NotAllowedError("readCompacted only allowed on failover or exclusive subscriptions")
    if command.read_compacted and not name.persistent:
        raise NotAllowedError("readCompacted only valid on persistent topics")


def _key_shared(command: CommandSubscribe) -> KeySharedOptions:
    """Without any, as old clients subscribe, the hashes are split."""
    meta = command.keySharedMeta
    return KeySharedOptions(
        sticky=meta.keySharedMode == KeySharedMode.STICKY,
        allow_out_of_order=meta.allowOutOfOrderDelivery,
        ranges=tuple((one.start, one.end) for one in meta.hashRanges),
    )


def _done_up_to(data: MessageIdData) -> Position:
    """Where a cumulative acknowledgement ends: in front of a batch of which something is left."""
    ledger_id, entry_id = position_of(data)
    return (ledger_id, entry_id - 1) if any(data.ack_set) else (ledger_id, entry_id)


def _parts_of_batches(command: CommandAck) -> list[PartOfBatch]:
    """The batches of which something is left. Raises NotAllowedError."""
    for item in command.message_id:
        check_count("ack_set", len(item.ack_set), ACK_SET_WORDS_MAX)
    return [
        PartOfBatch(position_of(item), list(item.ack_set), max(item.batch_size, 0))
        for item in command.message_id
        if any(item.ack_set)
    ]


async def _sought(moving: Coroutine[object, object, None], request_id: int) -> bytes:
    try:
        await moving
    except ServiceUnitNotReady:
        raise
    except MagnetarError as error:
        raise UnknownError(f"Error when resetting subscription: {error}") from error
    return encode(CommandSuccess(request_id=request_id))


def _epoch_of(command: CommandSubscribe | CommandRedeliverUnacknowledgedMessages) -> int | None:
    """The consumer's epoch; None if it has none: absent, or the Java client's −1. From 0 on its messages carry it."""
    epoch = signed64(command.consumer_epoch) if command.HasField("consumer_epoch") else -1
    return epoch if epoch >= 0 else None
