"""Which messages a worker of `magnetar.consume` is handling, in a file of its node that outlives its process.

Brokers do not count deliveries that end with their consumer, and Pulsar's do not, either. So the pool has to know which
messages a worker was handling when its process died. The worker notes their places before it calls the function, and
clears the note behind the call. When the process has ended by itself, a task of Ray takes the note on the same node.

The file has a head (size of the body, and its CRC-32), and a body (JSON: a list of places). A head of zeros says that
nothing is being handled. The page cache keeps what a killed process wrote. A node that is gone keeps no note. What
cannot be read says nothing, so no message is ever blamed by mistake.
"""

import hashlib
import json
import logging
import os
import struct
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from ..client.consuming.message import Message

logger = logging.getLogger(__name__)

MessagePlace = tuple[int, int, int]
"""Ledger, entry and batch index of a message. Ledgers of all topics have numbers of their own."""

_HEAD = struct.Struct(">II")
NOTE_SIZE_MAX_BYTES = 4 << 20
"""More than the places of 50,000 messages."""


def place_of(message: Message) -> MessagePlace:
    """Where a message is stored."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


class HandlingNote:
    """The note of one worker. Where the disk refuses it, the worker goes on without one."""

    def __init__(self, worker: str) -> None:
        """`worker` is its name, which no other worker has."""
        name = hashlib.sha256(worker.encode()).hexdigest()[:32]
        self.path = Path(tempfile.gettempdir()) / f"magnetar-consume-{name}"
        self._file: int | None = None
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            self._gone(error)

    def begin(self, messages: Sequence[Message]) -> None:
        """The function is about to be called with these."""
        if self._file is None:
            return
        body = json.dumps([place_of(one) for one in messages]).encode()
        try:
            os.pwrite(self._file, _HEAD.pack(len(body), zlib.crc32(body)) + body, 0)
        except OSError as error:
            self._gone(error)

    def end(self) -> None:
        """The call is over."""
        if self._file is not None:
            try:
                os.pwrite(self._file, _HEAD.pack(0, 0), 0)
            except OSError as error:
                self._gone(error)

    def close(self) -> None:
        """Remove the note."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self.path.unlink(missing_ok=True)

    def _gone(self, error: OSError) -> None:
        logger.warning("messages that kill this worker cannot be counted: %s", error)
        with suppress(OSError):
            self.close()


def take_note(path: str) -> list[MessagePlace]:
    """What the worker was handling whose note this is; the note is removed. A task of Ray."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(NOTE_SIZE_MAX_BYTES)
        Path(path).unlink()
    except OSError as error:
        logger.warning("a worker of magnetar.consume has left no note: %s", error)
        return []
    return read_note(content)


def read_note(content: bytes) -> list[MessagePlace]:
    """The places in a note; none if it is not whole."""
    if len(content) < _HEAD.size:
        return []
    size, checksum = _HEAD.unpack_from(content)
    body = content[_HEAD.size : _HEAD.size + size]
    if not size or len(body) != size or zlib.crc32(body) != checksum:
        return []
    places: object = json.loads(body)
    if not (isinstance(places, list) and all(map(_is_place, cast("list[object]", places)))):
        return []
    return [cast("MessagePlace", tuple(one)) for one in cast("list[list[int]]", places)]


def _is_place(value: object) -> bool:
    return isinstance(value, list) and [type(part) for part in cast("list[object]", value)] == [int, int, int]
