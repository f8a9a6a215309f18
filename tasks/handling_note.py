"""Which messages a worker of `magnetar.consume` is handling, in a file of its node that outlives its process.

Brokers do not count deliveries that end with their consumer, and Pulsar's do not, either. So the pool has to know which
messages a worker was handling when its process died. The worker notes their places before it calls the function, and
clears the note behind the call. When the process has ended by itself, a task of Ray takes the note on the same node.

`process_note` says how the file is written. A node that is gone keeps no note. What cannot be read says nothing, so no
message is ever blamed by mistake.
"""

import hashlib
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ..client.consuming.message import Message
from ..runtime.process_note import NOTE_SIZE_MAX_BYTES, ProcessNote, read_note_value

logger = logging.getLogger(__name__)

MessagePlace = tuple[int, int, int]
"""Ledger, entry and batch index of a message. Ledgers of all topics have numbers of their own."""


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
        self._note = ProcessNote(self.path, "messages that kill this worker cannot be counted")

    def begin(self, messages: Sequence[Message]) -> None:
        """The function is about to be called with these."""
        self._note.write([place_of(one) for one in messages])

    def end(self) -> None:
        """The call is over."""
        self._note.clear()

    def close(self) -> None:
        """Remove the note."""
        self._note.close()


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
    places = read_note_value(content)
    if not (isinstance(places, list) and all(map(_is_place, cast("list[object]", places)))):
        return []
    return [cast("MessagePlace", tuple(one)) for one in cast("list[list[int]]", places)]


def _is_place(value: object) -> bool:
    return isinstance(value, list) and [type(part) for part in cast("list[object]", value)] == [int, int, int]
