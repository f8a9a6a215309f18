"""Pattern consumers of our client on brokers that tell them of topics: at once, and through failures."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable

import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.consuming.topic_discovery import TopicListing
from magnetar.client.core.configuration import InitialPosition
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2)
EARLIEST = InitialPosition.Earliest
SPACE = "persistent://public/default/"
_numbers = itertools.count()


@pytest.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def name() -> str:
    """The beginning of topic names that no other test uses."""
    return f"pattern{next(_numbers)}"


async def call(cluster: EmbeddedCluster, method: str, **arguments: object) -> None:
    await asyncio.to_thread(lambda: cluster.run(cluster.coordinator_call(method, **arguments)))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.01)


def joined(consumer: AsyncConsumer) -> dict[str, int]:
    """The topics of a consumer, and how many partitions of each it has."""
    return {topic.local_name: count for topic, count in consumer._consumer.topics.partitions.items()}


def listing_of(consumer: AsyncConsumer) -> TopicListing:
    listing = consumer._consumer._discovery.listing
    assert listing is not None
    return listing


@pytest.mark.promise("22.4")
async def test_topics_that_come_grow_and_go_are_followed_at_once(
    client: AsyncClient, cluster: EmbeddedCluster, name: str
) -> None:
    consumer = await client.subscribe(f"{name}-.*", "s", is_pattern_topic=True, initial_position=EARLIEST)
    assert listing_of(consumer).watched and joined(consumer) == {}
    began = time.monotonic()
    producer = await client.create_producer(f"{name}-a")
    await producer.send(b"1")
    assert (await consumer.receive(10_000)).data() == b"1"
    await producer.close()
    await call(cluster, "create_topic", topic=f"{SPACE}{name}-p", partitions=2)
    await until(lambda: joined(consumer) == {f"{name}-a": 0, f"{name}-p": 2})
    await call(cluster, "grow_topic", topic=f"{SPACE}{name}-p", partitions=3)
    await until(lambda: joined(consumer) == {f"{name}-a": 0, f"{name}-p": 3})
    await call(cluster, "delete_topic", topic=f"{SPACE}{name}-a", force=True)
    await until(lambda: joined(consumer) == {f"{name}-p": 3})
    assert time.monotonic() - began < 30  # and not the 60 s of a period
    await consumer.close()
    await until(lambda: not cluster.coordinator.office.watchers.namespaces)


async def test_topics_are_followed_after_coordinator_and_broker_start_again(
    client: AsyncClient, cluster: EmbeddedCluster, name: str
) -> None:
    await call(cluster, "create_topic", topic=f"{SPACE}{name}-a")
    consumer = await client.subscribe(f"{name}-.*", "s", is_pattern_topic=True)
    for restart in (cluster.stop_coordinator, cluster.start_coordinator):
        await asyncio.to_thread(cluster.run, restart())
    await call(cluster, "create_topic", topic=f"{SPACE}{name}-b")
    await until(lambda: joined(consumer) == {f"{name}-a": 0, f"{name}-b": 0})
    connection = listing_of(consumer)._connection
    assert connection is not None
    number = next(n for n, broker in cluster.brokers.items() if broker.address[1] == connection.address[1])
    await asyncio.to_thread(cluster.run, cluster.stop_broker(number))
    await call(cluster, "create_topic", topic=f"{SPACE}{name}-c")
    await until(lambda: f"{name}-c" in joined(consumer) and listing_of(consumer).watched)
    await asyncio.to_thread(cluster.run, cluster.start_broker(number))
    await call(cluster, "delete_topic", topic=f"{SPACE}{name}-a", force=True)
    await until(lambda: joined(consumer) == {f"{name}-b": 0, f"{name}-c": 0})


@pytest.mark.parametrize(
    "text",
    [
        "{name}-(?i:[A-C])+",  # not sent to brokers: Python and RE2 may disagree
        "{name}-(a|b|c|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa)",  # too long for brokers
    ],
)
async def test_patterns_that_brokers_do_not_take_are_followed_by_all_names(
    client: AsyncClient, cluster: EmbeddedCluster, name: str, text: str
) -> None:
    consumer = await client.subscribe(re.compile(text.format(name=name)), "s")
    await call(cluster, "create_topic", topic=f"{SPACE}{name}-b")
    await call(cluster, "create_topic", topic=f"{SPACE}{name}-d")
    await until(lambda: joined(consumer) == {f"{name}-b": 0})
    assert listing_of(consumer).watched


def test_the_blocking_client_follows_topics_at_once(cluster: EmbeddedCluster, name: str) -> None:
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe(re.compile(f"{name}-.*"), "s", initial_position=EARLIEST)
        for letter in "ab":
            client.create_producer(f"{name}-{letter}").send(letter.encode())
        assert {consumer.receive(20_000).data() for _ in range(2)} == {b"a", b"b"}
