"""The members of a subscription, whichever way its topic keeps messages: who is attached, and of which type.

States:

- *idle*: it has no consumer, hence no type.
- *typed*: it has a dispatcher of its first consumer's type.
- *closed*, which is final: it was unsubscribed, its topic closed, or it is not durable and its last consumer is gone.

Attaching, seeking and unsubscribing hold one lock, so each sees the other as done or not begun. A non-durable
subscription also ends when no consumer attaches. Each has a consumer, a consumer that is about to attach, or (after a
seek) a timer that ends it.

Implementations: `subscription` for persistent topics, `non_persistent` for others.
"""

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from ...protocol.errors import MagnetarError, ServiceUnitNotReady, SubscriptionInUse
from ...protocol.message_id import Position
from ...protocol.topic_figures import SubscriptionFigures
from ...runtime.meter import Meter
from ...runtime.transitions import check_transition
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.dispatcher import Dispatcher
from .batch_index_acks import PartOfBatch
from .dispatchers import check_fits, fits, type_name

if TYPE_CHECKING:
    from .loaded_topics import Topic


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


class SubscriptionActs(ABC):
    """What consumers and the admin ask of a subscription, and what depends on how messages are kept."""

    @abstractmethod
    def acknowledge(
        self, consumer: AttachedConsumer, positions: list[Position], parts: Sequence[PartOfBatch] = ()
    ) -> None:
        """Individual acknowledgement of entries; `parts` are single messages of batches."""

    @abstractmethod
    def acknowledge_cumulative(self, consumer: AttachedConsumer, position: Position) -> None:
        """Everything up to and including `position` is done."""

    @abstractmethod
    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        """Deliver again what the consumer has not acknowledged: these entries, or (None) all of them."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until what is acknowledged is durable."""

    @abstractmethod
    async def seek(
        self, *, position: Position | None = None, publish_time_ms: int | None = None, ack_set: Sequence[int] = ()
    ) -> None:
        """Move to a position (inclusive) or to the first message published at that time or later. `ack_set` says which
        messages of the batch at the position are wanted. Its consumers are disconnected first and connect again by
        themselves."""

    @abstractmethod
    async def remove(self, consumer: AttachedConsumer | None, *, force: bool = False) -> None:
        """Delete it, on behalf of `consumer`. Raises BrokerMetadataError while others use it, unless forced."""

    @property
    @abstractmethod
    def mark_delete_position(self) -> Position:
        """Everything up to it is acknowledged."""

    @property
    @abstractmethod
    def backlog_entries(self) -> int:
        """Entries that are not acknowledged."""

    @abstractmethod
    def figures(self, now_s: float) -> SubscriptionFigures:
        """For the admin."""


class SubscriptionMembers(SubscriptionActs):
    """See the module. Implementations say who gets what, and what acknowledgements do."""

    def __init__(self, topic: "Topic", name: str, *, durable: bool, grace_s: float) -> None:
        self.name = name
        self.durable = durable
        self.state = SubscriptionState.IDLE
        self.topic = topic
        self.dispatcher: Dispatcher | None = None
        """Who gets what; None while it is idle."""
        self.last_flow_ms = 0
        """When a consumer asked for messages for the last time; 0: never."""
        self._grace_s = grace_s
        self._lock = asyncio.Lock()
        self._attaching = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._out = Meter(now_s)
        self._acknowledged = Meter(now_s)
        self._redelivered = Meter(now_s)
        self.meters = (self._out, self._acknowledged, self._redelivered)
        """What its consumers that have left got, acknowledged, and got again."""

    # -- what implementations say --------------------------------------------------------------------------------

    def use_dispatcher(self, dispatcher: Dispatcher | None) -> None:
        """It becomes typed, or idle (None)."""
        self.dispatcher = dispatcher

    @abstractmethod
    def new_dispatcher(self, subscription_type: int, consumer: AttachedConsumer) -> Dispatcher:
        """The dispatcher of that type, as its first consumer wants it."""

    @abstractmethod
    def wake(self) -> None:
        """Something changed that may allow dispatch. Cheap."""

    # -- consumers -----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.state is SubscriptionState.CLOSED

    @property
    def consumers(self) -> list[AttachedConsumer]:
        return list(self.dispatcher.consumers) if self.dispatcher is not None else []

    @property
    def sent(self) -> tuple[int, int, int]:
        """Messages, bytes and entries that its consumers were sent, those that have left included."""
        messages, size, entries = self._out.counts
        for consumer in self.dispatcher.consumers if self.dispatcher is not None else ():
            messages += consumer.out.messages
            size += consumer.out.bytes
            entries += consumer.out.entries
        return messages, size, entries

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
        self.topic.check_consumer(self, consumer)
        dispatcher = self.dispatcher
        if dispatcher is None:
            dispatcher = self.new_dispatcher(subscription_type, consumer)
            dispatcher.add(consumer)
            self._become(SubscriptionState.TYPED)
            self.use_dispatcher(dispatcher)
        else:
            check_fits(dispatcher, consumer, subscription_type)
            dispatcher.add(consumer)
        self._cancel_expiry()

    def _obstacle(self, consumer: AttachedConsumer, subscription_type: int) -> AttachedConsumer | None:
        """A consumer that keeps this one from attaching, as long as its connection lives."""
        dispatcher = self.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            return None
        if not fits(dispatcher, consumer, subscription_type):
            return dispatcher.consumers[0]
        return dispatcher.obstacle(consumer)

    def _end_if_unused(self) -> None:
        """One that is not durable ends when the attempt to attach its first consumer has failed."""
        if not (self.durable or self.closed or self._attaching or self.dispatcher or self._expiry):
            self._end()

    def detach(self, consumer: AttachedConsumer, *, for_reset: bool = False) -> None:
        """A consumer is gone: what it held goes to the others. A subscription that is not durable ends with its last
        consumer, unless that one was sent away to come back after a seek."""
        dispatcher = self.dispatcher
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
        self.use_dispatcher(None)
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

    def flow(self, consumer: AttachedConsumer, permits: int) -> None:
        """The consumer takes so many messages more."""
        if not consumer.listens:
            consumer.listen()
        consumer.permits += permits
        self.last_flow_ms = self.topic.env.clock.now_ms()
        consumer.times.flow(self.last_flow_ms)
        self.wake()

    # -- ending --------------------------------------------------------------------------------------------------

    async def unsubscribe(
        self,
        consumer: AttachedConsumer | None,
        delete: Callable[[], Coroutine[object, object, None]],
        *,
        force: bool = False,
    ) -> None:
        """End the subscription; `delete` removes its cursor.

        Raises SubscriptionInUse while consumers other than `consumer` are connected, unless forced.
        """
        async with self._lock:
            self._check_open()
            others = [other for other in self.consumers if other is not consumer]
            if others and not force:
                raise SubscriptionInUse(
                    f"subscription {self.name} has other connected consumers: close them before it is deleted"
                )
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
                self.topic.subscription_ended(self)

    def close(self) -> None:
        """End without a trace in the cursor: its topic is closing."""
        if not self.closed:
            self._close()
        for consumer in self.consumers:
            self.detach(consumer)

    def _end(self) -> None:
        self._close()
        self.topic.subscription_ended(self)

    def _close(self) -> None:
        self._become(SubscriptionState.CLOSED)
        self._cancel_expiry()

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
        if self.dispatcher is None:
            return ""
        return type_name(self.dispatcher.subscription_type)
