"""A broker that answers nonsense: the application soon gets an error of ours. Found by `tests/fuzz` (target client)."""

import asyncio
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.commands import encode
from magnetar.protocol.errors import ProtocolError, Timeout
from magnetar.protocol.pulsar_pb2 import CommandPartitionedTopicMetadataResponse, CommandSuccess
from support.fakes.broker import Connection, FakeBroker


@pytest.mark.parametrize("partitions", [None, (1 << 32) - 1])
async def test_an_answer_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, partitions: int | None) -> None:
    """SUCCESS to a question for partitions, and more partitions than anybody has."""

    def answer(self: Connection, command: Any, _: Any) -> None:
        if partitions is None:
            self.write(encode(CommandSuccess(request_id=command.request_id)))
        else:
            response = CommandPartitionedTopicMetadataResponse.Success
            self.write(
                encode(
                    CommandPartitionedTopicMetadataResponse(
                        request_id=command.request_id, response=response, partitions=partitions
                    )
                )
            )

    monkeypatch.setattr(Connection, "on_partitioned_metadata", answer)
    broker = await FakeBroker().start()
    async with AsyncClient(broker.url, operation_timeout_seconds=3) as client:
        with pytest.raises(ProtocolError):
            await client.create_producer("t")
        with pytest.raises(ProtocolError):
            await client.subscribe("t", "s")
    await broker.stop()


async def test_a_seek_gives_up_when_the_subscription_does_not_come_back() -> None:
    broker = await FakeBroker().start()
    async with AsyncClient(broker.url, operation_timeout_seconds=1) as client:
        consumer = await client.subscribe("t", "s")
        broker.subscribe_errors = [6] * 1000  # ServiceNotReady: worth another try, for ever
        broker.drop_connections()
        await broker.until(lambda: not consumer.is_connected())
        with pytest.raises(Timeout):
            await asyncio.wait_for(consumer.seek(MessageId.earliest), 5)
    await broker.stop()
