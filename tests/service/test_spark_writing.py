"""What a task of a bulk write does with its rows, on a cluster and without Spark: attempts that fail and come again."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.protocol.errors import MessageTooBig, NotAllowedError
from magnetar.spark.writing.partition_writer import OutgoingRow, WritePlan, Written, write_rows
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2, deduplication_enabled=True)

PARTITIONS = 3


@pytest.fixture(params=[0, PARTITIONS], ids=["plain", "partitioned"])
def partitions(request: pytest.FixtureRequest, cluster: EmbeddedCluster, topic: str) -> tuple[str, ...]:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=request.param))
    return tuple(f"{topic}-partition-{index}" for index in range(request.param)) or (topic,)


def plan_of(cluster: EmbeddedCluster, partitions: Sequence[str], name: str | None = "job") -> WritePlan:
    return WritePlan(cluster.service_url, tuple(partitions), name, magnetar.CompressionType.LZ4)


def rows(count: int, start: int = 0) -> list[OutgoingRow]:
    """Every other one has a key, properties and a time."""
    return [
        OutgoingRow(b"%d" % number, f"k{number % 5}", {"n": str(number)}, 1_000 + number)
        if number % 2
        else OutgoingRow(bytearray(b"%d" % number), None, None, None)
        for number in range(start, start + count)
    ]


def failing(good: Sequence[OutgoingRow]) -> Iterator[OutgoingRow]:
    yield from good
    raise OSError("the executor is gone")


def stored(cluster: EmbeddedCluster, topic: str, module: Any = magnetar) -> list[Any]:
    """All messages of a topic or partition, without a subscription."""
    client = module.Client(cluster.service_url, operation_timeout_seconds=20)
    try:
        reader = client.create_reader(topic, module.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000))
        return found
    finally:
        client.close()


def keep_all(cluster: EmbeddedCluster, topic: str) -> None:
    """Make a durable subscription at the start of a topic: without one, a topic is trimmed each time it is loaded."""
    client = magnetar.Client(cluster.service_url, operation_timeout_seconds=20)
    try:
        client.subscribe(topic, "all", initial_position=magnetar.InitialPosition.Earliest)
    finally:
        client.close()


def numbers(cluster: EmbeddedCluster, partitions: Sequence[str], module: Any = magnetar) -> list[int]:
    """In the order of each partition, which must be that of the rows."""
    found: list[int] = []
    for partition in partitions:
        own = [int(message.data()) for message in stored(cluster, partition, module)]
        assert own == sorted(own)
        found += own
    return sorted(found)


def test_a_repeated_attempt_stores_only_the_rows_that_are_missing(
    cluster: EmbeddedCluster, partitions: tuple[str, ...]
) -> None:
    plan = plan_of(cluster, partitions)
    with pytest.raises(OSError, match="gone"):
        write_rows(plan, 4, failing(rows(1_234)))
    assert numbers(cluster, partitions) == list(range(1_234))
    assert write_rows(plan, 4, iter(rows(3_000))) == Written(3_000 - 1_234, 1_234, None, None)
    assert write_rows(plan, 4, iter(rows(3_000))) == Written(0, 3_000, None, None)
    for module in (magnetar, pulsar):
        assert numbers(cluster, partitions, module) == list(range(3_000))


def test_a_row_is_a_message_with_key_properties_and_time(cluster: EmbeddedCluster, partitions: tuple[str, ...]) -> None:
    write_rows(plan_of(cluster, partitions), 0, [*rows(40), OutgoingRow(None, "gone", {}, None)])
    places: dict[str, set[str]] = {}
    for partition in partitions:
        for message in stored(cluster, partition, pulsar):
            places.setdefault(message.partition_key(), set()).add(partition)
            if not message.data():
                assert message.partition_key() == "gone"
                continue
            number = int(message.data())
            assert message.producer_name() == "job-0"
            expected = (f"k{number % 5}", {"n": str(number)}, 1_000 + number) if number % 2 else ("", {}, 0)
            assert (message.partition_key(), message.properties(), message.event_timestamp()) == expected
    assert {key: len(found) for key, found in places.items() if key} == dict.fromkeys(
        ("k0", "k1", "k2", "k3", "k4", "gone"), 1
    )
    assert len(places[""]) == len(partitions)


def test_another_result_under_the_same_name_is_told(cluster: EmbeddedCluster, partitions: tuple[str, ...]) -> None:
    plan = plan_of(cluster, partitions)
    write_rows(plan, 0, rows(30))
    outcome = write_rows(plan, 0, rows(10))
    assert (outcome.rows, outcome.known, outcome.foreign) == (0, 10, "job-0")


@pytest.mark.parametrize("count", [1, 3, 101])
@pytest.mark.parametrize("failed", [False, True])
def test_a_topic_that_grew_since_the_last_attempt_gets_no_row_again(
    cluster: EmbeddedCluster, topic: str, count: int, failed: bool
) -> None:
    """Rows belong to other partitions now, so that no broker would know them again."""
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=1))
    before = plan_of(cluster, [f"{topic}-partition-0"])
    if failed:
        with pytest.raises(OSError, match="the executor is gone"):
            write_rows(before, 0, failing(rows(count)))
        write_rows(before, 0, rows(count))
    else:
        assert write_rows(before, 0, rows(count)) == Written(count, 0, None, None)
    for partitions in (2, 4):
        cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=partitions))
        grown = plan_of(cluster, [f"{topic}-partition-{index}" for index in range(partitions)])
        assert write_rows(grown, 0, rows(count)) == Written(0, 0, None, "job-0")
        assert [len(stored(cluster, one)) for one in grown.partitions] == [count, *[0] * (partitions - 1)]
        assert write_rows(plan_of(cluster, grown.partitions, f"{partitions}"), 1, []) == Written(0, 0, None, None)


def test_tasks_of_one_result_and_unnamed_ones_do_not_disturb_each_other(
    cluster: EmbeddedCluster, partitions: tuple[str, ...]
) -> None:
    plan, unnamed = plan_of(cluster, partitions), plan_of(cluster, partitions, None)
    assert write_rows(plan, 0, rows(10)).rows == 10
    assert write_rows(plan, 1, rows(10, 10)).rows == 10
    for _ in range(2):
        assert write_rows(unnamed, 0, rows(5, 20)) == Written(5, 0, None, None)
    found = sorted(int(message.data()) for partition in partitions for message in stored(cluster, partition))
    assert found == sorted([*range(25), *range(20, 25)])


def test_without_deduplication_the_task_says_so(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=topic, policy="deduplication_enabled", value=False))
    assert write_rows(plan_of(cluster, [topic]), 0, rows(10)) == Written(10, 0, "job-0", None)


@pytest.mark.promise("27.4")
@pytest.mark.parametrize(
    ("size", "refusal"), [(6_000_000, MessageTooBig), (110_000, NotAllowedError)], ids=["client", "broker"]
)
def test_no_row_is_stored_behind_one_that_was_refused(
    cluster: EmbeddedCluster, topic: str, size: int, refusal: type[Exception]
) -> None:
    """A row is too large for the topic. A later attempt must not take it for stored because others behind it are."""
    topic += f"-{size}"
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=topic, policy="max_message_size", value=100_000))
    good, behind = rows(2_000), rows(2_000, 2_001)
    known: list[int] = []
    for _ in range(2):
        with pytest.raises(refusal):
            write_rows(plan_of(cluster, [topic]), 0, [*good, OutgoingRow(os.urandom(size), "k", {}, None), *behind])
        known = numbers(cluster, [topic])
        assert known == list(range(len(known))) and len(known) <= 2_000
    outcome = write_rows(plan_of(cluster, [topic]), 0, rows(4_001))
    assert outcome == Written(4_001 - len(known), len(known), None, None)
    assert numbers(cluster, [topic]) == list(range(4_001))


@pytest.mark.promise("27.4")
def test_each_row_is_stored_once_while_brokers_end(tmp_path: Path, topic: str) -> None:
    """One broker after the other ends and comes back while a task publishes."""
    with EmbeddedCluster(tmp_path, brokers=2, deduplication_enabled=True) as cluster:
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=2))
        names = [f"{topic}-partition-{index}" for index in range(2)]
        keep_all(cluster, topic)
        ended = 0

        def slowly() -> Iterator[OutgoingRow]:
            nonlocal ended
            for number, row in enumerate(rows(6_000)):
                if number in (1_500, 3_000, 4_500):
                    ended += 1
                    broker = ended % 2 + 1
                    cluster.run(cluster.stop_broker(broker))
                    cluster.run(cluster.start_broker(broker))
                yield row

        assert write_rows(plan_of(cluster, names), 0, slowly()) == Written(6_000, 0, None, None)
        assert ended == 3
        assert numbers(cluster, names) == list(range(6_000))
