"""Tasks and their statuses as messages.

A task is one message of the queue's topic. Its statuses are messages of the topic `<queue>-status`, with the task's id
as key. A task goes from PENDING to STARTED, and from there to SUCCESS, FAILURE or RETRY. RETRY leads to STARTED again.
REVOKED is the status of a task that was cancelled before it began. SUCCESS, FAILURE and REVOKED are final.

A death is a message of the same topic, with the properties `died` (the task's id), `note` (which replica's note told
of it) and `alone`. Its key is of its own, so that compaction keeps it beside the task's status.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from ..protocol.errors import InvalidMessage

PENDING, STARTED, RETRY = "PENDING", "STARTED", "RETRY"
SUCCESS, FAILURE, REVOKED = "SUCCESS", "FAILURE", "REVOKED"
FINAL = frozenset({SUCCESS, FAILURE, REVOKED})
SERIALIZER = "serializer"
"""The property of a message that says how its payload is written."""
ATTEMPT = "attempt"
"""The property of a task's message that says which attempt it asks for, in decimal. Absent for the first one."""

DIED, NOTE, ALONE = "died", "note", "alone"
"""The properties of a death. `alone` is there if no other task ran in the replica."""


class Task(NamedTuple):
    """What is to run."""

    id: str
    name: str
    args: Sequence[object]
    kwargs: Mapping[str, object]
    created_at: float
    """Seconds since the epoch."""


class TaskStatus(NamedTuple):
    """What is known of a task. `result` is its result, or the text of its error."""

    status: str
    at: float
    """Seconds since the epoch."""
    result: object = None
    attempt: int = 0
    """Which attempt it is of, from 0."""


def dump(serializer: str, value: object) -> bytes:
    """The payload. Raises TypeError for what cannot be written."""
    try:
        if serializer == "json":
            return json.dumps(value, allow_nan=True).encode()
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle raises whatever the classes of a value raise
        raise TypeError(f"the value cannot be written with {serializer}: {error}") from error


def load_task(serializer: str, properties: dict[str, str], payload: bytes) -> Task:
    """The task in a message. Raises InvalidMessage."""
    fields = _load(serializer, properties, payload)
    kinds = (str, str, (list, tuple), dict, (int, float))
    if not isinstance(fields, (list, tuple)) or len(fields) != len(kinds) or not all(map(isinstance, fields, kinds)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidMessage("the message is no task, which has an id, a name, arguments and a time")
    task_id, name, args, kwargs, created_at = cast("tuple[str, str, list[object], dict[str, object], float]", fields)
    return Task(task_id, name, args, kwargs, created_at)


def load_status(serializer: str, properties: dict[str, str], payload: bytes) -> TaskStatus:
    """The status in a message. Raises InvalidMessage."""
    try:
        return TaskStatus(*cast("tuple[str, float, object, int]", _load(serializer, properties, payload)))
    except TypeError as error:
        raise InvalidMessage(f"the message is no status: {error}") from error


def _load(serializer: str, properties: dict[str, str], payload: bytes) -> list[object]:
    written = properties.get(SERIALIZER)
    if written != serializer:
        raise InvalidMessage(f"the message is written with {written}, and this queue reads {serializer} only")
    try:
        return json.loads(payload) if serializer == "json" else pickle.loads(payload)
    except Exception as error:  # pickle raises whatever the classes of a payload raise
        raise InvalidMessage(f"the message cannot be read: {error!r}") from error
