"""A subscription of a persistent topic: a cursor, and the loop that reads for its consumers.

Its states, and who is attached: `subscription_members`.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, cast
from weakref import ref

from ...protocol.errors import (
    CumulativeAcknowledgementNotAllowedError,
    NotAllowedError,
)
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe
from ...protocol.topic_figures import SubscriptionFigures
from ...runtime.gone import GONE
from ...runtime.meter import Meter
from ...storage.managed.cursor import Cursor
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.dispatcher import CursorView, Dispatcher, Limits
from ..dispatch.shared import SharedDispatcher
from ..rates.dispatch import DispatchLimit
from .batch_index_acks import BatchIndexAcks, PartOfBatch
from .dispatchers import new_dispatcher
from .pump import Pump
from .subscription_members import SubscriptionMembers

if TYPE_CHECKING:
    from .persistent import PersistentTopic


class Subscription(SubscriptionMembers):
    """See the module. Made by `PersistentTopic`."""

    def __init__(self, host: "PersistentTopic", name: str, cursor: Cursor, *, durable: bool, grace_s: float) -> None:
        super().__init__(host, name, durable=durable, grace_s=grace_s)
        self.cursor = cursor
        self.host = host
        self.pump = Pump(host, name, self.figures, self._pass_markers)
        self._count_of = host.counts.of
        if host.settings.acknowledgment_at_batch_index_level_enabled:
            self.pump.index_acks = BatchIndexAcks(cursor, host.counts)
            self._count_of = self.pump.index_acks.open_count
        self._ledger_id = cursor.first_unacknowledged[0]
        self._mark_delete = cursor.mark_delete_position
        self.last_mark_delete_ms = 0
        self.idle_since_ms = cursor.idle_since_ms or host.env.clock.now_ms()
        """Since when it has had no consumer, as far as is known; 0 while it has one."""
        self.expired = Meter(self._loop.time())
        self.last_expire_ms = 0
        """When messages were found to have expired for the last time."""
        cursor.when_passed(self._passed)

    # -- dispatch ------------------------------------------------------------------------------------------------

    def use_dispatcher(self, dispatcher: Dispatcher | None) -> None:
        super().use_dispatcher(dispatcher)
        self.idle_since_ms = 0 if dispatcher is not None else self.host.env.clock.now_ms()
        self.pump.dispatcher = dispatcher
        if dispatcher is None:
            self.host.keeping.inactivity.left()

    def new_dispatcher(self, subscription_type: int, consumer: AttachedConsumer) -> Dispatcher:
        dispatchers: list[ref[Dispatcher]] = []  # it has the view, so a reference would be a cycle

        def compacted() -> bool:
            dispatcher = dispatchers[0]() if dispatchers else None
            return dispatcher is not None and dispatcher.reads_compacted

        cursor: CursorView = self.cursor
        if subscription_type in (CommandSubscribe.Exclusive, CommandSubscribe.Failover):
            cursor = self.host.compacted_log.cursor_of_one(self.cursor, compacted)
        made = new_dispatcher(self.host, self.name, cursor, subscription_type, consumer, self._count_of, self.wake)
        dispatchers.append(ref(made))
        if isinstance(made, SharedDispatcher):
            made.gate = self.host.features.gate(self, made)
        return made

    @property
    def reads_compacted(self) -> bool:
        """Whether the consumer that gets its messages reads the compacted ledger."""
        return self.dispatcher is not None and self.dispatcher.reads_compacted

    def wake(self) -> None:
        self.pump.wake()

    def check(self) -> None:
        self.pump.check()

    def use_limits(self, limits: Limits) -> None:
        self.pump.use_limits(limits)

    def use_rates(self, limits: tuple[DispatchLimit, ...]) -> None:
        """Dispatch stays within these from now on."""
        self.pump.use_rates(limits)

    # -- what consumers ask for ----------------------------------------------------------------------------------

    def acknowledge(
        self, consumer: AttachedConsumer, positions: list[Position], parts: Sequence[PartOfBatch] = ()
    ) -> None:
        """Individual acknowledgement of entries. What was never written is left out.

        `parts` are single messages of batches, ignored where the broker has that switched off. Raises NotAllowedError
        at the first of them that is beyond the bounds of what a cursor keeps.
        """
        dispatcher = self.pump.dispatcher
        if dispatcher is None or self.closed:
            return
        tail = self.host.ledger.last_confirmed
        if positions and not (min(positions) >= (0, 0) and max(positions) <= tail):
            positions = [position for position in positions if (0, 0) <= position <= tail]
        unblocked = dispatcher.acknowledged(consumer, positions)
        self.cursor.acknowledge(positions)
        consumer.note_acknowledged(len(positions), self._note_moved())
        if parts and self.pump.index_acks is not None:
            written = [part for part in parts if (0, 0) <= part.position <= tail]
            unblocked |= self.pump.index_acks.acknowledge(dispatcher, consumer, written)
            consumer.note_acknowledged(len(written), self._note_moved())
        if unblocked or dispatcher.blocked:
            self.wake()

    def acknowledge_cumulative(self, consumer: AttachedConsumer, position: Position) -> None:
        """Everything up to and including `position` is done.

        Raises CumulativeAcknowledgementNotAllowedError on Shared and Key_Shared, NotAllowedError for a position never
        written.
        """
        dispatcher = self.pump.dispatcher
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
        consumer.note_acknowledged(1, self.host.env.clock.now_ms())

    def flow(self, consumer: AttachedConsumer, permits: int) -> None:
        super().flow(consumer, permits)
        if self.host.ledger.termination.end is not None:
            self.tell_end()

    def tell_end(self) -> None:
        """The topic was terminated: tell the consumers so, each once, when everything is acknowledged."""
        if not self.cursor.backlog_entries:
            for consumer in self.consumers:
                consumer.tell_end()

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        """Deliver again what the consumer has not acknowledged: these entries, or (None) all of them."""
        if self.dispatcher is not None:
            self.dispatcher.redeliver(consumer, positions if self.dispatcher.tracks_pending else None)
            self.wake()

    def _note_moved(self) -> int:
        """The cursor may have moved. Returns the time."""
        now_ms = self.host.env.clock.now_ms()
        mark_delete = self.cursor.mark_delete_position
        if mark_delete != self._mark_delete:
            self._mark_delete = mark_delete
            self.last_mark_delete_ms = now_ms
        ledger_id = self.cursor.first_unacknowledged[0]
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self.host.cursor_moved()
        if self.host.ledger.termination.end is not None:
            self.tell_end()
        return now_ms

    def _passed(self) -> None:
        """The cursor passed over entries that were not acknowledged one by one.

        They expired, were skipped, evicted or acknowledged cumulatively, or their ledger was trimmed. Dispatch learns
        it here, and nowhere else. A seek does not come here, since it sends the consumers away.
        """
        if self.closed:
            return
        self._note_moved()
        if self.pump.dispatcher is not None and self.pump.dispatcher.passed():
            self.wake()

    def _pass_markers(self, positions: list[Position]) -> None:
        """Markers were read: they count as acknowledged, so that dispatch leaves them out, as in Pulsar."""
        self.cursor.acknowledge(positions)
        self._note_moved()

    def pass_over(self, place: Position, *, expired: bool) -> int:
        """Count all in front of a place as acknowledged: it is too old, or the backlog is too large. Returns how many
        entries that were. They are no longer unacknowledged at the consumers that hold them."""
        ledger = self.host.ledger
        before = self.cursor.backlog_entries
        self.cursor.acknowledge_cumulative(min((place[0], place[1] - 1), ledger.last_confirmed))
        passed = before - self.cursor.backlog_entries
        if expired:
            self.expired.add(passed, 0)
            self.last_expire_ms = self.host.env.clock.now_ms()
        return passed

    # -- moving and ending ---------------------------------------------------------------------------------------

    async def reset(
        self, locate: Callable[[], Coroutine[object, object, Position]], part: PartOfBatch | None = None
    ) -> None:
        """Send all consumers away, then go on at the position (inclusive) that `locate` finds. If that is the place of
        `part`, the other messages of the batch are acknowledged, where the broker keeps such acknowledgements.

        Raises what `locate` and the cursor's write raise; the old place is then kept.
        """
        async with self._lock:
            self._check_open()
            self.disconnect_all(for_reset=True)
            position, acks = await locate(), self.pump.index_acks
            if part is None or acks is None or position != part.position:
                await self.cursor.reset(position)
            else:
                await self.cursor.reset(position, acks.open_messages(part))
            self._ledger_id = self.cursor.first_unacknowledged[0]
            self.host.cursor_moved()

    async def acknowledge_all_to(self, position: Position) -> None:
        """Everything up to and including `position` is acknowledged for an operator, and this is stored. Consumers
        stay. Raises what writing the cursor raises."""
        async with self._lock:
            self._check_open()
            if position > self.cursor.mark_delete_position:
                self.cursor.acknowledge_cumulative(position)
            await self.cursor.flush()

    async def seek(
        self, *, position: Position | None = None, publish_time_ms: int | None = None, ack_set: Sequence[int] = ()
    ) -> None:
        await self.host.seek(self, position=position, publish_time_ms=publish_time_ms, ack_set=ack_set)

    async def remove(self, consumer: AttachedConsumer | None, *, force: bool = False) -> None:
        await self.host.unsubscribe(self, consumer, force=force)

    async def flush(self) -> None:
        await self.cursor.flush()

    def _close(self) -> None:
        super()._close()
        self.pump.stop()
        self.cursor.when_passed(None)

    @property
    def mark_delete_position(self) -> Position:
        return self.cursor.mark_delete_position

    @property
    def backlog_entries(self) -> int:
        return self.cursor.backlog_entries

    # -- figures -------------------------------------------------------------------------------------------------

    @property
    def read_position(self) -> Position:
        """What is read next. Without a consumer: the first entry that is not acknowledged."""
        dispatcher = self.dispatcher
        return self.cursor.first_unacknowledged if dispatcher is None else dispatcher.read_position

    def figures(self, now_s: float) -> SubscriptionFigures:
        members = self.consumers
        dispatcher = self.pump.dispatcher
        gate = dispatcher.gate if dispatcher is not None else None
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
            delayed_entries=gate.held if gate is not None else 0,
            delayed_index_bytes=gate.size_bytes if gate is not None else 0,
            replay_entries=dispatcher.replay_size if dispatcher is not None else 0,
            unacked_messages=sum(member.unacked_messages for member in members),
            blocked=dispatcher is not None and dispatcher.blocked,
            consumers=consumers,
            active_consumer=dispatcher.active.name if dispatcher is not None and dispatcher.active else None,
            backlog_bytes=self.cursor.backlog_bytes,
            acknowledged_ranges=self.cursor.acknowledged_ranges,
            last_flow_ms=self.last_flow_ms,
            last_mark_delete_ms=self.last_mark_delete_ms,
            expired_entries=self.expired.messages,
            expire_rate=self.expired.message_rate(now_s),
            last_expire_ms=self.last_expire_ms,
        )


def counts_of(subscription: Subscription) -> list[list[int]]:
    """What statistics count since the topic was loaded, for `resume`."""
    meters = [meter.counts for meter in (*subscription.meters, subscription.expired)]
    times = [subscription.last_flow_ms, subscription.last_expire_ms, subscription.idle_since_ms]
    return [*meters, [*times, subscription.last_mark_delete_ms]]


def resume(subscription: Subscription, counts: Sequence[Sequence[int]]) -> None:
    """Go on with the counts of the instance that went to rest."""
    *meters, times = counts
    for meter, kept in zip((*subscription.meters, subscription.expired), meters, strict=True):
        meter.resume(kept)
    subscription.last_flow_ms, subscription.last_expire_ms, subscription.idle_since_ms = times[:3]
    subscription.last_mark_delete_ms = times[3]


def let_go(subscription: Subscription) -> None:
    """The topic is closed: see `runtime.gone`."""
    subscription.topic = subscription.host = cast("PersistentTopic", GONE)
    subscription.pump.let_go()
