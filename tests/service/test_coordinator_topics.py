"""What the coordinator answers about topics, namespaces, tenants and bookies, over real sockets."""

from typing import Any

import pytest

from magnetar.actors.members.contracts_coordinator import CoordinatorContract
from magnetar.actors.members.topic_lookup import pages
from magnetar.protocol.errors import (
    CookieMismatch,
    KeyExists,
    NotAllowedError,
    TopicNotFound,
)
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack
from support.servers.coordination import PREFIX, coordination, eventually


async def topics(call: Any) -> list[str]:
    return [name async for names in pages(CoordinatorContract(call), "public/default") for name in names]


@pytest.mark.promise("15.10")
async def test_topics_exist_as_they_were_created() -> None:
    async with coordination() as cluster:
        call = (await cluster.broker(1)).client.call
        with pytest.raises(TopicNotFound):
            await call("partitions", topic=PREFIX + "x")
        assert await call("partitions", topic=PREFIX + "x", create=True) == 0  # and creates nothing
        await call("create_topic", topic=PREFIX + "x")
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
        client.known_topics.know(PREFIX + "p", 3)
        client.known_topics.know(PREFIX + "y", 0)
        await call("grow_topic", topic=PREFIX + "p", partitions=5)
        assert (await call("assign", topic=PREFIX + "p-partition-4"))["broker"] == "broker-1"
        await eventually(lambda: client.known_topics.get(PREFIX + "p") == 5)
        await call("delete_topic", topic=PREFIX + "y")
        await eventually(lambda: client.known_topics.get(PREFIX + "y") is None)
        await call("assign", topic=PREFIX + "y")
        # Everything is still there for the next coordinator.
        await cluster.coordinator.close()
        await cluster.start_coordinator()
        await eventually(lambda: cluster.members[0].client.connected)
        assert len(await topics(call)) == 7


@pytest.mark.promise("15.6")
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
        bookie.client.report = {"writable": False, "disk": {"used": 1}}
        await eventually(lambda: not broker.client.bookies.bookies["bookie-1"].writable)
        status = await broker.client.call("status")
        assert status["registered_bookies"] == ["bookie-1"]
        assert [member["id"] for member in status["members"]] == ["bookie-1", "broker-1"]
        assert status["members"][0]["report"]["disk"] == {"used": 1}
        await bookie.client.close()
        await eventually(lambda: not broker.client.bookies.bookies)
