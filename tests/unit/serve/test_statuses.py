"""Who asks for statuses at the same time shares one look, and none is older than the question."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.protocol.errors import ConnectError
from magnetar.serve.records import SUCCESS, TaskStatus, dump
from magnetar.serve.statuses import Statuses


class StoredStatus:
    """A message of the topic."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id

    def partition_key(self) -> str:
        return self._task_id

    def properties(self) -> dict[str, str]:
        return {"serializer": "json"}

    def data(self) -> bytes:
        return dump("json", TaskStatus(SUCCESS, 1.0))


class SlowReader:
    """A reader whose broker answers when the test says so, with what was stored when it was asked."""

    def __init__(self) -> None:
        self.stored: list[StoredStatus] = []
        self.questions: list[asyncio.Future[None]] = []
        self.arrived = 0
        """Statuses that have come without a question."""
        self.place = 7
        """The id that its broker knows it by; −1: none does."""
        self.held_up = False
        self._read = 0
        queue = SimpleNamespace(failure=None, take=self._take, unprepared=lambda: self.held_up or None)
        self.consumer = SimpleNamespace(receive_queue=queue)
        self._reader = self
        self._follow_place()

    def _follow_place(self) -> None:
        self.consumer.is_connected = self.place >= 0
        self.consumer.consumers = [SimpleNamespace(registration=SimpleNamespace(id=self.place))]

    def move(self, place: int) -> None:
        self.place = place
        self._follow_place()

    def took(self, message: StoredStatus) -> None:
        """It counts as read."""

    def _take(self) -> StoredStatus | None:
        if self.held_up or self._read >= self.arrived:
            return None
        self._read += 1
        return self.stored[self._read - 1]

    async def has_message_available(self) -> bool:
        if self._read == len(self.stored):
            end = len(self.stored)
            self.questions.append(asyncio.get_running_loop().create_future())
            await self.questions[-1]
            return self._read < end
        return True

    async def read_next(self) -> StoredStatus:
        self._read += 1
        return self.stored[self._read - 1]

    def is_open(self) -> bool:
        return True

    async def create_reader(self, *_: object, **options: object) -> "SlowReader":
        return self


async def settled() -> None:
    """All tasks have gone as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def asked(statuses: Statuses, task_id: str) -> "asyncio.Task[TaskStatus | None]":
    return asyncio.create_task(statuses.current(task_id))


@pytest.fixture
def reader() -> Any:
    return SlowReader()


@pytest.fixture
def statuses(reader: Any) -> Statuses:
    return Statuses(reader, "queue-status", "json")


async def test_a_question_does_not_share_a_look_that_has_begun(statuses: Statuses, reader: Any) -> None:
    first = asked(statuses, "a")
    await settled()
    reader.stored.append(StoredStatus("a"))
    others = [asked(statuses, "a") for _ in range(3)]
    await settled()
    assert len(reader.questions) == 1
    reader.questions[0].set_result(None)
    await settled()
    assert first.done() and first.result() is None
    assert len(reader.questions) == 2  # one for all of the others
    reader.questions[1].set_result(None)
    await settled()
    found = [one.result() for one in others]
    assert found == [TaskStatus(SUCCESS, 1.0)] * 3 and len(reader.questions) == 2


async def test_a_question_that_is_given_up_does_not_end_the_others(statuses: Statuses, reader: Any) -> None:
    running = asked(statuses, "a")
    await settled()
    leading, following, given_up = (asked(statuses, "a") for _ in range(3))
    await settled()
    leading.cancel()
    given_up.cancel()
    await settled()
    assert leading.cancelled() and given_up.cancelled() and not following.done()
    reader.questions[0].set_result(None)
    await settled()
    assert running.done() and len(reader.questions) == 2
    reader.questions[1].set_result(None)
    await settled()
    assert following.done() and following.result() is None


async def test_a_look_that_fails_fails_for_all_who_share_it_and_the_next_begins(
    statuses: Statuses, reader: Any
) -> None:
    running = asked(statuses, "a")
    await settled()
    sharing = [asked(statuses, "a") for _ in range(2)]
    await settled()
    reader.questions[0].set_result(None)
    await settled()
    reader.questions[1].set_exception(ConnectError("no broker"))
    await settled()
    assert running.done() and [type(one.exception()) for one in sharing] == [ConnectError, ConnectError]
    last = asked(statuses, "a")
    await settled()
    reader.questions[2].set_result(None)
    assert await last is None


async def read_up(statuses: Statuses, reader: Any) -> None:
    asking = asked(statuses, "nobody's")
    await settled()
    reader.questions[-1].set_result(None)
    assert await asking is None


def arrives(reader: Any, task_id: str) -> None:
    reader.stored.append(StoredStatus(task_id))
    reader.arrived = len(reader.stored)


async def test_what_has_come_is_known_without_a_question(statuses: Statuses, reader: Any) -> None:
    arrives(reader, "a")
    assert not statuses.follow()  # it was never read up to the end
    reader.arrived = 0
    reader.stored.clear()
    await read_up(statuses, reader)
    arrives(reader, "a")
    reader.stored.append(StoredStatus("b"))  # is on its way
    assert statuses.follow()
    assert (statuses.known("a"), statuses.known("b")) == (TaskStatus(SUCCESS, 1.0), None)
    assert len(reader.questions) == 1


async def test_after_a_loss_of_its_place_the_view_follows_when_it_was_read_up_again(
    statuses: Statuses, reader: Any
) -> None:
    await read_up(statuses, reader)
    reader.move(-1)
    assert not statuses.follow()
    reader.move(8)
    assert not statuses.follow()  # what was stored meanwhile may be on its way
    await read_up(statuses, reader)
    assert statuses.follow()


async def test_a_place_that_is_lost_while_it_is_read_up_does_not_count(statuses: Statuses, reader: Any) -> None:
    asking = asked(statuses, "a")
    await settled()
    reader.move(8)
    reader.questions[0].set_result(None)
    assert await asking is None
    assert not statuses.follow()


async def test_the_view_does_not_follow_during_a_look_or_before_a_large_status_is_opened(
    statuses: Statuses, reader: Any
) -> None:
    await read_up(statuses, reader)
    looking = asked(statuses, "a")
    await settled()
    assert not statuses.follow()
    reader.questions[1].set_result(None)
    await looking
    assert statuses.follow()
    arrives(reader, "a")
    reader.held_up = True
    assert not statuses.follow()
