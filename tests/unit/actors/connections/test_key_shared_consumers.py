"""Key_Shared on a broker's connections: keys, refusals with Pulsar's words, figures."""

import pytest

from magnetar.actors.admin.topic_figures import topic_json
from magnetar.protocol.commands import ack
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
    MessageIdData,
    ServerError,
)
from support.clients.wire_peer import entry
from support.servers.broker_bench import TOPIC, broker_front, filled

KEY_SHARED = CommandSubscribe.Key_Shared


def sticky(*ranges, **fields):
    return KeySharedMeta(
        keySharedMode=KeySharedMode.STICKY, hashRanges=[IntRange(start=a, end=b) for a, b in ranges], **fields
    )


SPLIT = KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT)
OUT_OF_ORDER = KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT, allowOutOfOrderDelivery=True)


async def published(front, keys):
    """A peer that has published one entry for each key."""
    peer = await filled(front, 0)
    for index, key in enumerate(keys):
        peer.send_entry(entry(b"x", sequence_id=index, partition_key=key), index, producer_id=9)
    await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=len(keys) - 1)
    peer.received.clear()
    return peer


async def received(peer, count):
    """(consumer id, entry id) of so many messages."""
    frames = [(await peer.expect(BaseCommand.MESSAGE)).command.message for _ in range(count)]
    return [(frame.consumer_id, frame.message_id.entryId) for frame in frames]


@pytest.mark.promise("20.1", "20.2", "20.3", "20.4", "20.5", "20.7")
async def test_the_example_of_the_page_in_the_figures_of_the_topic():
    async with broker_front(key_shared_ring_points=10) as front:
        keys = "0123456789" * 2
        peer = await published(front, keys + "34789")
        await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED, consumer_name="c1")
        peer.flow(20, 1)
        assert await received(peer, 20) == [(1, index) for index in range(20)]
        await peer.subscribe(TOPIC, "s", 2, subType=KEY_SHARED, consumer_name="c2")
        peer.flow(100, 2)
        await peer.settle()
        assert not peer.received
        figures = topic_json(front.topic.describe())["subscriptions"]["s"]
        first, second = figures["consumers"]
        assert first["keyHashRangeArrays"] == [(2960, 5968), (22258, 43033), (49261, 54464), (55155, 61273)]
        assert first["keyHashRanges"] == ["[2960, 5968]", "[22258, 43033]", "[49261, 54464]", "[55155, 61273]"]
        assert second["keyHashRangeArrays"] == [
            (1, 2959),
            (5969, 22257),
            (43034, 49260),
            (54465, 55154),
            (61274, 65535),
        ]
        assert first["drainingHashesCount"] == figures["drainingHashesCount"] == 5
        assert first["drainingHashesUnackedMessages"] == figures["drainingHashesUnackedMessages"] == 10
        assert first["drainingHashesClearedTotal"] == 0
        assert first["drainingHashes"] == [
            {"hash": slot, "unackMsgs": 2, "blockedAttempts": 1} for slot in (2862, 11707, 15786, 43539, 45436)
        ]
        assert (second["drainingHashes"], second["drainingHashesCount"]) == ([], 0)
        assert (figures["type"], figures["keySharedMode"], figures["allowOutOfOrderDelivery"]) == (
            "Key_Shared",
            "AUTO_SPLIT",
            False,
        )
        peer.write(ack(1, [(1, 3), (1, 13)]))
        assert await received(peer, 1) == [(2, 20)]
        figures = topic_json(front.topic.describe())["subscriptions"]["s"]
        assert (figures["drainingHashesCount"], figures["drainingHashesClearedTotal"]) == (4, 1)
        await peer.close()


@pytest.mark.promise("18.3", "18.8")
@pytest.mark.parametrize("consistent, ranges", [(True, [(1, 65535)]), (False, [(0, 65535)])])
async def test_the_setting_chooses_how_hashes_are_split(consistent, ranges):
    async with broker_front(key_shared_consistent_hashing=consistent) as front:
        peer = await published(front, "a")
        await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED, keySharedMeta=SPLIT)
        figures = topic_json(front.topic.describe())["subscriptions"]["s"]
        assert figures["consumers"][0]["keyHashRangeArrays"] == ranges
        await peer.close()


@pytest.mark.parametrize(
    "first, second, error, text",
    [
        (
            SPLIT,
            sticky((0, 100)),
            ServerError.ConsumerBusy,
            "its connected consumers have the Key_Shared mode AUTO_SPLIT, and this one has STICKY: use AUTO_SPLIT, or "
            "close them first",
        ),
        (
            SPLIT,
            OUT_OF_ORDER,
            ServerError.ConsumerBusy,
            "its connected consumers do not allow delivery out of order, and this one does: leave that out, or close "
            "them first",
        ),
        (
            OUT_OF_ORDER,
            SPLIT,
            ServerError.ConsumerBusy,
            "its connected consumers allow delivery out of order, and this one does not: allow it, or close them first",
        ),
        (
            sticky((0, 100)),
            sticky((100, 200)),
            ServerError.ConsumerAssignError,
            "its hash ranges overlap with those of consumer c1: choose free ones",
        ),
        (
            sticky((0, 100)),
            sticky(),
            ServerError.ConsumerAssignError,
            "a STICKY consumer brings no hash ranges: give at least one",
        ),
    ],
)
async def test_a_consumer_that_does_not_fit_is_refused_and_leaves_no_trace(first, second, error, text):
    async with broker_front() as front:
        peer = await published(front, "a")
        await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED, keySharedMeta=first, consumer_name="c1")
        answer = await peer.subscribe(TOPIC, "s", 2, subType=KEY_SHARED, keySharedMeta=second)
        assert (answer.error, answer.message) == (error, f"subscription s of {TOPIC}: {text}")
        assert [one.consumer_id for one in front.topic.subscriptions["s", True].consumers] == [1]
        await peer.close()


@pytest.mark.promise("18.17")
async def test_a_refused_first_consumer_leaves_the_subscription_without_a_type():
    async with broker_front() as front:
        peer = await published(front, "a")
        answer = await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED, keySharedMeta=sticky((5, 1)))
        assert (answer.error, answer.message) == (
            ServerError.ConsumerAssignError,
            f"subscription s of {TOPIC}: the hash range [5, 1] ends before it begins: give its start first",
        )
        assert front.topic.subscriptions["s", True].type_name == ""
        await peer.subscribe(TOPIC, "s", 2)
        assert front.topic.subscriptions["s", True].type_name == "Exclusive"
        await peer.close()


async def test_a_sticky_consumer_whose_connection_is_dead_gives_way():
    async with broker_front(connection_liveness_timeout_ms=50) as front:
        dead = await front.peer(answer_pings=False)
        await dead.subscribe(TOPIC, "s", 1, subType=KEY_SHARED, keySharedMeta=sticky((0, 65535)))
        peer = await published(front, "a")
        await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED, keySharedMeta=sticky((0, 100)))
        assert len(front.topic.subscriptions["s", True].consumers) == 1
        await peer.close()
        await dead.close()


@pytest.mark.promise("5.3", "19.10")
async def test_cumulative_acknowledgement_acknowledges_nothing():
    async with broker_front() as front:
        peer = await published(front, "ab")
        await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED)
        peer.flow(10)
        await received(peer, 2)
        peer.write(ack(1, [(1, 1)], cumulative=True, request_id=peer.next_request()))
        answer = await peer.expect(BaseCommand.ACK_RESPONSE)
        assert isinstance(answer, CommandAckResponse) and not answer.HasField("error")
        assert front.topic.subscriptions["s", True].cursor.backlog_entries == 2
        assert CommandAck.Cumulative == 1
        await peer.close()


async def test_entries_of_a_key_do_not_overtake_one_that_cannot_be_read_yet():
    async with broker_front() as front:
        peer = await published(front, "a" * 12)
        await peer.subscribe(TOPIC, "s", 1, subType=KEY_SHARED)
        peer.flow(100)
        await received(peer, 12)
        front.ledger.unreadable = {(1, 1)}
        again = [MessageIdData(ledgerId=1, entryId=index) for index in (0, 1, 11)]  # two range reads: 11 is far away
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=again))
        assert await received(peer, 1) == [(1, 0)]
        front.ledger.unreadable.clear()
        assert await received(peer, 2) == [(1, 1), (1, 11)]
        await peer.close()
