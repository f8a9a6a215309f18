"""I11, seen where a broker hands non-persistent messages on: an entry goes out at once to one consumer, or is counted.

A model of its own, fed by what connections do (attach, detach, flow) and by what goes out (`AttachedConsumer.deliver`).
For each entry that is published, and each subscription that is there:

- It goes out in the step in which it is published, never later, to one consumer at most.
- That consumer has permits, as its FLOW commands said, and is the active one of an Exclusive or Failover subscription.
  On Key_Shared it is the one that got the key before, unless somebody came or left.
- An entry that goes to nobody is counted as dropped. Where every consumer may get it, none of them could.
- Messages that went out and messages that were dropped are all that were published, also in the figures.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.dispatch.key_shared import KeySharedDispatcher
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.topics.non_persistent import NonPersistentTopic, PassingPublishing, PassingSubscription
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.sticky_key import sticky_hash

from .history import History
from .store_watch import is_dead, who


class _Passed:
    """What one subscription was handed. `permits` is of its consumers, by what they asked for."""

    def __init__(self) -> None:
        self.permits: dict[AttachedConsumer, int] = {}
        self.keys: dict[int, AttachedConsumer] = {}
        """Key_Shared: who got a key since somebody came or left."""
        self.published = self.delivered = self.dropped = 0


class PassingWatch:
    """See the module."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._passed: dict[PassingSubscription, _Passed] = {}
        self._attached: dict[AttachedConsumer, PassingSubscription] = {}
        self._published: dict[NonPersistentTopic, int] = {}
        self._handing: PassingSubscription | None = None
        """Whose entry is being handed on in this step, and to whom it went."""
        self._entry = b""
        self._went: list[Delivery] = []

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        hand_on, deliver = PassingSubscription.hand_on, AttachedConsumer.deliver
        attach, detach, flow = PassingSubscription.attach, PassingSubscription.detach, PassingSubscription.flow
        publish = PassingPublishing.publish

        def handing_on(
            subscription: PassingSubscription, entry: bytes, messages: int, metadata: MessageMetadata, now_ms: int
        ) -> None:
            before = subscription._dropped.messages
            self._handing, self._entry, self._went = subscription, entry, []
            hand_on(subscription, entry, messages, metadata, now_ms)
            self._handing = None
            self._was_handed_on(subscription, messages, subscription._dropped.messages - before)

        def delivering(consumer: AttachedConsumer, delivery: Delivery, *others: Any) -> None:
            if consumer in self._attached:
                self._goes_out(consumer, delivery)
            deliver(consumer, delivery, *others)

        async def attaching(
            subscription: PassingSubscription, consumer: AttachedConsumer, subscription_type: int
        ) -> None:
            self._attached[consumer] = subscription
            self._history.passing[consumer] = None
            self._of(subscription).keys.clear()
            await attach(subscription, consumer, subscription_type)
            self._of(subscription).keys.clear()

        def detaching(subscription: PassingSubscription, consumer: AttachedConsumer, **options: Any) -> None:
            detach(subscription, consumer, **options)
            passed = self._of(subscription)
            passed.permits.pop(consumer, None)
            passed.keys.clear()

        def flowing(subscription: PassingSubscription, consumer: AttachedConsumer, permits: int) -> None:
            known = self._of(subscription).permits
            known[consumer] = known.get(consumer, 0) + permits
            flow(subscription, consumer, permits)

        def publishing(topic: PassingPublishing, *arguments: Any) -> None:
            before = topic.published.messages
            publish(topic, *arguments)
            host: Any = topic._host
            self._published[host] = self._published.get(host, 0) + topic.published.messages - before
            if topic.pending and not is_dead():
                self._history.violated(
                    f"I11: {who()} keeps the receipts of {topic.pending} entries of {host.name.full}"
                )

        for owner, name, wrapper in (
            (PassingSubscription, "hand_on", handing_on),
            (AttachedConsumer, "deliver", delivering),
            (PassingSubscription, "attach", attaching),
            (PassingSubscription, "detach", detaching),
            (PassingSubscription, "flow", flowing),
            (PassingPublishing, "publish", publishing),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def _of(self, subscription: PassingSubscription) -> _Passed:
        passed = self._passed.get(subscription)
        if passed is None:
            passed = self._passed[subscription] = _Passed()
        return passed

    def _goes_out(self, consumer: AttachedConsumer, delivery: Delivery) -> None:
        subscription = self._attached[consumer]
        passed = self._of(subscription)
        passed.delivered += delivery.messages
        permits = passed.permits.get(consumer, 0)
        passed.permits[consumer] = permits - delivery.messages
        if is_dead():
            return
        what = f"an entry of {subscription.name} to {consumer.name}"
        if permits <= 0:
            self._history.violated(f"I11: {who()} gives {what}, which has {permits} permits")
        if self._handing is not subscription or [entry[1] for entry in delivery.entries] != [self._entry]:
            self._history.violated(f"I11: {who()} gives {what} that was not published at this moment")
            return
        self._went.append(delivery)
        if len(self._went) > 1:
            self._history.violated(f"I11: {who()} gives {what}, and gave it to {self._went[0].consumer.name} before")
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, KeySharedDispatcher):
            before = passed.keys.setdefault(sticky_hash(self._entry), consumer)
            if before is not consumer:
                self._history.violated(f"I11: {who()} gives {what}, and {before.name} has its key")
        elif not isinstance(dispatcher, SharedDispatcher) and (dispatcher is None or consumer is not dispatcher.active):
            self._history.violated(f"I11: {who()} gives {what}, which is not the active consumer")

    def _was_handed_on(self, subscription: PassingSubscription, messages: int, dropped: int) -> None:
        passed = self._of(subscription)
        passed.published += messages
        passed.dropped += dropped
        if is_dead():
            return
        went = sum(delivery.messages for delivery in self._went)
        if went + dropped != messages:
            self._history.violated(
                f"I11: of {messages} messages for {subscription.name} {who()} sends {went} and counts {dropped} dropped"
            )
        dispatcher = subscription.dispatcher
        if went or dispatcher is None or isinstance(dispatcher, KeySharedDispatcher):
            return
        chosen = dispatcher.consumers if isinstance(dispatcher, SharedDispatcher) else [dispatcher.active]
        for consumer in chosen:
            if consumer is not None and passed.permits.get(consumer, 0) > 0 and consumer.connection.writable:
                self._history.violated(
                    f"I11: {who()} drops an entry of {subscription.name} that {consumer.name} may get"
                )

    def check_figures(self, topic: NonPersistentTopic, now_s: float) -> None:
        """What a topic tells of itself is what was seen."""
        counted, seen = topic.describe().messages, self._published.get(topic, 0)
        if counted != seen:
            self._history.violated(f"I11: {topic.name.full} counts {counted} messages, {seen} were published")
        for subscription in topic.subscriptions.values():
            passed, told = self._of(subscription), subscription.figures(now_s)
            self._history.counts["passed on"] += passed.delivered
            self._history.counts["dropped"] += passed.dropped
            if (told.messages, told.dropped_messages) != (passed.delivered, passed.dropped):
                self._history.violated(
                    f"I11: {subscription.name} counts {told.messages} messages out, {told.dropped_messages} dropped; "
                    f"{passed.delivered} and {passed.dropped} were seen"
                )
            if passed.delivered + passed.dropped != passed.published:
                self._history.violated(f"I11: {subscription.name} had {passed.published} messages: {vars(passed)}")
