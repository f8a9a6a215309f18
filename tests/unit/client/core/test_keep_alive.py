"""Pulsar's keep-alive rule: a PING after an interval without data, the end after a second one without any."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.client.core.configuration import ClientConfiguration
from magnetar.client.core.connection import ClientConnection
from magnetar.protocol.commands import encode, ping, pong
from magnetar.protocol.pulsar_pb2 import CommandConnected
from magnetar.protocol.topics import TopicName

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

    def get_extra_info(self, name: str) -> None: ...


class IdleProducer:
    """A producer that has nothing under way."""

    topic = TopicName.parse("idle")
    awaited_sequence_id: int | None = None

    def __init__(self) -> None:
        self.registration: Any = SimpleNamespace(lost=self._note_lost)
        self.lost: list[ClientConnection] = []

    def receipt(self, command: Any) -> None: ...
    def send_error(self, command: Any) -> None: ...

    def _note_lost(self, connection: ClientConnection) -> None:
        self.lost.append(connection)


class Scene:
    """A ready connection with a producer that waits for nothing; time passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = 1000.0
        self.timers: list[tuple[float, Any]] = []
        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(loop, "call_at", self._call_at)
        self.wire, self.producer = Wire(), IdleProducer()
        self.connection = ClientConnection(
            ClientConfiguration(keep_alive_interval_s=INTERVAL_S), ("broker", 6650), None
        )
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.connection.data_received(encode(CommandConnected(server_version="s")))
        self.connection.producers[1] = self.producer
        self.wire.written.clear()

    def _call_at(self, moment: float, callback: Any) -> Any:
        timer = (moment, callback)
        self.timers.append(timer)

        class Handle:
            def cancel(_handle) -> None:
                if timer in self.timers:
                    self.timers.remove(timer)

        return Handle()

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(self.timers)[0] <= end:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = end


async def test_a_ping_after_a_silent_interval_and_the_end_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.pass_time(INTERVAL_S - 1)
    assert scene.wire.written == []
    scene.pass_time(2)
    assert scene.wire.written == [ping()] and not scene.connection.closed
    scene.pass_time(INTERVAL_S - 2)
    assert not scene.connection.closed
    scene.pass_time(2)
    assert scene.connection.closed and scene.wire.aborted
    assert scene.producer.lost == [scene.connection]


async def test_an_answer_in_time_resets_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for _ in range(3):
        scene.pass_time(INTERVAL_S + 1)
        assert scene.wire.written.pop() == ping()
        scene.connection.data_received(pong())
        scene.pass_time(INTERVAL_S - 5)
        assert not scene.connection.closed and not scene.wire.written
    scene.connection.close()


async def test_any_byte_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.pass_time(INTERVAL_S + 20)
    scene.connection.data_received(pong()[:3])
    scene.pass_time(INTERVAL_S)
    assert not scene.connection.closed
    scene.connection.close()


async def test_a_connection_that_is_never_quiet_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for _ in range(5):
        scene.connection.data_received(ping())
        scene.wire.written.clear()
        scene.pass_time(INTERVAL_S - 1)
        assert scene.wire.written == []
    scene.connection.close()
