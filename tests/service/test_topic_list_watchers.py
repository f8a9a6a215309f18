"""Topic list watchers: what a broker tells clients about topics that come and go, anywhere in the cluster."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable

import pytest

from magnetar.protocol.errors import InvalidTopicName, NotAllowedError, server_error_code
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandError,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandSuccess,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
)
from magnetar.protocol.topic_lists import topics_hash
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2)
NAMESPACE = "public/default"
_numbers = itertools.count()


def full(topic: str) -> str:
    return f"persistent://{NAMESPACE}/{topic}"


def on_cluster(cluster: EmbeddedCluster, work: Awaitable[object]) -> Awaitable[object]:
    return asyncio.to_thread(cluster.run, work)


def call(cluster: EmbeddedCluster, method: str, **arguments: object) -> Awaitable[object]:
    return on_cluster(cluster, cluster.coordinator_call(method, **arguments))


def port_of(cluster: EmbeddedCluster, number: int) -> int:
    return cluster.brokers[number].address[1]


@pytest.fixture
def name() -> str:
    """The beginning of topic names that no other test uses."""
    return f"watched{next(_numbers)}"


@pytest.fixture
async def peer(cluster: EmbeddedCluster) -> AsyncIterator[WirePeer]:
    opened = await WirePeer.open(port_of(cluster, 1))
    yield opened
    await opened.close()


async def watch(peer: WirePeer, pattern: str, watcher_id: int = 1, **fields: object) -> CommandWatchTopicListSuccess:
    command = CommandWatchTopicList(
        watcher_id=watcher_id,
        namespace=NAMESPACE,
        topics_pattern=pattern,
        **fields,  # type: ignore[arg-type]
    )
    answer = await peer.request(command)
    assert isinstance(answer, CommandWatchTopicListSuccess), answer
    return answer


class Copy:
    """A list as a client keeps it, from the answer and the updates."""

    def __init__(self, peer: WirePeer, answer: CommandWatchTopicListSuccess) -> None:
        self.names = dict.fromkeys(answer.topic)
        self._peer = peer
        self._id = answer.watcher_id
        self.check(answer.topics_hash)

    def check(self, expected: str) -> None:
        assert topics_hash(self.names) == expected

    async def becomes(self, *topics: str) -> None:
        wanted = sorted(full(topic) for topic in topics)
        while sorted(self.names) != wanted:
            update = await self._peer.expect(BaseCommand.WATCH_TOPIC_UPDATE, watcher_id=self._id)
            for topic in update.deleted_topics:
                del self.names[topic]
            assert not self.names.keys() & set(update.new_topics)
            self.names.update(dict.fromkeys(update.new_topics))
            self.check(update.topics_hash)


@pytest.mark.promise("22.4")
async def test_a_watcher_is_told_of_topics_that_come_grow_and_go(
    cluster: EmbeddedCluster, peer: WirePeer, name: str
) -> None:
    await call(cluster, "create_topic", topic=full(f"{name}-a"))
    copy = Copy(peer, await watch(peer, f"{full(name)}-.*"))
    assert list(copy.names) == [full(f"{name}-a")]
    await call(cluster, "create_topic", topic=full(f"{name}-p"), partitions=2)
    await copy.becomes(f"{name}-a", f"{name}-p-partition-0", f"{name}-p-partition-1")
    await call(cluster, "grow_topic", topic=full(f"{name}-p"), partitions=3)
    await copy.becomes(f"{name}-a", *(f"{name}-p-partition-{index}" for index in range(3)))
    await call(cluster, "create_topic", topic=full(f"else-{name}"))
    await call(cluster, "create_topic", topic=f"non-{full(name)}-n")
    await call(cluster, "delete_topic", topic=full(f"{name}-p"))
    await copy.becomes(f"{name}-a")
    await call(cluster, "delete_topic", topic=full(f"{name}-a"))
    await copy.becomes()
    await peer.settle()
    assert not peer.received


async def test_a_topic_made_by_a_producer_on_another_broker_is_told(
    cluster: EmbeddedCluster, peer: WirePeer, name: str
) -> None:
    copy = Copy(peer, await watch(peer, f"{full(name)}.*"))
    other = await WirePeer.open(port_of(cluster, 2))
    await other.producer(full(name))
    await copy.becomes(name)
    await other.close()


async def test_the_hash_of_an_unchanged_list_is_answered_without_names(
    cluster: EmbeddedCluster, peer: WirePeer, name: str
) -> None:
    await call(cluster, "create_topic", topic=full(name))
    first = await watch(peer, f"{full(name)}.*", 1, topics_hash="00000000")
    assert list(first.topic) == [full(name)]
    same = await watch(peer, f"{full(name)}.*", 2, topics_hash=first.topics_hash)
    assert not same.topic and same.topics_hash == first.topics_hash
    again = await watch(peer, "public/default/other.*", 1)
    assert list(again.topic) == [full(name)]  # the pattern is still that of the first request


async def test_a_closed_watcher_is_told_nothing_and_the_broker_watches_nothing(
    cluster: EmbeddedCluster, name: str
) -> None:
    peer = await WirePeer.open(port_of(cluster, 1))
    await watch(peer, f"{full(name)}.*", 1)
    await watch(peer, f"{full(name)}.*", 2)
    assert cluster.coordinator.office.watchers.namespaces == {NAMESPACE: 1}
    assert isinstance(await peer.request(CommandWatchTopicListClose(watcher_id=1)), CommandSuccess)
    assert isinstance(await peer.request(CommandWatchTopicListClose(watcher_id=1)), CommandSuccess)
    await call(cluster, "create_topic", topic=full(name))
    update = await peer.expect(BaseCommand.WATCH_TOPIC_UPDATE)
    assert update.watcher_id == 2 and not peer.received
    await peer.close()
    async with asyncio.timeout(10):
        while cluster.coordinator.office.watchers.namespaces:  # noqa: ASYNC110  # the cluster has a loop of its own
            await asyncio.sleep(0.01)
    assert not cluster.brokers[1].lookups.lists.watch.namespaces


async def test_no_update_is_lost_when_coordinator_and_broker_start_again(
    cluster: EmbeddedCluster, peer: WirePeer, name: str
) -> None:
    for topic in ("a", "b"):
        await call(cluster, "create_topic", topic=full(f"{name}-{topic}"))
    copy = Copy(peer, await watch(peer, f"{full(name)}-.*"))
    await on_cluster(cluster, cluster.stop_coordinator())
    await on_cluster(cluster, cluster.start_coordinator())
    await call(cluster, "create_topic", topic=full(f"{name}-c"), partitions=1)
    await copy.becomes(f"{name}-a", f"{name}-b", f"{name}-c-partition-0")
    # While the broker's connection is away topics change: it lists again, and tells the difference.
    broker = cluster.brokers[1]

    async def cut_and_change() -> None:
        link = broker._session.coordinator  # type: ignore[union-attr]
        registry = cluster.coordinator.office.registry
        connection = link._connection
        assert connection is not None
        cluster.coordinator.office.watchers.leave(cluster_side(cluster, broker.broker_id))
        await cluster.coordinator_call("create_topic", topic=full(f"{name}-d"))
        await cluster.coordinator_call("delete_topic", topic=full(f"{name}-a"))
        assert registry.topic_count
        connection.close()

    await on_cluster(cluster, cut_and_change())
    await copy.becomes(f"{name}-b", f"{name}-c-partition-0", f"{name}-d")


def cluster_side(cluster: EmbeddedCluster, node_id: str):  # type: ignore[no-untyped-def]
    """The coordinator's end of a member's connection."""
    sessions = cluster.coordinator._active.sessions.sessions  # type: ignore[union-attr]
    return next(connection for connection, session in sessions.items() if session.node_id == node_id)


async def refusal(peer: WirePeer, **fields: object) -> CommandError:
    answer = await peer.request(CommandWatchTopicList(**{"watcher_id": 9, "namespace": NAMESPACE, **fields}))  # type: ignore[arg-type]
    assert isinstance(answer, CommandError), answer
    return answer


async def test_impossible_patterns_are_refused_as_pulsar_refuses_them(peer: WirePeer, name: str) -> None:
    invalid = server_error_code(InvalidTopicName(""))
    too_long = await refusal(peer, topics_pattern="public/default/" + "x" * 36)
    assert too_long.error == server_error_code(NotAllowedError(""))
    assert too_long.message == "the pattern of topics has more than 50 characters: shorten it"
    for pattern in ("public/default/(", "public/default/(?=a)b", "http://public/default/a"):
        refused = await refusal(peer, topics_pattern=pattern)
        assert refused.error == invalid and refused.message.startswith("Invalid topics pattern: ")
    assert (await refusal(peer, namespace="nonsense", topics_pattern=".*")).error == invalid
    # Nothing is left of them: the number is free.
    await watch(peer, f"{full(name)}.*", 9)


@pytest.mark.promise("22.3")
async def test_lists_with_a_pattern_are_filtered_and_carry_their_hash(
    cluster: EmbeddedCluster, peer: WirePeer, name: str
) -> None:
    await call(cluster, "create_topic", topic=full(f"{name}-a"))
    await call(cluster, "create_topic", topic=full(f"{name}-b"), partitions=1)
    ask = CommandGetTopicsOfNamespace(namespace=NAMESPACE, topics_pattern=f"{full(name)}-[a-b]")
    found = await peer.request(ask)
    assert isinstance(found, CommandGetTopicsOfNamespaceResponse)
    assert sorted(found.topics) == [full(f"{name}-a"), full(f"{name}-b-partition-0")]
    assert found.filtered and found.changed and found.topics_hash == topics_hash(found.topics)
    ask.topics_hash = found.topics_hash
    again = await peer.request(ask)
    assert not again.changed and not again.topics and again.topics_hash == found.topics_hash
    for pattern in ("public/default/(", "public/default/" + "x" * 36):
        unfiltered = await peer.request(CommandGetTopicsOfNamespace(namespace=NAMESPACE, topics_pattern=pattern))
        assert not unfiltered.filtered and full(f"{name}-a") in unfiltered.topics


async def test_the_broker_says_that_it_has_watchers(cluster: EmbeddedCluster) -> None:
    peer = await WirePeer.open(port_of(cluster, 1), connect=False)
    peer.send(CommandConnect(client_version="test", protocol_version=21))
    flags = (await peer.expect(BaseCommand.CONNECTED)).feature_flags
    assert flags.supports_topic_watchers and flags.supports_topic_watcher_reconcile
    await peer.close()
