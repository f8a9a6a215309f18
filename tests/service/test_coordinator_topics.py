"""What the coordinator answers about topics, namespaces, tenants and bookies, over real sockets."""

import asyncio
from typing import Any

import pytest
from coordination import PREFIX, assign_all, coordination, create, eventually

from magnetar.actors import placement
from magnetar.actors.lookups import pages
from magnetar.protocol import metadata_keys
from magnetar.protocol.errors import (
    CookieMismatch,
    KeyExists,
    NotAllowedError,
    OutcomeUnknown,
    ServiceUnitNotReady,
    TopicNotFound,
)
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.storage import metadata_cas as cas
from magnetar.storage.metadata_store import MetadataStore, pack


async def topics(call: Any) -> list[str]:
    return [name async for names in pages(call, "public/default") for name in names]


async def test_topics_exist_as_they_were_created() -> None:
    async with coordination() as cluster:
        call = (await cluster.broker(1)).client.call
        with pytest.raises(TopicNotFound):
            await call("partitions", topic=PREFIX + "x")
        assert await call("partitions", topic=PREFIX + "x", create=True) == 0
        with pytest.raises(KeyExists):
            await call("create_topic", topic=PREFIX + "x", partitions=3)
        await call("create_topic", topic=PREFIX + "p", partitions=3)
        assert await call("partitions", topic=PREFIX + "p") == 3
        assert await call("partitions", topic=PREFIX + "p-partition-2") == 0
        for missing in ("p-partition-3", "x-partition-0", "q-partition-0"):
            with pytest.raises(TopicNotFound):
                await call("assign", topic=PREFIX + missing)
        with pytest.raises(NotAllowedError):
            await call("assign", topic=PREFIX + "p")
        with pytest.raises(NotAllowedError):
            await call("assign", topic="non-persistent://public/default/x")
        with pytest.raises(TopicNotFound):
            await call("assign", topic="persistent://public/nowhere/x")
        with pytest.raises(TopicNotFound):
            await call("assign", topic=PREFIX + "y", create=False)
        await call("assign", topic=PREFIX + "y")
        expected = [f"{PREFIX}p-partition-{index}" for index in range(3)] + [PREFIX + "x", PREFIX + "y"]
        assert await topics(call) == expected
        assert await call("topic_records", namespace="public/default", limit=1) == [[PREFIX + "p", 3]]
        assert len(await call("topic_records", namespace="public/default", after=PREFIX + "p")) == 2
        await call("assign", topic=PREFIX + "p-partition-0")
        client = cluster.members[0].client
        await eventually(lambda: client.partitions == {PREFIX + "p": 3, PREFIX + "y": 0})
        await call("grow_topic", topic=PREFIX + "p", partitions=5)
        assert (await call("assign", topic=PREFIX + "p-partition-4"))["broker"] == "broker-1"
        await eventually(lambda: client.partitions == {PREFIX + "p": 5, PREFIX + "y": 0})
        # Everything is still there for the next coordinator.
        await cluster.coordinator.close()
        await cluster.start_coordinator()
        await eventually(lambda: cluster.members[0].client.connected)
        assert len(await topics(call)) == 7


async def test_deleting_asks_the_owner_first() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 3)
        one.rpc.delete_error = NotAllowedError("in use")
        with pytest.raises(NotAllowedError):
            await one.client.call("delete_topic", topic=PREFIX + "t")
        assert await one.client.call("partitions", topic=PREFIX + "t") == 4
        one.rpc.delete_error = None
        await one.client.call("delete_topic", topic=PREFIX + "t")
        assert dict.fromkeys(one.rpc.deleted + two.rpc.deleted).keys() == {
            f"{PREFIX}t-partition-{index}" for index in range(4)
        }
        with pytest.raises(TopicNotFound):
            await one.client.call("partitions", topic=PREFIX + "t")
        await eventually(lambda: not one.client.assignments and not two.client.assignments)
        assert await cluster.store.list("assignments/") == []
        with pytest.raises(TopicNotFound):
            await one.client.call("delete_topic", topic=PREFIX + "t")
        await create(cluster, "t", 1)
        await assign_all(cluster, "t", 1)


async def test_who_asks_for_a_topic_while_it_is_deleted_does_not_bring_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await one.client.call("assign", topic=PREFIX + "t")
        registry, places = cluster.coordinator.registry, cluster.coordinator.placement
        delete, asked = registry.delete, []

        async def delete_while_somebody_asks(topic: TopicName) -> None:
            asked.append(asyncio.create_task(one.client.call("assign", topic=topic.full)))
            await eventually(lambda: topic.full in places._askers)
            await delete(topic)

        monkeypatch.setattr(registry, "delete", delete_while_somebody_asks)
        await one.client.call("delete_topic", topic=PREFIX + "t")
        with pytest.raises(ServiceUnitNotReady):
            await asked[0]
        assert await cluster.store.list("assignments/") == await cluster.store.list("topics/") == []


async def test_of_two_who_delete_a_topic_the_second_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await one.client.call("assign", topic=PREFIX + "t")
        registry, held = cluster.coordinator.registry, asyncio.Event()
        delete = registry.delete

        async def delete_later(topic: TopicName) -> None:
            await held.wait()
            await delete(topic)

        monkeypatch.setattr(registry, "delete", delete_later)
        first = asyncio.create_task(one.client.call("delete_topic", topic=PREFIX + "t"))
        await eventually(lambda: len(one.rpc.deleted) == 1)
        second = asyncio.create_task(one.client.call("delete_topic", topic=PREFIX + "t"))
        await one.client.call("status")  # the second one has been begun, and has asked no broker
        held.set()
        await first
        with pytest.raises(TopicNotFound):
            await second
        assert len(one.rpc.deleted) == 1


async def test_an_assignment_whose_deletion_is_in_doubt_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await one.client.call("assign", topic=PREFIX + "t")
        plan = ["lost"]

        async def delete_certain(env: Environment, store: MetadataStore, key: str) -> bool:
            there = await cas.delete_certain(env, store, key)
            if plan:
                raise OutcomeUnknown(plan.pop())
            return there

        monkeypatch.setattr(placement, "delete_certain", delete_certain)
        with pytest.raises(OutcomeUnknown):
            await one.client.call("delete_topic", topic=PREFIX + "t")
        # Its owner hears of it, and may be given it again, under another epoch.
        await eventually(lambda: PREFIX + "t" not in cluster.coordinator.placement.table and not one.owned())
        await one.client.call("assign", topic=PREFIX + "t")
        assert len(await cluster.store.list("assignments/")) == 1
        await one.client.call("delete_topic", topic=PREFIX + "t")
        assert await cluster.store.list("assignments/") == await cluster.store.list("topics/") == []


async def test_namespaces_and_tenants() -> None:
    async with coordination() as cluster:
        call = (await cluster.broker(1)).client.call
        await call("put_tenant", tenant="acme", record={"allowedClusters": ["standalone"]})
        await call("create_namespace", namespace="acme/orders")
        with pytest.raises(KeyExists):
            await call("create_namespace", namespace="acme/orders")
        assert await call("namespaces", tenant="acme") == ["acme/orders"]
        await call("assign", topic="persistent://acme/orders/t")
        for refused in (call("delete_namespace", namespace="acme/orders"), call("delete_tenant", tenant="acme")):
            with pytest.raises(NotAllowedError):
                await refused
        await call("delete_topic", topic="persistent://acme/orders/t")
        await call("delete_namespace", namespace="acme/orders")
        await call("delete_tenant", tenant="acme")
        assert await call("tenants") == ["public"]


async def test_bookies_need_their_cookie_and_are_announced() -> None:
    async with coordination() as cluster:
        broker = await cluster.broker(1)
        with pytest.raises(CookieMismatch):
            await cluster.join("bookie", "bookie-1", instance="a")
        await cluster.store.put(metadata_keys.bookie("bookie-1"), pack({"instance": "a"}), None)
        with pytest.raises(CookieMismatch):
            await cluster.join("bookie", "bookie-1", instance="b")
        bookie = await cluster.join("bookie", "bookie-1", instance="a")
        await eventually(lambda: list(broker.client.bookies.bookies) == ["bookie-1"])
        assert broker.client.bookies.bookies["bookie-1"].writable
        bookie.client.report = {"writable": False, "disk": {"used_bytes": 1}}
        await eventually(lambda: not broker.client.bookies.bookies["bookie-1"].writable)
        status = await broker.client.call("status")
        assert status["registered_bookies"] == ["bookie-1"]
        assert [member["id"] for member in status["members"]] == ["bookie-1", "broker-1"]
        assert status["members"][0]["report"]["disk"] == {"used_bytes": 1}
        await bookie.client.close()
        await eventually(lambda: not broker.client.bookies.bookies)
