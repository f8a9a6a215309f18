"""A subscription of a topic: a cursor, the consumers on it, and their dispatch.

States:

- *idle*: it has no consumer, hence no type.
- *typed*: it has a dispatcher of its first consumer's type.
- *closed*, which is final: it was unsubscribed, its topic closed, or it is not durable and its last consumer is gone.

Attaching, seeking and unsubscribing hold one lock, so each sees the other as done or not begun. A non-durable
subscription also ends when no consumer attaches. Each has a consumer, a consumer that is about to attach, or (after a
seek) a timer that ends it.
"""

import asyncio
import enum
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from ...protocol.errors import (
    BrokerMetadataError,
    CumulativeAcknowledgementNotAllowedError,
    MagnetarError,
    NotAllowedError,
    ServiceUnitNotReady,
)
from ...protocol.message_id import Position, WireMessageId
from ...protocol.topic_figures import SubscriptionFigures
from ...runtime.environment import Environment
from ...runtime.meter import Meter
from ...runtime.transitions import check_transition
from ...storage.managed.cursor import Cursor
from ...storage.managed.managed_ledger import ManagedLedger
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.dispatcher import Dispatcher
from .batch_index_acks import BatchIndexAcks, PartOfBatch
from .dispatchers import DispatcherHost, check_fits, fits, new_dispatcher, type_name
from .message_counts import MessageCounts
from .pump import Pump


class SubscriptionState(enum.Enum):
    """See the module."""

    IDLE = "idle"
    TYPED = "typed"
    CLOSED = "closed"


TRANSITIONS = {
    SubscriptionState.IDLE: frozenset({SubscriptionState.TYPED, SubscriptionState.CLOSED}),
    SubscriptionState.TYPED: frozenset({SubscriptionState.IDLE, SubscriptionState.CLOSED}),
    SubscriptionState.CLOSED: frozenset[SubscriptionState](),
}


class SubscriptionHost(DispatcherHost, Protocol):
    """What a subscription needs of its topic."""

    env: Environment
    ledger: ManagedLedger
    dispatch_bytes_max: int
    counts: MessageCounts

    def spawn(self, coroutine: Coroutine[object, object, object], name: str) -> None: ...
    async def seek(
        self, subscription: "Subscription", *, position: Position | None = None, publish_time_ms: int | None = None
    ) -> None: ...
    async def unsubscribe(
        self, subscription: "Subscription", consumer: AttachedConsumer | None, *, force: bool = False
    ) -> None: ...
    async def last_message_id(self) -> WireMessageId: ...
    def check_consumers(self, subscription: "Subscription") -> None: ...
    def subscription_ended(self, subscription: "Subscription") -> None: ...
    def cursor_moved(self) -> None: ...


class Subscription:
    """See the module. Made by `Topic`."""

    def __init__(self, host: SubscriptionHost, name: str, cursor: Cursor, *, durable: bool, grace_s: float) -> None:
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.state = SubscriptionState.IDLE
        self.host = host
        self._grace_s = grace_s
        self._lock = asyncio.Lock()
        self._pump = Pump(host, name, self.figures)
        self.wake = self._pump.wake
        self.check = self._pump.check
        self.use_limits = self._pump.use_limits
        self._count_of = host.counts.of
        if host.settings.acknowledgment_at_batch_index_level_enabled:
            self._pump.index_acks = BatchIndexAcks(cursor, host.counts)
            self._count_of = self._pump.index_acks.open_count
        self._attaching = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._ledger_id = cursor.first_unacknowledged[0]
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._out = Meter(now_s)
        self._acknowledged = Meter(now_s)
        self._redelivered = Meter(now_s)

    # -- consumers -----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.state is SubscriptionState.CLOSED

    @property
    def _dispatcher(self) -> Dispatcher | None:
        return self._pump.dispatcher

    @property
    def consumers(self) -> list[AttachedConsumer]:
        return list(self._dispatcher.consumers) if self._dispatcher is not None else []

    async def attach(self, consumer: AttachedConsumer, subscription_type: int) -> None:
        """Add a consumer; the first one sets the type.

        Raises ConsumerBusy (other type or Key_Shared mode, or Exclusive and taken by a live consumer),
        ConsumerAssignError (hash ranges), ServiceUnitNotReady (closed meanwhile).
        """
        self._attaching += 1
        try:
            async with self._lock:
                await self._attach(consumer, subscription_type)
        finally:
            self._attaching -= 1
            self._end_if_unused()

    async def _attach(self, consumer: AttachedConsumer, subscription_type: int) -> None:
        self._check_open()
        for _ in range(len(self.consumers)):
            obstacle = self._obstacle(consumer, subscription_type)
            # The connection of the present consumer may be dead without the broker knowing: ping it before refusing.
            if obstacle is None or await obstacle.connection.check_alive():
                break
        self._check_open()
        if consumer.connection.closed:
            raise ServiceUnitNotReady("the connection ended")
        self.host.check_consumers(self)
        dispatcher = self._pump.dispatcher
        if dispatcher is None:
            dispatcher = new_dispatcher(
                self.host, self.name, self.cursor, subscription_type, consumer, self._count_of, self.wake
            )
            dispatcher.add(consumer)
            self._become(SubscriptionState.TYPED)
            self._pump.dispatcher = dispatcher
        else:
            check_fits(dispatcher, consumer, subscription_type)
            dispatcher.add(consumer)
        self._cancel_expiry()

    def _obstacle(self, consumer: AttachedConsumer, subscription_type: int) -> AttachedConsumer | None:
        """A consumer that keeps this one from attaching, as long as its connection lives."""
        dispatcher = self._pump.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            return None
        if not fits(dispatcher, consumer, subscription_type):
            return dispatcher.consumers[0]
        return dispatcher.obstacle(consumer)

    def _end_if_unused(self) -> None:
        """One that is not durable ends when the attempt to attach its first consumer has failed."""
        if not (self.durable or self.closed or self._attaching or self._dispatcher or self._expiry):
            self._end()

    def detach(self, consumer: AttachedConsumer, *, for_reset: bool = False) -> None:
        """A consumer is gone: what it held goes to the others. A subscription that is not durable ends with its last
        consumer, unless that one was sent away to come back after a seek."""
        dispatcher = self._pump.dispatcher
        consumer.closed = True
        if dispatcher is None or consumer not in dispatcher.consumers:
            return
        self._out.add(consumer.out.messages, consumer.out.bytes, consumer.out.entries)
        self._acknowledged.add(consumer.acknowledged.messages, 0)
        self._redelivered.add(consumer.redelivered.messages, 0)
        dispatcher.remove(consumer)
        if dispatcher.consumers:
            self.wake()
            return
        self._pump.dispatcher = None
        if self.closed:
            return
        self._become(SubscriptionState.IDLE)
        if self.durable:
            return
        if for_reset:
            self._cancel_expiry()
            self._expiry = self._loop.call_later(self._grace_s, self._end)
        else:
            self._end()

    def disconnect_all(self, *, for_reset: bool = False) -> None:
        """Send every consumer away with CLOSE_CONSUMER."""
        for consumer in self.consumers:
            consumer.connection.consumer_closed(consumer)
            self.detach(consumer, for_reset=for_reset)

    # -- what consumers ask for ----------------------------------------------------------------------------------

    def flow(self, consumer: AttachedConsumer, permits: int) -> None:
        """The consumer takes so many messages more."""
        consumer.permits += permits
        consumer.last_flow_ms = self.host.env.clock.now_ms()
        self.wake()

    def acknowledge(
        self, consumer: AttachedConsumer, positions: list[Position], parts: Sequence[PartOfBatch] = ()
    ) -> None:
        """Individual acknowledgement of entries. What was never written is left out.

        `parts` are single messages of batches, ignored where the broker has that switched off. Raises NotAllowedError
        at the first of them that is beyond the bounds of what a cursor keeps.
        """
        dispatcher = self._pump.dispatcher
        if dispatcher is None or self.closed:
            return
        tail = self.host.ledger.last_confirmed
        if positions and not (min(positions) >= (0, 0) and max(positions) <= tail):
            positions = [position for position in positions if (0, 0) <= position <= tail]
        unblocked = dispatcher.acknowledged(consumer, positions)
        self.cursor.acknowledge(positions)
        self._note_acknowledged(consumer, len(positions))
        if parts and self._pump.index_acks is not None:
            written = [part for part in parts if (0, 0) <= part.position <= tail]
            unblocked |= self._pump.index_acks.acknowledge(dispatcher, consumer, written)
            self._note_acknowledged(consumer, len(written))
        if unblocked or dispatcher.blocked:
            self.wake()

    def acknowledge_cumulative(self, consumer: AttachedConsumer, position: Position) -> None:
        """Everything up to and including `position` is done.

        Raises CumulativeAcknowledgementNotAllowedError on Shared and Key_Shared, NotAllowedError for a position never
        written.
        """
        dispatcher = self._pump.dispatcher
        if dispatcher is None or self.closed:
            return
        if dispatcher.tracks_pending:
            raise CumulativeAcknowledgementNotAllowedError(
                f"a {self.type_name} subscription has no cumulative acknowledgement: acknowledge each message"
            )
        if position > self.host.ledger.last_confirmed:
            raise NotAllowedError("the acknowledgement names a message that was never written")
        if position >= (0, 0):
            self.cursor.acknowledge_cumulative(position)
        self._note_acknowledged(consumer, 1)
        if dispatcher.blocked:
            self.wake()

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        """Deliver again what the consumer has not acknowledged: these entries, or (None) all of them."""
        if self._dispatcher is not None:
            self._dispatcher.redeliver(consumer, positions if self._dispatcher.tracks_pending else None)
            self.wake()

    def _note_acknowledged(self, consumer: AttachedConsumer, entries: int) -> None:
        consumer.acknowledged.add(entries, 0)
        consumer.last_acknowledged_ms = self.host.env.clock.now_ms()
        ledger_id = self.cursor.first_unacknowledged[0]
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self.host.cursor_moved()

    # -- moving and ending ---------------------------------------------------------------------------------------

    async def reset(self, locate: Callable[[], Coroutine[object, object, Position]]) -> None:
        """Send all consumers away, then go on at the position (inclusive) that `locate` finds.

        Raises what `locate` and the cursor's write raise; the old place is then kept.
        """
        async with self._lock:
            self._check_open()
            self.disconnect_all(for_reset=True)
            await self.cursor.reset(await locate())
            self._ledger_id = self.cursor.first_unacknowledged[0]
            self.host.cursor_moved()

    async def unsubscribe(
        self,
        consumer: AttachedConsumer | None,
        delete: Callable[[], Coroutine[object, object, None]],
        *,
        force: bool = False,
    ) -> None:
        """End the subscription; `delete` removes its cursor.

        Raises BrokerMetadataError while consumers other than `consumer` are connected, unless forced.
        """
        async with self._lock:
            self._check_open()
            others = [other for other in self.consumers if other is not consumer]
            if others and not force:
                raise BrokerMetadataError("Unconnected or shared consumer attempting to unsubscribe", in_use=True)
            for other in others:
                other.connection.consumer_closed(other)
            self._close()
            for member in self.consumers:
                self.detach(member)
            try:
                await delete()
            except MagnetarError:
                if consumer is not None:  # it is no longer attached, and its client must be told
                    consumer.connection.consumer_closed(consumer)
                raise
            finally:
                self.host.subscription_ended(self)

    def close(self) -> None:
        """End without a trace in the cursor: its topic is closing."""
        if not self.closed:
            self._close()
        for consumer in self.consumers:
            self.detach(consumer)

    def _end(self) -> None:
        self._close()
        self.host.subscription_ended(self)

    def _close(self) -> None:
        self._become(SubscriptionState.CLOSED)
        self._cancel_expiry()
        self._pump.stop()

    def _become(self, state: SubscriptionState) -> None:
        check_transition(TRANSITIONS, f"subscription {self.name}", self.state, state)
        self.state = state

    def _check_open(self) -> None:
        if self.closed:
            raise ServiceUnitNotReady(f"subscription {self.name} is closing")

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @property
    def type_name(self) -> str:
        """The subscription type as Pulsar writes it, empty without a consumer."""
        if self._dispatcher is None:
            return ""
        return type_name(self._dispatcher.subscription_type)

    # -- figures -------------------------------------------------------------------------------------------------

    def figures(self, now_s: float) -> SubscriptionFigures:
        members = self.consumers
        dispatcher = self._pump.dispatcher
        keys = dispatcher.key_figures() if dispatcher is not None else {}
        consumers = [member.figures(now_s, keys.get(member)) for member in members]
        return SubscriptionFigures(
            name=self.name,
            durable=self.durable,
            type=self.type_name,
            properties=dict(self.cursor.properties),
            messages=self._out.messages + sum(one.messages for one in consumers),
            bytes=self._out.bytes + sum(one.bytes for one in consumers),
            backlog_entries=self.cursor.backlog_entries,
            replay_entries=dispatcher.replay_size if dispatcher is not None else 0,
            unacked_messages=sum(member.unacked_messages for member in members),
            blocked=dispatcher is not None and dispatcher.blocked,
            consumers=consumers,
            active_consumer=dispatcher.active.name if dispatcher is not None and dispatcher.active else None,
        )
