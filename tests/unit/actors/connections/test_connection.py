"""A broker's connections, frame by frame: what well-behaved and other clients get."""

import asyncio

import pytest

from magnetar.actors.broker.service import COMMAND_FAMILIES
from magnetar.actors.connections.connection import ServerConnectionState
from magnetar.actors.connections.link import CommandFamily, Guarded, of_own
from magnetar.protocol.commands import encode, send_header
from magnetar.protocol.errors import BrokerPersistenceError
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandEndTxnOnPartition,
    CommandEndTxnOnPartitionResponse,
    CommandError,
    CommandNewTxn,
    CommandProducer,
    CommandSuccess,
    CommandTcClientConnectRequest,
    ServerError,
)
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import TOPIC, broker_front, until


async def published(front, count, **fields):
    """Publish entries through a connection of its own."""
    peer = await front.peer()
    await peer.producer(TOPIC)
    for index in range(count):
        peer.send_entry(entry(b"%d" % index, sequence_id=index, **fields), index)
    for index in range(count):
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=index)
    return peer


# -- handshake and violations --------------------------------------------------------------------------------------


async def test_connect_tells_versions_and_the_largest_message():
    async with broker_front() as front:
        peer = await front.peer(connect=False)
        peer.send(CommandConnect(client_version="x", protocol_version=99, auth_method_name="token", auth_data=b"t"))
        connected = await peer.expect(BaseCommand.CONNECTED)
        assert connected.max_message_size == 5_242_880
        assert connected.protocol_version == 21
        await peer.close()


@pytest.mark.parametrize(
    "data",
    [
        encode(CommandProducer(topic="t", producer_id=1, request_id=1)),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x05\x00\x00\x00\x01\x00",
        b"\x00\x00\x00\x02ab",
    ],
    ids=["command before connect", "size over the limit", "no command", "too short"],
)
async def test_violations_before_connect_close_the_connection(data):
    async with broker_front() as front:
        peer = await front.peer(connect=False)
        peer.write(data)
        await peer.wait_ended()
        assert not front.connections
        await peer.close()


@pytest.mark.parametrize(
    "data",
    [
        encode(CommandConnect(client_version="again")),
        b"\x00\x60\x00\x00",
        send_header(77, 0, 0, 1, len(entry())) + entry(),
        b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x7f\x10\x01",
    ],
    ids=["second connect", "frame over the limit", "unknown producer", "unknown command"],
)
async def test_violations_after_connect_close_the_connection_and_nothing_else(data):
    async with broker_front() as front:
        bystander = await front.peer()
        peer = await front.peer()
        await peer.producer(TOPIC)
        peer.write(data)
        await peer.wait_ended()
        assert list(front.topic.publishing.producers) == []
        await bystander.settle()
        await peer.close()
        await bystander.close()


async def test_a_peer_that_leaves_in_mid_frame_leaves_nothing_behind():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        peer.write(b"\x00\x00\x10\x00\x00")
        await peer.close()
        await until(lambda: not front.connections)
        assert not front.topic.publishing.producers and not front.topic.subscriptions["s", True].consumers
        assert len(front.requests) == 0


async def test_what_is_not_supported_is_refused_in_the_type_that_its_client_waits_for():
    async with broker_front() as front:
        peer = await front.peer()
        for request, kind, text in (
            (CommandEndTxnOnPartition(topic=TOPIC), CommandEndTxnOnPartitionResponse, "is not supported"),
            (CommandNewTxn(), CommandError, "Transactions are not enabled."),
            (CommandTcClientConnectRequest(tc_id=0), CommandError, "Transactions are not enabled."),
        ):
            error = await peer.request(request)
            assert type(error) is kind and error.error == ServerError.NotAllowedError
            assert text in error.message
        peer.send(CommandSuccess(request_id=5))  # an answer nobody asked for
        await peer.settle()
        await peer.close()


async def test_a_client_that_never_says_connect_is_closed_and_a_silent_one_too():
    async with broker_front() as front:
        stranger = await front.peer(connect=False)
        silent = await front.peer(answer_pings=False)
        lively = await front.peer()
        connections = list(front.connections)
        new, connected, closed = (
            ServerConnectionState.NEW,
            ServerConnectionState.CONNECTED,
            ServerConnectionState.CLOSED,
        )
        assert [connection.state for connection in connections] == [new, connected, connected]
        for _ in range(4):
            for connection in connections:
                connection.tick()
            await asyncio.sleep(0.01)
        await stranger.wait_ended()
        await silent.wait_ended()
        await lively.settle()
        assert [connection.state for connection in connections] == [closed, closed, connected]
        for peer in (stranger, silent, lively):
            await peer.close()


async def test_a_client_whose_reading_is_paused_gets_pings_and_is_not_closed():
    async with broker_front(pending_publishes_max_per_connection=10) as front:
        peer = await front.peer(answer_pings=False)
        await peer.producer(TOPIC)
        front.ledger.hold()
        for index in range(10):
            peer.send_entry(entry(), index)
        await until(lambda: front.topic.publishing.pending == 10)
        (connection,) = front.connections
        for _ in range(5):
            connection.tick()
        for _ in range(5):
            await peer.expect(BaseCommand.PING)
        front.ledger.release()
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=9)
        await peer.close()


# -- producers -------------------------------------------------------------------------------------------------------


async def test_receipts_come_in_order_with_positions():
    async with broker_front() as front:
        peer = await front.peer()
        success = await peer.producer(TOPIC)
        assert success.producer_name == "generated-1" and success.last_sequence_id == -1 and success.producer_ready
        for index in range(50):
            peer.send_entry(entry(sequence_id=index, messages=3), index, messages=3)
        await peer.settle()
        receipts = [frame.command.send_receipt for frame in peer.received]
        while len(receipts) < 50:
            receipts.append(await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=len(receipts)))
        assert [receipt.sequence_id for receipt in receipts] == list(range(50))
        assert [receipt.message_id.entryId for receipt in receipts] == list(range(50))
        assert front.topic.publishing.published.messages == 150
        await peer.close()


async def test_a_topic_of_another_broker_is_refused_with_service_not_ready():
    async with broker_front() as front:
        peer = await front.peer()
        assert (await peer.producer("other")).error == ServerError.ServiceNotReady
        assert (await peer.subscribe("other", "s")).error == ServerError.ServiceNotReady
        assert (await peer.producer("::bad/name")).error == ServerError.InvalidTopicName
        await peer.close()


async def test_producer_names_are_unique_and_come_back_with_the_next_epoch():
    async with broker_front() as front:
        one, two = await front.peer(), await front.peer()
        await one.producer(TOPIC, producer_name="chosen", user_provided_producer_name=True)
        busy = await two.producer(TOPIC, producer_name="chosen", user_provided_producer_name=True, epoch=1)
        assert busy.error == ServerError.ProducerBusy
        again = await one.producer(TOPIC, 2, producer_name="chosen", user_provided_producer_name=True)
        assert again.error == ServerError.ProducerBusy
        name = (await one.producer(TOPIC, 3)).producer_name
        back = await two.producer(TOPIC, 1, producer_name=name, user_provided_producer_name=False, epoch=1)
        assert back.producer_name == name
        assert (await one.expect(BaseCommand.CLOSE_PRODUCER)).producer_id == 3
        await one.close()
        await two.close()


async def test_a_producer_name_held_by_a_dead_connection_is_freed():
    async with broker_front(connection_liveness_timeout_ms=50) as front:
        dead, alive = await front.peer(answer_pings=False), await front.peer()
        await dead.producer(TOPIC, producer_name="chosen")
        await dead.subscribe(TOPIC, "s")
        assert (await alive.producer(TOPIC, producer_name="chosen")).producer_name == "chosen"
        await dead.wait_ended()
        await alive.subscribe(TOPIC, "s")
        assert len(front.topic.subscriptions["s", True].consumers) == 1
        await dead.close()
        await alive.close()


async def test_close_producer_waits_for_its_receipts():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        front.ledger.hold()
        peer.send_entry(entry(), 0)
        peer.send(CommandCloseProducer(producer_id=1, request_id=99))
        await peer.settle()
        assert not peer.received
        front.ledger.release()
        await peer.answer(99)
        assert [frame.command.type for frame in peer.received] == [BaseCommand.SEND_RECEIPT]
        assert not front.topic.publishing.producers
        await peer.close()


async def test_closing_an_unknown_producer_or_consumer_succeeds():
    """The broker may have closed it while the client's CLOSE was on its way. Pulsar 4.2.4 answers SUCCESS, too."""
    async with broker_front() as front:
        peer = await front.peer()
        for request in (CommandCloseProducer(producer_id=9), CommandCloseConsumer(consumer_id=9)):
            answer = await peer.request(request)
            assert type(answer) is CommandSuccess
        await peer.close()


async def test_a_producer_whose_closing_is_refused_still_ends_with_its_connection():
    async with broker_front(connection_requests_max=1) as front:
        peer = await front.peer()
        for producer_id in (1, 2):
            await peer.producer(TOPIC, producer_id)
        front.ledger.hold()
        for producer_id in (1, 2):
            peer.send_entry(entry(), 0, producer_id=producer_id)
        peer.send(CommandCloseProducer(producer_id=1, request_id=98))
        refused = await peer.request(CommandCloseProducer(producer_id=2, request_id=99))
        assert refused.error == ServerError.TooManyRequests
        front.ledger.release()
        await peer.expect(BaseCommand.SEND_RECEIPT, producer_id=2)
        await peer.close()
        await until(lambda: not front.topic.publishing.producers)


async def test_transactions_are_refused():
    async with broker_front() as front:
        peer = await front.peer()
        assert (await peer.producer(TOPIC, txn_enabled=True)).error == ServerError.NotAllowedError
        await peer.close()


@pytest.mark.promise("9.8", "9.9")
async def test_an_initial_subscription_is_created_with_the_producer():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC, initial_subscription_name="dlq-sub")
        assert ("dlq-sub", True) in front.topic.subscriptions
        await peer.close()
    async with broker_front(allow_auto_subscription_creation=False) as front:
        peer = await front.peer()
        refused = await peer.producer(TOPIC, initial_subscription_name="dlq-sub")
        assert refused.error == ServerError.NotAllowedError
        assert (await peer.subscribe(TOPIC, "s")).error == ServerError.SubscriptionNotFound
        await peer.close()


@pytest.mark.promise("2.16")
@pytest.mark.parametrize(
    ("body", "messages", "code"),
    [
        (entry(b"abc")[:-1] + b"?", 1, ServerError.ChecksumError),
        (b"\x0e\x01\x00\x00", 1, ServerError.NotAllowedError),
        (entry(bytes(5_253_000)), 1, ServerError.NotAllowedError),
    ],
    ids=["checksum", "cut off", "too large for a bookie"],
)
async def test_an_entry_that_cannot_be_stored_is_refused_behind_the_earlier_receipts(body, messages, code):
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        front.ledger.hold()
        peer.send_entry(entry(), 0)
        peer.send_entry(body, 1, messages=messages)
        peer.send_entry(entry(), 2)
        await peer.settle()
        assert not peer.received
        front.ledger.release()
        closing = await peer.expect(BaseCommand.CLOSE_PRODUCER)
        assert closing.producer_id == 1
        first, second = (frame.command for frame in peer.received)
        assert first.send_receipt.sequence_id == 0
        assert (second.send_error.sequence_id, second.send_error.error) == (1, code)
        assert len(front.ledger.entries) == 1
        peer.send_entry(entry(), 3)  # late, not wrong: the client did not know yet
        await peer.settle()
        await peer.producer(TOPIC)
        await peer.close()


async def test_a_failed_write_ends_acknowledgements_and_restarts_the_producers():
    async with broker_front() as front:
        one, two = await front.peer(), await front.peer()
        await one.producer(TOPIC)
        await two.producer(TOPIC)
        front.ledger.hold()
        front.ledger.fail(1, BrokerPersistenceError("the disk"))
        for index in range(3):
            one.send_entry(entry(), index)
        await one.settle()
        two.send_entry(entry(), 0)
        await two.settle()
        front.ledger.release()
        await one.expect(BaseCommand.CLOSE_PRODUCER)
        await two.expect(BaseCommand.CLOSE_PRODUCER)
        receipt, refusal = (frame.command for frame in one.received)
        assert receipt.send_receipt.sequence_id == 0
        assert (refusal.type, refusal.send_error.sequence_id) == (BaseCommand.SEND_ERROR, 1)
        assert (refusal.send_error.error, refusal.send_error.message) == (2, "the disk")
        assert [frame.command.send_receipt.sequence_id for frame in two.received] == [0]
        success = await one.producer(TOPIC)
        assert success.producer_name
        one.send_entry(entry(), 1)
        await one.expect(BaseCommand.SEND_RECEIPT, sequence_id=1)
        await one.close()
        await two.close()


async def test_a_ledger_taken_over_ends_the_topic_which_loads_again_for_the_next_client():
    async with broker_front() as front:
        peer = await published(front, 2)
        await peer.subscribe(TOPIC, "s")
        first = front.topic
        front.ledger.fence()
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await peer.expect(BaseCommand.CLOSE_CONSUMER)
        await peer.producer(TOPIC)
        assert front.topic is not first and first.state.value == "closed"
        await peer.close()


# -- back-pressure ---------------------------------------------------------------------------------------------------


async def test_a_connection_is_not_read_while_too_many_of_its_publishes_are_under_way():
    async with broker_front(pending_publishes_max_per_connection=10) as front:
        peer, other = await front.peer(), await front.peer()
        await peer.producer(TOPIC)
        front.ledger.hold()
        for index in range(10):
            peer.send_entry(entry(), index)
        await until(lambda: front.topic.publishing.pending == 10)
        for index in range(10, 40):
            peer.send_entry(entry(), index)
        await asyncio.sleep(0.02)
        assert front.topic.publishing.pending == 10
        await other.settle()
        front.ledger.release()
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=39)
        await peer.close()
        await other.close()


async def test_publishing_connections_are_not_read_while_the_broker_holds_too_many_bytes():
    async with broker_front(publish_buffer_max_mb=1) as front:
        peer, idle = await front.peer(), await front.peer()
        await peer.producer(TOPIC)
        front.ledger.hold()
        for index in range(64):
            peer.send_entry(entry(bytes(65_536)), index)
        await until(lambda: front.publish_budget.used_bytes > 1 << 20)
        used = front.publish_budget.used_bytes
        await asyncio.sleep(0.03)
        assert front.publish_budget.used_bytes == used < 4 << 20
        await idle.settle()
        front.ledger.release()
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=63)
        assert front.publish_budget.used_bytes == 0
        await peer.close()
        await idle.close()


async def test_a_consumer_that_does_not_read_stalls_only_itself():
    async with broker_front(connection_write_buffer_max_bytes=65_536) as front:
        writer = await front.peer()
        await writer.producer(TOPIC)
        _, stuck_writer = await asyncio.open_connection("127.0.0.1", front.port, limit=1024)
        stuck = WirePeer.__new__(WirePeer)
        stuck._writer = stuck_writer
        stuck.send(CommandConnect(client_version="stuck"))
        from magnetar.protocol.pulsar_pb2 import CommandFlow, CommandSubscribe

        stuck.send(CommandSubscribe(topic=TOPIC, subscription="s", subType=1, consumer_id=1, request_id=1))
        await until(lambda: any(one.consumers for one in front.topic.subscriptions.values()))
        stuck.send(CommandFlow(consumer_id=1, messagePermits=100_000))
        await until(lambda: front.topic.subscriptions["s", True].consumers[0].permits == 100_000)
        for index in range(300):
            writer.send_entry(entry(bytes(65_536)), index)
        await writer.expect(BaseCommand.SEND_RECEIPT, sequence_id=299)
        consumer = front.topic.subscriptions["s", True].consumers[0]
        assert not consumer.able and consumer.unacked_messages < 300
        healthy = await front.peer()
        await healthy.subscribe(TOPIC, "s", subType=1)
        before = consumer.unacked_messages
        healthy.flow(1000)
        assert len(await healthy.messages(300 - before)) == 300 - before
        stuck_writer.close()
        assert len(await healthy.messages(before)) == before  # what the stuck one held
        for peer in (writer, healthy):
            await peer.close()


# -- families of commands ------------------------------------------------------------------------------------------


async def test_a_family_that_is_handed_in_serves_its_command_and_hears_of_the_end():
    ended = []

    class Coordination(CommandFamily):
        def __init__(self, connection):
            self.connection = connection

        def handlers(self) -> dict[int, Guarded]:
            return {BaseCommand.TC_CLIENT_CONNECT_REQUEST: of_own(self.connect)}

        def connect(self, command):
            self.connection.write(encode(CommandSuccess(request_id=command.request_id)))

        def connection_closed(self):
            ended.append(self)

    async with broker_front() as front:
        front.families = (*COMMAND_FAMILIES, Coordination)
        peer = await front.peer()
        peer.send(CommandTcClientConnectRequest(request_id=7, tc_id=1))
        await peer.expect(BaseCommand.SUCCESS, request_id=7)
        assert not ended
        await peer.close()
        await until(lambda: len(ended) == 1)


async def test_a_message_ends_a_connection_that_has_no_family_for_producers():
    async with broker_front() as front:
        front.families = ()
        peer = await front.peer()
        peer.send_entry(entry(b"x", sequence_id=0), 0)
        await until(lambda: not front.connections)
        await peer.close()
