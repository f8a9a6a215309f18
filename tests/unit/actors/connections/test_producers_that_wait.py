"""Producers that come while their topic does not take any: they wait for a while, as long as their client does."""

import asyncio
from typing import Any

import pytest

from magnetar.actors.connections import producer_commands
from magnetar.actors.deduplication.topic_deduplication import Deduplication
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandCloseProducer, CommandProducer, ServerError
from support.clients.wire_peer import WirePeer
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until


@pytest.fixture
def admits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until this is set, topics do not know their sequence ids."""
    event = asyncio.Event()

    async def ready(self: Deduplication) -> None:
        await event.wait()

    monkeypatch.setattr(Deduplication, "is_ready", property(lambda self: event.is_set()))
    monkeypatch.setattr(Deduplication, "ready", ready)
    return event


def front() -> Any:
    return broker_front(FakeCluster(), deduplication_enabled=True)


async def ask(broker: BrokerFront, peer: WirePeer) -> int:
    """Ask for a producer, and wait until that waits."""
    request_id = peer.next_request()
    peer.send(CommandProducer(topic=TOPIC, producer_id=1, request_id=request_id))
    await until(lambda: any(waits(connection) for connection in broker.connections))
    return request_id


def waits(connection: Any) -> bool:
    families = [one for one in connection._families if isinstance(one, producer_commands.ProducerCommands)]
    return any(family._ready_waits for family in families)


async def test_a_producer_that_waits_ends_with_its_connection(admits: asyncio.Event) -> None:
    async with front() as broker:
        peer = await broker.peer()
        await ask(broker, peer)
        await peer.close()
        await until(lambda: not len(broker.requests))


async def test_a_producer_that_its_client_closes_no_longer_waits(admits: asyncio.Event) -> None:
    async with front() as broker:
        peer = await broker.peer()
        await ask(broker, peer)
        peer.send(CommandCloseProducer(producer_id=1, request_id=90))
        await peer.expect(BaseCommand.SUCCESS, request_id=90)
        await until(lambda: not len(broker.requests))
        admits.set()
        await peer.producer(TOPIC)
        await peer.close()


async def test_a_producer_waits_until_the_topic_takes_it_but_not_longer_than_clients_do(
    admits: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front() as broker:
        peer = await broker.peer()
        request_id = await ask(broker, peer)
        admits.set()
        await peer.expect(BaseCommand.PRODUCER_SUCCESS, request_id=request_id)
        admits.clear()
        monkeypatch.setattr(producer_commands, "READY_LIMIT_S", 0.01)
        peer.send(CommandProducer(topic=TOPIC, producer_id=2, request_id=91))
        refusal = await peer.expect(BaseCommand.ERROR, request_id=91)
        assert refusal.error == ServerError.ServiceNotReady
        await peer.close()
