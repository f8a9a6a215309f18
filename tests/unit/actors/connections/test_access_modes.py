"""Producer access modes on the wire: what each producer is told, and when."""

import asyncio

import pytest

from magnetar.protocol.errors import MetadataUnavailable
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandCloseProducer, ServerError
from support.clients.wire_peer import entry
from support.servers.broker_bench import TOPIC, broker_front, until

SHARED, EXCLUSIVE, WAIT, FENCING = range(4)


async def producer(peer, producer_id, mode, **fields):
    fields.setdefault("producer_name", f"p{producer_id}")
    fields.setdefault("user_provided_producer_name", True)
    return await peer.producer(TOPIC, producer_id, producer_access_mode=mode, **fields)


@pytest.mark.promise("4.2")
async def test_a_grant_names_its_epoch_and_the_others_get_pulsars_errors():
    async with broker_front() as front:
        peer = await front.peer()
        granted = await producer(peer, 1, EXCLUSIVE)
        assert granted.producer_ready and granted.topic_epoch == 0
        assert front.ledger.topic_epoch.writes == [0]
        refused = await producer(peer, 2, EXCLUSIVE)
        assert (refused.error, refused.message) == (
            ServerError.ProducerFenced,
            f"producer p1 holds {TOPIC} alone, or waits for that: close it first",
        )
        assert (await producer(peer, 3, SHARED)).error == ServerError.ProducerBusy
        peer.send_entry(entry(), 0)
        await peer.expect(BaseCommand.SEND_RECEIPT, producer_id=1)
        await peer.close()


@pytest.mark.promise("4.5")
async def test_a_waiting_producer_is_answered_at_once_and_again_when_it_has_access():
    async with broker_front() as front:
        peer, other = await front.peer(), await front.peer()
        await producer(peer, 1, SHARED)
        queued = await producer(other, 2, WAIT)
        assert not queued.producer_ready and not queued.HasField("topic_epoch")
        assert front.topic.describe().waiting_producers == 1
        await peer.request(CommandCloseProducer(producer_id=1))
        granted = await other.expect(BaseCommand.PRODUCER_SUCCESS, request_id=queued.request_id)
        assert granted.producer_ready and granted.topic_epoch == 0
        other.send_entry(entry(), 0, producer_id=2)
        await other.expect(BaseCommand.SEND_RECEIPT, producer_id=2)
        figures = front.topic.describe()
        assert [one.access_mode for one in figures.producers] == ["WaitForExclusive"]
        assert (figures.topic_epoch, figures.waiting_producers) == (0, 0)
        await peer.close()
        await other.close()


async def test_waiting_producers_leave_the_queue_with_their_client_or_when_it_closes_them():
    async with broker_front() as front:
        holder, peer, gone = await front.peer(), await front.peer(), await front.peer()
        await producer(holder, 1, EXCLUSIVE)
        await producer(gone, 2, WAIT)
        await producer(peer, 3, WAIT)
        last = await producer(peer, 4, WAIT)
        await gone.close()
        await peer.request(CommandCloseProducer(producer_id=3))
        await until(lambda: front.topic.describe().waiting_producers == 1)
        await holder.close()
        assert (await peer.expect(BaseCommand.PRODUCER_SUCCESS)).request_id == last.request_id
        await peer.close()


@pytest.mark.promise("4.4")
async def test_fencing_sends_the_holder_away_and_fails_all_that_wait():
    async with broker_front() as front:
        old, waits, new = await front.peer(), await front.peer(), await front.peer()
        await producer(old, 1, EXCLUSIVE)
        queued = await producer(waits, 2, WAIT)
        assert (await producer(new, 3, FENCING)).topic_epoch == 1
        await old.expect(BaseCommand.CLOSE_PRODUCER, producer_id=1)
        fenced = await waits.expect(BaseCommand.ERROR, request_id=queued.request_id)
        assert fenced.error == ServerError.ProducerFenced
        returns = await producer(old, 4, EXCLUSIVE, topic_epoch=0, epoch=1)
        assert (returns.error, returns.message) == (
            ServerError.ProducerFenced,
            f"the topic epoch of {TOPIC} is 1, and the producer had access in epoch 0: create a new producer",
        )
        for peer in (old, waits, new):
            await peer.close()


@pytest.mark.promise("4.4")
async def test_entries_of_a_fenced_producer_that_are_under_way_get_no_receipt():
    async with broker_front() as front:
        old, new = await front.peer(), await front.peer()
        await producer(old, 1, EXCLUSIVE)
        front.ledger.hold()
        old.send_entry(entry(), 0)
        await old.settle()
        await producer(new, 2, FENCING)
        old.send_entry(entry(), 1)
        new.send_entry(entry(b"new"), 0, producer_id=2)
        await old.settle()
        front.ledger.release()
        await new.expect(BaseCommand.SEND_RECEIPT, producer_id=2)
        await old.settle()
        assert [one.command.type for one in old.received] == [BaseCommand.CLOSE_PRODUCER]
        assert len(front.ledger.entries) == 2
        await old.close()
        await new.close()


async def test_a_producer_gets_access_only_when_its_epoch_is_stored():
    async with broker_front() as front:
        peer = await front.peer()
        await producer(peer, 9, SHARED)
        await peer.request(CommandCloseProducer(producer_id=9))
        epochs = front.ledger.topic_epoch
        epochs.allowed.clear()
        asking = asyncio.create_task(producer(peer, 1, EXCLUSIVE))
        await until(lambda: epochs.writes)
        assert not front.topic.publishing.producers
        epochs.allowed.set()
        assert (await asking).topic_epoch == 0
        await peer.close()


async def test_an_epoch_that_cannot_be_stored_refuses_the_producer_and_is_not_used_again():
    async with broker_front() as front:
        peer = await front.peer()
        await producer(peer, 9, SHARED)
        await peer.request(CommandCloseProducer(producer_id=9))
        front.ledger.topic_epoch.fail = MetadataUnavailable("away")
        refused = await producer(peer, 1, EXCLUSIVE)
        assert refused.error == MetadataUnavailable.server_error
        assert not front.topic.publishing.producers
        front.ledger.topic_epoch.fail = None
        assert (await producer(peer, 2, EXCLUSIVE)).topic_epoch == 1
        await peer.close()


async def test_one_that_waits_is_told_when_its_epoch_cannot_be_stored():
    async with broker_front() as front:
        holder, peer = await front.peer(), await front.peer()
        await producer(holder, 1, EXCLUSIVE)
        queued = await producer(peer, 2, WAIT)
        front.ledger.topic_epoch.fail = MetadataUnavailable("away")
        await holder.close()
        assert (await peer.expect(BaseCommand.ERROR)).request_id == queued.request_id
        front.ledger.topic_epoch.fail = None
        assert (await producer(peer, 3, WAIT)).producer_ready
        await peer.close()


async def test_a_holder_that_is_fenced_out_while_its_epoch_is_stored_is_told_so():
    async with broker_front() as front:
        peer, other = await front.peer(), await front.peer()
        await producer(peer, 9, SHARED)
        await peer.request(CommandCloseProducer(producer_id=9))
        epochs = front.ledger.topic_epoch
        epochs.allowed.clear()
        early = asyncio.create_task(producer(peer, 1, EXCLUSIVE))
        await until(lambda: len(epochs.writes) == 1)
        late = asyncio.create_task(producer(other, 2, FENCING))
        await until(lambda: len(epochs.writes) == 2)
        epochs.allowed.set()
        assert (await early).error == ServerError.ProducerFenced
        assert (await late).topic_epoch == 1
        assert list(front.topic.publishing.producers) == ["p2"]
        await peer.close()
        await other.close()


@pytest.mark.promise("4.3")
async def test_a_holder_whose_connection_is_dead_is_evicted_for_a_newcomer():
    async with broker_front(connection_liveness_timeout_ms=50) as front:
        dead, waits = await front.peer(answer_pings=False), await front.peer()
        await producer(dead, 1, EXCLUSIVE)
        assert (await producer(waits, 2, EXCLUSIVE)).topic_epoch == 1
        await dead.wait_ended()
        await dead.close()
        await waits.close()


@pytest.mark.promise("4.3")
async def test_a_holder_whose_connection_is_dead_is_evicted_for_one_that_waits():
    async with broker_front(connection_liveness_timeout_ms=50) as front:
        dead, waits = await front.peer(answer_pings=False), await front.peer()
        await producer(dead, 1, EXCLUSIVE)
        queued = await producer(waits, 2, WAIT)
        assert not queued.producer_ready
        assert (await waits.expect(BaseCommand.PRODUCER_SUCCESS, request_id=queued.request_id)).topic_epoch == 1
        await dead.close()
        await waits.close()


async def test_a_holder_that_comes_back_before_the_broker_missed_it_keeps_its_epoch():
    async with broker_front() as front:
        first, second = await front.peer(), await front.peer()
        await producer(first, 1, EXCLUSIVE, producer_name="p")
        again = await producer(second, 2, EXCLUSIVE, producer_name="p", topic_epoch=0, epoch=1)
        assert again.topic_epoch == 0
        await first.expect(BaseCommand.CLOSE_PRODUCER, producer_id=1)
        assert front.ledger.topic_epoch.writes == [0]
        await first.close()
        await second.close()


async def test_a_waiting_producer_that_comes_back_keeps_its_place():
    async with broker_front() as front:
        holder, first, second = await front.peer(), await front.peer(), await front.peer()
        await producer(holder, 1, EXCLUSIVE)
        generated = {"producer_name": "w", "user_provided_producer_name": False}
        await producer(first, 2, WAIT, **generated)
        await producer(first, 3, WAIT)
        again = await producer(second, 4, WAIT, epoch=1, **generated)
        await first.expect(BaseCommand.CLOSE_PRODUCER, producer_id=2)
        await holder.close()
        assert (await second.expect(BaseCommand.PRODUCER_SUCCESS)).request_id == again.request_id
        for peer in (first, second):
            await peer.close()


async def test_a_topic_that_closes_sends_waiting_producers_away_to_come_back():
    async with broker_front() as front:
        holder, peer = await front.peer(), await front.peer()
        await producer(holder, 1, EXCLUSIVE)
        await producer(peer, 2, WAIT)
        await front.topics.release(TOPIC)
        await peer.expect(BaseCommand.CLOSE_PRODUCER, producer_id=2)
        await peer.settle()
        assert not peer.received
        await holder.close()
        await peer.close()


async def test_shared_producers_learn_the_epoch_of_the_last_grant():
    async with broker_front() as front:
        peer = await front.peer()
        assert not (await producer(peer, 1, SHARED)).HasField("topic_epoch")
        await peer.request(CommandCloseProducer(producer_id=1))
        await producer(peer, 2, EXCLUSIVE)
        await peer.request(CommandCloseProducer(producer_id=2))
        assert (await producer(peer, 3, SHARED)).topic_epoch == 0
        await peer.close()
