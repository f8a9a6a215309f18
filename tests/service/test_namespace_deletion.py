"""Deleting a namespace with all its topics: refusals, what ends with it, and a coordinator that ends in the middle."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest

import magnetar
from magnetar.actors.coordinator import namespace_deletions
from magnetar.protocol.errors import KeyExists, NotAllowedError, OutcomeUnknown, ServiceUnitNotReady, TopicNotFound
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore
from magnetar.storage.metadata.store import Guard, Write, WriteResult
from support.servers.admin_http import Http, admin_of
from support.servers.coordination import FAST, Coordination, Member, coordination, eventually
from support.servers.embedded_cluster import EmbeddedCluster

NAMESPACE = "public/gone"
TOPIC = f"persistent://{NAMESPACE}/t"
PATH = f"/admin/v2/namespaces/{NAMESPACE}"


async def filled(cluster: Coordination, broker: Member) -> None:
    """A namespace with a policy, a schema of a topic that does not exist, a plain and a partitioned topic."""
    call = broker.client.call
    await call("create_namespace", namespace=NAMESPACE, policies={"max_producers_per_topic": 3})
    await call("create_topic", topic=TOPIC, partitions=0)
    await call("create_topic", topic=TOPIC + "p", partitions=2)
    for name in (TOPIC, f"{TOPIC}p-partition-0"):
        await call("assign", topic=name)
        await eventually(lambda name=name: name in broker.assignments)
        await broker.load(name)


async def left(cluster: Coordination) -> list[str]:
    """The keys of everything that is stored of the namespace."""
    return [key for key, _ in await cluster.store.list("") if "/gone" in key]


async def test_a_namespace_goes_with_its_topics_only_by_force() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await filled(cluster, one)
        with pytest.raises(NotAllowedError):
            await one.client.call("delete_namespace", namespace=NAMESPACE)
        assert len(await left(cluster)) == 5
        one.rpc.unload_error = NotAllowedError("a client is connected")
        await one.client.call("delete_namespace", namespace=NAMESPACE, force=True)
        assert await left(cluster) == []
        with pytest.raises(TopicNotFound):
            await one.client.call("delete_namespace", namespace=NAMESPACE, force=True)
        await one.client.call("create_namespace", namespace=NAMESPACE)
        assert (await one.client.call("namespace", namespace=NAMESPACE))[2] == {}


async def test_a_namespace_that_is_going_takes_no_topic_and_no_policy() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await filled(cluster, one)
        one.rpc.delete_gate = asyncio.Event()
        deletion = asyncio.create_task(one.client.call("delete_namespace", namespace=NAMESPACE, force=True))
        await eventually(lambda: one.rpc.deleted)
        for method, arguments in (
            ("create_topic", {"topic": TOPIC + "2"}),
            ("assign", {"topic": TOPIC + "2", "create": True}),
            ("lookup", {"topic": TOPIC + "2"}),
            ("set_policy", {"namespace": NAMESPACE, "policy": "max_producers_per_topic", "value": 1}),
            ("namespace", {"namespace": NAMESPACE}),
            ("delete_namespace", {"namespace": NAMESPACE}),
        ):
            with pytest.raises(TopicNotFound):
                await one.client.call(method, **arguments)
        with pytest.raises(KeyExists):
            await one.client.call("create_namespace", namespace=NAMESPACE)
        again = asyncio.create_task(one.client.call("delete_namespace", namespace=NAMESPACE, force=True))
        await one.client.call("status")
        one.rpc.delete_gate.set()
        await asyncio.gather(deletion, again)
        assert await left(cluster) == []


async def test_who_waits_too_long_is_told_and_the_deletion_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_deletions, "NAMESPACE_DELETE_TIMEOUT_S", 0.3)
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await filled(cluster, one)
        one.rpc.delete_gate = asyncio.Event()
        with pytest.raises(ServiceUnitNotReady, match="goes on"):
            await one.client.call("delete_namespace", namespace=NAMESPACE, force=True)
        one.rpc.delete_gate.set()
        await eventually(lambda: not cluster.coordinator.office.namespaces.marked())
        assert await left(cluster) == []


async def test_a_topic_that_is_being_created_at_the_order_goes_too() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await filled(cluster, one)
        creations = [one.client.call("create_topic", topic=f"{TOPIC}{number}") for number in range(20)]
        deletion = one.client.call("delete_namespace", namespace=NAMESPACE, force=True)
        outcomes = await asyncio.gather(*creations[:10], deletion, *creations[10:], return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        assert all(isinstance(error, TopicNotFound) for error in errors)
        assert await left(cluster) == []


async def test_a_namespace_that_was_created_again_is_not_deleted_by_a_late_repetition() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await filled(cluster, one)
        office = cluster.coordinator.office
        remove_marked, tries = office.namespaces.remove_marked, 0

        async def lose_the_answer(name: str) -> None:
            nonlocal tries
            tries += 1
            await remove_marked(name)
            if tries == 1:
                await one.client.call("create_namespace", namespace=NAMESPACE)
                await one.client.call("create_topic", topic=TOPIC, partitions=0)
                raise OutcomeUnknown("the answer of the store is lost")

        office.namespaces.remove_marked = lose_the_answer  # type: ignore[method-assign]
        await one.client.call("delete_namespace", namespace=NAMESPACE, force=True)
        assert tries == 2 and len(await left(cluster)) == 2
        assert await one.client.call("partitions", topic=TOPIC) == 0


@pytest.mark.parametrize("step", range(14))
async def test_the_next_coordinator_finishes_a_deletion_that_ended_at_any_write(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator falls silent at its n-th write of the deletion: before it, or after it (odd)."""
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await filled(cluster, one)
        write_many, office = EpochMetadataStore.write_many, cluster.coordinator.office.store
        seen = 0

        async def write(
            self: EpochMetadataStore, writes: Sequence[Write], guard: Guard | None = None
        ) -> list[WriteResult]:
            nonlocal seen
            if self is office:
                seen += 1
                if seen > step // 2 + 1 or (seen == step // 2 + 1 and not step % 2):
                    raise OutcomeUnknown("this coordinator is dead")
            return await write_many(self, writes, guard)

        monkeypatch.setattr(EpochMetadataStore, "write_many", write)
        deletion = asyncio.create_task(one.client.call("delete_namespace", namespace=NAMESPACE, force=True))
        await asyncio.wait([deletion], timeout=0.15)
        await cluster.coordinator.close()
        await asyncio.gather(deletion, return_exceptions=True)
        await cluster.start_coordinator()
        if step:
            await eventually(lambda: not cluster.coordinator.office.namespaces.marked())
            assert await left(cluster) == []
        else:
            assert len(await left(cluster)) == 5, "nothing was changed"


@pytest.mark.promise("15.5")
async def test_a_tenant_goes_with_its_namespaces_by_force_if_the_settings_allow_it() -> None:
    for allowed in (False, True):
        settings = replace(FAST, force_delete_tenant_allowed=allowed)
        async with coordination(settings) as cluster:
            one = await cluster.broker(1)
            await filled(cluster, one)
            await one.client.call("create_namespace", namespace="public/gone2")
            async with admin_of(cluster, settings) as http:
                path = "/admin/v2/tenants/public"
                assert (await http("DELETE", path))[0] == 409
                assert (await http("DELETE", path + "?force=true"))[0] == (204 if allowed else 405)
                assert (await http("GET", path))[0] == (404 if allowed else 200)
                assert (await http("DELETE", "/admin/v2/tenants/none?force=true"))[0] == (404 if allowed else 405)
            assert bool(await left(cluster)) is not allowed


async def test_the_admin_forces_only_where_the_settings_allow_it() -> None:
    for allowed in (False, True):
        settings = replace(FAST, force_delete_namespace_allowed=allowed)
        async with coordination(settings) as cluster:
            one = await cluster.broker(1)
            await filled(cluster, one)
            async with admin_of(cluster, settings) as http:
                await answers(http, 204 if allowed else 405)
            assert bool(await left(cluster)) is not allowed


async def answers(http: Http, forced: int) -> None:
    assert (await http("DELETE", PATH))[0] == 409
    assert (await http("DELETE", PATH + "?force=maybe"))[0] == 400
    assert (await http("DELETE", PATH + "?force=true"))[0] == forced
    if forced == 204:
        assert (await http("DELETE", PATH + "?force=true"))[0] == 404
        assert (await http("GET", PATH))[0] == 404


@pytest.mark.promise("15.6")
def test_clients_of_both_kinds_lose_their_topics_and_space_is_given_back(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, heartbeat_interval_s=0.2, session_timeout_s=20.0) as cluster:
        cluster.run(cluster.coordinator_call("create_namespace", namespace=NAMESPACE))
        with magnetar.Client(cluster.service_url, operation_timeout_seconds=3) as ours:
            official = pulsar.Client(
                cluster.service_url,
                operation_timeout_seconds=3,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            consumer = official.subscribe(TOPIC, "s")
            producer = ours.create_producer(TOPIC)
            producer.send(b"lost")
            cluster.run(cluster.coordinator_call("delete_namespace", namespace=NAMESPACE, force=True, timeout_s=60))
            for client, module in ((ours, magnetar), (official, pulsar)):
                with pytest.raises(module.TopicNotFound):
                    client.create_producer(TOPIC)
            assert cluster.brokers[1].topics.loaded == {}
            assert cluster._metadata is not None
            stored = cluster.run(cluster._metadata.list(metadata_keys.LEDGERS_PREFIX))
            assert not stored, "no ledger is left"
            consumer.close()
            official.close()
