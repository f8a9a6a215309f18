"""A non-persistent topic: what is published goes to the consumers that may get it at that moment, and nowhere else.

The producer has its receipt in the same step. Nothing is on disk, and nothing is kept in memory. The states of the
topic are *open*, *closing* and *closed* only. No entry can fail to be stored, so the topic is never *fenced*.

An entry is dropped, and its subscription counts it, when its consumer has no permits, or its connection cannot be
written. On Shared it is dropped only if that is so for all consumers. On Key_Shared the key says who its consumer is,
and on Exclusive and Failover it is the active one. Acknowledgements are counted and have no other effect. As in Pulsar
a subscription is there as long as it has consumers.

Left to others: producers and publish stages (publishing), who is attached (subscription_members), whose topic it is.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ...protocol.entries import is_marker
from ...protocol.errors import NotAllowedError, SubscriptionNotFound
from ...protocol.message_id import Position, WireMessageId
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topic_figures import SubscriptionFigures, TopicFigures
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.meter import Meter
from ...runtime.settings.declarations import Settings
from ..dispatch.consumer import AttachedConsumer, Delivery
from ..dispatch.dispatcher import Dispatcher, Limits
from ..dispatch.failover import FailoverTopic, HeldTopics
from ..keeping.checks import TopicChecks
from ..keeping.inactivity import Inactivity
from ..policies.effective import EffectivePolicies
from .batch_index_acks import PartOfBatch
from .dispatchers import new_dispatcher
from .feature import TopicFeatures
from .persistent import check_new_consumer
from .producer import AttachedProducer
from .publishing import Publishing
from .subscription_members import SubscriptionMembers
from .topic import DRAIN_TIMEOUT_S, CommonState, SubscriptionStart, TopicLife, TopicState

Completion = Callable[[Position | None, BaseException | None], None]

NO_PLACE: Position = (0, 0)
"""The id that every entry has, as in Pulsar."""
NOTHING_ACKNOWLEDGED: Position = (-1, -1)


class NoCursor:
    """What dispatchers see of a subscription that stores nothing."""

    first_unacknowledged = NO_PLACE

    def is_acknowledged(self, position: Position) -> bool:
        return False

    def next_unacknowledged(self, position: Position) -> Position:
        return position

    def ranges_before(self, position: Position) -> int:
        return 0


class PassingSubscription(SubscriptionMembers):
    """The consumers of one subscription. Made by `NonPersistentTopic`."""

    def __init__(self, topic: "NonPersistentTopic", name: str, *, durable: bool) -> None:
        super().__init__(topic, name, durable=False, grace_s=0.0)
        self.key = (name, durable)
        """Under which its topic finds it: as the client asked for it."""
        self._dropped = Meter(self._loop.time())

    def new_dispatcher(self, subscription_type: int, consumer: AttachedConsumer) -> Dispatcher:
        return new_dispatcher(
            self.topic, self.name, NoCursor(), subscription_type, consumer, lambda position, body: 1, self.wake
        )

    def wake(self) -> None:
        """Nothing waits for a consumer that becomes able."""

    def hand_on(self, entry: bytes, messages: int, metadata: MessageMetadata, now_ms: int) -> None:
        """Send an entry to its consumer, or drop it."""
        dispatcher = self.dispatcher
        consumer = dispatcher.receiver(metadata) if dispatcher is not None else None
        if consumer is None or not consumer.able:
            self._dropped.add(messages, len(entry))
            return
        consumer.permits -= messages
        consumer.deliver(Delivery(consumer, [(NO_PLACE, entry, messages, 0)], messages), now_ms)
        self.topic.common.traffic.sent.add(messages, len(entry))

    # -- what consumers ask for ----------------------------------------------------------------------------------

    def acknowledge(
        self, consumer: AttachedConsumer, positions: list[Position], parts: Sequence[PartOfBatch] = ()
    ) -> None:
        self._note(consumer, len(positions) + len(parts))

    def acknowledge_cumulative(self, consumer: AttachedConsumer, position: Position) -> None:
        self._note(consumer, 1)

    def _note(self, consumer: AttachedConsumer, entries: int) -> None:
        consumer.acknowledged.add(entries, 0)
        consumer.times.last_acknowledged_ms = self.topic.env.clock.now_ms()

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        """There is nothing to deliver again."""

    async def flush(self) -> None:
        """There is nothing to wait for."""

    async def seek(
        self, *, position: Position | None = None, publish_time_ms: int | None = None, ack_set: Sequence[int] = ()
    ) -> None:
        """There is nowhere to go. As in Pulsar that is no error."""

    async def remove(self, consumer: AttachedConsumer | None, *, force: bool = False) -> None:
        async def nothing() -> None:
            """Nothing is stored."""

        await self.unsubscribe(consumer, nothing, force=force)

    @property
    def mark_delete_position(self) -> Position:
        return NOTHING_ACKNOWLEDGED

    @property
    def backlog_entries(self) -> int:
        return 0

    # -- figures -------------------------------------------------------------------------------------------------

    def figures(self, now_s: float) -> SubscriptionFigures:
        dispatcher = self.dispatcher
        keys = dispatcher.key_figures() if dispatcher is not None else {}
        consumers = [member.figures(now_s, keys.get(member)) for member in self.consumers]
        return SubscriptionFigures(
            name=self.name,
            durable=False,
            type=self.type_name,
            properties={},
            messages=self._out.messages + sum(one.messages for one in consumers),
            bytes=self._out.bytes + sum(one.bytes for one in consumers),
            backlog_entries=0,
            replay_entries=0,
            unacked_messages=0,
            blocked=False,
            consumers=consumers,
            dropped_messages=self._dropped.messages,
            drop_rate=self._dropped.message_rate(now_s),
        )


class Relay:
    """Hands entries on in place of storing them. `coming` says what is in the entry that is appended next."""

    def __init__(self, env: Environment, subscriptions: Mapping[tuple[str, bool], PassingSubscription]) -> None:
        self._env = env
        self._subscriptions = subscriptions
        self._messages = 0
        self._metadata: MessageMetadata | None = None

    def coming(self, messages: int, metadata: MessageMetadata) -> None:
        self._messages, self._metadata = messages, metadata

    def append(self, body: bytes, callback: Completion) -> None:
        """Pass the entry to each subscription. It is complete then, also if none could send it."""
        assert self._metadata is not None
        now_ms = self._env.clock.now_ms()
        for subscription in () if is_marker(self._metadata) else self._subscriptions.values():
            subscription.hand_on(body, self._messages, self._metadata, now_ms)
        callback(NO_PLACE, None)


class PassingPublishing(Publishing):
    """Publishing whose entries are complete in the step in which they come."""

    def __init__(self, topic: "NonPersistentTopic", relay: Relay) -> None:
        super().__init__(topic, relay, lambda position, messages: None, stages=(), traffic=topic.common.traffic)
        self._relay = relay

    def publish(
        self,
        producer: AttachedProducer,
        sequence_id: int,
        highest_sequence_id: int,
        messages: int,
        entry: bytes,
        metadata: MessageMetadata,
    ) -> None:
        self._relay.coming(messages, metadata)
        super().publish(producer, sequence_id, highest_sequence_id, messages, entry, metadata)


class NonPersistentTopic(TopicLife):
    """See the module."""

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        policies: EffectivePolicies,
        name: TopicName,
        epoch: int,
        common: CommonState,
    ) -> None:
        super().__init__(name)
        self.env = env
        self.settings = settings
        self.policies = policies
        self.epoch = epoch
        self.dispatch_limits = Limits(settings.dispatcher_read_entries_max, settings.dispatcher_turn_messages_max, 0)
        self.common = common
        self.counts = common.counts
        self.held_topics: HeldTopics = common.held_topics
        self.failover_topic = FailoverTopic(name.full, name.partition)
        self.subscriptions: dict[tuple[str, bool], PassingSubscription] = {}
        self.publishing = PassingPublishing(self, Relay(env, self.subscriptions))
        self.keeping = TopicChecks(name, Inactivity(self, lambda mode: bool(self.subscriptions)))
        self.publishing.on_left = self.keeping.inactivity.used
        self.features = TopicFeatures(common.features, self)
        self.publishing.obstacles.append(self.features.check_producer)
        self._closing = False
        self._closed = asyncio.Event()
        for feature in self.features:
            feature.opened()
        self.renew_stages()

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
        """Whether it has passed some on."""
        return self.publishing.published.entries > 0

    # -- state ---------------------------------------------------------------------------------------------------

    def publish_failed(self, error: BaseException) -> None:
        """Nothing is stored, so nothing can fail to be."""
        raise AssertionError(f"an entry of {self.name.full} was not handed on: {error!r}")

    def nothing_pending(self) -> None:
        """The last publish under way was completed, and the topic is not open."""

    def check(self) -> None:
        """Nothing can stall."""

    def use_policies(self, policies: EffectivePolicies) -> None:
        """These hold from now on; clients that are there already stay."""
        before, self.policies = self.policies, policies
        self.features.policies_changed(before, policies)
        self.renew_stages()

    def renew_stages(self) -> None:
        """Entries that arrive from now on pass the stages that the features have now."""
        self.publishing.use_stages(self.features.stages())

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def subscription(
        self,
        name: str,
        *,
        durable: bool,
        start: SubscriptionStart,
        properties: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> PassingSubscription:
        """The subscription of that name. Where it should begin, and whether it should last, is of no importance.

        Raises SubscriptionNotFound without `create`, ServiceUnitNotReady.
        """
        self.check_open()
        found = self.subscriptions.get((name, durable))
        if found is None or found.closed:
            if not create:
                raise SubscriptionNotFound(f"Subscription {name} of {self.name.full} does not exist")
            found = self.subscriptions[name, durable] = PassingSubscription(self, name, durable=durable)
        return found

    def check_consumer(self, subscription: SubscriptionMembers, consumer: AttachedConsumer) -> None:
        """Raise what the topic has against one more consumer."""
        check_new_consumer(self, subscription, consumer)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Raises SubscriptionNotFound; BrokerMetadataError while it has consumers, unless forced."""
        await (await self.subscription(name, durable=True, start=SubscriptionStart(), create=False)).remove(
            None, force=force
        )

    def subscription_ended(self, subscription: SubscriptionMembers) -> None:
        """Its last consumer has left, or it was deleted."""
        self.keeping.inactivity.used()
        for key, one in list(self.subscriptions.items()):
            if one is subscription:
                del self.subscriptions[key]

    async def last_message_id(self, *, compacted: bool = False) -> WireMessageId:
        raise NotAllowedError(f"{self.name.full} is not persistent: it has no last message")

    # -- figures -------------------------------------------------------------------------------------------------

    def describe(self) -> TopicFigures:
        """Rates, drops, producers and subscriptions."""
        now_s = asyncio.get_running_loop().time()
        publishing = self.publishing
        return TopicFigures(
            state=self.state.value,
            epoch=self.epoch,
            topic_epoch=publishing.topic_epoch,
            waiting_producers=publishing.waiting_producers,
            messages=publishing.published.messages,
            bytes=publishing.published.bytes,
            message_rate=publishing.published.message_rate(now_s),
            byte_rate=publishing.published.byte_rate(now_s),
            pending_publishes=0,
            storage_bytes=0,
            backlog_bytes=0,
            producers=[producer.figures(now_s) for producer in publishing.producers.values()],
            subscriptions=[
                one.figures(now_s) for _, one in sorted(self.subscriptions.items(), key=lambda pair: pair[0])
            ],
            has_chunks=publishing.has_chunks,
            persistent=False,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    async def close(self, *, drain_s: float = DRAIN_TIMEOUT_S) -> None:
        """Send all clients away. Concurrent callers wait for the first one."""
        if self.state is TopicState.CLOSED or self._closing:
            await self._closed.wait()
            return
        self._closing = True
        self.begin_to_close()
        try:
            self.publishing.disconnect_all()
            for subscription in list(self.subscriptions.values()):
                subscription.disconnect_all()
                if not subscription.closed:
                    subscription.close()
            self.publishing.use_stages(())
            for feature in self.features:
                feature.closing()
            await self._tasks.close()
        finally:
            self._become(TopicState.CLOSED)
            self._closed.set()
            self.features.let_go()
