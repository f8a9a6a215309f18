"""Streaming queries of the data source in Spark 4: each row once, over restarts, growth, limits and what is gone."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import magnetar
from magnetar.protocol.errors import InvalidConfiguration
from magnetar.spark import lag
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until
from support.spark.spark4 import Spark4, SparkFailed

pytestmark = pytest.mark.cluster_settings(brokers=2, ledger_entries_max=20, ledger_rollover_min_minutes=0)

IDS = "SELECT __messageId FROM t"
VALUES = "SELECT value FROM t ORDER BY __publishTime, __sequenceId"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def query(spark: Spark4, admin_url: str, topic: str, tmp_path: Path) -> Run:
    """Run the streaming query of this test once, to the end of its topics, with the checkpoint of its earlier runs."""

    def run(sql: str = IDS, **options: str) -> dict[str, Any]:
        chosen = {"startingOffsets": "earliest", **({} if "topicsPattern" in options else {"topic": topic}), **options}
        return spark.ask({"admin.url": admin_url, **chosen}, sql, directory=str(tmp_path))

    return run


def create(cluster: EmbeddedCluster, topic: str, partitions: int = 0, *, kept: bool = True) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=partitions))
    if kept:
        with magnetar.Client(cluster.service_url) as client:
            client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()


def publish(cluster: EmbeddedCluster, topic: str, numbers: range) -> list[str]:
    """Returns the ids of the messages, as Spark's rows have them."""
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=3)
        return [one.serialize().hex() for one in producer.send_many([b"%d" % number for number in numbers])]


def column(found: dict[str, Any]) -> list[str]:
    return [value for (value,) in found["rows"]]


def test_each_row_comes_once_over_runs_and_new_partitions(cluster: EmbeddedCluster, query: Run, topic: str) -> None:
    create(cluster, topic, 2)
    expected = publish(cluster, topic, range(200))
    assert sorted(column(query())) == sorted(expected)
    assert column(query()) == column(query()), "nothing came, so nothing was read"
    cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=4))
    expected += publish(cluster, topic, range(200, 300))
    found = column(query())
    assert sorted(found) == sorted(expected)
    assert {magnetar.MessageId.deserialize(bytes.fromhex(one)).partition() for one in found} == {0, 1, 2, 3}


def test_a_query_begins_at_the_end_by_default(cluster: EmbeddedCluster, query: Run, topic: str) -> None:
    create(cluster, topic)
    publish(cluster, topic, range(50))
    assert query(startingOffsets="latest")["rows"] == []
    assert sorted(publish(cluster, topic, range(50, 80))) == sorted(column(query(startingOffsets="latest")))


def test_a_query_begins_inside_a_batch_or_at_a_time(
    cluster: EmbeddedCluster, spark: Spark4, query: Run, topic: str, admin_url: str, tmp_path: Path
) -> None:
    create(cluster, topic)
    ids = publish(cluster, topic, range(60))
    offsets = json.dumps({topic: ids[31]})
    assert column(query(startingOffsets=offsets)) == ids[31:]
    with magnetar.Client(cluster.service_url) as client:
        reader = client.create_reader(topic, magnetar.MessageId.earliest)
        times = [reader.read_next(10_000).publish_timestamp() for _ in ids]
    options = {"admin.url": admin_url, "topic": topic, "startingTime": str(times[40])}
    found = spark.ask(options, IDS, directory=str(tmp_path / "by-time"))
    assert sorted(column(found)) == sorted(one for one, time in zip(ids, times, strict=True) if time >= times[40])


def test_a_limit_makes_several_micro_batches(cluster: EmbeddedCluster, query: Run, topic: str) -> None:
    create(cluster, topic, 2)
    expected = publish(cluster, topic, range(600))
    found = query(maxBytesPerTrigger="4000")
    assert sorted(column(found)) == sorted(expected)
    assert sum(found["batches"]) == 600 and 4 <= len(found["batches"]) <= 100


def test_a_limit_of_messages_is_kept_within_entries(cluster: EmbeddedCluster, query: Run, topic: str) -> None:
    create(cluster, topic)
    expected = publish(cluster, topic, range(100))  # in batches of three
    found = query(maxMessagesPerTrigger="25", predefinedSubscription="spark")
    assert sorted(column(found)) == sorted(expected)
    assert found["batches"] == [25, 25, 25, 25]


def test_the_lag_is_what_lies_behind_the_progress(
    cluster: EmbeddedCluster, query: Run, topic: str, admin_url: str
) -> None:
    create(cluster, topic, 2)
    publish(cluster, topic, range(180))  # in batches of three
    progress = query(maxMessagesPerTrigger="60")["progress"]
    assert len(progress) >= 3
    first, last = lag(progress[0], admin_url), lag(progress[-1], admin_url)
    assert first.rows is not None and first.rows == pytest.approx(180 - progress[0]["numInputRows"], abs=9)
    assert first.entries == sum(first.topics.values()) >= first.rows // 3 and first.size_bytes > first.rows
    assert first.entries_per_s == pytest.approx(progress[0]["processedRowsPerSecond"] / 3, rel=0.2)
    assert (last.entries, last.size_bytes, last.rows) == (0, 0, 0)
    assert set(last.topics) == {f"{topic}-partition-0", f"{topic}-partition-1"}
    publish(cluster, topic, range(180, 240))
    after = lag(progress[-1], admin_url)
    assert after.entries == 20 and after.rows == pytest.approx(60, abs=6)
    cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=3))
    assert query()["progress"][-1]["sources"][0]["numInputRows"] == 60


def test_a_progress_without_an_offset_of_ours_has_no_lag(admin_url: str) -> None:
    kafka = {"endOffset": '{"orders": {"0": 7}}', "latestOffset": '{"orders": {"0": 7}}', "startOffset": "null"}
    for progress in (None, {"sources": []}, {"sources": [kafka]}):
        with pytest.raises(InvalidConfiguration, match="wait for the first micro-batch"):
            lag(progress, admin_url)


def test_a_query_begins_inside_the_last_batch(cluster: EmbeddedCluster, query: Run, topic: str) -> None:
    create(cluster, topic)
    ids = publish(cluster, topic, range(30))
    assert column(query(startingOffsets=json.dumps({topic: ids[-1]}))) == ids[-1:]


def test_topics_that_match_a_pattern_join(cluster: EmbeddedCluster, query: Run, topic: str) -> None:
    pattern = topic.removeprefix("persistent://") + "-.*"
    create(cluster, f"{topic}-a")
    expected = publish(cluster, f"{topic}-a", range(20))
    assert sorted(column(query(topicsPattern=pattern))) == sorted(expected)
    create(cluster, f"{topic}-b", 2)
    expected += publish(cluster, f"{topic}-b", range(30))
    assert sorted(column(query(topicsPattern=pattern))) == sorted(expected)


def test_the_cursor_of_a_subscription_follows(cluster: EmbeddedCluster, query: Run, topic: str, admin_url: str) -> None:
    def backlog() -> int:
        path = topic.replace("://", "/")
        with urllib.request.urlopen(f"{admin_url}/admin/v2/{path}/stats", timeout=10) as answer:
            return json.load(answer)["subscriptions"]["spark"]["msgBacklog"]

    create(cluster, topic, kept=False)
    assert query(predefinedSubscription="spark")["rows"] == []
    expected = publish(cluster, topic, range(90))
    assert backlog() == 30, "of entries, which are batches"
    assert sorted(column(query(predefinedSubscription="spark"))) == sorted(expected)
    query(predefinedSubscription="spark")  # a micro-batch is known to be done when the next one is planned
    assert backlog() == 0


def test_what_is_gone_is_an_error_unless_the_query_may_go_on(
    cluster: EmbeddedCluster, query: Run, topic: str, admin_url: str
) -> None:
    create(cluster, topic)
    expected = publish(cluster, topic, range(30))
    assert sorted(column(query(pinTtlSeconds="1"))) == sorted(expected)
    publish(cluster, topic, range(30, 200))
    path = f"{admin_url}/admin/v2/{topic.replace('://', '/')}"

    def ledgers() -> int:
        urllib.request.urlopen(urllib.request.Request(f"{path}/truncate", method="DELETE"), timeout=10).close()
        with urllib.request.urlopen(f"{path}/internalStats", timeout=10) as answer:
            return len(json.load(answer)["ledgers"])

    wait_until(lambda: ledgers() == 1, "the pins of the query have expired, and all is trimmed", 30)
    expected += publish(cluster, topic, range(200, 230))
    with pytest.raises(SparkFailed, match="messages between them may be gone"):
        query()
    assert sorted(column(query(failOnDataLoss="false"))) == sorted(expected)
