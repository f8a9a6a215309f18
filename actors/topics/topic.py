"""One topic (or one partition) on its owner broker: a managed ledger with its producers and subscriptions.

States: *open* → *fenced* (an entry was not stored: nothing more is taken until nothing is pending; then the producers
are sent away, to come back and resend) → *open* again; any → *closing* (ownership lost, unloaded, or the ledger fenced
by another owner) → *closed*, final. Whoever needs the topic after that asks the registry, which loads it again where
it belongs.

Guarantees: receipts of one producer come in the order of its entries and without gaps; an entry whose predecessor of
the same session failed is never acknowledged to that session, even if it was stored. `LedgerFenced` and `StaleEpoch`
end the topic here: another owner writes it now.

Left to others: what is stored (managed ledger), who gets what (subscription), whose topic it is (registry).
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from ...protocol.commands import send_error, send_receipt
from ...protocol.entries import is_batch, parse_metadata
from ...protocol.errors import (
    BrokerPersistenceError,
    ConsumerBusy,
    LedgerFenced,
    MagnetarError,
    NoSuchEntry,
    NotAllowedError,
    ProducerBusy,
    ServiceUnitNotReady,
    StaleEpoch,
    SubscriptionNotFound,
    server_error_code,
)
from ...protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, MessageId, Position
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.meter import Meter
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.managed.managed_ledger import ManagedLedger
from ..dispatch.consumer import Consumer
from ..dispatch.dispatcher import Limits
from .message_counts import MessageCounts
from .producer import Producer, Publish
from .subscription import Subscription

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 3.0
TERMINAL_ERRORS = (LedgerFenced, StaleEpoch)


class State(enum.Enum):
    """See the module."""

    OPEN = "open"
    FENCED = "fenced"
    CLOSING = "closing"
    CLOSED = "closed"


class SubscriptionStart(NamedTuple):
    """Where a subscription begins that does not exist yet.

    In this order, the first that is given: `position` (inclusive), `publish_time_ms` (the first message published then
    or later), `rollback_s` (that far back in time), `start_message_id` (for non-durable ones), `earliest`, the end of
    the topic.

    A `start_message_id` names an entry, and delivery begins with that entry, whatever batch index it carries. The
    broker cannot know which messages of the entry the client has: clients drop what they do not want. As in Pulsar, an
    id behind the end of the topic counts as none.
    """

    earliest: bool = False
    start_message_id: MessageId | None = None
    rollback_s: int = 0
    position: Position | None = None
    publish_time_ms: int | None = None


class Topic:
    """See the module. `on_terminal(topic, error)` is called when this instance must end: another owner took the ledger
    over, or what is stored is no longer known here."""

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        name: TopicName,
        epoch: int,
        ledger: ManagedLedger,
        counts: MessageCounts,
        on_terminal: Callable[["Topic", BaseException], None],
    ) -> None:
        self.env = env
        self.settings = settings
        self.name = name
        self.epoch = epoch
        self.ledger = ledger
        self.dispatch_limits = Limits(
            settings.dispatcher_read_entries_max,
            settings.dispatcher_turn_messages_max,
            settings.unacked_messages_max_per_consumer,
            settings.unacked_messages_max_per_subscription,
        )
        self.dispatch_bytes_max = settings.dispatcher_read_bytes_max
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[tuple[str, bool], Subscription] = {}
        self.state = State.OPEN
        self.pending_publishes = 0
        self.published = Meter(asyncio.get_running_loop().time())
        self._remember = counts.remember
        self.count_of = counts.of
        self._on_terminal = on_terminal
        self._tasks = Tasks()
        self._creating = asyncio.Lock()
        self._partition = name.partition
        self._trimming = False
        self._closing = False
        self._drained = asyncio.Event()
        self._closed = asyncio.Event()
        for cursor_name, cursor in ledger.subscription_cursors.items():
            self._adopt(cursor_name, cursor, durable=True)
        ledger.on_appended.append(self._appended)
        ledger.on_fenced.append(self._ledger_fenced)

    @property
    def in_use(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return bool(self.producers) or any(item.consumers for item in self.subscriptions.values())

    # -- producers -----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ServiceUnitNotReady unless the topic takes clients."""
        if self.state is not State.OPEN:
            raise ServiceUnitNotReady(f"{self.name.full} is {self.state.value}")

    async def add_producer(self, producer: Producer) -> None:
        """Admit a producer. Raises ProducerBusy when its name is taken by a live one, ServiceUnitNotReady."""
        self.check_open()
        incumbent = self.producers.get(producer.name)
        if incumbent is not None and not producer.may_replace(incumbent):
            if incumbent.connection is producer.connection or await incumbent.connection.check_alive():
                raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic")
            self.check_open()
            incumbent = self.producers.get(producer.name)
            if incumbent is not None and not producer.may_replace(incumbent):
                raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic")
        if producer.connection.closed:
            raise ServiceUnitNotReady("the connection ended")
        if incumbent is not None:
            self.disconnect_producer(incumbent)
        elif 0 < self.settings.producers_max_per_topic <= len(self.producers):
            raise ProducerBusy(f"Topic '{self.name.full}' reached max producers limit")
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """A producer left; what it has under way is completed without it."""
        producer.closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def disconnect_producer(self, producer: Producer) -> None:
        """Send a producer away with CLOSE_PRODUCER; its client looks up again and resends what has no receipt."""
        self.remove_producer(producer)
        producer.connection.producer_closed(producer)

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(
        self, producer: Producer, sequence_id: int, highest_sequence_id: int, messages: int, entry: bytes
    ) -> None:
        """Store an entry whose form was checked. The receipt goes out when it is durable.

        Nothing is answered while the topic is not open or after a failure: the producer is being sent away and its
        client resends.
        """
        if self.state is not State.OPEN or producer.closed or producer.failed or producer.refusal is not None:
            return
        size = len(entry)
        producer.pending += 1
        self.pending_publishes += 1
        producer.connection.publish_began(size)
        publish = Publish(producer, sequence_id, highest_sequence_id, messages, size)
        try:
            self.ledger.append(entry, publish.completed)
        except MagnetarError as error:
            publish.completed(None, error)

    def refuse(self, producer: Producer, sequence_id: int, error: MagnetarError) -> None:
        """Answer an entry that cannot be stored with SEND_ERROR, behind the receipts of those before it, and end the
        session: what came after it must not overtake it."""
        if producer.refusal is None and not producer.closed and not producer.failed:
            producer.refusal = (sequence_id, error)
            if not producer.pending:
                self._finish_refusal(producer)

    def _finish_refusal(self, producer: Producer) -> None:
        if producer.refusal is not None and not producer.closed:
            sequence_id, error = producer.refusal
            producer.connection.write(
                send_error(producer.producer_id, sequence_id, server_error_code(error), str(error))
            )
            self.disconnect_producer(producer)

    def publish_completed(self, publish: Publish, position: Position | None, error: BaseException | None) -> None:
        """The ledger's answer to one append, in the order of appends."""
        producer = publish.producer
        if position is None:
            error = error if error is not None else NoSuchEntry("an append without position")
            if not producer.failed and not producer.closed and not isinstance(error, TERMINAL_ERRORS):
                # As in Pulsar: the cause goes out before the producer is sent away, so that its client can tell it.
                code = server_error_code(BrokerPersistenceError(str(error)))
                producer.connection.write(send_error(producer.producer_id, publish.sequence_id, code, str(error)))
            producer.failed = True
            self._publish_failed(error)
        else:
            self._remember(position, publish.messages)
            producer.published.add(publish.messages, publish.size_bytes)
            self.published.add(publish.messages, publish.size_bytes)
            if not producer.failed and not producer.closed:
                producer.connection.write(
                    send_receipt(
                        producer.producer_id,
                        publish.sequence_id,
                        publish.highest_sequence_id,
                        position[0],
                        position[1],
                        self._partition,
                    )
                )
        producer.connection.publish_ended(publish.size_bytes)
        producer.publish_ended()
        if not producer.pending and producer.refusal is not None:
            self._finish_refusal(producer)
        self.pending_publishes -= 1
        if self.pending_publishes == 0 and self.state is not State.OPEN:
            self._nothing_pending()

    def _publish_failed(self, error: BaseException) -> None:
        if self.state is State.OPEN:
            logger.warning("a publish to %s failed, its producers start anew: %s", self.name.full, error)
            self.state = State.FENCED
        if isinstance(error, TERMINAL_ERRORS):
            self._ledger_fenced(error)

    def _nothing_pending(self) -> None:
        self._drained.set()
        if self.state is State.FENCED:
            for producer in list(self.producers.values()):
                self.disconnect_producer(producer)
            self.state = State.OPEN

    def _ledger_fenced(self, error: BaseException) -> None:
        """Another owner has taken the ledger over."""
        if self.state in (State.OPEN, State.FENCED):
            self.state = State.CLOSING
            self._on_terminal(self, error)

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def subscription(
        self,
        name: str,
        *,
        durable: bool,
        start: SubscriptionStart,
        properties: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> Subscription:
        """The subscription of that name, created if need be (a durable and a non-durable one may share a name).

        Raises SubscriptionNotFound without `create`, ServiceUnitNotReady, and what writing the cursor raises.
        """
        self.check_open()
        found = self.subscriptions.get((name, durable))
        if found is not None and not found.closed:
            return found
        if not create:
            raise SubscriptionNotFound(f"Subscription {name} of {self.name.full} does not exist")
        async with self._creating:
            found = self.subscriptions.get((name, durable))
            if found is None or found.closed:
                self._check_subscriptions(durable)
                position = await self._start_position(start, durable)
                if durable:
                    cursor = await self.ledger.open_cursor(name, initial=position, properties=dict(properties or {}))
                else:
                    cursor = self.ledger.new_non_durable_cursor(position)
                self.check_open()
                found = self._adopt(name, cursor, durable=durable)
            return found

    def _check_subscriptions(self, durable: bool) -> None:
        """Raise NotAllowedError when the topic has as many durable subscriptions as it may have."""
        limit = self.settings.subscriptions_max_per_topic
        if durable and 0 < limit <= sum(is_durable for _, is_durable in self.subscriptions):
            raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {self.name.full}")

    def check_consumers(self, subscription: Subscription) -> None:
        """Raise ConsumerBusy when the topic, or the subscription, has as many consumers as it may have."""
        if 0 < self.settings.consumers_max_per_topic <= sum(len(one.consumers) for one in self.subscriptions.values()):
            raise ConsumerBusy("Topic reached max consumers limit")
        if 0 < self.settings.consumers_max_per_subscription <= len(subscription.consumers):
            raise ConsumerBusy("Subscription reached max consumers limit")

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a durable subscription. Raises SubscriptionNotFound; BrokerMetadataError while it has consumers,
        unless forced."""
        subscription = await self.subscription(name, durable=True, start=SubscriptionStart(), create=False)
        await self.unsubscribe(subscription, None, force=force)

    async def unsubscribe(self, subscription: Subscription, consumer: Consumer | None, *, force: bool = False) -> None:
        """End a subscription for good, on behalf of `consumer`. Raises BrokerMetadataError while others use it."""

        async def delete() -> None:
            if not subscription.durable:
                return
            try:
                await self.ledger.delete_cursor(subscription.name)
            except MagnetarError as error:
                # Whether the cursor is still there is unknown now: only loading the topic anew tells.
                self._on_terminal(self, error)
                raise

        await subscription.unsubscribe(consumer, delete, force=force)
        self.cursor_moved()

    async def seek(
        self, subscription: Subscription, *, position: Position | None = None, publish_time_ms: int | None = None
    ) -> None:
        """Move a subscription to a position (inclusive) or to the first message published at that time or later; its
        consumers are sent away first and come back by themselves."""

        async def locate() -> Position:
            if publish_time_ms is not None:
                return await self.ledger.find_by_publish_time(publish_time_ms)
            assert position is not None
            return self._resolve(position)

        await subscription.reset(locate)

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Tell a consumer's client that it is no longer attached."""
        consumer.connection.consumer_closed(consumer)

    def subscription_ended(self, subscription: Subscription) -> None:
        """A subscription is gone for good."""
        key = (subscription.name, subscription.durable)
        if self.subscriptions.get(key) is subscription:
            del self.subscriptions[key]

    def cursor_moved(self) -> None:
        """A cursor left a ledger: perhaps something can be trimmed."""
        if not self._trimming and self.state is State.OPEN:
            self._trimming = True
            self.spawn(self._trim(), "trim")

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        """Start a task that ends with the topic at the latest."""
        self._tasks.spawn(coroutine, f"{name} {self.name.full}")

    def check(self) -> None:
        """Called now and then; see Subscription.check."""
        for subscription in list(self.subscriptions.values()):
            subscription.check()

    def now_s(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    # -- reading -------------------------------------------------------------------------------------------------

    async def last_message_id(self) -> MessageId:
        """Id of the last message, with the index of the last one in a batch; earliest if there is none."""
        position = self.ledger.last_confirmed
        if position < (0, 0) or self.ledger.first_position > position:
            return MessageId(-1, -1, self.name.partition)
        entries = await self.ledger.read(position, 1, 1, upto=position)
        if not entries:
            raise NoSuchEntry(f"the last entry of {self.name.full} cannot be read")
        metadata = parse_metadata(entries[0][1])
        count = metadata.num_messages_in_batch
        if is_batch(metadata):
            return MessageId(position[0], position[1], self.name.partition, count - 1, count)
        return MessageId(position[0], position[1], self.name.partition)

    # -- life ----------------------------------------------------------------------------------------------------

    async def close(self, *, drain_s: float = DRAIN_TIMEOUT_S) -> None:
        """Stop taking publishes, complete those under way (for at most `drain_s`), send all clients away, write the
        cursors, close the ledger. Concurrent callers wait for the first one."""
        if self.state is State.CLOSED or self._closing:
            await self._closed.wait()
            return
        self._closing = True
        self.state = State.CLOSING
        try:
            if self.pending_publishes:
                self._drained.clear()
                try:
                    async with asyncio.timeout(drain_s):
                        await self._drained.wait()
                except TimeoutError:
                    logger.warning("%s closes with %d publishes under way", self.name.full, self.pending_publishes)
            self._send_clients_away()
            await self._tasks.close()
            try:
                await self.ledger.close()
            except MagnetarError as error:
                # Whoever loads the topic next recovers the ledger; cursors go back to what was last written.
                logger.warning("%s did not close cleanly: %s", self.name.full, error)
        finally:
            self.state = State.CLOSED
            self._closed.set()

    def _send_clients_away(self) -> None:
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer)
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all(for_reset=True)
            subscription.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _adopt(self, name: str, cursor: Any, *, durable: bool) -> Subscription:
        subscription = Subscription(self, name, cursor, durable=durable, grace_s=self.settings.reader_return_timeout_s)
        self.subscriptions[name, durable] = subscription
        return subscription

    def _appended(self) -> None:
        """A batch of entries became readable."""
        for subscription in self.subscriptions.values():
            subscription.wake()

    async def _start_position(self, start: SubscriptionStart, durable: bool) -> Position:
        """The first position to deliver."""
        if start.position is not None:
            return self._resolve(start.position)
        if start.publish_time_ms is not None:
            return await self.ledger.find_by_publish_time(start.publish_time_ms)
        if start.rollback_s > 0:
            return await self.ledger.find_by_publish_time(self.env.clock.now_ms() - start.rollback_s * 1000)
        message_id = start.start_message_id
        if message_id is not None and not durable:
            if message_id.position <= self.ledger.next_position(self.ledger.last_confirmed):
                return self._resolve(message_id.position)
        return self._resolve(EARLIEST_POSITION if start.earliest else LATEST_POSITION)

    def _resolve(self, position: Position) -> Position:
        """A position of a client as one to read from, within what the topic has."""
        last = self.ledger.last_confirmed
        if position > last:
            return self.ledger.next_position(last)
        return max(position, self.ledger.first_position)

    async def _trim(self) -> None:
        try:
            await self.ledger.trim()
        except MagnetarError as error:
            logger.warning("cannot trim %s now: %s", self.name.full, error)
        finally:
            self._trimming = False
