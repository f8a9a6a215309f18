"""A blocking client of raw frames, to say what the official client would never say. It knows no server."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message as ProtobufMessage

from magnetar.protocol.commands import encode, ping, pong, send_header
from magnetar.protocol.entries import build_entry
from magnetar.protocol.frames import Frame, FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, CommandSend, MessageMetadata

TIMEOUT_S = 10.0
PROTOCOL_VERSION = 21
LENGTH_BYTES = 4


class Ended(Exception):
    """The server closed the connection."""


class Peer:
    """One connection. A thread reads it and answers pings. Frames that nobody asked for wait in `received`."""

    def __init__(self, host: str, port: int) -> None:
        self.received: list[Frame] = []
        self._requests = 0
        self._ended = False
        self._arrived = threading.Condition()
        self._socket = socket.create_connection((host, port), TIMEOUT_S)
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._read, name="peer", daemon=True)
        self._thread.start()

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
        """Send bytes. Raises Ended."""
        try:
            self._socket.sendall(data)
        except ConnectionError:
            raise Ended("the server closed the connection") from None

    def send_message(
        self,
        payload: bytes,
        sequence_id: int,
        *,
        producer_id: int = 1,
        messages: int = 1,
        command: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        """Publish one entry. `metadata` are fields of its MessageMetadata, `command` further ones of its SEND."""
        fields = {"producer_name": "peer", "sequence_id": sequence_id, "publish_time": 1, **metadata}
        body = build_entry(MessageMetadata(**fields), payload)
        if command is None:
            self.write(send_header(producer_id, sequence_id, 0, messages, len(body)) + body)
            return
        send = CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=messages, **command)
        head = BaseCommand(type=BaseCommand.SEND, send=send).SerializeToString()
        self.write(struct.pack(">II", LENGTH_BYTES + len(head) + len(body), len(head)) + head + body)

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
        with self._arrived:
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
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _wait(self, wanted: Callable[[Frame], bool], timeout_s: float = TIMEOUT_S) -> Frame:
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                for index, frame in enumerate(self.received):
                    if wanted(frame):
                        return self.received.pop(index)
                if self._ended:
                    raise Ended("the server closed the connection")
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise TimeoutError(f"nothing came within {timeout_s:.0f} s; there are {self.received}")
                self._arrived.wait(remaining_s)

    def _read(self) -> None:
        decoder = FrameDecoder(64 << 20)
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 16):
                frames = decoder.feed(data)
                if any(frame.command.type == BaseCommand.PING for frame in frames):
                    self._socket.sendall(pong())
                with self._arrived:
                    self.received += [frame for frame in frames if frame.command.type != BaseCommand.PING]
                    self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()


def content_of(frame: Frame) -> Any:
    """The command's own message."""
    command = frame.command
    return getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)


def kind_of(frame: Frame) -> str:
    """The name of a frame's type."""
    return BaseCommand.Type.Name(frame.command.type)
