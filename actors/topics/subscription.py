"""A subscription of a topic: a cursor, the consumers on it, and the loop that reads and dispatches.

States: *idle* (no consumer, hence no type) ⇄ *typed* (a dispatcher of the first consumer's type) → *closed* (final:
unsubscribed, its topic closed, or not durable and its last consumer gone). Attaching, seeking and unsubscribing hold
one lock, so each sees the other as done or not begun. One that is not durable ends as well when nobody attaches: each
has a consumer, somebody who is about to attach, or (after a seek) a timer that ends it.

Reading: one pump at most. It is started by `wake` (new entries, permits, a writable socket, a redelivery, an
unblocked consumer), reads and distributes until there is nothing to read or nobody to send to, and ends. Nothing runs
while a subscription is idle.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...protocol.errors import (
    BrokerMetadataError,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    EntryCorrupt,
    EntryUnknown,
    MagnetarError,
    NoSuchEntry,
    NotAllowedError,
    ServiceUnitNotReady,
)
from ...protocol.message_id import Position, WireMessageId
from ...protocol.pulsar_pb2 import CommandSubscribe
from ...protocol.topic_figures import SubscriptionFigures
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.meter import Meter
from ...storage.managed.cursor import Cursor
from ...storage.managed.managed_ledger import ManagedLedger
from ..dispatch.consumer import Consumer
from ..dispatch.dispatcher import Dispatcher, Entry, Limits, ReadPlan
from ..dispatch.exclusive import ExclusiveDispatcher
from ..dispatch.shared import SharedDispatcher

logger = logging.getLogger(__name__)

ROUNDS_BEFORE_YIELD = 4
RUN_GAP_MAX = 8  # unwanted entries that one range read may include to reach the next wanted one
READ_RETRY_INITIAL_S = 0.05
READ_RETRY_MAXIMUM_S = 5.0
PASSED_OVER_MAX = 8  # unreadable entries in a row, after which a Shared subscription pauses as the others do
RECALL_INTERVAL_S = 5.0
RECALL_ENTRIES_MAX = 4  # entries set aside that are tried again at a time
UNREADABLE = (EntryCorrupt, EntryUnknown, NoSuchEntry)

DISPATCHERS: dict[int, type[Dispatcher]] = {
    ExclusiveDispatcher.subscription_type: ExclusiveDispatcher,
    SharedDispatcher.subscription_type: SharedDispatcher,
}


class SubscriptionHost(Protocol):
    """What a subscription needs of its topic."""

    env: Environment
    ledger: ManagedLedger
    dispatch_limits: Limits
    dispatch_bytes_max: int

    def count_of(self, position: Position, body: bytes) -> int: ...
    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None: ...
    async def seek(
        self, subscription: "Subscription", *, position: Position | None = None, publish_time_ms: int | None = None
    ) -> None: ...
    async def unsubscribe(
        self, subscription: "Subscription", consumer: Consumer | None, *, force: bool = False
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
        self.closed = False
        self.host = host
        self._grace_s = grace_s
        self._lock = asyncio.Lock()
        self._dispatcher: Dispatcher | None = None
        self._attaching = 0
        self._pumping = False
        self._retry: asyncio.TimerHandle | None = None
        self._recall: asyncio.TimerHandle | None = None
        self._passed_over = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._backoff = Backoff(host.env.random, READ_RETRY_INITIAL_S, READ_RETRY_MAXIMUM_S)
        self._ledger_id = cursor.first_unacknowledged[0]
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._out = Meter(now_s)
        self._acknowledged = Meter(now_s)
        self._redelivered = Meter(now_s)

    # -- consumers -----------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._dispatcher.consumers) if self._dispatcher is not None else []

    async def attach(self, consumer: Consumer, subscription_type: int) -> None:
        """Add a consumer; the first one sets the type.

        Raises ConsumerBusy (other type, or Exclusive and taken by a live consumer), NotAllowedError (unknown type),
        ServiceUnitNotReady (closed meanwhile).
        """
        dispatcher_class = DISPATCHERS.get(subscription_type)
        if dispatcher_class is None:
            name = CommandSubscribe.SubType.Name(subscription_type)  # type: ignore[arg-type]
            raise NotAllowedError(f"subscription type {name} is not supported")
        self._attaching += 1
        try:
            async with self._lock:
                await self._attach(consumer, subscription_type, dispatcher_class)
        finally:
            self._attaching -= 1
            self._end_if_unused()

    async def _attach(self, consumer: Consumer, subscription_type: int, dispatcher_class: type[Dispatcher]) -> None:
        self._check_open()
        for incumbent in self.consumers:
            if self._admits(subscription_type):
                break
            # Whoever holds the place may be cut off without having noticed: ask before refusing.
            if await incumbent.connection.check_alive():
                break
        self._check_open()
        if consumer.connection.closed:
            raise ServiceUnitNotReady("the connection ended")
        self.host.check_consumers(self)
        if self._dispatcher is None:
            self._dispatcher = dispatcher_class(self.cursor, self.host.dispatch_limits, self.host.count_of)
        elif self._dispatcher.subscription_type != subscription_type:
            raise ConsumerBusy(f"Subscription {self.name} is of different type")
        self._dispatcher.add(consumer)
        self._cancel_expiry()

    def _end_if_unused(self) -> None:
        """One that is not durable ends when the attempt to attach its first consumer has failed."""
        if not (self.durable or self.closed or self._attaching or self._dispatcher or self._expiry):
            self._end()

    def _admits(self, subscription_type: int) -> bool:
        dispatcher = self._dispatcher
        if dispatcher is None or not dispatcher.consumers:
            return True
        return dispatcher.subscription_type == subscription_type == CommandSubscribe.Shared

    def detach(self, consumer: Consumer, *, for_reset: bool = False) -> None:
        """A consumer is gone: what it held goes to the others. A subscription that is not durable ends with its last
        consumer, unless that one was sent away to come back after a seek."""
        dispatcher = self._dispatcher
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
        self._dispatcher = None
        if self.durable or self.closed:
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

    # -- dispatch ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed that may allow dispatch. Cheap, and callable from anywhere."""
        if self._pumping or self._dispatcher is None or self._retry is not None:
            return
        if self._dispatcher.next_read(self.host.ledger.last_confirmed) is not None:
            self._pumping = True
            self.host.spawn(self._pump(), "dispatch")

    async def _pump(self) -> None:
        rounds = 0
        try:
            while (dispatcher := self._dispatcher) is not None:
                plan = dispatcher.next_read(self.host.ledger.last_confirmed)
                if plan is None:
                    return
                try:
                    entries = await self._read(plan)
                except UNREADABLE as error:
                    if dispatcher is self._dispatcher and not self._pass_over(dispatcher, plan, error):
                        raise
                    continue
                if dispatcher is not self._dispatcher:
                    continue
                self._passed_over = 0
                if not entries and not plan.positions and plan.generation == dispatcher.generation:
                    return  # nothing behind the read position after all; the next append wakes us
                now_ms = self.host.env.clock.now_ms()
                for delivery in dispatcher.distribute(plan, entries):
                    delivery.consumer.deliver(delivery, now_ms)
                self._backoff.reset()
                rounds += 1
                if rounds % ROUNDS_BEFORE_YIELD == 0:
                    await asyncio.sleep(0)  # other subscriptions and sockets want their turn
        except MagnetarError as error:
            self._retry_later(error)
        finally:
            self._pumping = False

    async def _read(self, plan: ReadPlan) -> list[Entry]:
        read, bytes_max = self.host.ledger.read, self.host.dispatch_bytes_max
        if not plan.positions:
            return await read(plan.start, plan.entries_max, bytes_max)
        found: list[Entry] = []
        wanted = dict.fromkeys(plan.positions)
        gone: list[Position] = []
        for first, last in runs(plan.positions):
            try:
                entries = await read(first, last[1] - first[1] + 1, bytes_max, upto=last)
            except UNREADABLE:
                if not found:
                    raise
                break
            reached = entries[-1][0] if entries else last
            found += [entry for entry in entries if entry[0] in wanted]
            read_now = {position for position, _ in entries}
            gone += [position for position in wanted if first <= position <= reached and position not in read_now]
            bytes_max -= sum(len(body) for _, body in entries)
            if bytes_max <= 0:
                break
        if gone and isinstance(self._dispatcher, SharedDispatcher):
            self._dispatcher.forget(gone)  # trimmed meanwhile
        return found

    def _pass_over(self, dispatcher: Dispatcher, plan: ReadPlan, error: MagnetarError) -> bool:
        """The first entry of a plan cannot be read. A Shared subscription goes on with the others, and tries it again
        from time to time. Returns whether it does: not when many in a row cannot be read, for then it is not the
        entries' fault."""
        if not isinstance(dispatcher, SharedDispatcher) or self._passed_over >= PASSED_OVER_MAX:
            return False
        if plan.positions:
            position = plan.positions[0]
        else:
            position = self.host.ledger.next_position((plan.start[0], plan.start[1] - 1))
        if position > self.host.ledger.last_confirmed or not dispatcher.set_aside(plan, position):
            return False
        self._passed_over += 1
        logger.warning("subscription %s goes on without %s, which cannot be read: %s", self.name, position, error)
        if self._recall is None and dispatcher.set_aside_size:
            self._recall = self._loop.call_later(RECALL_INTERVAL_S, self._recall_some)
        return True

    def _recall_some(self) -> None:
        self._recall = None
        if isinstance(self._dispatcher, SharedDispatcher):
            if self._dispatcher.recall(RECALL_ENTRIES_MAX):
                self._recall = self._loop.call_later(RECALL_INTERVAL_S, self._recall_some)
            self.wake()

    def _retry_later(self, error: MagnetarError) -> None:
        delay_s = self._backoff.next_delay_s() or READ_RETRY_MAXIMUM_S
        if not self.closed:
            logger.warning("subscription %s cannot read, next try in %.2f s: %s", self.name, delay_s, error)
            self._retry = self._loop.call_later(delay_s, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._passed_over = 0
        self.wake()

    # -- what consumers ask for ----------------------------------------------------------------------------------

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer takes so many messages more."""
        consumer.permits += permits
        consumer.last_flow_ms = self.host.env.clock.now_ms()
        self.wake()

    def acknowledge(self, consumer: Consumer, positions: list[Position]) -> None:
        """Individual acknowledgement of entries. What was never written is left out."""
        dispatcher = self._dispatcher
        if dispatcher is None or self.closed:
            return
        tail = self.host.ledger.last_confirmed
        if positions and not (min(positions) >= (0, 0) and max(positions) <= tail):
            positions = [position for position in positions if (0, 0) <= position <= tail]
        unblocked = dispatcher.acknowledged(consumer, positions)
        self.cursor.acknowledge(positions)
        self._note_acknowledged(consumer, len(positions))
        if unblocked or dispatcher.blocked:
            self.wake()

    def acknowledge_cumulative(self, consumer: Consumer, position: Position) -> None:
        """Everything up to and including `position` is done.

        Raises CumulativeAcknowledgementNotAllowedError on Shared, NotAllowedError for a position never written.
        """
        dispatcher = self._dispatcher
        if dispatcher is None or self.closed:
            return
        if dispatcher.tracks_pending:
            raise CumulativeAcknowledgementNotAllowedError("cumulative acknowledgement on a Shared subscription")
        if position > self.host.ledger.last_confirmed:
            raise NotAllowedError("acknowledgement of a message that was never written")
        if position >= (0, 0):
            self.cursor.acknowledge_cumulative(position)
        self._note_acknowledged(consumer, 1)
        if dispatcher.blocked:
            self.wake()

    def redeliver(self, consumer: Consumer, positions: list[Position] | None) -> None:
        """Deliver again what the consumer has not acknowledged: these entries, or (None) all of them."""
        if self._dispatcher is not None:
            self._dispatcher.redeliver(consumer, positions if self._dispatcher.tracks_pending else None)
            self.wake()

    def _note_acknowledged(self, consumer: Consumer, entries: int) -> None:
        consumer.acknowledged.add(entries, 0)
        consumer.last_acknowledged_ms = self.host.env.clock.now_ms()
        ledger_id = self.cursor.first_unacknowledged[0]
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self.host.cursor_moved()

    # -- moving and ending ---------------------------------------------------------------------------------------

    async def reset(self, locate: Callable[[], Coroutine[Any, Any, Position]]) -> None:
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
        self, consumer: Consumer | None, delete: Callable[[], Coroutine[Any, Any, None]], *, force: bool = False
    ) -> None:
        """End the subscription for good; `delete` removes its cursor.

        Raises BrokerMetadataError while consumers other than `consumer` are connected, unless forced.
        """
        async with self._lock:
            self._check_open()
            others = [other for other in self.consumers if other is not consumer]
            if others and not force:
                raise BrokerMetadataError("Unconnected or shared consumer attempting to unsubscribe")
            for other in others:
                other.connection.consumer_closed(other)
            self.closed = True
            for member in self.consumers:
                self.detach(member)
            self._cancel_timers()
            try:
                await delete()
            except MagnetarError:
                if consumer is not None:  # it is attached to nothing any more, and must not go on believing so
                    consumer.connection.consumer_closed(consumer)
                raise
            finally:
                self.host.subscription_ended(self)

    def close(self) -> None:
        """End without a trace in the cursor: its topic is closing."""
        self.closed = True
        self._cancel_timers()
        for consumer in self.consumers:
            self.detach(consumer)

    def check(self) -> None:
        """Called now and then: dispatch that could go on but does not is a defect; say so and set it going.

        It looks behind what the loop has already in hand: the news of an append may be on its way to us.
        """
        self._loop.call_soon(self._check_now)

    def _check_now(self) -> None:
        if self._dispatcher is None or self._pumping or self._retry is not None or self.closed:
            return
        if self._dispatcher.next_read(self.host.ledger.last_confirmed) is not None:
            logger.error("dispatch of subscription %s had stalled: %s", self.name, self.figures(self._loop.time()))
            self.wake()

    def _end(self) -> None:
        self.closed = True
        self._cancel_timers()
        self.host.subscription_ended(self)

    def _check_open(self) -> None:
        if self.closed:
            raise ServiceUnitNotReady(f"subscription {self.name} is closing")

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _cancel_timers(self) -> None:
        self._cancel_expiry()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._recall is not None:
            self._recall.cancel()
            self._recall = None

    @property
    def type_name(self) -> str:
        """The subscription type as Pulsar writes it, empty without a consumer."""
        if self._dispatcher is None:
            return ""
        return CommandSubscribe.SubType.Name(self._dispatcher.subscription_type)  # type: ignore[arg-type]

    # -- figures -------------------------------------------------------------------------------------------------

    def figures(self, now_s: float) -> SubscriptionFigures:
        members = self.consumers
        consumers = [member.figures(now_s) for member in members]
        dispatcher = self._dispatcher
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
        )


def runs(positions: Any) -> list[tuple[Position, Position]]:
    """Ascending positions as ranges within one ledger, (first, last) inclusive; small gaps are bridged."""
    ranges: list[tuple[Position, Position]] = []
    for position in positions:
        if ranges:
            first, last = ranges[-1]
            if position[0] == last[0] and position[1] - last[1] <= RUN_GAP_MAX:
                ranges[-1] = (first, position)
                continue
        ranges.append((position, position))
    return ranges
