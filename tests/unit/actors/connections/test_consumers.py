"""Consumers on a broker's connections: subscribing, permits, acknowledging, redelivery, seeking, leaving."""

import asyncio

import pytest

from magnetar.actors.admin.topic_figures import topic_json
from magnetar.protocol.commands import ack
from magnetar.protocol.errors import BrokerPersistenceError, OutcomeUnknown
from magnetar.protocol.message_id import WireMessageId
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    KeyValue,
    MessageIdData,
    ServerError,
)
from support.clients.wire_peer import entry
from support.servers.broker_bench import TOPIC, broker_front, cursor, filled, until

SHARED = CommandSubscribe.Shared


def ids(*entries):
    return [MessageIdData(ledgerId=1, entryId=index) for index in entries]


# -- subscribing -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("14.1")
async def test_messages_come_as_sent_within_permits():
    async with broker_front() as front:
        peer = await filled(front, 4, messages=3)
        await peer.subscribe(TOPIC, "s")
        peer.flow(4)
        frame = await peer.expect(BaseCommand.MESSAGE)
        assert frame.entry == front.ledger.entries[0][1]
        assert frame.command.message.consumer_id == 1
        await peer.expect(BaseCommand.MESSAGE)
        await peer.settle()
        await asyncio.sleep(0.01)
        assert not peer.received  # two batches of three used four permits
        peer.flow(6)
        assert [index for index, _ in await peer.messages(2)] == [2, 3]
        await peer.close()


async def test_a_waiting_consumer_gets_what_is_published_later():
    async with broker_front() as front:
        peer = await filled(front, 0)
        await peer.subscribe(TOPIC, "s")
        peer.flow(1000)
        for index in range(5):
            peer.send_entry(entry(), index, producer_id=9)
        assert [index for index, _ in await peer.messages(5)] == [0, 1, 2, 3, 4]
        await peer.close()


@pytest.mark.stalls
@pytest.mark.parametrize("news", ["on its way", "lost", "of an entry confirmed behind the look"])
async def test_only_dispatch_that_nobody_will_wake_has_stalled(news, caplog):
    async with broker_front() as front:
        peer = await filled(front, 1)
        await peer.subscribe(TOPIC, "s")
        peer.flow(10)
        await peer.messages(1)
        await peer.settle()
        if behind := news.startswith("of an entry"):
            front.topic.check()
        # A second entry is confirmed; the listeners hear of it in the loop's next turn, or never.
        front.ledger.entries.append(((1, 1), front.ledger.entries[0][1]))
        if news != "lost":
            for listener in front.ledger.on_appended:
                asyncio.get_running_loop().call_soon(listener)
        if not behind:
            front.topic.check()
        assert [index for index, _ in await peer.messages(1)] == [1]
        assert ("had stalled" in caplog.text) == (news == "lost")
        await peer.close()


async def test_dispatch_whose_last_entries_are_compacted_away_has_not_stalled(monkeypatch):
    """The fixture `no_dispatch_stalls` sees whether the broker says that it has."""
    async with broker_front() as front:
        peer = await filled(front, 2)

        async def read(first, entries_max, bytes_max):
            return await front.ledger.read(max(first, (1, 2)), entries_max, bytes_max)

        monkeypatch.setattr(front.ledger.compacted, "horizon", (1, 1))
        monkeypatch.setattr(front.ledger.compacted, "read", read)
        await peer.subscribe(TOPIC, "s", read_compacted=True)
        peer.flow(10)
        await peer.settle()
        await asyncio.sleep(0.01)
        front.topic.check()
        await asyncio.sleep(0.01)
        peer.send_entry(entry(), 2, producer_id=9)
        assert [index for index, _ in await peer.messages(1)] == [2]
        await peer.close()


async def test_exclusive_takes_one_consumer_and_a_type_lasts_until_all_have_left():
    async with broker_front() as front:
        one, two = await filled(front, 1), await front.peer()
        await one.subscribe(TOPIC, "s")
        assert (await two.subscribe(TOPIC, "s")).error == ServerError.ConsumerBusy
        assert (await two.subscribe(TOPIC, "s", subType=SHARED)).error == ServerError.ConsumerBusy
        await two.subscribe(TOPIC, "other", 2)
        await one.request(CommandCloseConsumer(consumer_id=1, request_id=0))
        assert not hasattr(await two.subscribe(TOPIC, "s", subType=SHARED), "error")
        await one.subscribe(TOPIC, "s", subType=SHARED)
        assert len(front.topic.subscriptions["s", True].consumers) == 2
        await one.close()
        await two.close()


@pytest.mark.promise("16.5")
@pytest.mark.parametrize("fields", [{"name": ""}, {"read_compacted": True, "subType": SHARED}])
async def test_what_no_subscription_can_be_is_refused_and_leaves_no_trace(fields):
    async with broker_front() as front:
        peer = await front.peer()
        error = await peer.subscribe(TOPIC, fields.pop("name", "s"), **fields)
        assert error.error == ServerError.NotAllowedError
        assert not front.topics.loaded
        await peer.close()


async def test_subscribing_again_with_the_same_id_is_answered_again():
    async with broker_front() as front:
        peer = await filled(front, 0)
        front.open_gate.clear()
        peer.send(CommandSubscribe(topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=50))
        await peer.answer(50)
        assert not hasattr(await peer.subscribe(TOPIC, "s"), "error")
        assert len(front.topic.subscriptions["s", True].consumers) == 1
        await peer.close()


async def test_a_consumer_or_producer_closed_while_it_is_created_is_not_left_attached():
    async with broker_front() as front:
        peer = await front.peer()
        front.open_gate.clear()
        peer.send(CommandSubscribe(topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=50))
        again = await peer.subscribe(TOPIC, "s")
        assert again.error == ServerError.ServiceNotReady
        await peer.request(CommandCloseConsumer(consumer_id=1, request_id=0))
        front.open_gate.set()
        await until(lambda: TOPIC in front.topics.loaded and not len(front.requests))
        assert not front.topic.subscriptions["s", True].consumers
        await peer.close()


async def test_initial_positions():
    async with broker_front() as front:
        peer = await filled(front, 5)
        front.ledger.publish_times = {(1, index): 1 if index < 3 else 1 << 60 for index in range(5)}
        await peer.subscribe(TOPIC, "earliest", 1)
        await peer.subscribe(TOPIC, "latest", 2, initialPosition=CommandSubscribe.Latest)
        await peer.subscribe(TOPIC, "back", 3, start_message_rollback_duration_sec=60)
        expected = {"earliest": (1, 0), "latest": (1, 5), "back": (1, 3)}
        for name, position in expected.items():
            assert (await cursor(front, name)).first_unacknowledged == position
        await peer.close()


# -- acknowledging ---------------------------------------------------------------------------------------------------


async def test_acknowledged_messages_do_not_come_again():
    async with broker_front() as front:
        peer = await filled(front, 5)
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        await peer.messages(5)
        peer.write(ack(1, [(1, 0), (1, 1), (1, 3), (1, 77), (9, 9), (1 << 63, 0)]))
        await peer.settle()
        assert (await cursor(front)).mark_delete_position == (1, 1)
        await peer.request(CommandCloseConsumer(consumer_id=1, request_id=0))
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        assert [index for index, _ in await peer.messages(2)] == [2, 4]
        await peer.close()


@pytest.mark.promise("5.3")
async def test_cumulative_acknowledgement_and_its_limits():
    async with broker_front() as front:
        peer = await filled(front, 5, messages=3)
        await peer.subscribe(TOPIC, "s")
        peer.write(ack(1, [(1, 2)], cumulative=True))
        await peer.settle()
        assert (await cursor(front)).mark_delete_position == (1, 2)
        peer.send(CommandAck(consumer_id=1, ack_type=1, message_id=[MessageIdData(ledgerId=1, entryId=4, ack_set=[6])]))
        await peer.settle()
        assert (await cursor(front)).mark_delete_position == (1, 3)  # a part of batch 4 is left
        beyond = await peer.request(CommandAck(consumer_id=1, ack_type=1, message_id=ids(50), request_id=0))
        assert beyond.error == ServerError.NotAllowedError
        await peer.subscribe(TOPIC, "shared", 2, subType=SHARED)
        ignored = await peer.request(CommandAck(consumer_id=2, ack_type=1, message_id=ids(0), request_id=0))
        assert not ignored.HasField("error") and ignored.consumer_id == 2  # as Pulsar does
        assert (await cursor(front, "shared")).mark_delete_position == (1, -1)
        await peer.close()


@pytest.mark.promise("11.5")
async def test_a_partly_acknowledged_batch_stays():
    async with broker_front() as front:
        peer = await filled(front, 2, messages=3)
        await peer.subscribe(TOPIC, "s")
        peer.send(CommandAck(consumer_id=1, ack_type=0, message_id=[MessageIdData(ledgerId=1, entryId=0, ack_set=[6])]))
        await peer.settle()
        assert (await cursor(front)).mark_delete_position == (1, -1)
        peer.send(CommandAck(consumer_id=1, ack_type=0, message_id=[MessageIdData(ledgerId=1, entryId=0, ack_set=[0])]))
        await peer.settle()
        assert (await cursor(front)).mark_delete_position == (1, 0)
        await peer.close()


async def test_an_acknowledgement_receipt_follows_the_durable_write():
    async with broker_front() as front:
        peer = await filled(front, 1)
        await peer.subscribe(TOPIC, "s")
        (await cursor(front)).flush_allowed.clear()
        peer.write(ack(1, [(1, 0)], request_id=70))
        await peer.settle()
        assert not peer.received
        (await cursor(front)).flush_allowed.set()
        answer = await peer.answer(70)
        assert not answer.HasField("error") and answer.consumer_id == 1
        gone = await peer.request(CommandAck(consumer_id=5, ack_type=0, message_id=ids(0), request_id=0))
        assert gone.error == ServerError.ConsumerNotFound
        await peer.close()


# -- redelivery ------------------------------------------------------------------------------------------------------


async def test_shared_redelivers_what_is_asked_for_with_its_count():
    async with broker_front() as front:
        peer = await filled(front, 4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        await peer.messages(4)
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids(3, 1)))
        assert await peer.messages(2) == [(1, 1), (3, 1)]
        peer.write(ack(1, [(1, 0)]))
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await peer.messages(3) == [(1, 2), (2, 1), (3, 2)]
        await peer.close()


@pytest.mark.promise("6.5")
async def test_exclusive_redelivers_from_the_first_unacknowledged_message_with_the_epoch():
    async with broker_front() as front:
        peer = await filled(front, 4)
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        await peer.messages(4)
        peer.write(ack(1, [(1, 0)]))
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids(3), consumer_epoch=7))
        message = (await peer.expect(BaseCommand.MESSAGE)).command.message
        assert (message.message_id.entryId, message.consumer_epoch) == (1, 7)
        assert [index for index, _ in await peer.messages(2)] == [2, 3]
        await peer.close()


@pytest.mark.parametrize(("subscribed_with", "sent"), [(None, None), ((1 << 64) - 1, None), (0, 0), (3, 3)])
async def test_messages_carry_the_epoch_that_their_consumer_subscribed_with(subscribed_with, sent):
    """Also 0: else a client could not tell what was sent before its first redelivery. −1 is the Java client's none."""
    epoch = {} if subscribed_with is None else {"consumer_epoch": subscribed_with}
    async with broker_front() as front:
        peer = await filled(front, 1)
        await peer.subscribe(TOPIC, "s", **epoch)
        peer.flow(100)
        message = (await peer.expect(BaseCommand.MESSAGE)).command.message
        assert (message.consumer_epoch if message.HasField("consumer_epoch") else None) == sent
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=5))
        assert (await peer.expect(BaseCommand.MESSAGE)).command.message.consumer_epoch == 5
        await peer.close()


async def test_a_lost_consumers_messages_go_to_the_others_in_order():
    async with broker_front() as front:
        one, two = await filled(front, 10), await front.peer()
        await one.subscribe(TOPIC, "s", subType=SHARED)
        await two.subscribe(TOPIC, "s", subType=SHARED)
        one.flow(100)
        await one.messages(10)
        two.flow(100)
        await two.settle()
        await one.close()
        assert [index for index, _ in await two.messages(10)] == list(range(10))
        await two.close()


async def test_a_failed_read_is_tried_again():
    async with broker_front() as front:
        peer = await filled(front, 3)
        front.ledger.fail_reads = [BrokerPersistenceError("no bookie"), BrokerPersistenceError("still none")]
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        assert [index for index, _ in await peer.messages(3)] == [0, 1, 2]
        await peer.close()


# -- seeking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "first"),
    [
        ({"message_id": MessageIdData(ledgerId=1, entryId=2)}, 2),
        ({"message_id": WireMessageId.earliest.to_data()}, 0),
        ({"message_publish_time": 30}, 3),
    ],
)
async def test_seek_sends_consumers_away_first_and_is_inclusive(target, first):
    async with broker_front() as front:
        peer, other = await filled(front, 5), await front.peer()
        front.ledger.publish_times = {(1, index): index * 10 for index in range(5)}
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        await other.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        await peer.messages(5)
        peer.write(ack(1, [(1, index) for index in range(5)]))
        peer.send(CommandSeek(consumer_id=1, request_id=90, **target))
        assert not hasattr(await peer.answer(90), "error")
        assert [frame.command.type for frame in peer.received] == [BaseCommand.CLOSE_CONSUMER]  # it came first
        await other.expect(BaseCommand.CLOSE_CONSUMER)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        assert [index for index, _ in await peer.messages(5 - first)] == list(range(first, 5))
        await peer.close()
        await other.close()


async def test_a_seek_without_target_or_consumer_is_an_error():
    async with broker_front() as front:
        peer = await filled(front, 0)
        assert (await peer.request(CommandSeek(consumer_id=1, request_id=0))).error == ServerError.MetadataError
        await peer.subscribe(TOPIC, "s")
        assert (await peer.request(CommandSeek(consumer_id=1, request_id=0))).error == ServerError.MetadataError
        await peer.close()


async def test_a_failed_seek_is_an_unknown_error_as_pulsars(monkeypatch):
    async with broker_front() as front:
        peer = await filled(front, 3)
        await peer.subscribe(TOPIC, "s")

        async def fail(position):
            raise BrokerPersistenceError("no bookie")

        monkeypatch.setattr(await cursor(front), "reset", fail)
        seek = CommandSeek(consumer_id=1, request_id=0, message_id=MessageIdData(ledgerId=1, entryId=2))
        refused = await peer.request(seek)
        assert refused.error == ServerError.UnknownError
        assert refused.message == "Error when resetting subscription: no bookie"
        await peer.close()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"metadata": [KeyValue(key="k" * 512, value="v" * 512)]}, None),
        ({"metadata": [KeyValue(key="k" * 512, value="v" * 513)]}, ServerError.MetadataError),
        ({"metadata": [KeyValue(key=f"{n}", value="v" * 99) for n in range(11)]}, ServerError.MetadataError),
        ({"subscription_properties": [KeyValue(key="k", value="v" * 16_000)]}, None),
        ({"subscription_properties": [KeyValue(key="k", value="v" * 17_000)]}, ServerError.MetadataError),
    ],
)
async def test_metadata_and_properties_of_a_consumer_are_bounded(fields, error):
    async with broker_front() as front:
        peer = await filled(front, 0)
        options = {"topic": TOPIC, "subscription": "s", "subType": SHARED, "consumer_id": 1, "request_id": 7}
        peer.send(CommandSubscribe(**options, **fields))
        answer = await peer.answer(7)
        assert getattr(answer, "error", None) == error
        assert bool(front.topics.loaded and front.topic.subscriptions) == (error is None)
        await peer.close()


async def test_figures_of_one_consumer():
    async with broker_front() as front:
        peer = await filled(front, 4, messages=2)
        await peer.subscribe(TOPIC, "s", subType=SHARED, consumer_name="me")
        peer.flow(5)
        await peer.messages(3)
        peer.write(ack(1, [(1, 0)]))
        stats = await peer.request(CommandConsumerStats(consumer_id=1, request_id=0))
        assert not stats.HasField("error_code")
        assert (stats.consumerName, stats.type, stats.unackedMessages, stats.msgBacklog) == ("me", "Shared", 4, 3)
        assert stats.availablePermits == (1 << 64) - 1 and not stats.blockedConsumerOnUnackedMsgs
        assert stats.address and stats.connectedSince
        missing = await peer.request(CommandConsumerStats(consumer_id=5, request_id=0))
        assert missing.error_code == ServerError.ConsumerNotFound
        await peer.subscribe(TOPIC, "exclusive", 2)
        peer.flow(5, consumer_id=2)
        await peer.messages(3)
        stats = await peer.request(CommandConsumerStats(consumer_id=2, request_id=0))
        assert (stats.type, stats.unackedMessages) == ("Exclusive", 0)  # Pulsar counts them for Shared only
        await peer.close()


async def test_an_entry_may_hold_another_number_of_messages_than_its_command_says():
    async with broker_front() as front:
        peer = await filled(front, 0)
        for index, said in enumerate((1, 5)):
            peer.send_entry(entry(b"abc", sequence_id=index, messages=3), index, producer_id=9, messages=said)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=1)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(4)
        await peer.messages(2)
        assert front.topic.describe().subscriptions[0].unacked_messages == 6
        await peer.close()


# -- ends ------------------------------------------------------------------------------------------------------------


async def test_last_message_id_names_the_last_of_a_batch_and_the_mark_delete_position():
    async with broker_front() as front:
        peer = await filled(front, 0)
        await peer.subscribe(TOPIC, "s")
        empty = await peer.request(CommandGetLastMessageId(consumer_id=1, request_id=0))
        assert WireMessageId.from_data(empty.last_message_id) == WireMessageId.earliest
        peer.send_entry(entry(), 0, producer_id=9)
        await peer.expect(BaseCommand.SEND_RECEIPT)
        single = await peer.request(CommandGetLastMessageId(consumer_id=1, request_id=0))
        assert WireMessageId.from_data(single.last_message_id) == WireMessageId(1, 0)
        peer.send_entry(entry(messages=3), 1, producer_id=9, messages=3)
        await peer.expect(BaseCommand.SEND_RECEIPT)
        peer.write(ack(1, [(1, 0)]))
        batch = await peer.request(CommandGetLastMessageId(consumer_id=1, request_id=0))
        assert WireMessageId.from_data(batch.last_message_id) == WireMessageId(1, 1, batch_index=2)
        assert WireMessageId.from_data(batch.consumer_mark_delete_position).position == (1, 0)
        await peer.close()


async def test_unsubscribe_removes_the_subscription_unless_others_use_it():
    async with broker_front() as front:
        one, two = await filled(front, 1), await front.peer()
        await one.subscribe(TOPIC, "s", subType=SHARED)
        await two.subscribe(TOPIC, "s", subType=SHARED)
        refused = await one.request(CommandUnsubscribe(consumer_id=1, request_id=0))
        assert refused.error == ServerError.MetadataError
        await two.request(CommandCloseConsumer(consumer_id=1, request_id=0))
        assert not hasattr(await one.request(CommandUnsubscribe(consumer_id=1, request_id=0)), "error")
        assert not front.topic.subscriptions and not front.ledger.cursors
        missing = await one.request(CommandUnsubscribe(consumer_id=1, request_id=0))
        assert missing.error == ServerError.MetadataError
        await one.subscribe(TOPIC, "s", subType=SHARED)
        await two.subscribe(TOPIC, "s", subType=SHARED)
        await one.request(CommandUnsubscribe(consumer_id=1, request_id=0, force=True))
        await two.expect(BaseCommand.CLOSE_CONSUMER)
        assert not front.topic.subscriptions
        await one.close()
        await two.close()


async def test_a_topic_whose_cursor_may_or_may_not_be_deleted_is_loaded_anew():
    async with broker_front() as front:
        one, two = await filled(front, 1), await front.peer()
        await one.subscribe(TOPIC, "s")
        await two.subscribe(TOPIC, "other")
        before = front.topic
        front.ledger.fail_deletes = OutcomeUnknown("the coordinator went away")
        refused = await one.request(CommandUnsubscribe(consumer_id=1, request_id=0))
        assert refused.error == ServerError.MetadataError
        await two.expect(BaseCommand.CLOSE_CONSUMER)
        await two.subscribe(TOPIC, "other")
        assert front.topic is not before
        await one.expect(BaseCommand.CLOSE_CONSUMER)
        front.ledger.fail_deletes = None
        await one.subscribe(TOPIC, "s")
        done = await one.request(CommandUnsubscribe(consumer_id=1, request_id=0))
        assert done.DESCRIPTOR.name == "CommandSuccess"
        await one.close()
        await two.close()


@pytest.mark.promise("11.3", "20.8")
async def test_statistics_use_pulsars_names():
    async with broker_front() as front:
        peer = await filled(front, 4, messages=2)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(4)
        await peer.messages(2)
        stats = topic_json(front.topic.describe())
        assert (stats["msgInCounter"], stats["msgOutCounter"]) == (8, 4)
        assert stats["bytesInCounter"] == stats["storageSize"]
        subscription = stats["subscriptions"]["s"]
        assert (subscription["type"], subscription["msgBacklog"], subscription["unackedMessages"]) == ("Shared", 4, 4)
        assert subscription["consumers"][0]["availablePermits"] == 0
        assert stats["publishers"][0]["producerName"] == "generated-1"
        await peer.close()
