"""The topic feature of delayed delivery: what it does for one topic.

Shared and Key_Shared subscriptions get a gate, which holds messages until their time. A durable subscription's gate
stores what memory may not have in buckets. A stage refuses messages that are to be delivered too late.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.errors import NotAllowedError
from ...protocol.pulsar_pb2 import MessageMetadata
from ...runtime.settings.delayed_delivery import DelayedDeliverySettings
from ...storage.managed.cursor_storage import SideLedgers
from ..dispatch.entry_gate import EntryGate
from ..dispatch.shared import SharedDispatcher
from ..policies.effective import EffectivePolicies
from ..topics.feature import TopicFeature
from ..topics.producer import Publish
from ..topics.publishing import PublishStage, Refusal
from .buckets import DelayBuckets
from .delay_gate import Delays
from .delayed import DelayedEntries

if TYPE_CHECKING:
    from ..topics.persistent import PersistentTopic
    from ..topics.subscription import Subscription


class DeliveryDelayBound(PublishStage):
    """Refuses messages whose delivery time is further away than the policy allows.

    As in Pulsar, the delay counts from the publish time that the producer wrote, and the answer is NotAllowedError.
    """

    def __init__(self, max_delay_ms: int) -> None:
        self._max_delay_ms = max_delay_ms

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        if metadata.deliver_at_time and metadata.deliver_at_time - metadata.publish_time > self._max_delay_ms:
            text = f"the delivery time is more than {self._max_delay_ms} ms away, which maxDeliveryDelayInMillis allows"
            return Refusal(NotAllowedError(text))
        return None


class DeliveryDelays(TopicFeature):
    """See the module."""

    __slots__ = ("_topic",)

    name = "delayed delivery"
    settings = DelayedDeliverySettings
    policies = ("delayed_delivery",)
    persistent_only = True

    def __init__(self, topic: "PersistentTopic") -> None:
        self._topic = topic

    def policies_changed(self, before: EffectivePolicies) -> None:
        for subscription in self._topic.subscriptions.values():
            subscription.wake()  # what gates hold may be due now

    def stage(self) -> PublishStage | None:
        policy = self._topic.policies.delayed_delivery
        return DeliveryDelayBound(policy.max_delay_ms) if policy.active and policy.max_delay_ms > 0 else None

    def gate(self, subscription: "Subscription", dispatcher: SharedDispatcher) -> EntryGate:
        cursor = subscription.cursor
        gate = Delays(self._topic, cursor, subscription.wake)
        if cursor.side is not None:
            gate.use_spill(partial(_new_buckets, subscription, cursor.side, dispatcher.slots))
        return gate


def _new_buckets(
    subscription: "Subscription", side: SideLedgers, slots: int, index: DelayedEntries, changed: Callable[[], None]
) -> DelayBuckets:
    def unreadable() -> None:
        subscription.disconnect_all(for_reset=True)

    return DelayBuckets(
        subscription.host, subscription.cursor, side, index, slots=slots, changed=changed, unreadable=unreadable
    )
