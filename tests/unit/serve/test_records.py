"""Tasks and statuses as messages: what is written is read again, and what is no task is refused."""

import pickle

import pytest

from magnetar.protocol.errors import InvalidMessage
from magnetar.serve.records import SUCCESS, Task, TaskStatus, dump, load_status, load_task

TASK = Task("id", "add", [1, {"two": 2}], {"three": None}, 4.5)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_tasks_and_statuses_are_read_as_they_were_written(serializer: str) -> None:
    properties = {"serializer": serializer}
    assert load_task(serializer, properties, dump(serializer, TASK)) == TASK
    status = TaskStatus(SUCCESS, 1.5, {"a": [1]}, 2)
    assert load_status(serializer, properties, dump(serializer, status)) == status


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no json",
        b"{}",
        b"[]",
        b'["id", "add", [], {}]',
        b'[1, "add", [], {}, 0]',
        b'["id", "add", 3, {}, 0]',
    ],
)
def test_what_is_no_task_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidMessage):
        load_task("json", {"serializer": "json"}, payload)


def test_a_queue_of_json_never_unpickles() -> None:
    for properties in ({"serializer": "pickle"}, {}):
        with pytest.raises(InvalidMessage, match="reads json only"):
            load_task("json", properties, pickle.dumps(TASK))


def test_what_cannot_be_written_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    for value in (object(), circle):
        with pytest.raises(TypeError, match="cannot be written with json"):
            dump("json", value)
    with pytest.raises(TypeError, match="cannot be written with pickle"):
        dump("pickle", lambda: None)
