"""What a task of a bulk write does with its rows, on a cluster and without Spark: attempts that fail and come again."""

import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pyarrow as pa
import pytest

import magnetar
from magnetar.bulk.writing.columns import EVENT_TIME, KEY, PROPERTIES, VALUE
from magnetar.bulk.writing.publisher import WritePlan
from magnetar.bulk.writing.routing import TURN_ROWS
from magnetar.bulk.writing.task_writer import TaskAttempt, Written, write_task
from magnetar.protocol.errors import MessageTooBig, NotAllowedError
from magnetar.runtime import retry
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import until

pytestmark = pytest.mark.cluster_settings(brokers=2, deduplication_enabled=True)

PARTITIONS = 3
BATCH_ROWS = 100
FIELDS = {
    VALUE: pa.binary(),
    KEY: pa.string(),
    PROPERTIES: pa.map_(pa.string(), pa.string()),
    EVENT_TIME: pa.timestamp("ms", tz="UTC"),
}


class OutgoingRow(NamedTuple):
    """What a test writes."""

    value: bytes | None
    key: str | None
    properties: dict[str, str] | None
    event_ms: int | None


class Gone(OSError):
    """An executor that ends. What is on its way may be stored or not; `before` may wait until it is."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__("the executor is gone")
        self.before = before


def batches_of(rows: Iterable[OutgoingRow]) -> Iterator[pa.RecordBatch]:
    """Rows as Spark hands them to a task. What they raise comes behind the rows before it."""
    waiting = iter(rows)
    held: list[OutgoingRow] = []
    failure: Exception | None = None
    while failure is None:
        try:
            held = []
            for row in itertools.islice(waiting, BATCH_ROWS):
                held.append(row)
        except OSError as error:
            failure = error
        if held:
            columns = zip(*held, strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, FIELDS.values(), strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=list(FIELDS))
        elif failure is None:
            return
    if isinstance(failure, Gone):
        failure.before()
    raise failure


def write_rows(plan: WritePlan, number: int, rows: Iterable[OutgoingRow]) -> Written:
    return write_task(plan, TaskAttempt(number), batches_of(rows))._replace(size_bytes=0)


@pytest.fixture(params=[0, PARTITIONS], ids=["plain", "partitioned"])
def partitions(request: pytest.FixtureRequest, cluster: EmbeddedCluster, topic: str) -> tuple[str, ...]:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=request.param))
    return tuple(f"{topic}-partition-{index}" for index in range(request.param)) or (topic,)


def plan_of(cluster: EmbeddedCluster, topic: str, name: str | None = "job") -> WritePlan:
    return WritePlan(cluster.service_url, topic, name, magnetar.CompressionType.LZ4)


def rows(count: int, start: int = 0) -> list[OutgoingRow]:
    """Every other one has a key, properties and a time."""
    return [
        OutgoingRow(b"%d" % number, f"k{number % 5}", {"n": str(number)}, 1_000 + number)
        if number % 2
        else OutgoingRow(b"%d" % number, None, None, None)
        for number in range(start, start + count)
    ]


def failing(good: Sequence[OutgoingRow], before: Callable[[], None] = lambda: None) -> Iterator[OutgoingRow]:
    yield from good
    raise Gone(before)


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
    cluster: EmbeddedCluster, topic: str, partitions: tuple[str, ...]
) -> None:
    plan = plan_of(cluster, topic)

    def all_are_stored() -> None:
        until(lambda: numbers(cluster, partitions) == list(range(1_234)))

    with pytest.raises(OSError, match="gone"):
        write_rows(plan, 4, failing(rows(1_234), all_are_stored))
    assert write_rows(plan, 4, iter(rows(3_000))) == Written(3_000 - 1_234, 1_234)
    assert write_rows(plan, 4, iter(rows(3_000))) == Written(0, 3_000)
    for module in (magnetar, pulsar):
        assert numbers(cluster, partitions, module) == list(range(3_000))


def test_a_row_is_a_message_with_key_properties_and_time(
    cluster: EmbeddedCluster, topic: str, partitions: tuple[str, ...]
) -> None:
    count = 2 * TURN_ROWS * PARTITIONS
    write_rows(plan_of(cluster, topic), 0, [*rows(count), OutgoingRow(None, "gone", {}, None)])
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


def entries_of(messages: Iterable[Any]) -> dict[tuple[int, int, int], int]:
    """The last row of each entry."""
    found: dict[tuple[int, int, int], int] = {}
    for message in messages:
        number, place = int(message.data()), message.message_id()
        entry = (place.partition(), place.ledger_id(), place.entry_id())
        found[entry] = max(number, found.get(entry, 0))
    return found


def test_entries_of_an_attempt_end_where_those_of_the_first_one_did(cluster: EmbeddedCluster, topic: str) -> None:
    """So an attempt that was given up, and comes back late, has no entry that is stored in part."""
    ends: list[set[int]] = []
    for name, parts in (("whole", [3_000]), ("parts", [700, 1_400, 3_000])):
        own = f"{topic}-{name}"
        cluster.run(cluster.coordinator_call("create_topic", topic=own, partitions=2))
        for count in parts:
            plan = dataclasses.replace(plan_of(cluster, own), messages_max=30, bytes_max=1_000)
            if count < parts[-1]:
                with pytest.raises(OSError, match="gone"):
                    write_rows(plan, 0, failing(rows(count)))
            else:
                write_rows(plan, 0, rows(count))
        messages = [one for index in range(2) for one in stored(cluster, f"{own}-partition-{index}")]
        ends.append(set(entries_of(messages).values()))
    assert ends[0] == ends[1] and len(ends[0]) > 100


@pytest.mark.parametrize("fails", [True, False])
def test_an_attempt_waits_for_one_that_still_publishes(
    cluster: EmbeddedCluster, topic: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic += f"-{fails}"
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    begun, refused, threads = threading.Event(), threading.Event(), threading.active_count()
    monkeypatch.setattr(retry, "silently", lambda *_: refused.set())

    def slowly() -> Iterator[OutgoingRow]:
        yield from rows(800)
        begun.set()
        assert refused.wait(30)
        if fails:
            raise OSError("the executor is gone")
        yield from rows(200, 800)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(write_rows, plan_of(cluster, topic), 0, slowly())
        assert begun.wait(30)
        second = pool.submit(write_rows, plan_of(cluster, topic), 0, rows(1_000))
        found = second.result(60)
        if fails:
            assert isinstance(first.exception(30), OSError)
        else:
            assert sum(one.rows for one in (first.result(30), found)) == 1_000
    assert found.rows + found.known == 1_000 and found.foreign is None
    assert numbers(cluster, [topic]) == list(range(1_000))
    assert threading.active_count() == threads, "each attempt ends its loop"


@pytest.mark.usefixtures("partitions")
def test_another_result_under_the_same_name_is_told(cluster: EmbeddedCluster, topic: str) -> None:
    plan = plan_of(cluster, topic)
    write_rows(plan, 0, rows(30))
    outcome = write_rows(plan, 0, rows(10))
    assert (outcome.rows, outcome.known) == (0, 10)
    assert outcome.foreign is not None and "producer job-0 has stored other rows" in outcome.foreign
    others = rows(30)[:-1] + rows(1, 31)
    for changed in (others, rows(40, 1), list(reversed(rows(30)))):
        outcome = write_rows(plan, 0, [*changed, *rows(10, 100)])
        assert outcome.foreign is not None and "row 2" in outcome.foreign
    assert write_rows(plan, 0, rows(31)) == Written(1, 30)


@pytest.mark.parametrize("count", [1, 3, 101])
@pytest.mark.parametrize("failed", [False, True])
def test_an_attempt_goes_on_with_the_partitions_that_the_first_one_knew(
    cluster: EmbeddedCluster, topic: str, count: int, failed: bool
) -> None:
    """The topic has grown meanwhile, and rows would belong to other partitions, where no broker would know them."""
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=1))
    plan = plan_of(cluster, topic)
    if failed:
        first = f"{topic}-partition-0"
        with pytest.raises(OSError, match="the executor is gone"):
            write_rows(plan, 0, failing(rows(count), lambda: until(lambda: len(stored(cluster, first)) == count)))
    else:
        assert write_rows(plan, 0, rows(count)) == Written(count)
    for partitions in (2, 4):
        cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=partitions))
        assert write_rows(plan, 0, rows(count)) == Written(0, count)
        names = [f"{topic}-partition-{index}" for index in range(partitions)]
        assert [len(stored(cluster, one)) for one in names] == [count, *[0] * (partitions - 1)]
        assert write_rows(plan_of(cluster, topic, f"{partitions}"), 1, []) == Written()
    assert write_rows(plan, 0, rows(count + 50)) == Written(50, count)
    assert [len(stored(cluster, one)) for one in names] == [count + 50, 0, 0, 0]
    assert write_rows(plan_of(cluster, topic, "later"), 0, rows(50)) == Written(50)
    assert sum(len(stored(cluster, one)) > 0 for one in names) > 1


def test_tasks_of_one_result_and_unnamed_ones_do_not_disturb_each_other(
    cluster: EmbeddedCluster, topic: str, partitions: tuple[str, ...]
) -> None:
    plan, unnamed = plan_of(cluster, topic), plan_of(cluster, topic, None)
    assert write_rows(plan, 0, rows(10)).rows == 10
    assert write_rows(plan, 1, rows(10, 10)).rows == 10
    for _ in range(2):
        assert write_rows(unnamed, 0, rows(5, 20)) == Written(5)
    found = sorted(int(message.data()) for partition in partitions for message in stored(cluster, partition))
    assert found == sorted([*range(25), *range(20, 25)])


def test_without_deduplication_the_task_says_so(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=topic, policy="deduplication_enabled", value=False))
    assert write_rows(plan_of(cluster, topic), 0, rows(10)) == Written(10, unjudged="job-0")


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
            write_rows(plan_of(cluster, topic), 0, [*good, OutgoingRow(os.urandom(size), "k", {}, None), *behind])
        known = numbers(cluster, [topic])
        assert known == list(range(len(known))) and len(known) <= 2_000
    outcome = write_rows(plan_of(cluster, topic), 0, rows(4_001))
    assert outcome == Written(4_001 - len(known), len(known))
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

        assert write_rows(plan_of(cluster, topic), 0, slowly()) == Written(6_000)
        assert ended == 3
        assert numbers(cluster, names) == list(range(6_000))
