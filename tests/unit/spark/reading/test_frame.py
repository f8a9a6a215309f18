"""How long rows and readers live, without Spark and Ray: applications, frames, release, failures."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from magnetar.bulk.access import ClusterAccess
from magnetar.bulk.cluster_link import LocateBookies
from magnetar.bulk.read_plan import PartitionPlan, ReadSplit
from magnetar.protocol.errors import EntryCorrupt, InvalidConfiguration, NotAllowedError
from magnetar.runtime.environment import Environment
from magnetar.spark.reading import frame
from magnetar.spark.reading.progress import ReadProgress
from magnetar.spark.reading.reader_pool import Block, PlacedReader, ReaderPool
from support.checks.reading_threads import wait_for_readings

ACCESS = ClusterAccess("cluster", b"", ("127.0.0.1", 1))
events: list[str] = []
unpinning = threading.Event()
"""Not set: a broker hangs, and pins cannot be removed."""


class Frame:
    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks


class Context:
    def __init__(self, application: str) -> None:
        self.applicationId = application


class Spark:
    def __init__(self, application: str = "app-1", agent: str = "raydp-agent.jar") -> None:
        self.sparkContext = Context(application)
        self.conf = {"spark.javaagent": agent}


class FakePlanner:
    def __init__(self, env: Environment, access: ClusterAccess, topic: str, **options: Any) -> None:
        if topic.startswith("non-persistent"):
            raise NotAllowedError(topic)
        self.link = self

    async def __aenter__(self) -> "FakePlanner":
        events.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        assert await asyncio.to_thread(unpinning.wait, 10)
        events.append("unpinned")

    async def plan(self, start: Any, end: Any, *, compacted: bool = False) -> list[PartitionPlan]:
        events.append(f"planned {start} {end}")
        return []

    async def bookies(self) -> list[Any]:
        return []


class FakePool(ReaderPool):
    error: Exception | None = None

    async def read(
        self, env: Environment, splits: Sequence[ReadSplit], locate: LocateBookies, progress: ReadProgress
    ) -> list[Block]:
        events.append("read")
        if self.error is not None:
            raise self.error
        return [Block("ref", 5, 100)]

    def close(self) -> None:
        events.append("pool closed")
        self.readers.clear()


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakePool]]:
    started: list[FakePool] = []

    def start(access: ClusterAccess, readers_per_node: int | None) -> FakePool:
        assert access == ACCESS
        started.append(FakePool([PlacedReader(None, "host")]))
        return started[-1]

    async def access() -> ClusterAccess:
        return ACCESS

    monkeypatch.setattr(frame.ReaderPool, "start", staticmethod(start))
    monkeypatch.setattr(frame, "cluster_access", access)
    monkeypatch.setattr(frame, "Planner", FakePlanner)
    monkeypatch.setattr(frame, "to_dataframe", lambda spark, blocks: Frame(blocks))
    events.clear()
    unpinning.set()
    yield started
    unpinning.set()
    wait_for_readings()
    frame.release_all()


def read(spark: Spark, topic: str = "t", **options: Any) -> Any:
    return frame.read_topic(spark, topic, progress=False, **options)  # type: ignore[arg-type]


def test_pins_last_until_everything_is_read_and_no_longer() -> None:
    made = read(Spark(), start=5, on_planned=lambda: events.append("told"))
    assert made.blocks == [Block("ref", 5, 100)]
    wait_for_readings()
    assert events == ["open", "planned 5 latest", "told", "read", "unpinned"]


def test_a_read_does_not_wait_for_a_broker_that_does_not_unpin() -> None:
    unpinning.clear()
    assert read(Spark()).blocks == [Block("ref", 5, 100)]
    assert events[-1] == "read"


def test_readers_serve_all_reads_of_an_application(pools: list[FakePool]) -> None:
    first, second = Spark(), Spark("app-2")
    read(first)
    read(first)
    assert len(pools) == 1
    read(second)
    assert len(pools) == 2


def test_readers_that_all_died_are_replaced(pools: list[FakePool]) -> None:
    read(Spark())
    pools[0].readers.clear()
    read(Spark())
    assert len(pools) == 2


def test_rows_stay_until_they_are_released(pools: list[FakePool]) -> None:
    made = read(Spark())
    application = next(iter(frame._applications.values()))
    assert len(application.frames) == 1
    frame.release(made)
    assert not application.frames
    frame.release(made)
    with pytest.raises(InvalidConfiguration):
        frame.release(Frame([]))  # type: ignore[arg-type]


def test_rows_stay_when_only_the_frame_is_forgotten() -> None:
    read(Spark())
    assert len(next(iter(frame._applications.values())).frames) == 1


def test_a_read_that_failed_leaves_no_rows_and_no_pins(pools: list[FakePool]) -> None:
    read(Spark())
    pools[0].error = EntryCorrupt("damaged")
    with pytest.raises(EntryCorrupt):
        read(Spark())
    assert len(next(iter(frame._applications.values())).frames) == 1
    wait_for_readings()
    assert events[-1] == "unpinned"


def test_the_end_of_the_session_ends_the_readers() -> None:
    made = read(Spark())
    frame.release_all()
    assert events[-1] == "pool closed"
    assert not frame._applications
    frame.release(made)


def test_topics_that_store_nothing_are_refused_before_anything_is_planned() -> None:
    with pytest.raises(NotAllowedError):
        read(Spark(), "non-persistent://public/default/x")
    assert events == []


def test_a_spark_that_is_not_on_ray_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="does not run on Ray"):
        read(Spark(agent=""))
    assert events == []
