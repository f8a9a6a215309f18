"""What a client may put into one command, and have on one connection: a real broker refuses the rest, and goes on."""

from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.actors.broker.methods import OwnerMethods
from magnetar.actors.connections import limits
from magnetar.protocol.bounds import ACK_IDS_MAX, ACK_SET_WORDS_MAX, NAME_MAX_BYTES
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConnect,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    CommandWatchTopicList,
    MessageIdData,
    ServerError,
)
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

REFUSED = ServerError.NotAllowedError
LONG = "x" * (4 << 20)
NAMESPACE = "public/default"


@pytest.fixture
async def peer(cluster: EmbeddedCluster) -> AsyncIterator[WirePeer]:
    opened = await WirePeer.open(port_of(cluster))
    yield opened
    await opened.close()


def port_of(cluster: EmbeddedCluster) -> int:
    return int(cluster.service_url.rpartition(":")[2])


async def test_a_name_of_4_mb_is_refused_and_the_connection_goes_on(peer: WirePeer, topic: str) -> None:
    """A consumer's name was hashed 100 times over: 2 s of the event loop."""
    subscribe = CommandSubscribe(
        topic=topic, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=0, consumer_name=LONG
    )
    for command in (
        subscribe,
        CommandProducer(topic=topic, producer_id=1, request_id=0, producer_name=LONG),
        CommandLookupTopic(topic=LONG, request_id=0),
        CommandGetTopicsOfNamespace(namespace=NAMESPACE, topics_hash=LONG, request_id=0),
        CommandWatchTopicList(namespace=NAMESPACE, watcher_id=1, topics_pattern=".*", topics_hash=LONG, request_id=0),
    ):
        answer = await peer.request(command)
        assert answer.error == REFUSED and "more than" in answer.message, command.DESCRIPTOR.name
    assert (await peer.subscribe(topic, "s", consumer_name="x" * NAME_MAX_BYTES)).DESCRIPTOR.name == "CommandSuccess"


async def test_a_connect_with_a_long_version_ends_the_connection(cluster: EmbeddedCluster) -> None:
    """One of 4 MB is not even kept: a stranger has room for a frame of 256 KiB."""
    for version, answered in ((LONG[:100_000], True), (LONG, False)):
        stranger = await WirePeer.open(port_of(cluster), connect=False)
        stranger.send(CommandConnect(client_version=version, protocol_version=19))
        if answered:
            assert (await stranger.expect(BaseCommand.ERROR)).error == REFUSED
        await stranger.wait_ended()
        assert not stranger.received
        await stranger.close()


async def test_acknowledgements_beyond_their_bounds_are_refused(peer: WirePeer, topic: str) -> None:
    await peer.subscribe(topic, "s")
    large = [MessageIdData(ledgerId=1, entryId=1, ack_set=[1] * (ACK_SET_WORDS_MAX + 1))]
    many = [MessageIdData(ledgerId=1, entryId=1)] * (ACK_IDS_MAX + 1)
    for ids in (large, many):
        answer = await peer.request(
            CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=ids, request_id=0)
        )
        assert answer.error == REFUSED and "more than" in answer.message
    peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=many))
    await peer.wait_ended()  # there is no other way to say it


@pytest.mark.parametrize(
    ("what", "bound"),
    [("producers", "PRODUCERS_MAX"), ("consumers", "CONSUMERS_MAX"), ("topic list watchers", "WATCHERS_MAX")],
)
async def test_a_connection_has_so_many_of_everything(
    peer: WirePeer, topic: str, monkeypatch: pytest.MonkeyPatch, what: str, bound: str
) -> None:
    monkeypatch.setattr(limits, bound, 2)
    answers = []
    for number in range(3):
        if what == "producers":
            answer = await peer.producer(topic, number)
        elif what == "consumers":
            answer = await peer.subscribe(topic, f"s{number}", number)
        else:
            answer = await peer.request(
                CommandWatchTopicList(namespace=NAMESPACE, watcher_id=number, topics_pattern=".*", request_id=0)
            )
        answers.append(answer)
    assert not any("error" in one.DESCRIPTOR.fields_by_name for one in answers[:2]), answers
    assert answers[2].error == ServerError.TooManyRequests
    assert answers[2].message == f"this connection has 2 {what} already: close some, or open a connection"


def test_both_clients_are_told_at_once_that_a_name_is_too_long(cluster: EmbeddedCluster, topic: str) -> None:
    name = "s" * (NAME_MAX_BYTES + 1)
    official = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    ours = magnetar.Client(cluster.service_url)
    try:
        with pytest.raises(magnetar.NotAllowedError, match="more than 1024: shorten it"):
            ours.subscribe(topic, name)
        with pytest.raises(pulsar.NotAllowedError):
            official.subscribe(topic, name)
    finally:
        official.close()
        ours.close()


def test_an_administrator_is_told_that_a_name_is_too_long(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    methods: Any = OwnerMethods(cluster.brokers[1].topics, list)
    with pytest.raises(magnetar.NotAllowedError, match="more than 1024: shorten it"):
        cluster.run(methods.create_subscription(topic=topic, subscription="s" * (NAME_MAX_BYTES + 1)))
