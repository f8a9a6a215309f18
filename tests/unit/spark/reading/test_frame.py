"""How long the ledgers of a frame are kept, without Spark and Ray: release, forgotten frames, failures, the end."""

import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from magnetar.bulk import planned_read
from magnetar.bulk.access import ClusterAccess
from magnetar.bulk.cluster_link import Pin
from magnetar.bulk.decryption import NO_KEYS
from magnetar.bulk.read_plan import Bounds, PartitionPlan
from magnetar.bulk.task_reading import TaskRead
from magnetar.bulk.typed.choice import RowShape, SchemaChoice, row_shape
from magnetar.protocol.errors import InvalidConfiguration, NotAllowedError, TopicNotFound
from magnetar.runtime.environment import Environment
from magnetar.spark.reading import frame
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState

ACCESS = ClusterAccess("cluster", b"", ("127.0.0.1", 1))
LEDGER = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("bookie-1",)),), LedgerState.CLOSED, 99, 100_000)
URL = "http://head:8080"
WAIT_S = 10


class Events:
    """What was asked of planners, in order; a test waits for what happens on another thread."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._arrived = threading.Condition()

    def add(self, event: str) -> None:
        with self._arrived:
            self.seen.append(event)
            self._arrived.notify_all()

    def wait(self, *events: str) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.seen == list(events), WAIT_S), self.seen


class Frame:
    def __init__(self, tasks: Sequence[TaskRead]) -> None:
        self.tasks = tasks


class Spark:
    class sparkContext:
        defaultParallelism = 3


class FakePlanner:
    events = Events()
    error: Exception | None = None

    def __init__(self, env: Environment, access: ClusterAccess, topic: str, **options: Any) -> None:
        if topic.startswith("non-persistent"):
            raise NotAllowedError(topic)
        assert access == ACCESS
        self.pins: tuple[Pin, ...] = ()

    async def plan(self, start: Any, end: Any, *, compacted: bool = False) -> list[PartitionPlan]:
        self.events.add(f"planned {start} {end}")
        if self.error is not None:
            raise self.error
        self.pins = (Pin("t", "pin"),)
        return [PartitionPlan("t", -1, (LEDGER,), (7, 0), (7, 99), Bounds())]

    async def shape(self, columns: Sequence[str] | None, choice: SchemaChoice) -> RowShape:
        return row_shape(columns)

    def detach(self) -> None:
        self.events.add("left to expire")

    async def close(self) -> None:
        self.events.add("closed")


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    async def access(*url: str) -> ClusterAccess:
        return ACCESS

    async def admin() -> str:
        return URL

    found = Events()
    monkeypatch.setattr(FakePlanner, "events", found)
    monkeypatch.setattr(FakePlanner, "error", None)
    for name in ("cluster_access", "access_over_http"):
        monkeypatch.setattr(planned_read, name, access)
    monkeypatch.setattr(planned_read, "admin_through_ray", admin)
    monkeypatch.setattr(planned_read, "Planner", FakePlanner)
    monkeypatch.setattr(frame, "frame_of", lambda spark, tasks, schema: Frame(tasks))
    yield found
    frame.release_all()


def read(topic: str = "t", **options: Any) -> Any:
    return frame.read_topic(Spark(), topic, **options)  # type: ignore[arg-type]


def test_nothing_is_read_and_tasks_know_where_the_cluster_is(events: Events) -> None:
    made = read(start=5, columns=["value"], pin_ttl_s=9.0)
    assert events.seen == ["planned 5 latest"]
    assert [task.split.entries for task in made.tasks] == [33, 33, 33, 1]
    for task in made.tasks:
        assert task._replace(split=None) == (URL, ACCESS, None, RowShape(("value",)), (Pin("t", "pin"),), 9.0, NO_KEYS)


def test_tasks_have_the_size_and_the_number_that_are_asked_for() -> None:
    assert len(read(min_partitions=10).tasks) == 10
    assert len(read(max_bytes_per_split=2_000, admin_url="http://other:1").tasks) == 50
    for wrong in ({"max_bytes_per_split": 0}, {"min_partitions": 0}, {"columns": ["price"]}):
        with pytest.raises(InvalidConfiguration):
            read(**wrong)


def test_a_frame_that_is_released_lets_go_once(events: Events) -> None:
    made = read()
    frame.release(made)
    frame.release(made)
    events.wait("planned earliest latest", "closed")
    with pytest.raises(InvalidConfiguration):
        frame.release(Frame([]))  # type: ignore[arg-type]


def test_the_pins_of_a_forgotten_frame_are_left_to_expire(events: Events) -> None:
    read()
    gc.collect()
    events.wait("planned earliest latest", "left to expire", "closed")


def test_the_end_of_the_session_lets_go_of_all_frames(events: Events) -> None:
    made = read(), read()
    frame.release(made[0])
    frame.release_all()
    assert sorted(events.seen) == ["closed", "closed", "planned earliest latest", "planned earliest latest"]


def test_a_plan_that_failed_leaves_nothing_behind(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePlanner, "error", TopicNotFound("t"))
    with pytest.raises(TopicNotFound):
        read()
    assert events.seen == ["planned earliest latest", "closed"]


def test_topics_that_store_nothing_are_refused_before_anything_is_planned(events: Events) -> None:
    with pytest.raises(NotAllowedError):
        read("non-persistent://public/default/t")
    assert events.seen == []
