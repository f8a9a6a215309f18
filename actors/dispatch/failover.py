"""Failover: of all consumers of a subscription one is active and gets everything. The others stand by.

Who is active is decided among the consumers of the best (smallest) priority level, by one of three rules:

- *by partition*, on a partition of a topic: the consumers in the order of their names; the partition's index modulo
  their number chooses one. So the consumers of a partitioned topic share its partitions evenly.
- *by arrival*, on a topic without partitions: the one that subscribed first.
- *by hash ring*, on a topic without partitions, when one of the consumers has a name that holds the subscription on
  two or more such topics of this broker (`HeldTopics`). Each consumer has 100 points on a ring of murmur3 hashes. The
  first point at or behind the hash of the topic's name chooses one. So consumers that subscribe to many topics under
  the same names share these topics, instead of one of them having all.

States of a subscription, by what `active` is:

- *none*: there is no consumer.
- *active*: that consumer gets entries.
- *handing over*: another consumer has become active while the one before is still connected. Nothing is read, so that
  acknowledgements of the one before can arrive: what they cover is not delivered twice. It ends with `begin`, or when
  the one before leaves, whose acknowledgements have all arrived then.

Invariants: the active consumer is a member of `consumers`. It begins at the first unacknowledged entry. Every change
of it is announced once to each consumer, and a consumer that joins without a change is told once that it stands by.
Nothing is read before the announcements were taken. So a consumer hears that it is active before it gets entries, if
only with its first FLOW (`AttachedConsumer.listens`). A read that was planned for another active consumer is void
(`generation`).
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from weakref import ref

from ...protocol.hashing import INT31_MASK, murmur3_32
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe
from .consumer import AttachedConsumer
from .dispatcher import CursorView, Limits, ReadPlan
from .exclusive import SingleActiveDispatcher

RING_POINTS = 100


class FailoverTopic:
    """What Failover has to know of the topic: its full name, and its index among the partitions (−1: no partition)."""

    def __init__(self, name: str, partition: int = -1) -> None:
        self.name = name
        self.partition = partition
        self.ring_hash = murmur3_32(name.encode()) & INT31_MASK


class HeldTopics:
    """On which topics without partitions of one broker the consumers of a name hold a Failover subscription.

    It holds one entry for each connected consumer of such a subscription, and forgets it when the consumer leaves.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], dict[FailoverTopic, list[Callable[[], None]]]] = {}

    def several(self, subscription: str, consumer_name: str) -> bool:
        """Whether that name holds the subscription on two or more topics."""
        return len(self._held.get((subscription, consumer_name), ())) > 1

    def join(self, subscription: str, consumer_name: str, topic: FailoverTopic, reconsider: Callable[[], None]) -> None:
        """A consumer has subscribed. `reconsider` is called when `several` has changed because of another topic."""
        topics = self._held.setdefault((subscription, consumer_name), {})
        topics.setdefault(topic, []).append(reconsider)
        if len(topics) == 2 and len(topics[topic]) == 1:
            self._tell(topics, topic)

    def leave(
        self, subscription: str, consumer_name: str, topic: FailoverTopic, reconsider: Callable[[], None]
    ) -> None:
        """That consumer has left."""
        topics = self._held[subscription, consumer_name]
        topics[topic].remove(reconsider)
        if topics[topic]:
            return
        del topics[topic]
        if len(topics) == 1:
            self._tell(topics, topic)
        elif not topics:
            del self._held[subscription, consumer_name]

    def _tell(self, topics: dict[FailoverTopic, list[Callable[[], None]]], changed: FailoverTopic) -> None:
        for topic, holders in list(topics.items()):
            if topic is not changed:
                holders[0]()


def choose_by_ring(consumers: Sequence[AttachedConsumer], topic: FailoverTopic) -> AttachedConsumer:
    """The consumer at the first point at or behind the topic's hash, round the ring."""
    ring: dict[int, AttachedConsumer] = {}
    for consumer in sorted(consumers, key=lambda one: one.name):
        for point in range(RING_POINTS):
            ring[murmur3_32(f"{consumer.name}{point}".encode()) & INT31_MASK] = consumer
    points = sorted(ring)
    return ring[points[bisect_left(points, topic.ring_hash) % len(points)]]


class FailoverDispatcher(SingleActiveDispatcher):
    """See the module. `changed` is called when there are announcements to take, or a hand-over to end."""

    subscription_type = CommandSubscribe.Failover

    def __init__(
        self,
        cursor: CursorView,
        limits: Limits,
        count_of: Callable[[Position, bytes], int],
        *,
        subscription: str,
        topic: FailoverTopic,
        held_topics: HeldTopics,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(cursor, limits, count_of)
        self._subscription = subscription
        self._topic = topic
        self._held_topics = held_topics
        self._changed = changed
        self._before: AttachedConsumer | None = None
        """While handing over: the consumer that was active before."""
        self._announcements: list[tuple[AttachedConsumer, bool]] = []

    @property
    def handing_over(self) -> bool:
        """Whether nothing is read until `begin`; see the module."""
        return self._before is not None

    def add(self, consumer: AttachedConsumer) -> None:
        self.consumers.append(consumer)
        if self._topic.partition < 0:
            self._held_topics.join(self._subscription, consumer.name, self._topic, self._reconsider)
        if not self._choose():
            self._announcements.append((consumer, False))
        self._changed()

    def remove(self, consumer: AttachedConsumer) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if self._topic.partition < 0:
            self._held_topics.leave(self._subscription, consumer.name, self._topic, self._reconsider)
        self._announcements = [one for one in self._announcements if one[0] is not consumer]
        if self._before is consumer:
            self.begin()
        if self._choose():
            self._changed()

    def next_read(self, tail: Position) -> ReadPlan | None:
        if self._before is not None or self._announcements:
            return None
        return super().next_read(tail)

    def begin(self) -> None:
        """The hand-over is done: the active consumer starts behind everything that is acknowledged by now."""
        if self._before is not None:
            self._before = None
            self.rewind()

    def take_announcements(self) -> list[tuple[AttachedConsumer, bool]]:
        """Which consumers are to be told, in this order, whether they are active."""
        announcements, self._announcements = self._announcements, []
        return announcements

    def _reconsider(self) -> None:
        if self._choose():
            self._changed()

    def _choose(self) -> bool:
        """Decide who is active. Returns whether that is another one than before; then all are to be told."""
        chosen = self._chosen() if self.consumers else None
        before = self.active
        if chosen is before:
            return False
        self.active = chosen
        if chosen is self._before:
            self._before = None
        elif self._before is None and before in self.consumers:
            self._before = before
        self.rewind()
        if chosen is not None:
            self._announcements += [(consumer, consumer is chosen) for consumer in self.consumers]
        return True

    def _chosen(self) -> AttachedConsumer:
        best = min(consumer.priority_level for consumer in self.consumers)
        candidates = [consumer for consumer in self.consumers if consumer.priority_level == best]
        if self._topic.partition >= 0:
            candidates.sort(key=lambda consumer: consumer.name)
            return candidates[self._topic.partition % len(candidates)]
        if any(self._held_topics.several(self._subscription, consumer.name) for consumer in candidates):
            return choose_by_ring(candidates, self._topic)
        return candidates[0]


def _nobody() -> None:
    return None


def _listen(consumer: Callable[[], AttachedConsumer | None]) -> None:
    found = consumer()
    if found is not None:
        found.listen()


class ActiveConsumerNews:
    """Tells the consumers of a Failover subscription who is active, and ends its hand-overs after a while.

    The news goes out behind what the broker does at this moment, so that a consumer gets the answer to its SUBSCRIBE
    first. A consumer that has not yet asked for messages gets it with its first FLOW, and after the delay of a
    hand-over at the latest. Until then the Go client does not know the consumer, and drops the news; Pulsar sends them
    after that delay. One that has left meanwhile gets none.

    `changed` is what the dispatcher calls; `wake` sets the dispatch going.
    """

    def __init__(self, delay_s: float, wake: Callable[[], None]) -> None:
        self._dispatcher: Callable[[], FailoverDispatcher | None] = _nobody
        self._delay_s = delay_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._telling = False
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, dispatcher: FailoverDispatcher) -> None:
        """This is the dispatcher. It calls `changed`, so a reference to it would be a cycle."""
        self._dispatcher = ref(dispatcher)

    def changed(self) -> None:
        """There is something to tell, and perhaps a hand-over under way."""
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        dispatcher = self._dispatcher()
        if dispatcher is None:
            return
        for consumer, active in dispatcher.take_announcements():
            if not consumer.closed and consumer.announce(active):
                self._loop.call_later(self._delay_s, _listen, ref(consumer))
        if not dispatcher.handing_over:
            self._cancel()
            self._wake()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            dispatcher.begin()
            self._wake()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
