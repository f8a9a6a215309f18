"""A persistent topic: a managed ledger with its producers and subscriptions. Its states are those of `topic`.

`LedgerFenced` and `StaleEpoch` end the topic here: another owner writes it now.

Left to others: what is stored (managed ledger), the way of an entry (publishing), who gets what (subscription), whose
topic it is (registry).

Which consumers and how many, and how many subscriptions a topic takes: Pulsar's bounds and refusals. 0 is no bound.

What is there already when a bound is lowered stays. Producers are counted by `publishing`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.errors import (
    ConditionFailed,
    ConsumerBusy,
    MagnetarError,
    NotAllowedError,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    ends_topic,
)
from ...protocol.message_id import Position, WireMessageId
from ...protocol.topic_figures import CursorFigures, LedgerFigures, StorageFigures, TopicFigures
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...storage.managed.cursor import Cursor
from ...storage.managed.managed_ledger import ManagedLedger
from ...storage.managed.publish_times import LastPublish
from ...storage.managed.trimming import Retention
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.dispatcher import Limits
from ..dispatch.failover import FailoverTopic, HeldTopics
from ..keeping.topic_keeping import TopicKeeping
from ..policies.backlog_quota import QuotaType
from ..policies.effective import EffectivePolicies
from ..policies.subscription_types import SubscriptionType
from ..rates.dispatch import DispatchRates
from .batch_index_acks import PartOfBatch
from .dispatchers import type_name
from .feature import TopicFeatures
from .log_view import LogView, start_position
from .producer import AttachedProducer
from .publishing import Publishing
from .stages import Terminated
from .subscription import Subscription, let_go
from .subscription_members import SubscriptionMembers
from .topic import DRAIN_TIMEOUT_S, CommonState, SubscriptionStart, TopicLife, TopicState

if TYPE_CHECKING:
    from .loaded_topics import Topic

logger = logging.getLogger(__name__)


def check_new_subscription(topic: "Topic", *, durable: bool) -> None:
    """Raise NotAllowedError when the topic has as many durable subscriptions as it may have."""
    bound = topic.policies.max_subscriptions_per_topic
    if durable and 0 < bound <= sum(is_durable for _, is_durable in topic.subscriptions):
        raise NotAllowedError(
            f"{topic.name.full} has {bound} subscriptions, as many as it may have: delete one, or raise "
            "maxSubscriptionsPerTopic"
        )


def check_subscription_type(topic: "Topic", subscription_type: int) -> None:
    """Raise NotAllowedError for a type of subscriptions that the topic's policies do not enable."""
    name = type_name(subscription_type)
    if SubscriptionType(name) not in topic.policies.subscription_types_enabled:
        raise NotAllowedError(
            f"{topic.name.full} takes no {name} subscriptions: use another type, or add {name} to "
            "subscriptionTypesEnabled"
        )


def check_new_consumer(topic: "Topic", subscription: SubscriptionMembers, consumer: AttachedConsumer) -> None:
    """Raise ConsumerBusy when the topic, or the subscription, has as many consumers as it may have, and what a
    feature has against the consumer."""
    policies = topic.policies
    if 0 < policies.max_consumers_per_topic <= sum(len(one.consumers) for one in topic.subscriptions.values()):
        raise ConsumerBusy(
            f"{topic.name.full} has as many consumers as it may have: close one, or raise maxConsumersPerTopic"
        )
    if 0 < policies.max_consumers_per_subscription <= len(subscription.consumers):
        raise ConsumerBusy(
            f"subscription {subscription.name} of {topic.name.full} has as many consumers as it may have: close one, "
            "or raise maxConsumersPerSubscription"
        )
    for feature in topic.features:
        feature.check_consumer(subscription, consumer)


PREPARE_TRIES_MAX = 20
RANGES_SHOWN_MAX = 1000
"""How many acknowledged ranges of a cursor its figures list. There may be hundreds of thousands."""


class PersistentTopic(TopicLife):
    """See the module. `on_terminal(topic, error)` is called when this instance must end: another owner took the ledger
    over, or the stored state is no longer known here.
    """

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        policies: EffectivePolicies,
        name: TopicName,
        epoch: int,
        ledger: ManagedLedger,
        common: CommonState,
        on_terminal: Callable[["PersistentTopic", BaseException], None],
    ) -> None:
        super().__init__(name)
        self.env = env
        self.settings = settings
        self.policies = policies
        self.epoch = epoch
        self.ledger = ledger
        self.dispatch_limits = _dispatch_limits(settings, policies)
        self.dispatch_bytes_max = settings.dispatcher_read_bytes_max
        self.subscriptions: dict[tuple[str, bool], Subscription] = {}
        epochs = ledger.topic_epoch
        self.last_publish = LastPublish(ledger)
        remember, traffic = common.counts.remember, common.traffic
        self.publishing = Publishing(self, ledger, remember, stages=(), epochs=epochs, traffic=traffic)
        self._rates = DispatchRates(policies, self.publishing.published)
        self.common = common
        self.counts = common.counts
        self._prepare = common.prepare
        self.held_topics: HeldTopics = common.held_topics
        self.failover_topic = FailoverTopic(name.full, name.partition)
        self.keeping = TopicKeeping(self)
        self.features = TopicFeatures(common.features, self)
        self._log = LogView(self)
        self.compacted_log = self.features.log_view() or self._log
        """What consumers see that read the compacted topic."""
        self.publishing.obstacles.append(self._check_producer)
        self.publishing.on_left = self.keeping.inactivity.left
        self.keeping.inactivity.on_left = partial(common.left, name)
        self._on_terminal = on_terminal
        self._creating = asyncio.Lock()
        self._closed: asyncio.Event | None = None
        for cursor_name, cursor in ledger.subscription_cursors.items():
            self._adopt(cursor_name, cursor, durable=True)
        ledger.on_appended.append(self._appended)
        ledger.on_fenced.append(self._ledger_fenced)
        ledger.on_trimmed.append(self._ledgers_trimmed)
        for feature in self.features:
            feature.opened()
        self._apply_policies()

    @property
    def in_use(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return self.publishing.in_use or any(item.consumers for item in self.subscriptions.values())

    @property
    def has_producers(self) -> bool:
        """Whether a producer is connected, or waits for exclusive access."""
        return self.publishing.in_use

    @property
    def has_messages(self) -> bool:
        """Whether it stores messages."""
        return self.ledger.size_bytes > 0

    # -- state ---------------------------------------------------------------------------------------------------

    def publish_failed(self, error: BaseException) -> None:
        """An entry was not stored."""
        if self.state is TopicState.OPEN:
            logger.warning("a publish to %s failed, so its producers are disconnected: %s", self.name.full, error)
            self._become(TopicState.FENCED)
        if ends_topic(error):
            self._ledger_fenced(error)

    def disconnect_producers(self) -> None:
        """Send every producer away: its client looks the topic up again, and resends what has no receipt."""
        self.publishing.disconnect_all()

    def nothing_pending(self) -> None:
        """The last publish under way was completed, and the topic is not open."""
        if self.state is TopicState.FENCED:
            self.publishing.disconnect_all()
            self._become(TopicState.OPEN)

    def _ledger_fenced(self, error: BaseException) -> None:
        """Another owner has taken the ledger over."""
        if self.begin_to_close():
            self._on_terminal(self, error)

    async def terminate(self) -> Position:
        """Take no message from now on, for ever. Returns the place of the last one, (−1, −1) for none.

        1. What is under way is stored or fails. Nothing is answered to what arrives meanwhile: its producer is sent
           away at the end, and told when it comes back.
        2. The end is stored (`Termination` has the crash points).
        3. Producers are sent away. Consumers that have everything are told.

        When this raises, the topic closes, and what is stored tells when it is loaded again. Raises
        ServiceUnitNotReady, and what storing the end raises.
        """
        self.check_open()
        termination = self.ledger.termination
        if termination.end is not None:
            return termination.end
        self._become(TopicState.TERMINATING)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self.publishing.drained()
            end = await termination.terminate()
        except BaseException as error:  # a cancelled request, too, leaves unknown what is stored
            self._ledger_fenced(error)
            raise
        if self.state is not TopicState.TERMINATING:
            raise ServiceUnitNotReady(f"{self.name.full} is {self.state.value}")
        self._apply_policies()
        self._become(TopicState.OPEN)
        self.publishing.disconnect_all()
        for subscription in self.subscriptions.values():
            subscription.tell_end()
        return end

    # -- policies ------------------------------------------------------------------------------------------------

    def use_policies(self, policies: EffectivePolicies) -> None:
        """These hold from now on. As in Pulsar, clients that a lower bound would not admit stay. A producer that must
        encrypt now, and does not, is refused with its next message.
        """
        before, self.policies = self.policies, policies
        self.features.policies_changed(before, policies)
        self._apply_policies()
        if self._rates.use(policies):
            for subscription in self.subscriptions.values():
                subscription.use_rates(self._rates.limits())
        limits = _dispatch_limits(self.settings, policies)
        if limits != self.dispatch_limits:
            self.dispatch_limits = limits
            for subscription in self.subscriptions.values():
                subscription.use_limits(limits)

    def _apply_policies(self) -> None:
        self.renew_stages()
        copies = self.policies.persistence  # for ledgers to come; as in Pulsar, the one that is written stays as it is
        self.ledger.use_copies(copies.ensemble_size, copies.write_quorum, copies.ack_quorum)
        retention = self.policies.retention
        self.ledger.trimmer.use_retention(Retention.of(retention.time_minutes, retention.size_mb))

    def renew_stages(self) -> None:
        """Entries that arrive from now on pass the stages that the features have now."""
        before, stages = self.publishing.stages, self.features.stages()
        if self.ledger.termination.end is not None:
            stages = (Terminated(self.name), *stages)
        self.publishing.use_stages(stages)
        if any(stage.renews_producers and stage not in before for stage in stages):
            self.publishing.disconnect_all()  # they come back, and learn where their sequence ids go on

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
        if self.features.owns_cursor(name):
            raise NotAllowedError(f"{name} is the name of a cursor of the broker's own: choose another name")
        found = self.subscriptions.get((name, durable))
        if found is not None and not found.closed:
            return found
        if not create:
            raise SubscriptionNotFound(f"Subscription {name} of {self.name.full} does not exist")
        async with self._creating:
            found = self.subscriptions.get((name, durable))
            if found is None or found.closed:
                check_new_subscription(self, durable=durable)
                now_ms = self.env.clock.now_ms()
                position = await start_position(
                    self.view(compacted=start.compacted), start, durable=durable, now_ms=now_ms
                )
                if durable:
                    cursor = await self._create_cursor(name, start, position, dict(properties or {}))
                else:
                    cursor = self.ledger.new_non_durable_cursor(position)
                self.check_open()
                found = self._adopt(name, cursor, durable=durable)
            return found

    def check_consumer(self, subscription: SubscriptionMembers, consumer: AttachedConsumer) -> None:
        """Raise what the topic has against one more consumer."""
        check_new_consumer(self, subscription, consumer)

    def _check_producer(self, producer: AttachedProducer) -> None:
        self.keeping.check_producer()
        self.features.check_producer(producer)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a durable subscription. Raises SubscriptionNotFound; BrokerMetadataError while it has consumers,
        unless forced."""
        if await self.features.delete_cursor(name):
            return
        subscription = await self.subscription(name, durable=True, start=SubscriptionStart(), create=False)
        await self.unsubscribe(subscription, None, force=force)

    async def unsubscribe(
        self, subscription: Subscription, consumer: AttachedConsumer | None, *, force: bool = False
    ) -> None:
        """Delete a subscription, on behalf of `consumer`. Raises BrokerMetadataError while others use it."""

        async def delete() -> None:
            if not subscription.durable:
                return
            try:
                await self.ledger.delete_cursor(subscription.name)
            except MagnetarError as error:
                # It is unknown now whether the cursor still exists: only loading the topic again tells.
                self._on_terminal(self, error)
                raise

        await subscription.unsubscribe(consumer, delete, force=force)
        self.cursor_moved()

    async def seek(
        self,
        subscription: Subscription,
        *,
        position: Position | None = None,
        publish_time_ms: int | None = None,
        ack_set: Sequence[int] = (),
    ) -> None:
        """Move a subscription to a position (inclusive) or to the first message published at that time or later. Of a
        batch at the position only what `ack_set` names comes, if the broker keeps such acknowledgements. Its consumers
        are disconnected first and connect again by themselves.
        """

        view = self.view(compacted=subscription.reads_compacted)

        async def locate() -> Position:
            if publish_time_ms is not None:
                return await view.first_published(publish_time_ms)
            assert position is not None
            return view.resolve(position)

        part = PartOfBatch(position, list(ack_set), 0) if position is not None and ack_set else None
        await subscription.reset(locate, part)

    def subscription_ended(self, subscription: SubscriptionMembers) -> None:
        """A subscription was deleted, or a reader has left."""
        key = (subscription.name, subscription.durable)
        if self.subscriptions.get(key) is subscription:
            del self.subscriptions[key]
        self.keeping.inactivity.left()

    def counted_cursors(self) -> Sequence[Cursor]:
        """Cursors of features that count as subscriptions."""
        return self.features.counted(self.ledger.cursors)

    def cursor_moved(self) -> None:
        """A cursor left a ledger: perhaps something can be trimmed."""
        self.keeping.trim_soon()

    def check(self) -> None:
        """Called now and then; see Subscription.check."""
        for subscription in list(self.subscriptions.values()):
            subscription.check()

    # -- reading -------------------------------------------------------------------------------------------------

    def view(self, *, compacted: bool) -> LogView:
        """What consumers see, or those that read the compacted topic."""
        return self.compacted_log if compacted else self._log

    async def last_message_id(self, *, compacted: bool = False) -> WireMessageId:
        """Id of the last message, with the index of the last one in a batch; earliest if there is none. With
        `compacted` it is the last one that a reader of the compacted topic gets."""
        if self.state is not TopicState.FENCED:
            self.check_open()
        return await self.view(compacted=compacted).last_message_id()

    # -- figures -------------------------------------------------------------------------------------------------

    def describe(self) -> TopicFigures:
        """Rates, backlogs, producers and subscriptions."""
        now_s = asyncio.get_running_loop().time()
        publishing, quotas = self.publishing, self.policies.backlog_quota_map
        figures = TopicFigures(
            state=self.state.value,
            epoch=self.epoch,
            topic_epoch=publishing.topic_epoch,
            waiting_producers=publishing.waiting_producers,
            messages=publishing.published.messages,
            bytes=publishing.published.bytes,
            message_rate=publishing.published.message_rate(now_s),
            byte_rate=publishing.published.byte_rate(now_s),
            pending_publishes=publishing.pending,
            has_chunks=self.publishing.has_chunks,
            storage_bytes=self.ledger.size_bytes,
            backlog_bytes=max([one.backlog_bytes for one in self.ledger.subscription_cursors.values()], default=0),
            backlog_age_s=self.keeping.age_s(),
            backlog_quota_bytes=quotas[QuotaType.DESTINATION_STORAGE].size_bytes,
            backlog_quota_s=quotas[QuotaType.MESSAGE_AGE].time_s,
            created_ms=self.ledger.created_ms,
            last_publish_ms=self.last_publish.at_ms,
            producers=[producer.figures(now_s) for producer in publishing.producers.values()],
            subscriptions=[
                *(one.figures(now_s) for _, one in sorted(self.subscriptions.items(), key=lambda pair: pair[0])),
                *self.features.subscriptions(),
            ],
        )
        return self.features.figures(figures)

    def describe_storage(self) -> StorageFigures:
        """The chain of ledgers and the cursors."""
        ledger = self.ledger
        terminated = ledger.termination.end is not None and self.state is TopicState.OPEN
        figures = StorageFigures(
            state="terminated" if terminated else self.state.value,
            entries_added=self.publishing.published.entries,
            pending_publishes=self.publishing.pending,
            size_bytes=ledger.size_bytes,
            last_confirmed=ledger.last_confirmed,
            ledgers=[
                LedgerFigures(info.ledger_id, info.entries, info.size_bytes, info.closed, info.created_ms)
                for info in ledger.ledger_infos
            ],
            cursors=[self._describe_cursor(name, cursor) for name, cursor in sorted(ledger.cursors.items())],
        )
        return self.features.storage_figures(figures)

    def _describe_cursor(self, name: str, cursor: Cursor) -> CursorFigures:
        subscription = self.subscriptions.get((name, True))
        reads = cursor.first_unacknowledged if subscription is None else subscription.read_position
        mark = cursor.mark_delete_position
        in_front = (reads[0], reads[1] - 1)
        ledger_id, first_ranges = cursor.details(RANGES_SHOWN_MAX)
        return CursorFigures(
            name,
            mark,
            reads,
            cursor.backlog_entries,
            cursor.acknowledged_ranges,
            dict(cursor.properties),
            self.ledger.entries_between(mark, in_front) + 1 if reads > mark else 0,
            first_ranges,
            ledger_id,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    async def close(self, *, drain_s: float = DRAIN_TIMEOUT_S, at_rest: bytes = b"") -> None:
        """Stop taking publishes, complete those under way (for at most `drain_s`), and send all clients away.

        Then write the cursors and close the ledger, with `at_rest` as `ManagedLedger.close` says. Concurrent callers
        wait for the first one.
        """
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = asyncio.Event()
        self.begin_to_close()
        try:
            try:
                async with asyncio.timeout(drain_s):
                    await self.publishing.drained()
            except TimeoutError:
                logger.warning("%s closes with %d publishes in flight", self.name.full, self.publishing.pending)
            self.publishing.disconnect_all()
            for subscription in list(self.subscriptions.values()):
                subscription.disconnect_all(for_reset=True)
                subscription.close()
            self.publishing.use_stages(())
            for feature in self.features:
                feature.closing()
            self.keeping.note_idle()
            await self._tasks.close()
            try:
                await (self.ledger.close(at_rest=at_rest) if at_rest else self.ledger.close())
            except MagnetarError as error:
                # The next owner of the topic recovers the ledger; cursors go back to their last written state.
                logger.warning("%s did not close cleanly: %s", self.name.full, error)
        finally:
            self._become(TopicState.CLOSED)
            self._closed.set()
            _let_go(self)

    # -- inside --------------------------------------------------------------------------------------------------

    async def _create_cursor(
        self, name: str, start: SubscriptionStart, position: Position, properties: Mapping[str, str]
    ) -> Cursor:
        """On partition 0, only while no client can know of partitions without the subscription."""
        if self._prepare is None or self.name.partition != 0:
            return await self.ledger.open_cursor(name, initial=position, properties=properties)
        for _ in range(PREPARE_TRIES_MAX):
            needs = await self._prepare(self.name, name, start, properties)
            try:
                return await self.ledger.open_cursor(name, initial=position, properties=properties, needs=needs)
            except ConditionFailed:
                self.check_open()  # the topic has grown, or its properties have changed
        raise ServiceUnitNotReady(f"{self.name.full} keeps changing: try again")

    def _adopt(self, name: str, cursor: Cursor, *, durable: bool) -> Subscription:
        subscription = Subscription(self, name, cursor, durable=durable, grace_s=self.settings.reader_return_timeout_s)
        subscription.use_rates(self._rates.limits())
        self.subscriptions[name, durable] = subscription
        return subscription

    def _appended(self) -> None:
        """A batch of entries became readable."""
        self.last_publish.appended(self.env.clock.now_ms())
        for subscription in self.subscriptions.values():
            subscription.pump.wake()

    def _ledgers_trimmed(self) -> None:
        """Ledgers are gone. The managed ledger tells the durable cursors; it does not know those of readers."""
        for subscription in list(self.subscriptions.values()):
            if not subscription.durable:
                subscription.cursor.ledgers_trimmed()


def _dispatch_limits(settings: Settings, policies: EffectivePolicies) -> Limits:
    return Limits(
        settings.dispatcher_read_entries_max,
        settings.dispatcher_turn_messages_max,
        policies.max_unacked_messages_per_consumer,
        policies.max_unacked_messages_per_subscription,
        settings.key_shared_look_ahead_max_per_consumer,
        settings.key_shared_look_ahead_max,
    )


def _let_go(topic: PersistentTopic) -> None:
    """The topic is closed: nothing that belongs to it refers to it any longer (see `runtime.gone`)."""
    topic.ledger.on_appended.clear()
    topic.ledger.on_fenced.clear()
    topic.ledger.on_trimmed.clear()
    for subscription in topic.subscriptions.values():
        let_go(subscription)
    for part in (topic.publishing, topic.features, topic.keeping):
        part.let_go()
