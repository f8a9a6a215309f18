"""PINGs of a broker that does not read from a client on purpose, and what our client makes of them."""

import asyncio

from magnetar.client.aio.client import AsyncClient
from magnetar.protocol.commands import send_header
from magnetar.protocol.pulsar_pb2 import BaseCommand
from support.clients.wire_peer import entry
from support.servers.broker_bench import TOPIC, broker_front, until


async def test_a_client_gets_pings_by_itself_while_it_is_not_read():
    async with broker_front(pending_publishes_max_per_connection=10) as front:
        peer = await front.peer(answer_pings=False)
        await peer.producer(TOPIC)
        front.ledger.hold()
        for index in range(10):
            peer.send_entry(entry(), index)
        async with asyncio.timeout(5):
            for _ in range(2):
                await peer.expect(BaseCommand.PING)
        front.ledger.release()
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=9)
        await peer.close()


async def test_our_client_stays_with_a_single_broker_that_stores_slowly_and_does_not_read():
    async with broker_front(pending_publishes_max_per_connection=10) as front:
        async with AsyncClient(f"pulsar://127.0.0.1:{front.port}", silence_timeout_ms=1000) as client:
            producer = await client.create_producer(TOPIC, batching_enabled=False)
            front.ledger.hold()
            sends = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(20)]
            await until(lambda: front.topic.publishing.pending >= 10)
            (connection,) = front.connections
            began = asyncio.get_running_loop().time()
            await until(
                lambda: asyncio.get_running_loop().time() - began > 2.5 or list(front.connections) != [connection]
            )
            assert list(front.connections) == [connection], "a client that doubts has left after half of this time"
            front.ledger.release()
            await asyncio.gather(*sends)
            assert len(front.ledger.entries) == 20, "nothing was sent twice"


async def test_a_client_whose_large_frame_comes_slowly_gets_a_ping_each_period():
    async with broker_front() as front:
        peer = await front.peer(answer_pings=False)
        await peer.producer(TOPIC)
        (connection,) = front.connections
        connection.tick()
        body = entry(bytes(1000))
        frame = send_header(1, 0, 0, 1, len(body)) + body
        peer.write(frame[:500])
        await until(lambda: connection._decoder.buffered_bytes > 0)
        connection.tick()
        await peer.expect(BaseCommand.PING)
        peer.write(frame[500:])
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        await peer.close()
