"""Policies of single topics, from the admin and the coordinator's records to the topics that brokers have loaded."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.protocol.errors import InvalidConfiguration, NotAllowedError, TopicNotFound
from magnetar.storage.metadata import keys as metadata_keys
from support.clients.wire_peer import WirePeer
from support.servers.admin_http import Http, admin_of
from support.servers.coordination import FAST, coordination
from support.servers.embedded_cluster import EmbeddedCluster

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/own"
OTHER = f"persistent://{NAMESPACE}/other"
PARTS = f"persistent://{NAMESPACE}/parts"
KEY = metadata_keys.topic_policies(f"persistent/{NAMESPACE}/own")
BOUND = "max_producers_per_topic"
PATH = "/admin/v2/persistent/public/default"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path, bookies=3, heartbeat_interval_s=0.2, session_timeout_s=20.0) as running:
        yield running


async def set_own(cluster: EmbeddedCluster, value: object, topic: str = TOPIC, policy: str = BOUND) -> None:
    await cluster.coordinator_call("set_topic_policy", topic=topic, policy=policy, value=value)


def bound(cluster: EmbeddedCluster, topic: str = TOPIC) -> int:
    return cluster.brokers[1].topics.loaded[topic].policies.max_producers_per_topic  # type: ignore[attr-defined]


async def holds(cluster: EmbeddedCluster, wanted: int, topic: str = TOPIC) -> None:
    async with asyncio.timeout(20):
        while bound(cluster, topic) != wanted:  # noqa: ASYNC110 (of another component)
            await asyncio.sleep(0.01)


async def loaded(cluster: EmbeddedCluster, *topics: str) -> WirePeer:
    peer = await WirePeer.open(cluster.brokers[1].address[1])
    for number, topic in enumerate(topics):
        assert (await peer.producer(topic, number)).producer_ready
    return peer


@pytest.mark.promise("25.9")
def test_a_topics_own_policy_counts_for_it_alone_and_outlives_coordinator_and_broker(cluster: EmbeddedCluster) -> None:
    async def scenario() -> None:
        peer = await loaded(cluster, TOPIC, OTHER)
        topic: Any = cluster.brokers[1].topics.loaded[TOPIC]
        await cluster.coordinator_call("set_policy", namespace=NAMESPACE, policy=BOUND, value=5)
        await holds(cluster, 5)
        await set_own(cluster, 2)
        await holds(cluster, 2)
        assert bound(cluster, OTHER) == 5
        await cluster.coordinator_call("set_policy", namespace=NAMESPACE, policy=BOUND, value=6)
        await holds(cluster, 6, OTHER)
        assert bound(cluster) == 2 and cluster.brokers[1].topics.loaded[TOPIC] is topic
        await peer.close()
        await cluster.stop_broker(1)
        await cluster.stop_coordinator()
        await cluster.start_coordinator()
        await cluster.start_broker(1)
        peer = await loaded(cluster, TOPIC, OTHER)
        assert (bound(cluster), bound(cluster, OTHER)) == (2, 6)
        await set_own(cluster, None)
        await holds(cluster, 6)
        await peer.close()

    cluster.run(scenario())


def test_a_partitioned_topic_has_one_record_for_all_its_partitions(cluster: EmbeddedCluster) -> None:
    async def scenario() -> None:
        await cluster.coordinator_call("create_topic", topic=PARTS, partitions=2)
        names = [f"{PARTS}-partition-{index}" for index in range(2)]
        peer = await loaded(cluster, *names)
        await set_own(cluster, 3, PARTS)
        for name in names:
            await holds(cluster, 3, name)
            with pytest.raises(NotAllowedError):
                await set_own(cluster, 4, name)
        await peer.close()

    cluster.run(scenario())


@pytest.mark.promise("25.4")
def test_policies_end_with_their_topic(cluster: EmbeddedCluster) -> None:
    async def scenario() -> None:
        peer = await loaded(cluster, TOPIC)
        await set_own(cluster, 2)
        await holds(cluster, 2)
        await peer.close()
        await cluster.coordinator_call("delete_topic", topic=TOPIC, force=True)
        store = cluster.coordinator.office.store
        assert await store.get(KEY) is None
        with pytest.raises(TopicNotFound):
            await set_own(cluster, 2)
        peer = await loaded(cluster, TOPIC)
        assert bound(cluster) == 0
        await peer.close()

    cluster.run(scenario())


def test_wrong_policies_of_a_topic_are_refused_and_change_nothing(cluster: EmbeddedCluster) -> None:
    async def scenario() -> None:
        peer = await loaded(cluster, TOPIC)
        for policy, value in ((BOUND, -1), (BOUND, "3"), ("encryption_required", True), ("no_such", {})):
            with pytest.raises(InvalidConfiguration):
                await set_own(cluster, value, policy=policy)
        assert await cluster.coordinator.office.store.get(KEY) is None
        await peer.close()

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("name", "applied", "unset"),
    [
        ("maxProducers", 0, 200),
        ("maxConsumers", 0, 200),
        ("maxUnackedMessagesOnConsumer", 50_000, 200),
        ("maxUnackedMessagesOnSubscription", 200_000, 200),
        ("maxConsumersPerSubscription", None, 204),
        ("maxSubscriptionsPerTopic", None, 204),
    ],
)
async def test_a_bound_of_a_topic_has_pulsars_answers(http: Http, name: str, applied: int | None, unset: int) -> None:
    assert (await http("PUT", f"{PATH}/own"))[0] == 204
    path = f"{PATH}/own/{name}"
    assert await http("GET", path) == (unset, "")
    assert await http("GET", f"{path}?applied=true") == ((unset, "") if applied is None else (200, applied))
    assert await http("POST", path, 7) == (204, "")
    assert await http("GET", path) == await http("GET", f"{path}?applied=true") == (200, 7)
    assert (await http("POST", path, -1))[0] == 412
    assert (await http("POST", path, "x"))[0] == 400
    assert (await http("POST", path))[0] == (204 if "Unacked" in name else 400)
    for _ in range(2):
        assert await http("DELETE", path) == (204, "")
        assert await http("GET", path) == (unset, "")
    for method, body in (("GET", None), ("POST", 3), ("DELETE", None)):
        assert (await http(method, f"{PATH}/none/{name}", body))[0] == 404
    assert (await http("PUT", f"{PATH}/parts/partitions", 2))[0] == 204
    assert (await http("POST", f"{PATH}/parts-partition-0/{name}", 3))[0] == 412
    assert (await http("POST", f"{PATH}/parts/{name}", 3))[0] == 204


@pytest.mark.promise("25.9")
async def test_topics_have_no_policy_paths_without_topic_level_policies() -> None:
    settings = replace(FAST, topic_level_policies_enabled=False)
    async with coordination(settings) as running, admin_of(running, settings) as http:
        for method, body in (("GET", None), ("POST", 3), ("DELETE", None)):
            status, reason = await http(method, f"{PATH}/own/maxProducers", body)
            assert status == 405 and "topicLevelPoliciesEnabled=true" in reason["reason"]


async def test_the_copies_of_a_topic_are_shown_as_they_hold(http: Http) -> None:
    assert (await http("PUT", f"{PATH}/own"))[0] == 204
    path = f"{PATH}/own/persistence"
    assert await http("GET", path) == (200, "")
    given = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
    assert (await http("POST", "/admin/v2/namespaces/public/default/persistence", given))[0] == 204
    whole = {**given, "managedLedgerMaxMarkDeleteRate": -1.0}
    assert await http("GET", f"{path}?applied=true") == (200, whole)
    assert (await http("POST", path, {**given, "bookkeeperEnsemble": 4}))[0] == 204
    assert await http("GET", f"{path}?applied=true") == (200, {**whole, "bookkeeperEnsemble": 4})
    assert (await http("POST", path, {"bookkeeperEnsemble": 9}))[0] == 400
