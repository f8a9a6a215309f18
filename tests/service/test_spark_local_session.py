"""`read_topic` and `stream` with a Spark 3.5 on this machine alone: no Ray, the cluster is known by its admin HTTP."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import magnetar
from magnetar.protocol.errors import InvalidConfiguration, NoSuchEntry
from magnetar.spark import lag
from magnetar.spark.reading.frame import read_topic, release
from magnetar.spark.reading.stream import TopicQuery, stream
from magnetar.spark.source.offsets import Reached
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures
from support.servers.ray_nodes import wait_until

pytestmark = [
    pytest.mark.cluster_settings(brokers=2, ledger_entries_max=20, ledger_rollover_min_minutes=0),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WAIT_S = 60.0
Run = Callable[..., list[int]]


@pytest.fixture
def sink() -> "Sink":
    return Sink()


@pytest.fixture
def query(local_spark: Any, topic: str, admin_url: str, tmp_path: Path, sink: "Sink") -> Callable[..., TopicQuery]:
    """Start the stream of this test, with the checkpoint of its earlier runs."""

    def start(**options: Any) -> TopicQuery:
        chosen = {"start": "earliest", "checkpoint_location": str(tmp_path / "checkpoint"), **options}
        return stream(topic, chosen.pop("subscription", None), sink, admin_url=admin_url, spark=local_spark, **chosen)

    return start


class Sink:
    """Keeps the rows of each micro-batch by its number, as a table with the number as its key does."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.fail_at: int | None = None

    def __call__(self, frame: Any, number: int) -> None:
        values = [int(bytes(row["value"])) for row in frame.select("value").collect()]
        if number == self.fail_at:
            raise RuntimeError("the sink is full")
        assert self.batches.get(number, values) == values, "the same rows under the same number"
        self.batches[number] = values

    @property
    def rows(self) -> list[int]:
        return sorted(value for values in self.batches.values() for value in values)


def create(cluster: EmbeddedCluster, topic: str, partitions: int = 0) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=partitions))
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()


def publish(cluster: EmbeddedCluster, topic: str, numbers: range) -> None:
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=3)
        producer.send_many([b"%d" % number for number in numbers])


def test_a_frame_is_lazy_and_has_the_rows_of_the_moment_of_the_call(
    cluster: EmbeddedCluster, local_spark: Any, topic: str, admin_url: str
) -> None:
    create(cluster, topic, 3)
    publish(cluster, topic, range(300))
    frame = read_topic(
        local_spark, topic, columns=["value", "__partition"], admin_url=admin_url, max_bytes_per_split=2_000
    )
    publish(cluster, topic, range(300, 350))
    for _ in range(2):
        assert sorted(int(bytes(row["value"])) for row in frame.collect()) == list(range(300))
    assert {row["__partition"] for row in frame.select("__partition").distinct().collect()} == {0, 1, 2}
    release(frame)


def test_each_row_comes_once_over_runs_limits_and_new_partitions(
    cluster: EmbeddedCluster, query: Callable[..., TopicQuery], topic: str, sink: Sink
) -> None:
    create(cluster, topic, 2)
    publish(cluster, topic, range(120))
    ended = query(trigger="availableNow", max_messages_per_trigger=50)
    assert ended.await_termination(WAIT_S)
    assert sink.rows == list(range(120)) and len(sink.batches) >= 3
    progress = ended.recent_progress
    assert [one["batchId"] for one in progress] == sorted(sink.batches)
    ends = [
        [Reached.parse(place).order for place in progress[-1][name].values()] for name in ("endOffset", "latestOffset")
    ]
    assert ends[0] == ends[1] and progress[0]["endOffset"] != progress[-1]["endOffset"]
    cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=4))
    publish(cluster, topic, range(120, 200))
    assert query(trigger="availableNow").await_termination(WAIT_S)
    assert sink.rows == list(range(200))


def test_progress_says_how_far_a_stream_is_behind(
    cluster: EmbeddedCluster, query: Callable[..., TopicQuery], topic: str, admin_url: str
) -> None:
    create(cluster, topic)
    publish(cluster, topic, range(90))  # 30 entries
    ended = query(trigger="availableNow", max_messages_per_trigger=30)
    assert ended.await_termination(WAIT_S)
    progress = ended.recent_progress
    assert [one["lagEntries"] for one in progress] == [20, 10, 0]
    assert all(one["numInputEntries"] == 10 and one["inputEntriesPerSecond"] > 0 for one in progress)
    publish(cluster, topic, range(90, 105))
    found = lag(progress[1], admin_url)
    assert found == (15, found.size_bytes, None, progress[1]["inputEntriesPerSecond"], {topic: 15})
    cluster.run(cluster.coordinator_call("delete_topic", topic=topic, force=True))
    assert lag(progress[1], admin_url).entries == 0


def test_a_micro_batch_that_failed_comes_again_with_its_rows_and_number(
    cluster: EmbeddedCluster, query: Callable[..., TopicQuery], topic: str, sink: Sink
) -> None:
    create(cluster, topic)
    publish(cluster, topic, range(60))
    sink.fail_at = 1
    failing = query(max_messages_per_trigger=20)
    with pytest.raises(RuntimeError, match="the sink is full"):
        failing.await_termination(WAIT_S)
    assert not failing.is_active and isinstance(failing.exception(), RuntimeError)
    publish(cluster, topic, range(60, 90))
    sink.fail_at = None
    assert query(trigger="availableNow").await_termination(WAIT_S)
    assert sink.batches[1] == list(range(20, 40)), "not more than it had when it failed"
    assert sink.rows == list(range(90))


def test_a_running_query_follows_its_topic_and_its_cursor_follows_it(
    cluster: EmbeddedCluster, query: Callable[..., TopicQuery], topic: str, sink: Sink
) -> None:
    create(cluster, topic)
    running = query(subscription="stream", checkpoint_location=None, start="latest")
    try:
        wait_until(lambda: "stream" in cursors(cluster, topic), "the query has its cursor", WAIT_S)
        for begin in (0, 30):
            publish(cluster, topic, range(begin, begin + 30))
            wait_until(lambda end=begin + 30: sink.rows == list(range(end)), "all rows came", WAIT_S)
        wait_until(lambda: not cursors(cluster, topic)["stream"], "all is acknowledged", WAIT_S)
    finally:
        running.stop()
    running.stop()
    assert not running.is_active and running.exception() is None
    publish(cluster, topic, range(60, 70))
    sink.batches.clear()
    assert query(subscription="stream", checkpoint_location=None, trigger="availableNow").await_termination(WAIT_S)
    assert sink.rows == list(range(60, 70)), "a query without a checkpoint goes on behind its cursor"


def cursors(cluster: EmbeddedCluster, topic: str) -> dict[str, int]:
    """The backlog of each subscription."""
    return {name: found["msgBacklog"] for name, found in figures(cluster, topic)["subscriptions"].items()}


def test_what_is_gone_ends_a_query_unless_it_may_go_on(
    cluster: EmbeddedCluster, query: Callable[..., TopicQuery], topic: str, admin_url: str, sink: Sink
) -> None:
    create(cluster, topic)
    publish(cluster, topic, range(30))
    assert query(trigger="availableNow", pin_ttl_s=1.0).await_termination(WAIT_S)
    publish(cluster, topic, range(30, 200))
    path = f"{admin_url}/admin/v2/{topic.replace('://', '/')}"

    def ledgers() -> int:
        urllib.request.urlopen(urllib.request.Request(f"{path}/truncate", method="DELETE"), timeout=10).close()
        with urllib.request.urlopen(f"{path}/internalStats", timeout=10) as answer:
            return len(json.load(answer)["ledgers"])

    wait_until(lambda: ledgers() == 1, "the pins of the query have expired, and all is trimmed", WAIT_S)
    publish(cluster, topic, range(200, 230))
    with pytest.raises(NoSuchEntry, match="messages between them may be gone"):
        query(trigger="availableNow").await_termination(WAIT_S)
    assert query(trigger="availableNow", is_data_loss_an_error=False).await_termination(WAIT_S)
    assert sink.rows == [*range(30), *range(200, 230)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint_location": None}, "a subscription or a checkpoint_location"),
        ({"trigger": "once"}, "trigger is a number of seconds"),
        ({"start": "end"}, "start must be"),
        ({"columns": ["price"]}, "no column 'price'"),
        ({"max_messages_per_trigger": 0}, "maxMessagesPerTrigger must be a whole number"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    query: Callable[..., TopicQuery], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        query(**options)
