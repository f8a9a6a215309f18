"""A broker that falls silent: when it is asked, when others are, and what ends its connection. In time of our own."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.client.core.connection import PendingRequests
from magnetar.client.core.liveness import PATH_DEAD_S, Liveness, LivenessState
from magnetar.protocol.commands import ping
from magnetar.protocol.errors import ConnectionClosed, MagnetarError
from magnetar.protocol.topics import TopicName
from magnetar.runtime.tasks import Tasks

KEEP_ALIVE_S = 30.0
MOVED = "t belongs to the broker at pulsar://other:6650"


class Clock:
    """Of a loop: its time, and its timers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.late_s = 0.0
        self.timers: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers = 0

    def time(self) -> float:
        return self.now

    def call_at(self, moment: float, callback: Callable[[], None]) -> Any:
        self._numbers += 1
        number = self._numbers
        self.timers[number] = (moment, callback)
        return SimpleNamespace(cancel=lambda: self.timers.pop(number, None))

    async def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [(moment, number) for number, (moment, _) in self.timers.items() if moment <= end]:
            moment, number = min(due)
            self.now = max(self.now, moment + self.late_s)
            self.timers.pop(number)[1]()
            await settle()
        self.now = end


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Producer:
    def __init__(self, topic: str = "t") -> None:
        self.topic = TopicName.parse(topic)
        self.inflight: list[int] = []
        """Sequence ids of entries without a receipt."""

    @property
    def awaited_sequence_id(self) -> int | None:
        return self.inflight[0] if self.inflight else None

    def send(self, sequence_id: int) -> None:
        self.inflight.append(sequence_id)


class Link:
    """A connection whose broker answers PINGs while it is not `mute`, and what other brokers say about its topics."""

    def __init__(self, silence_s: float = 1.0) -> None:
        self.clock = Clock()
        self.address = ("broker", 6650)
        self.url = "pulsar://broker:6650"
        self.heard_at = self.clock.now
        self.chunks = 0
        self.closed = False
        self.requests = PendingRequests()
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Any] = {}
        self.watchers: dict[int, Any] = {}
        self.mute = True
        self.pings: list[float] = []
        self.questions: list[tuple[float, str, bool]] = []
        self.says = ""
        self.reason: MagnetarError | None = None
        self.unacknowledged = 0.0
        self.on_their_way = 0
        self.taken: Callable[[], int] = lambda: 0
        self.before_answer: Callable[[], None] = lambda: None
        self.tasks = Tasks()
        loop: Any = self.clock
        self.liveness = Liveness(self, loop, KEEP_ALIVE_S, silence_s)
        self.liveness.begin()
        self.liveness.ask_by(self._elsewhere, self.tasks.spawn)

    async def _elsewhere(self, topic: str, silent: bool) -> str:
        self.questions.append((self.clock.now, topic, silent))
        await asyncio.sleep(0)
        self.before_answer()
        return self.says

    def hear(self) -> None:
        self.heard_at = self.clock.now
        self.chunks += 1

    def send(self, producer_id: int = 1, sequence_id: int = 0, topic: str = "t") -> Producer:
        producer = self.producers.setdefault(producer_id, Producer(topic))
        producer.send(sequence_id)
        self._written()
        return producer

    def _written(self) -> None:
        if self.liveness.resting:
            self.liveness.expect()

    def write(self, data: bytes) -> None:
        assert data == ping()
        self.pings.append(self.clock.now)
        if not self.mute:
            asyncio.get_running_loop().call_soon(self._pong)

    def _pong(self) -> None:
        """In the same millisecond as the PING, as with uvloop."""
        self.hear()
        self.liveness.ponged()

    def unacknowledged_s(self) -> float:
        return self.unacknowledged

    def acknowledged_bytes(self) -> int | None:
        taken = self.taken()
        return taken if taken < self.on_their_way else None

    def close(self, reason: MagnetarError | None = None) -> None:
        if not self.closed:
            self.closed, self.reason = True, reason
            self.liveness.end()

    def after(self, moments: list[float], start: float) -> list[float]:
        return [round(moment - start, 2) for moment in moments]


@pytest.mark.promise("31.12")
async def test_a_topic_that_moved_from_a_silent_broker_is_left_within_two_seconds() -> None:
    link = Link()
    await link.clock.pass_time(20)
    start = link.clock.now
    link.send()
    await link.clock.pass_time(0.9)
    assert not link.pings and not link.questions
    await link.clock.pass_time(0.2)
    assert link.after(link.pings[-1:], start) == [1.0]
    link.says = MOVED
    await link.clock.pass_time(0.5)
    assert [(round(at - start, 2), topic, silent) for at, topic, silent in link.questions] == [
        (1.5, "persistent://public/default/t", True)
    ]
    assert link.closed and isinstance(link.reason, ConnectionClosed) and MOVED in str(link.reason)


async def test_a_silent_owner_is_kept_and_others_are_asked_more_and_more_rarely() -> None:
    link = Link()
    start = link.clock.now
    link.send()
    await link.clock.pass_time(6)
    assert not link.closed
    assert link.after([at for at, _, _ in link.questions], start)[:3] == [1.5, 2.0, 2.5]
    assert len(link.questions) == 10
    await link.clock.pass_time(24)
    assert len(link.questions) <= 17, "pauses grow to five seconds"
    link.hear()
    await link.clock.pass_time(0.6)
    assert not link.closed and link.liveness.state is not LivenessState.DOUBTED


async def test_a_broker_that_answers_pings_gets_one_each_second() -> None:
    link = Link()
    link.mute = False
    for number in range(1000):
        link.producers[number] = Producer(f"t{number}")
        link.producers[number].send(0)
    link.liveness.expect()
    await link.clock.pass_time(10)
    assert 5 <= len(link.pings) <= 11
    assert not any(silent for _, _, silent in link.questions) and not link.closed


async def test_one_question_at_a_time_whatever_the_number_of_producers() -> None:
    link = Link()
    for number in range(1000):
        link.send(number, 0, f"t{number}")
    await link.clock.pass_time(3)
    assert len(link.questions) == 4
    assert len({topic for _, topic, _ in link.questions}) == 4, "about another topic each time"


async def test_a_question_without_an_answer_holds_back_the_next_one() -> None:
    link = Link()
    asked: list[str] = []

    async def never(topic: str, silent: bool) -> str:
        asked.append(topic)
        await asyncio.get_running_loop().create_future()
        return ""

    link.liveness.ask_by(never, link.tasks.spawn)
    link.send()
    await link.clock.pass_time(20)
    assert len(asked) == 1
    await link.tasks.close()


async def test_an_idle_connection_is_asked_at_the_keep_alive_interval_only() -> None:
    link = Link()
    link.mute = False
    link.producers[1] = Producer()
    start = link.clock.now
    await link.clock.pass_time(95)
    assert link.after(link.pings, start) == [30.0, 60.0, 90.0]
    assert not link.questions


async def test_a_consumer_without_messages_asks_more_and_more_rarely() -> None:
    link = Link()
    link.mute = False
    link.consumers[1] = Producer()
    start = link.clock.now
    await link.clock.pass_time(120)
    assert link.after(link.pings, start)[:4] == [2.0, 6.0, 14.0, 30.0]
    assert len(link.pings) <= 8
    assert link.questions and not link.closed, "a broker that knows nothing of a move answers PINGs, too"


async def test_a_consumer_on_a_silent_broker_moves_with_its_topic() -> None:
    link = Link()
    link.consumers[1] = Producer()
    link.says = MOVED
    await link.clock.pass_time(2.6)
    assert link.closed and link.pings


async def test_a_process_that_stood_still_blames_no_broker() -> None:
    link = Link()
    link.send()
    link.says = MOVED
    link.clock.now += 60
    await link.clock.pass_time(0.5)
    assert not link.pings and not link.questions and not link.closed


async def test_an_answer_after_the_broker_was_heard_again_changes_nothing() -> None:
    link = Link()
    link.send()
    link.says = MOVED
    link.before_answer = link.hear
    await link.clock.pass_time(1.5)
    assert link.questions and not link.closed


async def test_a_broker_that_answers_but_lost_its_topic_unawares_is_left() -> None:
    link = Link()
    link.mute = False
    link.send()
    link.says = MOVED
    await link.clock.pass_time(5)
    assert link.closed and link.questions[0][2] is False
    assert len(link.pings) >= 2, "the last one to let it say CLOSE_PRODUCER first"


async def test_a_broker_that_closes_the_producer_of_a_moved_topic_is_kept() -> None:
    link = Link()
    link.mute = False
    link.send()
    link.says = MOVED
    link.before_answer = link.producers.clear
    await link.clock.pass_time(5)
    assert link.questions and not link.closed


async def test_receipts_that_come_slowly_ask_nobody() -> None:
    link = Link()
    link.mute = False
    producer = link.send()
    for number in range(1, 20):
        producer.send(number)
    for _ in range(10):
        await link.clock.pass_time(0.8)
        producer.inflight.pop(0)
        link.hear()
    assert not link.questions and not link.pings


async def test_questions_that_any_broker_answers_fail_when_this_one_is_silent() -> None:
    link = Link()
    loop = asyncio.get_running_loop()
    for request_id, anywhere in ((1, True), (2, False)):
        future: Any = loop.create_future()
        link.requests.begin(request_id, future, anywhere=anywhere)
        link.requests.limit(request_id, (asyncio.timeout(1),))
        link.consumers[request_id] = Producer()
    futures = link.requests._futures
    await link.clock.pass_time(1.6)
    assert isinstance(futures[1].exception(), ConnectionClosed)
    assert not futures[2].done() and not link.closed


async def test_a_silent_connection_without_producers_and_consumers_ends() -> None:
    link = Link()
    future: Any = asyncio.get_running_loop().create_future()
    link.requests.begin(1, future, anywhere=True)
    link.requests.limit(1, (asyncio.timeout(1),))
    await link.clock.pass_time(1.6)
    assert link.closed and not link.questions


async def test_a_machine_that_acknowledges_nothing_is_given_up() -> None:
    link = Link()
    link.send()
    link.unacknowledged = 3600.0
    await link.clock.pass_time(PATH_DEAD_S)
    assert not link.closed, "the hour is from before the PING"
    await link.clock.pass_time(2)
    assert link.closed and "acknowledges nothing" in str(link.reason)


@pytest.mark.parametrize("silence_s", [0.0, 1.0])
async def test_nothing_for_two_keep_alive_intervals_ends_it(silence_s: float) -> None:
    link = Link(silence_s)
    link.send()
    await link.clock.pass_time(2 * KEEP_ALIVE_S - 1)
    assert not link.closed and bool(link.questions) == bool(silence_s)
    await link.clock.pass_time(2)
    assert link.closed


@pytest.mark.parametrize("bytes_per_s", [0, 10_000], ids=["dead", "slow"])
async def test_a_connection_that_takes_bytes_slowly_does_not_count_as_dead(bytes_per_s: int) -> None:
    link = Link()
    start = link.clock.now
    link.on_their_way, link.taken = 100_000, lambda: int(bytes_per_s * (link.clock.now - start))
    link.send()
    await link.clock.pass_time(9)
    asked = [silent for _, _, silent in link.questions]
    assert len(asked) > 5 and set(asked) == {not bytes_per_s}
    await link.clock.pass_time(5)
    assert link.questions[-1][2], "all has gone, and there is still no answer"


async def test_a_link_that_stalls_for_a_moment_is_still_slow_only() -> None:
    link = Link()
    start = link.clock.now
    link.on_their_way, link.taken = 100_000, lambda: min(21_000, int(10_000 * (link.clock.now - start)))
    link.send()
    await link.clock.pass_time(3.6)
    assert link.questions and not any(silent for _, _, silent in link.questions), "it stands for 1.5 s"
    await link.clock.pass_time(3)
    assert link.questions[-1][2]


@pytest.mark.parametrize("silence_s", [1.0, 0.0], ids=["watched", "keep-alive only"])
async def test_a_process_that_is_always_late_still_notices_a_dead_broker(silence_s: float) -> None:
    link = Link(silence_s)
    link.clock.late_s = 0.4
    link.send()
    await link.clock.pass_time(2 * KEEP_ALIVE_S - 1)
    assert not link.closed
    await link.clock.pass_time(2 * KEEP_ALIVE_S + 3)
    assert link.closed and "does not answer" in str(link.reason)


async def test_a_process_that_is_always_late_keeps_a_broker_that_is_heard() -> None:
    link = Link()
    link.clock.late_s = 0.4
    link.send()
    for _ in range(10):
        await link.clock.pass_time(KEEP_ALIVE_S)
        link.hear()
    assert not link.closed


async def test_a_consumer_whose_broker_answers_in_the_same_millisecond_stays() -> None:
    link = Link()
    link.mute = False
    link.says = MOVED
    link.consumers[1] = Producer()
    await link.clock.pass_time(29)
    assert link.pings and not link.questions and not link.closed


async def test_traffic_in_the_millisecond_of_a_pong_keeps_the_patience_short() -> None:
    link = Link()
    link.mute = False
    link.consumers[1] = Producer()
    start = link.clock.now
    await link.clock.pass_time(2)
    link.hear()
    await link.clock.pass_time(6)
    assert link.after(link.pings, start)[:3] == [2.0, 4.0, 8.0]


async def test_the_pong_of_an_earlier_ping_does_not_confirm_that_a_broker_keeps_its_topic() -> None:
    link = Link()
    link.send()
    link.says = MOVED
    await link.clock.pass_time(1.4)
    link.hear()  # a receipt of another producer
    await link.clock.pass_time(1.05)
    assert len(link.questions) == 1 and len(link.pings) == 3
    link._pong()
    await settle()
    assert not link.closed, "it may say CLOSE_PRODUCER before its answers to the later PINGs"
    link._pong()
    link._pong()
    await settle()
    assert link.closed
