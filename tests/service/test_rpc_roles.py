"""What holders of a reader's, a bookie's or a broker's keys can do in a real cluster, and what they cannot."""

import asyncio
import contextlib

import pulsar
import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, encode_ledger, encode_read
from magnetar.protocol.errors import AuthorizationError, HandshakeRefused, TopicNotFound
from magnetar.protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER, ROLE_READER
from magnetar.runtime.rpc.connection import STATUS_ERROR, rpc_connect
from magnetar.runtime.rpc.keys import Identity
from magnetar.runtime.rpc.messages import decode_error
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.servers.embedded_cluster import HOST, KEYS

TOPIC = "persistent://public/default/read-by-a-reader"
MISSING = "persistent://public/default/made-by-a-reader"


@pytest.fixture(scope="module")
def cluster(cluster):
    """With ten messages in a topic."""
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC)
    for number in range(10):
        producer.send(b"%d" % number)
    client.close()
    return cluster


@contextlib.asynccontextmanager
async def connected(cluster, place, role, node_id, keys):
    identity = Identity("test-cluster", role, node_id, "1")
    host, port = place
    connection = await rpc_connect(cluster._env, host, port, identity, keys, frame_size_max=1 << 24)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


def reader(cluster, place):
    return connected(cluster, place, ROLE_READER, "reader-1", KEYS.reader())


def coordinator(cluster):
    return cluster.coordinator.address


async def request(connection, op, payload):
    answer = asyncio.get_running_loop().create_future()
    connection.request(op, (payload,), lambda status, data: answer.set_result((status, data)))
    async with asyncio.timeout(10):
        return await answer


async def plan(cluster):
    async with reader(cluster, cluster.brokers[1]._rpc.address) as broker:
        return await broker.call("plan_read", topic=TOPIC, ttl_s=60.0)


def test_a_reader_finds_plans_prolongs_and_reads_a_topic(cluster):
    async def read():
        async with reader(cluster, coordinator(cluster)) as asked:
            assert (await asked.call("assign", topic=TOPIC, create=False))["broker"] == "broker-1"
            assert await asked.call("partitions", topic=TOPIC, create=False) == 0
            assert len(await asked.call("bookies")) == 3
        planned = await plan(cluster)
        async with reader(cluster, cluster.brokers[1]._rpc.address) as broker:
            assert await broker.call("prolong_pin", topic=TOPIC, pin=planned["pin"], ttl_s=60.0) is True
            await broker.call("unpin", topic=TOPIC, pin=planned["pin"])
            assert await broker.call("prolong_pin", topic=TOPIC, pin=planned["pin"], ttl_s=60.0) is False
        ledger = LedgerMetadata.unpack(planned["ledgers"][0])
        async with reader(cluster, cluster.bookies[1].address) as bookie:
            status, _ = await request(bookie, BookieOp.READ, encode_read(ledger.ledger_id, ledger.nonce, 0, 9, 1 << 20))
            assert status == BookieStatus.OK

    cluster.run(read())


def test_a_reader_learns_schemas_and_changes_none(cluster):
    async def asked():
        async with reader(cluster, cluster.brokers[1]._rpc.address) as broker:
            assert await broker.call("schemas", topic=TOPIC) == []
            for method, arguments in (
                ("put_schema", {"topic": TOPIC, "type": 1, "data": b"", "properties": {}}),
                ("delete_schemas", {"topic": TOPIC}),
            ):
                with pytest.raises(AuthorizationError, match=f"reader-1 may not call {method} at broker-1"):
                    await broker.call(method, **arguments)

    cluster.run(asked())


def test_a_reader_changes_nothing_at_the_coordinator(cluster):
    async def refused():
        key = metadata_keys.pin("persistent/public/default/t", "pin")
        async with reader(cluster, coordinator(cluster)) as asked:
            for method, arguments in (
                ("metadata_write_many", {"writes": [[key, b"x", None, None]], "guard": None}),
                ("metadata_allocate", {"counter": "ledger", "count": 1, "guard": None}),
                ("metadata_list", {"prefix": "", "after": "", "limit": 10}),
                ("register", {"role": ROLE_READER, "host": HOST, "port": 1, "data": {}}),
                ("create_topic", {"topic": MISSING}),
                ("delete_topic", {"topic": TOPIC}),
                ("unload", {"topic": TOPIC}),
            ):
                with pytest.raises(AuthorizationError, match=f"reader-1 may not call {method} at coordinator"):
                    await asked.call(method, **arguments)
            for arguments in ({"create": True}, {"create": None}, {}):
                with pytest.raises(AuthorizationError, match="may not create topics"):
                    await asked.call("assign", topic=MISSING, **arguments)
            with pytest.raises(AuthorizationError, match="may not create topics"):
                await asked.call("partitions", topic=MISSING, create=True)
            with pytest.raises(TopicNotFound):
                await asked.call("assign", topic=MISSING, create=False)

    cluster.run(refused())


def test_a_reader_neither_writes_nor_fences_a_ledger(cluster):
    async def refused():
        ledger = LedgerMetadata.unpack((await plan(cluster))["ledgers"][0])
        fencing = encode_read(ledger.ledger_id, ledger.nonce, 0, 9, 1 << 20, fence=True)
        async with reader(cluster, cluster.bookies[1].address) as bookie:
            for op, payload in (
                (BookieOp.ADD, b""),
                (BookieOp.FENCE, encode_ledger(ledger.ledger_id, ledger.nonce)),
                (BookieOp.READ, fencing),
            ):
                status, answer = await request(bookie, op, payload)
                assert status == STATUS_ERROR
                assert isinstance(decode_error(answer), AuthorizationError)
            with pytest.raises(AuthorizationError):
                await bookie.call("collect_garbage")

    cluster.run(refused())


def test_a_bookie_writes_its_own_cookie_only(cluster):
    async def refused():
        keys = KEYS.node(ROLE_BOOKIE, "bookie-1")
        async with connected(cluster, coordinator(cluster), ROLE_BOOKIE, "bookie-1", keys) as asked:
            for key in (metadata_keys.bookie("bookie-2"), metadata_keys.ledger(1), metadata_keys.CLUSTER):
                with pytest.raises(AuthorizationError, match="bookie-1 may not write"):
                    await asked.call("metadata_write_many", writes=[[key, None, None, None]], guard=None)

    cluster.run(refused())


@pytest.mark.parametrize(
    ("role", "node_id", "keys"),
    [
        (ROLE_BROKER, "broker-1", KEYS.reader()),
        (ROLE_BROKER, "broker-1", KEYS.node(ROLE_BROKER, "broker-2")),
        (ROLE_BROKER, "broker-1", KEYS.node(ROLE_BOOKIE, "bookie-1")),
        (ROLE_ADMIN, "admin", KEYS.node(ROLE_BROKER, "broker-1")),
        (ROLE_BOOKIE, "bookie-2", KEYS.node(ROLE_BOOKIE, "bookie-1")),
    ],
)
def test_keys_of_one_node_do_not_let_in_another(cluster, role, node_id, keys):
    async def refused():
        with pytest.raises(HandshakeRefused, match="does not hold the key"):
            async with connected(cluster, coordinator(cluster), role, node_id, keys):
                raise AssertionError("must not connect")

    cluster.run(refused())
