"""What admin, coordinator and Spark bridge ask a broker over the internal RPC, on a real cluster."""

import time

import pulsar
import pytest

from magnetar.actors.members.contracts_broker import BrokerContract
from magnetar.protocol.errors import (
    BrokerMetadataError,
    InvalidConfiguration,
    NotAllowedError,
    ServiceUnitNotReady,
    SubscriptionNotFound,
)
from magnetar.protocol.names import ROLE_ADMIN, broker_id
from magnetar.protocol.topic_figures import StorageFigures, TopicFigures
from magnetar.runtime.rpc.connection import Identity, rpc_connect
from magnetar.storage.managed.cursor_storage import CursorKind
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.servers.embedded_cluster import HOST, KEYS

pytestmark = pytest.mark.cluster_settings(brokers=2, ledger_entries_max=10, ledger_rollover_min_minutes=0)

WAIT_MS = 10_000


@pytest.fixture
def client(official_client):
    return official_client


@pytest.fixture
def ask(cluster, topic):
    """Call a method of the topic's owner, as another member of the cluster does."""

    async def call(method, broker, **arguments):
        coordinator = cluster.brokers[1].lookups.coordinator()
        host, port = coordinator.brokers[broker_id(broker)].data["rpc"]
        identity = Identity("test-cluster", ROLE_ADMIN, "asker", "1")
        connection = await rpc_connect(
            cluster.brokers[1].env,
            host,
            port,
            identity,
            KEYS,
            expected_node_id=broker_id(broker),
            frame_size_max=1 << 24,
        )
        try:
            return await connection.call(method, **arguments)
        finally:
            connection.close()
            await connection.wait_closed()

    def asked(method, broker=None, **arguments):
        return cluster.run(call(method, broker or cluster.owner(topic), **{"topic": topic, **arguments}))

    return asked


def topic_figures(ask):
    found = BrokerContract.methods["topic_stats"].answer(ask("topic_stats"))
    assert isinstance(found, TopicFigures)
    return found


def storage_figures(ask):
    found = BrokerContract.methods["internal_stats"].answer(ask("internal_stats"))
    assert isinstance(found, StorageFigures)
    return found


def publish(client, topic, count):
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(count)]
    producer.close()
    return ids


def take(consumer, count):
    messages = [consumer.receive(WAIT_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return [int(message.data()) for message in messages]


def test_statistics(client, topic, ask):
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="me")
    producer = client.create_producer(topic, producer_name="you")
    for _ in range(25):
        producer.send(b"1" * 100)
    take(consumer, 5)
    figures = topic_figures(ask)
    assert (figures.messages, figures.producers[0].name, figures.state) == (25, "you", "open")
    assert figures.storage_bytes > 2500
    (subscription,) = figures.subscriptions
    assert (subscription.name, subscription.type, subscription.durable) == ("s", "Shared", True)
    assert subscription.consumers[0].name == "me"
    end = time.monotonic() + 30
    while len((storage := storage_figures(ask)).ledgers) < 2:  # the broker opens the next ledger beside the appends
        assert time.monotonic() < end
        time.sleep(0.01)
    assert sum(ledger.entries for ledger in storage.ledgers) == 25
    assert [cursor.name for cursor in storage.cursors] == ["s"]
    last = ask("last_message_id")
    assert list(storage.last_confirmed) == [last[0], last[1]]


def backlogs(ask):
    """Entries that each subscription has left."""
    return {one.name: one.backlog_entries for one in topic_figures(ask).subscriptions}


@pytest.mark.promise("16.8")
def test_subscriptions_are_created_reset_skipped_and_deleted(client, topic, ask):
    ids = publish(client, topic, 10)
    ask("create_subscription", subscription="early", position="earliest")
    ask("create_subscription", subscription="late")
    ask("create_subscription", subscription="middle", position=[ids[4].ledger_id(), ids[4].entry_id()])
    with pytest.raises(NotAllowedError):
        ask("create_subscription", subscription="early")
    with pytest.raises(InvalidConfiguration):
        ask("reset_cursor", subscription="early", position="nowhere")
    assert backlogs(ask) == {"early": 10, "late": 0, "middle": 6}
    ask("skip_all", subscription="early")
    ask("reset_cursor", subscription="late", position=0)
    assert backlogs(ask) == {"early": 0, "late": 10, "middle": 6}
    consumer = client.subscribe(topic, "middle")
    with pytest.raises(BrokerMetadataError):
        ask("delete_subscription", subscription="middle")
    ask("delete_subscription", subscription="middle", force=True)
    ask("delete_subscription", subscription="early")
    for method in ("delete_subscription", "skip_all"):
        with pytest.raises(SubscriptionNotFound):
            ask(method, subscription="early")
    consumer.close()


def test_a_cursor_that_is_no_subscription_is_never_shown_as_one(client, topic, ask, cluster):
    publish(client, topic, 1)
    ask("create_subscription", subscription="s", position="earliest")
    before = cluster.owner(topic)

    async def open_hidden():
        ledger = cluster.brokers[before].topics.loaded[topic].ledger
        await ledger.open_cursor("hidden", "earliest", kind=CursorKind.DEDUPLICATION)

    cluster.run(open_hidden())
    publish(client, topic, 5)
    cluster.run(cluster.coordinator_call("unload", topic=topic))
    publish(client, topic, 5)
    assert cluster.owner(topic) != before
    assert list(backlogs(ask)) == ["s"]
    assert [one.name for one in storage_figures(ask).cursors] == ["hidden", "s"], "these are cursors"
    for method in ("delete_subscription", "skip_all"):
        with pytest.raises(SubscriptionNotFound):
            ask(method, subscription="hidden")
    with pytest.raises(NotAllowedError):
        ask("create_subscription", subscription="hidden")
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "hidden")
    assert topic_figures(ask).backlog_bytes > 0
    ask("skip_all", subscription="s")
    assert topic_figures(ask).backlog_bytes == 0
    assert storage_figures(ask).cursors[0].backlog_entries == 11


@pytest.mark.promise("29.8")
def test_a_planned_read_names_ledgers_and_pins_them(client, topic, ask, cluster):
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    ids = publish(client, topic, 35)
    plan = ask("plan_read")
    assert plan["first"] == [ids[0].ledger_id(), ids[0].entry_id()]
    assert plan["last"] == [ids[-1].ledger_id(), ids[-1].entry_id()]
    ledgers = [LedgerMetadata.unpack(packed) for packed in plan["ledgers"]]
    assert [ledger.ledger_id for ledger in ledgers] == sorted({message.ledger_id() for message in ids})
    assert len(plan["bookies"]) == 3 and plan["bookies"][0][1] == HOST
    bounds = [[ids[index].ledger_id(), ids[index].entry_id()] for index in (12, 23)]
    part = ask("plan_read", start=bounds[0], end=bounds[1])
    assert [part["first"], part["last"]] == bounds
    for before_bytes, named in ((0, plan["ledgers"][-1:]), (1 << 30, plan["ledgers"])):
        behind = ask("plan_read", start=plan["last"], before_bytes=before_bytes)
        assert (behind["first"], behind["last"], behind["ledgers"]) == (plan["last"], plan["last"], named)
        ask("unpin", pin=behind["pin"])
    with pytest.raises(InvalidConfiguration, match="before_bytes"):
        ask("plan_read", before_bytes=-1)
    nothing = ask("plan_read", start=1 << 50)
    assert nothing["ledgers"] == [] and nothing["pin"] is None and nothing["first"] > nothing["last"]
    before = ask("plan_read", end=1)
    assert before["ledgers"] == []
    assert take(consumer, 35) == list(range(35))

    def kept():
        return [ledger.ledger_id for ledger in storage_figures(ask).ledgers]

    consumer.close()  # writes the cursor
    assert kept()[0] == ids[0].ledger_id()
    for one in (plan, part):
        ask("unpin", pin=one["pin"])
    ask("unpin", pin="never-there")

    async def trim():
        await cluster.brokers[cluster.owner(topic)].topics.loaded[topic].ledger.trim()

    cluster.run(trim())
    assert kept()[0] > ids[0].ledger_id()
    with pytest.raises(NotAllowedError):
        ask("plan_read", topic="non-persistent://public/default/x")


def test_unloading_moves_a_topic_and_its_clients_follow(client, topic, ask, cluster):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(10):
        producer.send(b"%d" % number)
    assert take(consumer, 10) == list(range(10))
    time.sleep(0.3)  # the client groups its acknowledgements
    before = cluster.owner(topic)
    cluster.run(cluster.coordinator_call("unload", topic=topic))
    producer.send(b"10")
    assert take(consumer, 1) == [10]  # what was acknowledged did not come again
    assert cluster.owner(topic) != before
    with pytest.raises(ServiceUnitNotReady):
        ask("topic_stats", broker=before)


def test_deleting_a_topic_removes_its_data(client, topic, ask, cluster):
    producer = client.create_producer(topic)
    producer.send(b"x")
    with pytest.raises(NotAllowedError):
        cluster.run(cluster.coordinator_call("delete_topic", topic=topic))
    producer.close()
    cluster.run(cluster.coordinator_call("delete_topic", topic=topic))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
