"""Readers of the official client and of ours, from every kind of start, while their topic is unloaded again and again.

After an unload the C++ client (and the Python client upon it) subscribes at the id before the head of its queue, and
ours at the last entry that came. Both rest on the broker: it delivers from the entry of a start id on, whatever batch
index the id has, and the client drops what it has. The official client may give a message twice (it does so with
Apache Pulsar 4.2.4 as well, when its reader is inclusive); no client may leave one out.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import magnetar

pytestmark = pytest.mark.cluster_settings(brokers=2)

WAIT_MS = 10_000
MESSAGES = 30
BATCH = 10


@pytest.fixture(params=["official", "ours"])
def client(cluster, request):
    if request.param == "official":
        yield request.getfixturevalue("official_client")
        return
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=20) as connected:
        yield connected


def numbers(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def publish(cluster, topic, batched):
    """Thirty messages, in three batches or one by one; their ids. A durable subscription keeps them: a reader does not,
    and a topic that is loaded again is trimmed."""
    connected = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    connected.subscribe(topic, "keeper").close()
    ids: list[pulsar.MessageId] = []

    def sent(result, message_id):
        assert result == pulsar.Result.Ok
        ids.append(message_id)

    producer = connected.create_producer(
        topic, batching_enabled=batched, batching_max_messages=BATCH, batching_max_publish_delay_ms=10_000
    )
    for value in numbers(MESSAGES):
        producer.send_async(value, sent)
    producer.flush()
    connected.close()
    assert len(ids) == MESSAGES and len({(one.ledger_id(), one.entry_id()) for one in ids}) == (3 if batched else 30)
    return ids


def is_official(client):
    return isinstance(client, pulsar.Client)


def as_id(client, message_id, *, index=True):
    """The same id for this client's interface."""
    make: Callable[..., Any] = pulsar.MessageId if is_official(client) else magnetar.MessageId
    return make(-1, message_id.ledger_id(), message_id.entry_id(), message_id.batch_index() if index else -1)


def read_all(reader):
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(WAIT_MS).data())
    return read


async def unload(cluster, topic):
    """Move or renew the topic, and wait until its reader has subscribed again."""
    before = [broker.topics.loaded[topic] for broker in cluster.brokers.values() if topic in broker.topics.loaded]
    await cluster.coordinator_call("unload", topic=topic)
    while True:
        for broker in cluster.brokers.values():
            loaded = broker.topics.loaded.get(topic)
            if loaded is not None and loaded not in before and loaded.state.value == "open":
                if any(subscription.consumers for subscription in loaded.subscriptions.values()):
                    return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_begins_at_its_start_id(cluster, client, topic, batched, inclusive):
    ids = publish(cluster, topic, batched)
    for start in (0, 5, 9, 10, 29):
        reader = client.create_reader(topic, as_id(client, ids[start]), start_message_id_inclusive=inclusive)
        first = start if inclusive else start + 1
        assert read_all(reader) == numbers(MESSAGES - first, first)
        reader.close()


@pytest.mark.parametrize("batched", [False, True])
def test_an_inclusive_reader_of_an_id_without_batch_index_gets_that_entry(cluster, client, topic, batched):
    ids = publish(cluster, topic, batched)
    reader = client.create_reader(topic, as_id(client, ids[15], index=False), start_message_id_inclusive=True)
    first = 10 if batched else 15
    assert read_all(reader) == numbers(MESSAGES - first, first)
    reader.close()


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_no_message_is_left_out_when_the_topic_is_unloaded(cluster, client, topic, batched, inclusive):
    publish(cluster, topic, batched)
    start = pulsar.MessageId.earliest if is_official(client) else magnetar.MessageId.earliest
    reader = client.create_reader(topic, start, start_message_id_inclusive=inclusive)
    read = []
    for taken in (0, 1, 4, 5, 9, 1):  # unloads with 0, 1, 5, 10, 19 and 20 messages taken
        read += [reader.read_next(WAIT_MS).data() for _ in range(taken)]
        cluster.run(unload(cluster, topic))
    read += read_all(reader)
    assert list(dict.fromkeys(read)) == numbers(MESSAGES)
    if not is_official(client):
        assert read == numbers(MESSAGES)
    reader.close()


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_that_has_read_nothing_yet_begins_the_same_way_again(cluster, client, topic, batched, inclusive):
    ids = publish(cluster, topic, batched)
    for start in (0, 5, 10, 29):
        reader = client.create_reader(topic, as_id(client, ids[start]), start_message_id_inclusive=inclusive)
        cluster.run(unload(cluster, topic))
        read, first = read_all(reader), start if inclusive else start + 1
        if is_official(client) and inclusive and read[0] != b"%d" % first:
            read.pop(0)  # it subscribed at the id before the first message, and takes that one for wanted too
        assert read == numbers(MESSAGES - first, first)
        reader.close()


@pytest.mark.parametrize("filled", [0, 3])
def test_our_readers_at_latest_miss_nothing_that_comes_while_their_topic_moves(cluster, topic, filled):
    """They have received nothing yet. Official clients begin at the end again and miss what came meanwhile."""
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=20) as connected:
        connected.subscribe(topic, "keeper").close()
        producer = connected.create_producer(topic, batching_enabled=False)
        for value in numbers(filled):
            producer.send(value)
        readers = [connected.create_reader(topic, magnetar.MessageId.latest) for _ in range(10)]
        assert not any(reader.has_message_available() for reader in readers)
        for _ in range(2):
            cluster.run(unload(cluster, topic))
        cluster.run(cluster.coordinator_call("unload", topic=topic))
        for value in numbers(20, 100):
            producer.send(value)
        for reader in readers:
            assert [reader.read_next(WAIT_MS).data() for _ in range(20)] == numbers(20, 100)
            assert not reader.has_message_available()


def test_our_reader_that_sought_ahead_of_all_clocks_gets_what_comes(cluster, topic):
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=20) as connected:
        connected.subscribe(topic, "keeper").close()
        producer = connected.create_producer(topic, batching_enabled=False)
        for value in numbers(5):
            producer.send(value)
        reader = connected.create_reader(topic, magnetar.MessageId.earliest)
        reader.seek(int(time.time() * 1000) + 3_600_000)
        assert not reader.has_message_available()
        for value in numbers(2, 10):
            producer.send(value)
        assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == numbers(2, 10)
        cluster.run(unload(cluster, topic))
        reader.seek(0)
        assert read_all(reader) == [*numbers(5), *numbers(2, 10)]
