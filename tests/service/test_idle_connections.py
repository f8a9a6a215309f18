"""Connections on which only PINGs travel, of a client that knows one broker. Client and broker are on uvloop.

uvloop's clock counts milliseconds, so a PING and its PONG often have the same time.
"""

import asyncio

import pytest
import uvloop

import magnetar
from magnetar.client.aio.client import AsyncClient
from support.servers.embedded_cluster import EmbeddedCluster

SILENCE_MS = 100
PONGS = 4
"""The fourth one comes after 3 s. A client that took the first one for none would have gone long before."""
LIMIT_S = 60.0


async def hold(service_url: str, topic: str) -> tuple[bool, bool]:
    """Hold a message until some PONGs have come. Returns whether the connection was left, and whether it came again."""
    async with AsyncClient(service_url, silence_timeout_ms=SILENCE_MS) as client:
        consumer = await client.subscribe(topic, "holder", consumer_type=magnetar.ConsumerType.Shared)
        await publish(client, topic, b"held")
        held = await consumer.receive(10_000)
        connections = client._running_core().pool._connections.values()
        connection = next(one for one in connections if one.consumers)
        async with asyncio.timeout(LIMIT_S):
            while connection.liveness.pongs < PONGS and not connection.closed:  # noqa: ASYNC110  # nothing tells of them
                await asyncio.sleep(0.02)
        await publish(client, topic, b"following")  # a message that comes again would come before it
        following = await consumer.receive(10_000)
        again = following.message_id() == held.message_id()
        return connection.closed, again


async def publish(client: AsyncClient, topic: str, payload: bytes) -> None:
    producer = await client.create_producer(topic)
    await producer.send(payload)
    await producer.close()


@pytest.mark.promise("31.12")
def test_an_idle_consumer_keeps_its_connection_and_what_it_holds(cluster: EmbeddedCluster) -> None:
    """The default of `keepAliveIntervalSeconds` holds: nothing but the client's own PINGs would end the connection."""
    assert uvloop.run(hold(cluster.service_url, "held")) == (False, False)
