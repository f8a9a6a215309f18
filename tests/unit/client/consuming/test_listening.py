"""The task that calls a listener: what pausing, stopping and cancelling leave in the receive queue."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.consuming import listeners as listening
from magnetar.client.consuming.listeners import LoopListener
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.threading_bridge import LoopSignal
from magnetar.protocol.errors import AlreadyClosed, CryptoError, MagnetarError
from magnetar.runtime.tasks import Tasks


class Queue:
    """Numbers in place of messages; an error in their place is raised."""

    def __init__(self) -> None:
        self.waiting: deque[int | MagnetarError] = deque()
        self.failure: MagnetarError | None = None
        self.arrival = LoopSignal()

    def put(self, *items: int | MagnetarError) -> None:
        self.waiting.extend(items)
        self.arrival.notify_all()

    def fail(self) -> None:
        self.failure = AlreadyClosed("closed")
        self.arrival.notify_all()

    async def until_one(self) -> None:
        if self.failure is None and not self.waiting:
            await self.arrival.wait()
        if self.failure is not None:
            raise self.failure

    def take(self) -> Any:
        if not self.waiting:
            return None
        item = self.waiting.popleft()
        if isinstance(item, MagnetarError):
            raise item
        return SimpleNamespace(number=item, topic_name=lambda: "t", message_id=lambda: MessageId(-1, 1, item))


class Kit:
    def __init__(self) -> None:
        self.queue = Queue()
        self.tasks = Tasks()
        self.heard: list[int] = []

    def listen(self, handle: Callable[[Any], object] | None = None) -> LoopListener:
        core = SimpleNamespace(tasks=self.tasks, loop=asyncio.get_running_loop())
        consumer = SimpleNamespace(core=core, topic_text="t", receive_queue=self.queue)
        return LoopListener(cast(Any, consumer), self.queue.until_one, self.queue.take, handle or self.note)

    def note(self, message: Any) -> None:
        self.heard.append(message.number)


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    made = Kit()
    yield made
    await made.tasks.close()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_messages_are_handed_over_one_at_a_time_and_in_order(kit: Kit) -> None:
    at_once = 0

    async def handle(message: Any) -> None:
        nonlocal at_once
        at_once += 1
        await asyncio.sleep(0)
        assert at_once == 1
        kit.heard.append(message.number)
        at_once -= 1

    kit.listen(handle)
    kit.queue.put(*range(10))
    await turns()
    await turns()
    assert kit.heard == [*range(10)]


STEPS = st.sampled_from(["put", "put", "error", "turn", "turn", "pause", "resume", "go on", "fail"])


@given(st.lists(STEPS, max_size=40), st.sampled_from(["stop", "cancel"]))
def test_no_history_loses_repeats_or_reorders_a_message(steps: list[str], end: str) -> None:
    """Each message was handed over or is still in the queue, in its place. Handling takes until `go on`."""

    async def play() -> None:
        kit, go_on, numbers = Kit(), asyncio.Event(), itertools.count()

        async def handle(message: Any) -> None:
            kit.note(message)
            await go_on.wait()
            go_on.clear()
            if message.number % 7 == 3:
                raise RuntimeError("the application's own")

        listener = kit.listen(handle)
        paused, handed_over = False, 0
        for step in steps:
            match step:
                case "put":
                    kit.queue.put(next(numbers))
                case "error":
                    kit.queue.put(CryptoError("no key"))
                case "pause":
                    listener.pause()
                    paused, handed_over = True, len(kit.heard)
                case "resume":
                    listener.resume()
                    paused = False
                case "go on":
                    go_on.set()
                case "fail":
                    kit.queue.fail()
                case _:
                    await asyncio.sleep(0)
            assert not paused or len(kit.heard) == handed_over
        go_on.set()
        if end == "stop":
            await listener.stop()
        await kit.tasks.close()
        assert not len(kit.tasks)
        left = [one for one in kit.queue.waiting if isinstance(one, int)]
        assert kit.heard + left == [*range(next(numbers))]

    asyncio.run(play())


async def test_what_comes_while_paused_stays_in_the_queue(kit: Kit) -> None:
    listener = kit.listen()
    await turns()
    listener.pause()
    listener.pause()
    kit.queue.put(1, 2)
    await turns()
    assert kit.heard == [] and [*kit.queue.waiting] == [1, 2]
    listener.resume()
    listener.resume()
    await turns()
    assert kit.heard == [1, 2]


async def test_a_listener_that_pauses_itself_gets_no_further_message(kit: Kit) -> None:
    def handle(message: Any) -> None:
        kit.note(message)
        listener.pause()

    listener = kit.listen(handle)
    kit.queue.put(1, 2, 3)
    await turns()
    assert kit.heard == [1] and [*kit.queue.waiting] == [2, 3]


async def test_stopping_waits_for_the_message_that_is_being_handled(kit: Kit) -> None:
    go_on = asyncio.Event()

    async def handle(message: Any) -> None:
        await go_on.wait()
        kit.note(message)

    listener = kit.listen(handle)
    kit.queue.put(1, 2)
    await turns()
    stopping = [asyncio.create_task(listener.stop()) for _ in range(2)]
    await turns()
    assert not any(task.done() for task in stopping)
    go_on.set()
    await asyncio.gather(*stopping)
    assert kit.heard == [1] and [*kit.queue.waiting] == [2] and not len(kit.tasks)


@pytest.mark.parametrize("paused", [False, True])
async def test_stopping_a_listener_that_waits_takes_nothing(kit: Kit, paused: bool) -> None:
    listener = kit.listen()
    if paused:
        listener.pause()
    await turns()
    kit.queue.put(1)
    await listener.stop()
    assert kit.heard == [] and [*kit.queue.waiting] == [1] and not len(kit.tasks)


@pytest.mark.promise("14.5")
async def test_a_listener_that_takes_too_long_is_cancelled(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "LISTENER_STOP_TIMEOUT_S", 0.01)
    ended: list[str] = []

    async def handle(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    listener = kit.listen(handle)
    kit.queue.put(1)
    await turns()
    with caplog.at_level(logging.WARNING):
        await listener.stop()
    await turns()
    assert ended == ["cancelled"] and "still handles its message" in caplog.text and not len(kit.tasks)


async def test_a_listener_may_stop_itself_also_from_a_task_of_its_own(kit: Kit) -> None:
    async def handle(message: Any) -> None:
        await listener.stop()
        await asyncio.gather(listener.stop(), asyncio.sleep(0))
        kit.note(message)

    listener = kit.listen(handle)
    kit.queue.put(1, 2)
    await turns()
    assert kit.heard == [1] and [*kit.queue.waiting] == [2] and not len(kit.tasks)


@pytest.mark.parametrize("error", [RuntimeError("its own"), asyncio.CancelledError("of what it awaited")])
async def test_what_a_listener_raises_is_logged_with_its_message(
    kit: Kit, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def handle(message: Any) -> None:
        kit.note(message)
        if message.number == 1:
            raise error

    kit.listen(handle)
    kit.queue.put(1, 2)
    await turns()
    assert kit.heard == [1, 2]
    (record,) = [one for one in caplog.records if "failed with message" in one.getMessage()]
    assert "a listener on t failed with message 1:1:-1" in record.getMessage() and record.exc_info is not None


async def test_what_cannot_be_opened_is_logged_and_the_next_is_handed_over(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.listen()
    kit.queue.put(1, CryptoError("no key"), 2)
    await turns()
    assert kit.heard == [1, 2] and "the listener on t gets no message" in caplog.text


async def test_a_listener_that_is_cancelled_says_that_it_ends(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(_: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    kit.listen(handle)
    kit.queue.put(1, 2)
    await turns()
    assert [*kit.queue.waiting] == [2] and not len(kit.tasks) and "was cancelled" in caplog.text


async def test_the_task_ends_when_no_more_messages_will_come(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.listen()
    await turns()
    with caplog.at_level(logging.INFO):
        kit.queue.fail()
        await turns()
    assert not len(kit.tasks) and "the listener on t ends" in caplog.text


async def test_a_listener_that_never_waits_leaves_the_loop_its_turns(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "TURN_S", 0.0)
    kit.listen()
    kit.queue.put(*range(1_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(kit.heard) < 10
