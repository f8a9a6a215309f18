"""Policies of a namespace, from the coordinator's record to the topics that brokers have loaded."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.policies.watch import WatchState
from magnetar.protocol.errors import CoordinatorUnavailable, InvalidConfiguration, KeyExists, TopicNotFound
from magnetar.protocol.pulsar_pb2 import BaseCommand, ServerError
from support.clients.wire_peer import WirePeer, entry
from support.servers.embedded_cluster import EmbeddedCluster

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/bounded"
BOUND = "max_producers_per_topic"
WITHIN_S = 1.0


class PolicyCluster(EmbeddedCluster):
    """One broker, and the way of an admin to the policies."""

    async def set(self, policy: str, value: object, namespace: str = NAMESPACE) -> None:
        await self.coordinator_call("set_policy", namespace=namespace, policy=policy, value=value)

    async def get(self, namespace: str = NAMESPACE) -> dict[str, Any]:
        return (await self.coordinator_call("namespace", namespace=namespace))[2]

    @property
    def broker(self) -> BrokerService:
        return self.brokers[1]

    def held(self, namespace: str = NAMESPACE) -> EffectivePolicies:
        """What the broker holds for a namespace."""
        return self.broker.topics.policies.of_namespace(namespace)

    def topic(self, full_name: str = TOPIC) -> Any:
        return self.broker.topics.loaded[full_name]

    async def holds(self, bound: int, namespace: str = NAMESPACE) -> None:
        """Wait until the broker has that bound of producers."""
        async with asyncio.timeout(20):
            while self.held(namespace).max_producers_per_topic != bound:  # noqa: ASYNC110 (of another component)
                await asyncio.sleep(0.01)

    async def peer(self) -> WirePeer:
        return await WirePeer.open(self.broker.address[1])

    async def cut_off(self) -> None:
        """End the broker's connection to the coordinator, which the broker does not find again."""

        async def lost() -> tuple[str, int]:
            raise CoordinatorUnavailable("this broker does not find its coordinator")

        session = self.broker._session
        assert session is not None
        self.broker._locate_coordinator = session.coordinator._finder._locate = lost
        connection = session.coordinator._connection
        if connection is not None:
            connection.close()
            await connection.wait_closed()

    def join_again(self) -> None:
        assert self.broker._session is not None
        self.broker._locate_coordinator = self.broker._session.coordinator._finder._locate = self.locate


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PolicyCluster]:
    with PolicyCluster(tmp_path, bookies=3, heartbeat_interval_s=0.2, session_timeout_s=20.0) as running:
        yield running


@pytest.mark.promise("15.7")
def test_a_change_reaches_a_loaded_topic_within_a_second(cluster: PolicyCluster) -> None:
    async def scenario() -> None:
        peer = await cluster.peer()
        assert (await peer.producer(TOPIC, 1)).producer_ready
        topic = cluster.topic()
        await cluster.set(BOUND, 1)
        answered = time.monotonic()
        await cluster.holds(1)
        assert time.monotonic() - answered < WITHIN_S
        refused = await peer.producer(TOPIC, 2)
        assert refused.error == ServerError.ProducerBusy and "raise maxProducersPerTopic" in refused.message
        await cluster.set(BOUND, None)
        await cluster.holds(0)
        assert (await peer.producer(TOPIC, 2)).producer_ready
        assert cluster.topic() is topic and len(topic.publishing.producers) == 2
        await peer.close()

    cluster.run(scenario())


def test_encryption_that_becomes_required_refuses_messages_and_new_producers(cluster: PolicyCluster) -> None:
    async def scenario() -> None:
        peer = await cluster.peer()
        await peer.producer(TOPIC, 1)
        peer.send_entry(entry(b"0", sequence_id=0), 0)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        await cluster.set("encryption_required", True)
        async with asyncio.timeout(WITHIN_S):
            while not cluster.topic().policies.encryption_required:  # noqa: ASYNC110 (of another component)
                await asyncio.sleep(0.01)
        peer.send_entry(entry(b"1", sequence_id=1), 1)
        refused = await peer.expect(BaseCommand.SEND_ERROR, sequence_id=1)
        assert (refused.error, refused.message) == (ServerError.MetadataError, "Messages must be encrypted")
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        refused = await peer.producer(TOPIC, 2)
        assert (refused.error, refused.message) == (ServerError.MetadataError, f"Encryption is required in {TOPIC}")
        assert cluster.topic().publishing.published.entries == 1
        await peer.close()

    cluster.run(scenario())


def test_a_broker_that_lost_its_session_begins_the_next_one_with_the_newest(cluster: PolicyCluster) -> None:
    async def scenario() -> None:
        peer = await cluster.peer()
        await peer.producer(TOPIC, 1)
        await cluster.set(BOUND, 5)
        await cluster.holds(5)
        await cluster.cut_off()  # the coordinator ends its session
        await cluster.set(BOUND, 2)
        await cluster.set(BOUND, 3)
        assert cluster.held().max_producers_per_topic == 5
        cluster.join_again()
        await cluster.holds(3)
        assert (await peer.producer(TOPIC, 7)).producer_ready
        assert cluster.topic().policies.max_producers_per_topic == 3
        await peer.close()

    cluster.run(scenario())


def test_a_broker_that_stays_in_session_catches_up_with_the_next_coordinator(cluster: PolicyCluster) -> None:
    async def scenario() -> None:
        await cluster.coordinator_call("create_namespace", namespace="public/other", policies={BOUND: 4})
        peer = await cluster.peer()
        await peer.producer(TOPIC, 1)
        await cluster.set(BOUND, 5)
        await cluster.holds(5)
        await cluster.holds(4, "public/other")
        topic = cluster.topic()
        await cluster.stop_coordinator()
        await cluster.cut_off()
        await cluster.start_coordinator()
        await cluster.set(BOUND, 2)
        await cluster.coordinator_call("delete_namespace", namespace="public/other")
        await cluster.coordinator_call("create_namespace", namespace="public/other")
        assert (cluster.held().max_producers_per_topic, cluster.held("public/other").max_producers_per_topic) == (5, 4)
        cluster.join_again()
        await cluster.holds(2)
        await cluster.holds(0, "public/other")
        assert cluster.topic() is topic and topic.policies.max_producers_per_topic == 2
        assert cluster.broker.topics.policies.state is WatchState.KNOWN
        await peer.close()

    cluster.run(scenario())


def test_policies_outlive_coordinator_and_broker(cluster: PolicyCluster) -> None:
    async def scenario() -> None:
        await cluster.set(BOUND, 5)
        await cluster.set("encryption_required", True)
        await cluster.stop_broker(1)
        await cluster.stop_coordinator()
        await cluster.start_coordinator()
        assert await cluster.get() == {BOUND: 5, "encryption_required": True}
        await cluster.start_broker(1)
        assert cluster.held() == EffectivePolicies.resolve(cluster.settings, await cluster.get())
        await cluster.set("encryption_required", False)
        assert await cluster.get() == {BOUND: 5}

    cluster.run(scenario())


def test_wrong_policies_are_refused_and_change_nothing(cluster: PolicyCluster) -> None:
    async def scenario() -> None:
        await cluster.set(BOUND, 5)
        for policy, value in ((BOUND, -1), (BOUND, "3"), ("encryption_required", 1), ("retention_policies", {})):
            with pytest.raises(InvalidConfiguration):
                await cluster.set(policy, value)
        with pytest.raises(TopicNotFound):
            await cluster.set(BOUND, 1, "public/none")
        with pytest.raises(InvalidConfiguration):
            await cluster.coordinator_call("create_namespace", namespace="public/new", policies={BOUND: -1})
        with pytest.raises(KeyExists):
            await cluster.coordinator_call("create_namespace", namespace=NAMESPACE, policies={BOUND: 1})
        assert await cluster.get() == {BOUND: 5}
        with pytest.raises(TopicNotFound):
            await cluster.get("public/new")

    cluster.run(scenario())


def test_more_namespaces_than_a_page_holds_are_all_listed(
    cluster: PolicyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.actors.coordinator.topic_policies.PAGE", 2)
    names = [f"public/n{number}" for number in range(5)]

    async def scenario() -> None:
        await cluster.cut_off()
        for number, name in enumerate(names):
            await cluster.coordinator_call("create_namespace", namespace=name, policies={BOUND: number + 1})
        cluster.join_again()
        for number, name in enumerate(names):
            await cluster.holds(number + 1, name)

    cluster.run(scenario())
