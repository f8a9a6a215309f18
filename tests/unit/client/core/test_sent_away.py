"""What a broker says when it sends a client away: the reason is logged, and is why the connection ends."""

import asyncio
import logging
from typing import Any

import pytest

from magnetar.client.core.configuration import ClientConfiguration
from magnetar.client.core.connection import ClientConnection
from magnetar.protocol.commands import BROKER_REQUEST_ID, encode
from magnetar.protocol.errors import ConnectionClosed, MagnetarError, TopicNotFound
from magnetar.protocol.pulsar_pb2 import (
    CommandConnected,
    CommandError,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)

OVER = "the credential is over"


class Wire:
    aborted = False

    def write(self, data: bytes) -> None: ...
    def get_extra_info(self, name: str) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class Watcher:
    """An endpoint that is told why its connection ended."""

    reason: MagnetarError | None = None

    def listed(self, answer: Any) -> None: ...
    def updated(self, update: Any) -> None: ...

    def connection_lost(self, connection: ClientConnection, reason: MagnetarError) -> None:
        self.reason = reason


def ready_connection(wire: Wire) -> ClientConnection:
    connection = ClientConnection(ClientConfiguration(), ("broker", 6650), None)
    connection.connection_made(wire)  # type: ignore[arg-type]
    connection.data_received(encode(CommandConnected(server_version="s")))
    return connection


def refusal(request_id: int, error: Any) -> bytes:
    return encode(CommandError(request_id=request_id, error=error, message=OVER))


async def ask(connection: ClientConnection) -> "asyncio.Task[Any]":
    request = CommandPartitionedTopicMetadata(topic="t", request_id=1)
    asked = asyncio.create_task(connection.request(request, 1, 10.0, CommandPartitionedTopicMetadataResponse))
    await asyncio.sleep(0)
    assert len(connection.requests) == 1
    return asked


async def test_the_reason_is_logged_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    wire, watcher = Wire(), Watcher()
    connection = ready_connection(wire)
    connection.watchers[1] = watcher
    asked = await ask(connection)
    connection.data_received(refusal(BROKER_REQUEST_ID, ServerError.AuthenticationError))
    assert connection.closed and wire.aborted
    with pytest.raises(ConnectionClosed, match=OVER):
        await asked
    assert OVER in str(watcher.reason)
    assert [OVER in line.message for line in caplog.records if line.levelno == logging.WARNING] == [True]


async def test_the_refusal_of_one_request_leaves_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    connection = ready_connection(Wire())
    asked = await ask(connection)
    connection.data_received(refusal(1, ServerError.TopicNotFound))
    with pytest.raises(TopicNotFound, match=OVER):
        await asked
    assert not connection.closed and not caplog.records
    connection.close()
