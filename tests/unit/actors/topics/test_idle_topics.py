"""Topics without clients rest beyond a bound, and come back with all that they had."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from magnetar.actors.features.table import FEATURES
from magnetar.actors.topics.idle_topics import duties_of
from magnetar.actors.topics.owned_topic import OwnedState
from magnetar.protocol.errors import MetadataUnavailable, ServiceUnitNotReady
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandCloseConsumer, CommandCloseProducer
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.chain_writer import ChainWriter
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.managed.record import LeftBehind, left_behind
from magnetar.storage.metadata.keys import LEDGERS_PREFIX
from magnetar.storage.metadata.store import list_all
from support.clients.wire_peer import WirePeer, entry
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until

NAME = TopicName.parse(TOPIC)


@asynccontextmanager
async def front_that_rests(**changes: object) -> AsyncIterator[BrokerFront]:
    """A front on which a topic rests soon after its last client has left."""
    settings = {"idle_topics_loaded_max": 0, "topic_idle_s": 0.02, "cursor_flush_interval_s": 0.01, **changes}
    storage = FakeCluster()
    async with broker_front(storage, **settings) as front:
        yield front


def rests(front: BrokerFront, topic: str = TOPIC) -> bool:
    found = front.topics.table.granted(topic)
    return found is not None and found.state is OwnedState.RESTING and found.closing is None


async def publish(peer: WirePeer, topic: str, count: int, *, first: int = 0) -> None:
    for index in range(first, first + count):
        peer.send_entry(entry(b"%d" % index, sequence_id=index), index)
    await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=first + count - 1)


async def leave(peer: WirePeer, *, consumer: bool = True) -> None:
    """The producer 1 and the consumer 1 of the peer go."""
    leaving = [CommandCloseProducer(producer_id=1, request_id=901)]
    if consumer:
        leaving.append(CommandCloseConsumer(consumer_id=1, request_id=902))
    for close in leaving:
        peer.send(close)
        await peer.expect(BaseCommand.SUCCESS, request_id=close.request_id)


async def consume(peer: WirePeer, count: int, *, acknowledged: int) -> list[bytes]:
    peer.flow(count)
    bodies: list[bytes] = []
    for index in range(count):
        frame = await peer.expect(BaseCommand.MESSAGE)
        bodies.append(bytes(frame.entry)[-1:])
        if index < acknowledged:
            ids = [frame.command.message.message_id]
            peer.send(CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=ids))
    return bodies


@pytest.mark.promise("30.22")
async def test_an_unused_topic_rests_and_goes_on_with_its_backlog_and_counters() -> None:
    async with front_that_rests() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 5)
        await consume(peer, 5, acknowledged=2)
        await leave(peer)
        await until(lambda: rests(front))
        assert TOPIC not in front.topics.loaded and front.topics.owns(TOPIC)
        topic = await front.topics.get(NAME)
        figures = topic.describe()
        assert (figures.messages, figures.subscriptions[0].messages, figures.subscriptions[0].backlog_entries) == (
            5,
            5,
            3,
        )
        assert figures.message_rate == 0 and figures.last_publish_ms
        await peer.subscribe(TOPIC, "s")
        await peer.producer(TOPIC)
        await publish(peer, TOPIC, 1, first=5)
        assert await consume(peer, 4, acknowledged=4) == [b"2", b"3", b"4", b"5"]
        assert front.topic.describe().messages == 6
        await peer.close()


async def test_a_resting_topic_keeps_no_ledger_that_nothing_needs() -> None:
    async with front_that_rests() as front:
        assert front.storage is not None
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 3)
        await consume(peer, 3, acknowledged=3)
        await leave(peer)
        await until(lambda: rests(front))
        assert not await list_all(front.storage.metadata, LEDGERS_PREFIX)
        await peer.subscribe(TOPIC, "s")
        await peer.producer(TOPIC)
        await publish(peer, TOPIC, 1, first=7)
        assert await consume(peer, 1, acknowledged=1) == [b"7"]
        await peer.close()


@pytest.mark.parametrize("clients", ["producer", "consumer", "reader"])
async def test_a_topic_with_a_client_does_not_rest(clients: str) -> None:
    async with front_that_rests() as front:
        peer = await front.peer()
        if clients == "producer":
            await peer.producer(TOPIC)
        else:
            await peer.subscribe(TOPIC, "s", durable=clients == "consumer")
        topic = front.topic
        await asyncio.sleep(0.1)
        assert front.topics.loaded[TOPIC] is topic
        await peer.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"message_ttl_s": 100},
        {"backlog_quota_bytes": 1 << 20},
        {"retention_minutes": 10, "retention_size_mb": 10},
        {"subscription_expiration_minutes": 10},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_topic_that_has_something_to_do_by_itself_stays_loaded(changes: dict[str, object]) -> None:
    async with front_that_rests(**changes) as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 2)
        await leave(peer)
        topic = front.topic
        await asyncio.sleep(0.15)
        assert front.topics.loaded[TOPIC] is topic
        await peer.close()


async def test_a_topic_without_subscriptions_stays_loaded_until_it_is_deleted() -> None:
    async with front_that_rests() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await leave(peer, consumer=False)
        await asyncio.sleep(0.1)
        assert TOPIC in front.topics.loaded
        await peer.close()


async def test_a_pinned_topic_stays_loaded_until_the_pin_is_gone() -> None:
    async with front_that_rests() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 2)
        pin = (await front.topic.ledger.plan((-1, -1), ttl_s=100)).pin
        await leave(peer)
        await asyncio.sleep(0.15)
        await front.topic.ledger.unpin(pin)
        await until(lambda: rests(front))
        await peer.close()


async def test_idle_topics_within_the_bound_stay_and_the_one_that_is_idle_longest_goes() -> None:
    names = [f"persistent://public/default/idle-{number}" for number in range(4)]
    async with front_that_rests(idle_topics_loaded_max=2) as front:
        peer = await front.peer()
        for name in names:
            front.topics.assign(name, 1, load=False)
            await peer.producer(name)
            await peer.subscribe(name, "s")
            await leave(peer)
        await until(lambda: rests(front, names[0]) and rests(front, names[1]))
        await asyncio.sleep(0.1)
        assert all(name in front.topics.loaded for name in names[2:])
        await peer.close()


async def test_new_policies_load_a_resting_topic_only_if_they_give_it_something_to_do() -> None:
    async with front_that_rests() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 2)
        await leave(peer)
        await until(lambda: rests(front))
        front.topics.policies.take([("public/default", 1, {"max_producers_per_topic": 7})])
        await asyncio.sleep(0.05)
        assert rests(front)
        front.topics.policies.take([("public/default", 2, {"message_ttl": 100})])
        await until(lambda: TOPIC in front.topics.loaded)
        assert front.topic.policies.message_ttl == 100
        await peer.close()


async def test_a_topic_that_moves_away_leaves_nothing_behind() -> None:
    async with front_that_rests() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await leave(peer)
        await until(lambda: rests(front))
        front.topics.revoke(TOPIC)
        assert not front.topics.table.kept and not front.topics._idle._idle
        await peer.close()


async def test_a_client_that_comes_while_its_topic_goes_to_rest_is_served() -> None:
    async with front_that_rests(topic_idle_s=0.001) as front:
        peer = await front.peer()
        for round_ in range(30):
            assert (await peer.producer(TOPIC)).producer_name
            await peer.subscribe(TOPIC, "s")
            await publish(peer, TOPIC, 1, first=round_)
            await consume(peer, 1, acknowledged=1)
            await leave(peer)
            await asyncio.sleep(0.0005 * (round_ % 7))
        await peer.close()


async def test_a_topic_that_goes_to_rest_takes_no_client_from_that_step_on() -> None:
    async with front_that_rests(topic_idle_s=60.0) as front:
        peer = await front.peer()
        await peer.subscribe(TOPIC, "s")
        await peer.close()
        topic = front.topic
        await until(lambda: not topic.in_use)
        record = front.topics.table.find(TOPIC)
        assert record is not None
        closing = front.topics._go_to_rest(record, b"duties")
        with pytest.raises(ServiceUnitNotReady, match="is closing"):
            topic.check_open()
        await closing


@pytest.mark.promise("30.22")
async def test_the_next_owner_finds_a_topic_at_rest_and_one_that_was_opened_since() -> None:
    async with front_that_rests() as front:
        assert front.storage is not None
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 3)
        await leave(peer)
        await until(lambda: rests(front))
        (left,) = await left_behind(front.storage.metadata, [NAME.path])
        assert left == LeftBehind(duties_of(front.topics.policies.of(NAME), FEATURES), 0)
        front.topics.assign(TOPIC, 2, load=True)  # as its next owner gets it
        front.topics.revoke(TOPIC)
        front.topics.assign(TOPIC, 3, load=True)
        await until(lambda: rests(front))
        assert front.opened == [TOPIC]
        await peer.subscribe(TOPIC, "s")
        assert len(await consume(peer, 3, acknowledged=0)) == 3
        (left,) = await left_behind(front.storage.metadata, [NAME.path])
        assert not left.rests  # from here on a crash leaves a topic that its next owner loads
        await peer.close()


async def test_a_topic_with_an_open_ledger_is_not_left_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a ledger failed before, and its recovery did not succeed: the writer has nothing to close."""
    async with front_that_rests() as front:
        assert front.storage is not None

        async def close(writer: ChainWriter) -> None:
            """The ledger stays open."""

        monkeypatch.setattr(ChainWriter, "close", close)
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 2)
        await leave(peer)
        await until(lambda: rests(front))
        (left,) = await left_behind(front.storage.metadata, [NAME.path])
        assert not left.rests  # so its next owner loads it, and recovers the ledger
        await peer.close()


async def test_a_topic_whose_end_fails_is_not_left_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_that_rests() as front:
        assert front.storage is not None

        async def fails(cursor: Cursor) -> None:
            raise MetadataUnavailable("the coordinator is away")

        monkeypatch.setattr(Cursor, "close", fails)
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        await publish(peer, TOPIC, 3)
        await leave(peer)
        await until(lambda: rests(front))
        (left,) = await left_behind(front.storage.metadata, [NAME.path])
        assert not left.rests
        await peer.close()
