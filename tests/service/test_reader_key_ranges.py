"""A consumer that gets everything, and brings hash ranges of keys: it gets the keys of these ranges, as in Pulsar."""

import pulsar
import pytest

from magnetar.protocol.pulsar_pb2 import (
    CommandError,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
    MessageIdData,
    ServerError,
)
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
COUNT = 100
SLOTS = 65536


def ranges(*pairs: tuple[int, int]) -> KeySharedMeta:
    wanted = [IntRange(start=start, end=end) for start, end in pairs]
    return KeySharedMeta(keySharedMode=KeySharedMode.STICKY, hashRanges=wanted)


async def read(port: int, topic: str, meta: KeySharedMeta, count: int) -> list[int]:
    """The entries that a reader gets; one more than `count` must not come."""
    peer = await WirePeer.open(port)
    await peer.subscribe(topic, "reads", durable=False, start_message_id=EARLIEST, keySharedMeta=meta)
    peer.flow(1000)
    entries = [entry_id for entry_id, _ in await peer.messages(count)]
    await peer.settle()
    assert not peer.received
    await peer.close()
    return entries


async def refused(port: int, topic: str, meta: KeySharedMeta) -> CommandError:
    peer = await WirePeer.open(port)
    answer = await peer.subscribe(topic, "s", subType=CommandSubscribe.Exclusive, keySharedMeta=meta)
    await peer.close()
    return answer


@pytest.fixture
def port(cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str) -> int:
    """Of a broker; the topic has messages with many keys."""
    producer = official_client.create_producer(topic, batching_enabled=False)
    official_client.subscribe(topic, "keeps")
    for number in range(COUNT):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"key-{number}")
    producer.flush()
    return int(cluster.service_url.rpartition(":")[2])


def test_two_readers_of_both_halves_get_every_message_once(cluster: EmbeddedCluster, topic: str, port: int) -> None:
    async def all_of_them() -> tuple[list[int], list[int]]:
        peer = await WirePeer.open(port)
        await peer.subscribe(
            topic, "x", durable=False, start_message_id=EARLIEST, keySharedMeta=ranges((0, SLOTS // 2 - 1))
        )
        peer.flow(1000)
        await peer.settle()
        first = len(peer.received)
        await peer.close()
        lower = await read(port, topic, ranges((0, SLOTS // 2 - 1)), first)
        return lower, await read(port, topic, ranges((SLOTS // 2, SLOTS - 1)), COUNT - first)

    lower, upper = cluster.run(all_of_them())
    assert 0 < len(lower) < COUNT
    assert sorted(lower + upper) == list(range(COUNT))


def test_several_ranges_of_one_reader_add_up(cluster: EmbeddedCluster, topic: str, port: int) -> None:
    meta = ranges((0, 9_999), (10_000, 40_000), (40_001, SLOTS - 1))
    assert cluster.run(read(port, topic, meta, COUNT)) == list(range(COUNT))


def test_ranges_that_overlap_are_refused(cluster: EmbeddedCluster, topic: str, port: int) -> None:
    answer = cluster.run(refused(port, topic, ranges((0, 100), (50, 200))))
    assert answer.error == ServerError.ConsumerAssignError
