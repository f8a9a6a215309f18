"""How many producers and consumers of one topic may have the same IP address, as in Pulsar.

The address is that from which the client's connection comes. Clients behind one proxy have the same. Consumers of all
subscriptions of a topic count together. Partitions are topics here: each counts for itself.

A producer is not counted beside one of its name: it comes back, or the other one stays. Nor is one that wants the topic
for itself: it waits, is refused, or the others leave.

Clients that are there when a bound is lowered stay. A consumer whose connection ended unnoticed counts until
`keepAliveIntervalSeconds` have passed, as for the other bounds.
"""

from typing import TYPE_CHECKING

from ...protocol.errors import ConsumerBusy, ProducerBusy
from ...runtime.settings.same_address import SameAddressSettings
from ..dispatch.consumer import AttachedConsumer
from ..topics.access_modes import AccessMode
from ..topics.feature import TopicFeature
from ..topics.producer import AttachedProducer
from ..topics.subscription_members import SubscriptionMembers

if TYPE_CHECKING:
    from ..topics.loaded_topics import Topic


class SameAddressLimits(TopicFeature):
    """See the module."""

    __slots__ = ("_topic",)

    name = "clients of one address"
    settings = SameAddressSettings

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic

    def check_producer(self, producer: AttachedProducer) -> None:
        bound = self._topic.settings.producers_max_of_same_address
        if not bound or producer.asks.mode is not AccessMode.SHARED:
            return
        address = _host_of(producer.connection.remote_address)
        present = [
            one
            for one in self._topic.publishing.producers.values()
            if _host_of(one.connection.remote_address) == address and one.name != producer.name
        ]
        if len(present) >= bound:
            raise ProducerBusy(
                f"{self._topic.name.full} has {len(present)} producers from {address}, as many as one address may "
                "have: close one, or raise maxSameAddressProducersPerTopic"
            )

    def check_consumer(self, subscription: SubscriptionMembers, consumer: AttachedConsumer) -> None:
        bound = self._topic.settings.consumers_max_of_same_address
        if not bound:
            return
        address = _host_of(consumer.connection.remote_address)
        present = [
            one
            for each in self._topic.subscriptions.values()
            for one in each.consumers
            if _host_of(one.connection.remote_address) == address
        ]
        if len(present) >= bound:
            raise ConsumerBusy(
                f"{self._topic.name.full} has {len(present)} consumers from {address}, as many as one address may "
                "have: close one, or raise maxSameAddressConsumersPerTopic"
            )


def _host_of(remote_address: str) -> str:
    """The IP address of `/host:port`."""
    return remote_address.rpartition(":")[0].removeprefix("/")
