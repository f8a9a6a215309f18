"""A broker that answers nonsense: the application gets an error of ours, soon. Found by `tests/fuzz` (target client)."""

from typing import Any

import pytest
from fake_broker import Connection, FakeBroker

from magnetar.client.client import AsyncClient
from magnetar.protocol.commands import encode
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.pulsar_pb2 import CommandPartitionedTopicMetadataResponse, CommandSuccess


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
