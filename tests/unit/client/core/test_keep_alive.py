"""Pulsar's keep-alive rule: a PING after an interval without data, the end after a second one without any."""

import asyncio
from typing import Any

import pytest

from magnetar.client.core.configuration import ClientConfiguration
from magnetar.client.core.connection import ClientConnection
from magnetar.protocol.commands import encode, ping, pong
from magnetar.protocol.errors import ConnectionClosed, MagnetarError
from magnetar.protocol.pulsar_pb2 import CommandConnected

INTERVAL_S = 30.0


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True


class WaitingProducer:
    """A producer with entries under way."""

    def __init__(self) -> None:
        self.lost: list[MagnetarError] = []

    def receipt(self, command: Any) -> None: ...
    def send_error(self, command: Any) -> None: ...
    def closed_by_broker(self, connection: ClientConnection) -> None: ...

    def connection_lost(self, connection: ClientConnection, reason: MagnetarError) -> None:
        self.lost.append(reason)


class Scene:
    """A ready connection on which a producer waits for receipts; time passes when the test says so."""

    def __init__(self) -> None:
        self.wire, self.producer = Wire(), WaitingProducer()
        self.connection = ClientConnection(
            ClientConfiguration(keep_alive_interval_s=INTERVAL_S), ("broker", 6650), None
        )
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.connection.data_received(encode(CommandConnected(server_version="s")))
        self.connection.producers[1] = self.producer
        self.wire.written.clear()

    def interval(self) -> None:
        timer = self.connection._timer
        assert timer is not None
        assert timer.when() - asyncio.get_running_loop().time() == pytest.approx(INTERVAL_S, abs=5)
        check: Any = timer._callback  # type: ignore[attr-defined]
        timer.cancel()
        check()


async def test_a_ping_after_a_silent_interval_and_the_end_after_another() -> None:
    scene = Scene()
    scene.interval()
    assert scene.wire.written == [], "CONNECTED came in the first one"
    scene.interval()
    assert scene.wire.written == [ping()] and not scene.connection.closed
    scene.interval()
    assert scene.connection.closed and scene.wire.aborted
    assert isinstance(scene.producer.lost[0], ConnectionClosed)


async def test_an_answer_in_time_resets_the_count() -> None:
    scene = Scene()
    scene.interval()
    for _ in range(3):
        scene.interval()
        assert scene.wire.written.pop() == ping()
        scene.connection.data_received(pong())
        scene.interval()
        assert not scene.connection.closed and not scene.wire.written
    scene.connection.close()


async def test_any_byte_is_a_sign_of_life() -> None:
    scene = Scene()
    scene.interval()
    scene.interval()
    scene.connection.data_received(pong()[:3])
    scene.interval()
    assert not scene.connection.closed
    scene.connection.close()


async def test_a_connection_that_is_never_quiet_is_never_asked() -> None:
    scene = Scene()
    for _ in range(5):
        scene.connection.data_received(ping())
        scene.wire.written.clear()
        scene.interval()
        assert scene.wire.written == []
    scene.connection.close()
