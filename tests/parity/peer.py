"""A blocking client of raw frames, to say what the official client would never say. It knows no server."""

import socket
import time
from typing import Any

from google.protobuf.message import Message as ProtobufMessage

from magnetar.protocol.commands import encode, ping, pong, send_header
from magnetar.protocol.entries import build_entry
from magnetar.protocol.frames import Frame, FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, MessageMetadata

TIMEOUT_S = 10.0
PROTOCOL_VERSION = 21


class Ended(Exception):
    """The server closed the connection."""


class Peer:
    """One connection. Frames that nobody asked for wait in `received`."""

    def __init__(self, host: str, port: int) -> None:
        self.received: list[Frame] = []
        self._requests = 0
        self._decoder = FrameDecoder(64 << 20)
        self._socket = socket.create_connection((host, port), TIMEOUT_S)

    def connect(self, **fields: Any) -> Frame:
        """Introduce itself."""
        fields.setdefault("protocol_version", PROTOCOL_VERSION)
        self.send(CommandConnect(client_version="parity", **fields))
        return self.next_frame()

    def next_request(self) -> int:
        """A new request id."""
        self._requests += 1
        return self._requests

    def send(self, command: ProtobufMessage) -> None:
        """Send one command."""
        self.write(encode(command))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def send_message(
        self, payload: bytes, sequence_id: int, *, producer_id: int = 1, messages: int = 1, **metadata: Any
    ) -> None:
        """Publish one entry. `metadata` are fields of its MessageMetadata."""
        fields = {"producer_name": "peer", "sequence_id": sequence_id, "publish_time": 1, **metadata}
        body = build_entry(MessageMetadata(**fields), payload)
        self.write(send_header(producer_id, sequence_id, 0, messages, len(body)) + body)

    def request(self, command: Any) -> Frame:
        """Send a command with a new request id, and wait for the answer to it."""
        command.request_id = self.next_request()
        self.send(command)
        return self.answer(command.request_id)

    def answer(self, request_id: int) -> Frame:
        """The answer to a request. Raises Ended."""
        return self._wait(lambda frame: getattr(content_of(frame), "request_id", None) == request_id)

    def next_frame(self, kind: int | None = None) -> Frame:
        """The next frame, or the next one of a type. Raises Ended."""
        return self._wait(lambda frame: kind is None or frame.command.type == kind)

    def settle(self) -> list[Frame]:
        """Everything that came before the answer to a ping. Raises Ended."""
        self.write(ping())
        self._wait(lambda frame: frame.command.type == BaseCommand.PONG)
        out, self.received = self.received, []
        return out

    def ends(self) -> bool:
        """Whether the server closes the connection."""
        try:
            self._wait(lambda frame: False, TIMEOUT_S)
        except TimeoutError:
            return False
        except (Ended, OSError):
            return True
        raise AssertionError("unreachable: no frame is wanted")

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _wait(self, wanted: Any, timeout_s: float = TIMEOUT_S) -> Frame:
        deadline = time.monotonic() + timeout_s
        while True:
            for index, frame in enumerate(self.received):
                if wanted(frame):
                    return self.received.pop(index)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"nothing came within {timeout_s:.0f} s; there are {self.received}")
            self._socket.settimeout(remaining_s)
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise Ended("the server closed the connection")
            for frame in self._decoder.feed(data):
                if frame.command.type == BaseCommand.PING:
                    self.write(pong())
                else:
                    self.received.append(frame)


def content_of(frame: Frame) -> Any:
    """The command's own message."""
    command = frame.command
    return getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)


def kind_of(frame: Frame) -> str:
    """The name of a frame's type."""
    return BaseCommand.Type.Name(frame.command.type)
