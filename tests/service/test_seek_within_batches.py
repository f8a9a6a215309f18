"""A seek into a batch, where the broker keeps which messages of batches are acknowledged: the first ones stay away."""

from typing import Any

import pulsar
import pytest

from magnetar.actors.broker.methods import OwnerMethods
from magnetar.protocol.errors import NoSuchEntry
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSeek, MessageIdData
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(acknowledgment_at_batch_index_level_enabled=True)

WAIT_MS = 20_000
MESSAGES = 5


def batch(client: pulsar.Client, topic: str) -> Position:
    """Publish one batch. Returns its place."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, batching_max_messages=MESSAGES
    )
    ids: list[Any] = []
    for number in range(MESSAGES):
        producer.send_async(b"%d" % number, lambda _, message_id: ids.append(message_id))
    producer.flush()
    producer.send_async(b"next", lambda *_: None)
    producer.flush()
    assert len({(one.ledger_id(), one.entry_id()) for one in ids}) == 1
    return ids[0].ledger_id(), ids[0].entry_id()


async def next_of(port: int, topic: str, seek: MessageIdData | None = None) -> tuple[int, list[int]]:
    """The entry and the ack set of the first message that a consumer gets, behind a seek if there is one."""
    peer = await WirePeer.open(port)
    await peer.subscribe(topic, "s")
    if seek is not None:
        assert (await peer.request(CommandSeek(consumer_id=1, message_id=seek))).DESCRIPTOR.name == "CommandSuccess"
        await peer.expect(BaseCommand.CLOSE_CONSUMER)
        await peer.subscribe(topic, "s")
    peer.flow(10)
    message = (await peer.expect(BaseCommand.MESSAGE)).command.message
    await peer.close()
    return message.message_id.entryId, list(message.ack_set)


def port(cluster: EmbeddedCluster) -> int:
    return int(cluster.service_url.rpartition(":")[2])


@pytest.mark.parametrize(
    ("ack_set", "wanted"), [([0b11000], [0b11000]), ([], []), ([0b11111], [])], ids=["from 3 on", "none", "all"]
)
def test_a_seek_with_an_ack_set_gives_only_what_it_names(
    ack_set: list[int], wanted: list[int], cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    ledger_id, entry_id = batch(official_client, topic)
    place = MessageIdData(ledgerId=ledger_id, entryId=entry_id, ack_set=ack_set)
    assert cluster.run(next_of(port(cluster), topic, place)) == (entry_id, wanted)
    assert cluster.run(next_of(port(cluster), topic)) == (entry_id, wanted), "it is kept for the next consumer"


@pytest.mark.parametrize(
    ("options", "entry", "wanted"),
    [
        ({"batch_index": 3}, 0, [0b11000]),
        ({"batch_index": 3, "excluded": True}, 0, [0b10000]),
        ({"batch_index": 0}, 0, []),
        ({"batch_index": 4, "excluded": True}, 1, []),
        ({"excluded": True}, 1, []),
    ],
    ids=["from 3 on", "behind 3", "the first", "behind the last", "behind the batch"],
)
def test_an_operator_resets_a_cursor_into_a_batch(
    options: Any, entry: int, wanted: list[int], cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    consumer = official_client.subscribe(topic, "s")
    ledger_id, entry_id = batch(official_client, topic)
    methods: Any = OwnerMethods(cluster.brokers[cluster.owner(topic)].topics, list)
    consumer.close()
    cluster.run(methods.reset_cursor(topic=topic, subscription="s", position=[ledger_id, entry_id], **options))
    assert cluster.run(next_of(port(cluster), topic)) == (entry_id + entry, wanted)
    with pytest.raises(NoSuchEntry):
        cluster.run(
            methods.reset_cursor(topic=topic, subscription="s", position=[ledger_id, entry_id + 100], batch_index=1)
        )


def test_the_official_client_goes_on_within_a_batch(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    consumer = official_client.subscribe(topic, "s", batch_index_ack_enabled=True)
    batch(official_client, topic)
    got = [consumer.receive(WAIT_MS) for _ in range(MESSAGES + 1)]
    methods: Any = OwnerMethods(cluster.brokers[cluster.owner(topic)].topics, list)
    place = [got[3].message_id().ledger_id(), got[3].message_id().entry_id()]
    cluster.run(methods.reset_cursor(topic=topic, subscription="s", position=place, batch_index=3))
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [b"3", b"4", b"next"]
