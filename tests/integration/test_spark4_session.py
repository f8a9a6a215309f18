"""A session of PySpark 4 on Ray, with the pre-release of RayDP 1.7: what it reads, streams and writes, and its end.

Ray, the cluster and Spark run in build/spark4, because an environment has one PySpark.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import magnetar
from support.servers.ray_nodes import wait_until
from support.spark import spark4
from support.spark.spark4 import SparkFailed, SparkOnRay

COUNT = 2_000
PAYLOADS = [b"%d" % number for number in range(COUNT)]
TOTAL = sum(range(COUNT))
SUMS = "SELECT count(*), sum(CAST(CAST(value AS STRING) AS INT)), count(DISTINCT __messageId) FROM t"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkOnRay]:
    """A running program, whose topics `numbers` and `copies` keep what is published."""
    reason = spark4.reason_to_skip_on_ray()
    if reason is not None:
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("spark-on-ray")
    with SparkOnRay(place / "log", place / "data") as running:
        with magnetar.Client(running.facts["service_url"]) as client:
            for topic in ("numbers", "copies", "halves"):
                client.subscribe(topic, "keep", initial_position=magnetar.InitialPosition.Earliest).close()
            client.create_producer("numbers", batching_enabled=True).send_many(PAYLOADS)
        yield running


def options(spark: SparkOnRay, topic: str) -> dict[str, str]:
    return {"admin.url": spark.facts["admin_url"], "topic": topic}


def stored(spark: SparkOnRay, topic: str, count: int) -> list[bytes]:
    """What a consumer receives of a topic."""
    with magnetar.Client(spark.facts["service_url"]) as client:
        consumer = client.subscribe(topic, "check", initial_position=magnetar.InitialPosition.Earliest)
        return [consumer.receive(20_000).data() for _ in range(count)]


def test_a_session_has_the_pair_that_is_installed(spark: SparkOnRay) -> None:
    versions = spark.facts["versions"]
    assert versions["raydp"].startswith("1.7.") and versions["pyspark"].startswith("4.2.")


@pytest.mark.promise("29.7", "29.9")
def test_topics_are_read_and_written_with_the_functions(spark: SparkOnRay) -> None:
    assert spark.read_topic("numbers", SUMS)["rows"] == [[COUNT, TOTAL, COUNT]]
    halves = spark.read_topic("numbers", "SELECT value FROM t WHERE CAST(value AS STRING) LIKE '%0'", "halves")
    assert halves["written"] == COUNT // 10
    assert sorted(map(int, stored(spark, "halves", COUNT // 10))) == list(range(0, COUNT, 10))


def test_the_format_is_registered_and_its_errors_arrive(spark: SparkOnRay) -> None:
    assert spark.rows(options(spark, "numbers"), SUMS) == [[COUNT, TOTAL, COUNT]]
    with pytest.raises(SparkFailed, match="TopicNotFound"):
        spark.rows(options(spark, "there-is-no-such-topic"), SUMS)


@pytest.mark.promise("29.9")
def test_a_stream_copies_a_topic_through_the_format(spark: SparkOnRay, tmp_path: Path) -> None:
    write = {"service.url": spark.facts["service_url"], **options(spark, "copies")}
    reading = {**options(spark, "numbers"), "startingOffsets": "earliest"}
    copied = spark.write(write, "SELECT value FROM t", options=reading, directory=str(tmp_path))
    assert sum(copied["batches"]) == COUNT
    assert sorted(stored(spark, "copies", COUNT)) == sorted(PAYLOADS)


def test_the_end_of_a_session_and_of_its_program_leaves_no_process(spark: SparkOnRay) -> None:
    """Of what Java ran, the session leaves its driver, which ends with the program, as in any program of PySpark."""
    started = spark.processes()
    javas = [process for process in started if process.name() == "java"]
    assert len(javas) >= 3
    assert spark.stop_session(), "a session of the same name could not begin"
    wait_until(lambda: sum(map(runs, javas)) <= 1, "the JVMs of the master and of executors have ended", 60)
    with pytest.raises(SparkFailed):
        spark.read_topic("numbers", SUMS)
    assert spark.end() == 0
    wait_until(lambda: not any(map(runs, started)), "all processes have ended", 60)


def runs(process: psutil.Process) -> bool:
    """Whether it is there, and not only the entry of one that nobody waited for."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
