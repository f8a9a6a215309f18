"""A member that holds the cluster's secret but says what cannot be harms nobody but itself. Found by `tests/fuzz`
(target coordinator).
"""

import pytest

from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.names import ROLE_BROKER
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.metadata import keys as metadata_keys
from support.servers.coordination import CLUSTER, Coordination, coordination


async def hello(cluster: Coordination, role: str, node_id: str):
    member = await cluster.join(role, node_id)
    return member.client


@pytest.mark.parametrize(
    "host, port, data",
    [
        (7, 6650, {}),
        ("127.0.0.1", 1.5, {}),
        ("127.0.0.1", -1, {}),
        ("127.0.0.1", 6650, 5),
        ("127.0.0.1", 6650, {"url": 1 << 40}),
        ("127.0.0.1", 6650, {"rpc": ["127.0.0.1"]}),
        ("127.0.0.1", 6650, {"rpc": ["127.0.0.1", "6650"]}),
        ("127.0.0.1", 6650, {"note": "x" * 100_000}),
    ],
)
async def test_a_malformed_registration_is_refused_and_spoils_no_other(host, port, data):
    async with coordination() as cluster:
        await cluster.broker(1)
        client = await hello(cluster, "admin", "careless")
        with pytest.raises(ProtocolError):
            await client.call("register", role="admin", host=host, port=port, data=data)
        second = await cluster.broker(2)
        assert sorted(second.client.brokers) == ["broker-1", "broker-2"]


@pytest.mark.parametrize("report", [5, {"writable": "yes"}, {"limbo": 7}, {"disk": {"used": "all"}}, {"disk": []}])
async def test_a_malformed_report_ends_the_connection_that_it_came_on(report):
    async with coordination() as cluster:
        member = await cluster.broker(1)
        connection = member.client._connection
        assert connection is not None
        connection.request(1, (pack(report),), lambda status, payload: None)
        await connection.wait_closed()
        other = await cluster.broker(2)
        status = await other.client.call("status")
        assert all(one["report"] == {} for one in status["members"] if one["role"] == ROLE_BROKER)


@pytest.mark.parametrize("count", [float("nan"), 1.5, "1", None, -1, True, 1 << 40])
async def test_a_counter_cannot_be_spoilt(count):
    async with coordination() as cluster:
        client = await hello(cluster, "admin", "careless")
        cookie = {"id": "bookie-1", "cluster_id": CLUSTER, "instance": "i"}
        await client.metadata.put(metadata_keys.bookie("bookie-1"), pack(cookie), None)
        await cluster.join("bookie", "bookie-1", instance="i", writable=True, ledgers_end=0)
        with pytest.raises(ProtocolError):
            await client.call("metadata_allocate", counter="ledger", count=count, guard=None)
        assert await client.metadata.allocate("ledger", 5) == 1
        assert await client.metadata.allocate("ledger", 1) == 6


@pytest.mark.parametrize(
    "write",
    [[5, b"v", None, None], ["k", "text", None, None], ["k", b"v", 1.5, None], ["k", b"v", None, [1]], ["k"], 7],
)
async def test_a_malformed_write_changes_nothing(write):
    async with coordination() as cluster:
        client = await hello(cluster, "admin", "careless")
        with pytest.raises(ProtocolError):
            await client.call("metadata_write_many", writes=[["good", b"v", None, None], write], guard=None)
        assert await client.metadata.get("good") is None
        assert await client.metadata.list("", limit=10)
        with pytest.raises(ProtocolError):
            await client.call("metadata_list", prefix=None, after="", limit=1)
        with pytest.raises(ProtocolError):
            await client.call("metadata_get_many", keys=["good", 5])
