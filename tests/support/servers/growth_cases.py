"""A partitioned topic that grows under load, with the official client: what was published, and what did not arrive.

The tests run each case once. `tests/chaos/growth.py` runs them many times, and prints the figures.
"""

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

import pulsar

from magnetar.protocol.topics import TopicName

from .embedded_cluster import EmbeddedCluster

SUBSCRIPTION = "readers"
PREFIX = "persistent://public/default/"
BEFORE = 60
"""Messages that are published before the growth, and again by each producer after it."""
GROWN_WITHIN_S = 60.0
SILENCE_MS = 1_000


class GrowthFigures(NamedTuple):
    """What became of one growth."""

    published: int
    lost: int
    on_new_partitions: int
    """Messages that were received from partitions that came with the growth."""


def full(name: str) -> str:
    """The full name of a topic in the default namespace."""
    return PREFIX + name


def subscribe(client: pulsar.Client, topic: str, **options: object) -> pulsar.Consumer:
    """A consumer of `SUBSCRIPTION`. As with the client's defaults, a new subscription begins at the end."""
    return client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, **options)


def read_all(consumer: pulsar.Consumer, silence_ms: int = SILENCE_MS) -> dict[str, list[bytes]]:
    """What the consumer gets until nothing more comes, by the partition that it came from; all is acknowledged."""
    found: dict[str, list[bytes]] = {}
    while True:
        try:
            message = consumer.receive(silence_ms)
        except pulsar.Timeout:
            return found
        found.setdefault(message.topic_name(), []).append(message.data())
        consumer.acknowledge(message)


class Load(threading.Thread):
    """Publishes one message after the other, and remembers those with a receipt.

    The first producer is there before the growth. `use` adds one that has asked for the partitions later.
    """

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        super().__init__(name=f"load on {topic}", daemon=True)
        self.published: list[bytes] = []
        self._client = client
        self._topic = topic
        self._ended = threading.Event()
        self._producers = [self._producer()]

    def _producer(self) -> pulsar.Producer:
        mode = pulsar.PartitionsRoutingMode.RoundRobinDistribution
        return self._client.create_producer(self._topic, message_routing_mode=mode, batching_enabled=False)

    def use(self) -> None:
        """Have one more producer."""
        self._producers = [*self._producers, self._producer()]

    def run(self) -> None:
        while not self._ended.is_set():
            for producer in self._producers:
                content = b"%d" % len(self.published)
                producer.send(content)
                self.published.append(content)

    def go_on(self, count: int) -> None:
        """Wait until so many more messages have been published."""
        wanted = len(self.published) + count
        deadline = time.monotonic() + 60
        while len(self.published) < wanted:
            if time.monotonic() > deadline or not self.is_alive():
                raise AssertionError(f"{self._topic} took {len(self.published)} of {wanted} messages")
            time.sleep(0.01)

    def end(self) -> list[bytes]:
        """Stop; returns what was published."""
        self._ended.set()
        self.join(60)
        for producer in self._producers:
            producer.close()
        return self.published


def grow(cluster: EmbeddedCluster, topic: str, partitions: int) -> None:
    """Order a growth and wait for its end."""
    cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=partitions))


def grow_through_a_crash(cluster: EmbeddedCluster, topic: str, partitions: int, step: str) -> None:
    """Order a growth. The coordinator ends in front of this step of it, and the next one finishes the growth.

    `step` is a method of the coordinator's growths or of its registry of topics.
    """

    async def crash() -> None:
        assert cluster.coordinator is not None
        office, reached = cluster.coordinator.office, asyncio.Event()
        owner = office.growths if hasattr(office.growths, step) else office.registry

        async def never(*unused: object) -> None:
            reached.set()
            await asyncio.get_running_loop().create_future()

        setattr(owner, step, never)
        order = asyncio.ensure_future(cluster.coordinator_call("grow_topic", topic=topic, partitions=partitions))
        await asyncio.wait((asyncio.ensure_future(reached.wait()), order), return_when=asyncio.FIRST_COMPLETED)
        await cluster.stop_coordinator()
        await cluster.start_coordinator()
        order.cancel()
        await asyncio.gather(order, return_exceptions=True)

    cluster.run(crash())


async def _has_grown(cluster: EmbeddedCluster, topic: str, partitions: int) -> None:
    """Wait until the coordinator has the new number, and no broker tells clients of another one."""
    async with asyncio.timeout(GROWN_WITHIN_S):
        while True:
            coordinator = cluster.coordinator
            known = [broker.lookups.coordinator().known_topics.get(topic) for broker in cluster.brokers.values()]
            grown = coordinator is not None and coordinator.office.registry.find(TopicName.parse(topic)) == partitions
            if grown and {*known} <= {None, partitions}:
                return
            await asyncio.sleep(0.02)


class GrowthCase(NamedTuple):
    """A growth: whether a consumer is connected, and in front of which step the coordinator ends, if it does."""

    name: str
    connected: bool
    step: str | None = None

    @property
    def slug(self) -> str:
        """A beginning of topic names."""
        return self.name.replace(", ", "-").replace(" ", "-")

    def run(
        self,
        cluster: EmbeddedCluster,
        client: pulsar.Client,
        topic: str,
        before: int,
        after: int,
        patience_s: float = 0.0,
    ) -> GrowthFigures:
        """Grow a new topic under load.

        A connected consumer stays for `patience_s` at most, until it has everything (the client looks for new
        partitions once a minute). Then it is closed, and comes back as an application does that is started again.
        """
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=before))
        consumer = subscribe(client, topic)
        if not self.connected:
            consumer.close()
        load = Load(client, topic)
        load.start()
        load.go_on(BEFORE)
        if self.step is None:
            grow(cluster, topic, after)
        else:
            grow_through_a_crash(cluster, topic, after, self.step)
        cluster.run(_has_grown(cluster, topic, after), GROWN_WITHIN_S)
        load.use()
        load.go_on(2 * BEFORE)
        published = load.end()
        received: dict[str, list[bytes]] = {}
        if self.connected:
            deadline = time.monotonic() + patience_s
            _add(received, read_all(consumer))
            while len(_contents(received)) < len(published) and time.monotonic() < deadline:
                _add(received, read_all(consumer))
            consumer.close()
        if len(_contents(received)) < len(published):
            consumer = subscribe(client, topic)
            _add(received, read_all(consumer))
            consumer.close()
        new = [topic + f"-partition-{index}" for index in range(before, after)]
        lost = {*published} - _contents(received)
        return GrowthFigures(len(published), len(lost), len(_contents(received, new)))


def _add(found: dict[str, list[bytes]], more: dict[str, list[bytes]]) -> None:
    for topic, contents in more.items():
        found.setdefault(topic, []).extend(contents)


def _contents(found: dict[str, list[bytes]], topics: Iterable[str] | None = None) -> set[bytes]:
    return {one for topic in (found if topics is None else topics) for one in found.get(topic, ())}


GROWTH_CASES = [
    GrowthCase("connected", connected=True),
    GrowthCase("away", connected=False),
    GrowthCase("connected, crash before the subscriptions are carried over", connected=True, step="_carry_over"),
    GrowthCase("away, crash before the subscriptions are carried over", connected=False, step="_carry_over"),
    GrowthCase("away, crash before the new number is visible", connected=False, step="end_growth"),
]
