"""`magnetar.data.follow`: a topic as batches of rows that go on, on a cluster on Ray."""

import gc
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
from ray.util import list_named_actors

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.data import followed_batches
from magnetar.protocol.errors import NoSuchEntry, SchemaSerializationError
from support.clients.plain_reading import row_of
from support.files.key_files import write_key_files
from support.servers.ray_nodes import kill, wait_until

pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.filterwarnings("ignore:::ray"),  # Ray warns of settings that it makes itself
]
WAIT_S = 90.0
SUBSCRIPTION = "followers"


@pytest.fixture
def topic() -> str:
    return f"followed-{uuid.uuid4().hex[:12]}"


class Publisher:
    """Publishes numbers, in batches and one by one, also while the test follows."""

    def __init__(self, cluster: RayCluster, topic: str, **options: Any) -> None:
        self._client = cluster.client()
        self._producer = self._client.create_producer(
            topic, **{"batching_enabled": True, "batching_max_messages": 20, **options}
        )

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def publish(self, numbers: Iterable[int]) -> None:
        """Returns when all are stored."""
        failed: list[magnetar.Result] = []

        def receipt(result: magnetar.Result, message_id: object) -> None:
            if result != magnetar.Result.Ok:
                failed.append(result)

        for number in numbers:
            self._producer.send_async(str(number).encode(), receipt, partition_key=str(number % 10))
        self._producer.flush()
        assert not failed


def publish(cluster: RayCluster, topic: str, numbers: Iterable[int], **options: Any) -> None:
    with Publisher(cluster, topic, **options) as publisher:
        publisher.publish(numbers)


def follow(topic: Any, **options: Any) -> magnetar.data.Following:
    return magnetar.data.follow(topic, SUBSCRIPTION, **{"num_cpus": 0, **options})


def numbers_in(batch: Any) -> list[int]:
    return [int(value) for value in batch["value"]]


def take(batches: Iterable[Any], count: int) -> list[int]:
    """The numbers of the next batches, until there are so many."""
    found: list[int] = []
    for batch in batches:
        found += numbers_in(batch)
        if len(found) >= count:
            break
    return found


def admin(cluster: RayCluster, method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


def subscription(cluster: RayCluster, topic: str) -> dict[str, Any]:
    return admin(cluster, "GET", f"{topic}/stats")["subscriptions"][SUBSCRIPTION]


def wait_acknowledged(cluster: RayCluster, topic: str) -> None:
    wait_until(lambda: subscription(cluster, topic)["msgBacklog"] == 0, "all is acknowledged", WAIT_S)


def readers(topic: str) -> list[str]:
    named = [one["name"] for one in list_named_actors(all_namespaces=True)]
    return [name for name in named if name.startswith(f"follow:public/default/{topic}:")]


def kill_reader(topic: str) -> None:
    """SIGKILL to the process of a reader."""
    (name, *_) = readers(topic)
    process = ray.get(ray.get_actor(name).__ray_call__.remote(lambda _: os.getpid()), timeout=WAIT_S)
    os.kill(process, signal.SIGKILL)


@pytest.mark.promise("31.26")
def test_rows_are_those_of_a_plain_consumer_while_others_publish(cluster: RayCluster, topic: str) -> None:
    admin(cluster, "PUT", f"{topic}/partitions", 3)
    count = 3_000
    with (
        cluster.client() as client,
        Publisher(cluster, topic) as publisher,
        follow(topic, concurrency=2).iter_batches(batch_size=70, batch_format="pyarrow") as batches,
        ThreadPoolExecutor(1) as pool,
    ):
        consumer = client.subscribe(topic, "plain", initial_position=magnetar.InitialPosition.Earliest)
        publishing = pool.submit(lambda: [publisher.publish([number]) for number in range(count)])
        tables: list[pa.Table] = []
        for batch in batches:
            tables.append(cast(pa.Table, batch))
            if sum(one.num_rows for one in tables) >= count:
                batches.acknowledge()
                break
        publishing.result()
        wanted = [row_of(consumer.receive(timeout_millis=10_000)) for _ in range(count)]
    assert max(one.num_rows for one in tables) <= 70
    found = pa.concat_tables(tables).to_pylist()

    def by_partition(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        return [[row for row in rows if row["__partition"] == number] for number in range(3)]

    found = [{**row, "__messageProperties": dict(row["__messageProperties"])} for row in found]
    assert by_partition(found) == by_partition(wanted)
    for number in range(3):
        wait_acknowledged(cluster, f"{topic}-partition-{number}")


def test_a_crash_before_the_next_batch_brings_the_last_one_again(cluster: RayCluster, topic: str) -> None:
    publish(cluster, topic, range(100), batching_enabled=False)
    followed = follow(topic)
    with followed.iter_batches(batch_size=10) as batches:
        assert numbers_in(next(batches)) == list(range(10))
        assert numbers_in(next(batches)) == list(range(10, 20))
    with followed.iter_batches(batch_size=10) as batches:
        assert numbers_in(next(batches)) == list(range(10, 20))
        assert numbers_in(next(batches)) == list(range(20, 30))
        batches.acknowledge()
    with pytest.raises(magnetar.MagnetarError, match="closed"):
        batches.acknowledge()
    assert list(batches) == []
    with followed.iter_batches(auto_acknowledge=False, batch_wait_ms=0) as batches:
        assert take(batches, 70) == list(range(30, 100))
    with followed.iter_batches(auto_acknowledge=False) as batches:
        assert take(batches, 70) == list(range(30, 100))
        batches.acknowledge()
    wait_acknowledged(cluster, topic)


@pytest.mark.promise("31.26")
def test_a_killed_reader_is_replaced_and_no_row_is_lost_or_comes_twice(cluster: RayCluster, topic: str) -> None:
    count = 2_000
    with (
        Publisher(cluster, topic) as publisher,
        follow(topic).iter_batches(batch_size=30) as batches,
        ThreadPoolExecutor(1) as pool,
    ):
        publishing = pool.submit(lambda: [publisher.publish(range(one, one + 50)) for one in range(0, count, 50)])
        found = take(batches, 300)
        kill_reader(topic)
        found += take(batches, 600)
        kill_reader(topic)
        found += take(batches, count - len(found))
        publishing.result()
        assert found == list(range(count))
        batches.acknowledge()
    wait_acknowledged(cluster, topic)


@pytest.mark.promise("31.26")
def test_a_killed_broker_costs_no_row_and_none_comes_twice(harmed: RayCluster, topic: str) -> None:
    admin(harmed, "PUT", f"{topic}/partitions", 4)
    with Publisher(harmed, topic) as publisher, follow(topic).iter_batches(batch_size=50) as batches:
        found: list[int] = []
        for part, killed in enumerate((None, "broker-1", "broker-2")):
            if killed is not None:
                kill(killed)
            publisher.publish(range(part * 1_000, part * 1_000 + 1_000))
            found += take(batches, 1_000)
        assert sorted(found) == list(range(3_000))
        batches.acknowledge()
    for number in range(4):
        wait_acknowledged(harmed, f"{topic}-partition-{number}")


DRIVER = """
import sys
import magnetar, ray

ray.init(address=sys.argv[1], log_to_driver=False, namespace="drivers")
with magnetar.data.follow(sys.argv[2], "followers", num_cpus=0).iter_batches(batch_size=10) as batches:
    for batch in batches:
        print(*[int(value) for value in batch["value"]], flush=True)
"""


@pytest.mark.promise("31.26")
def test_a_killed_driver_leaves_no_reader_and_its_unfinished_rows_come_again(cluster: RayCluster, topic: str) -> None:
    publish(cluster, topic, range(1_000), batching_enabled=False)
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-P", "-c", DRIVER, address, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        lines = [next(driver.stdout) for _ in range(30)]
        driver.kill()
        lines += driver.stdout
    printed = [int(number) for line in lines for number in line.split()]
    assert printed == list(range(len(printed)))
    with follow(topic).iter_batches(batch_size=10) as batches:
        again = take(batches, 1_000 - len(printed))
        while again[-1] < 999:
            again += numbers_in(next(batches))
        batches.acknowledge()
    assert again == list(range(again[0], 1_000))
    # The last batch was not finished. The acknowledgements of some before it may have been under way.
    unfinished = 1 + followed_batches.ACKNOWLEDGING_MAX + 1
    assert len(printed) - 10 * unfinished <= again[0] <= len(printed)
    wait_acknowledged(cluster, topic)
    wait_until(lambda: not readers(topic) and not subscription(cluster, topic)["consumers"], "no reader is left", 30)


@pytest.mark.promise("31.26")
@pytest.mark.parametrize("partitions", [0, 3])
def test_positions_that_are_stored_with_the_rows_give_each_row_once(
    cluster: RayCluster, topic: str, partitions: int
) -> None:
    """The sink stores every third batch only, in one step with the positions; what is between is acknowledged."""
    if partitions:
        admin(cluster, "PUT", f"{topic}/partitions", partitions)
    stored: tuple[list[bytes], str] = ([], json.dumps("earliest"))
    pending: list[bytes] = []
    with Publisher(cluster, topic) as publisher:
        for crash in range(4):
            publisher.publish(range(crash * 500, crash * 500 + 500))
            pending = list(stored[0])
            with follow(topic, start=json.loads(stored[1]), concurrency=2).iter_batches(batch_size=17) as batches:
                for number, batch in enumerate(batches, 1):
                    pending += cast(dict[str, Any], batch)["__messageId"].tolist()
                    if crash == number - 3 == 1:
                        kill_reader(topic)
                    if number % 3 == 0:
                        stored = (list(pending), json.dumps(batches.positions()))
                    if number == 11 + crash:
                        break
    # By id: a producer that loses its connection may have stored a message twice.
    wanted = ids_of(cluster, topic, partitions)
    rows = list(stored[0])
    assert len(rows) < len(pending)  # rows were acknowledged and not stored
    with follow(topic, start=json.loads(stored[1])).iter_batches(batch_size=17) as batches:
        while len(rows) < len(wanted):
            rows += cast(dict[str, Any], next(batches))["__messageId"].tolist()
    assert sorted(rows) == sorted(wanted)
    if not partitions:
        assert rows == wanted


def ids_of(cluster: RayCluster, topic: str, partitions: int) -> list[bytes]:
    """The ids of all messages, of one partition after the other."""
    found: list[bytes] = []
    with cluster.client() as client:
        for name in [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]:
            reader = client.create_reader(name, magnetar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(10_000).message_id().serialize())
    return found


def test_positions_behind_which_rows_are_gone_are_refused(cluster: RayCluster, topic: str) -> None:
    publish(cluster, topic, range(100), batching_enabled=False)
    with follow(topic).iter_batches(batch_size=10) as batches:
        next(batches)
        early = batches.positions()
        take(batches, 90)
        batches.acknowledge()
    wait_acknowledged(cluster, topic)
    admin(cluster, "PUT", f"{topic}/unload")  # the next message begins another ledger
    publish(cluster, topic, [100])
    trim(cluster, topic)
    # This place is before whatever the topic has.
    with follow(topic, start={topic: "-1:-1"}).iter_batches() as batches:
        assert numbers_in(next(batches)) == [100]
        batches.acknowledge()
    wait_acknowledged(cluster, topic)
    with pytest.raises(NoSuchEntry, match="may be gone"):
        follow(topic, start=early).iter_batches()
    assert not readers(topic)


def trim(cluster: RayCluster, topic: str) -> None:
    """Delete the ledgers whose rows are all acknowledged."""
    admin(cluster, "POST", f"{topic}/trim")
    wait_until(
        lambda: len(admin(cluster, "GET", f"{topic}/internalStats")["ledgers"]) == 1,
        "the acknowledged rows are gone",
        WAIT_S,
    )


@pytest.mark.parametrize("reloaded", [False, True])
def test_positions_at_the_end_of_a_ledger_that_is_gone_lead_to_the_next_row(
    cluster: RayCluster, topic: str, reloaded: bool
) -> None:
    publish(cluster, topic, range(10), batching_enabled=False)
    with follow(topic).iter_batches(batch_size=10) as batches:
        take(batches, 10)
        batches.acknowledge()
        positions = batches.positions()
    wait_acknowledged(cluster, topic)
    admin(cluster, "PUT", f"{topic}/unload")  # the next message begins another ledger
    publish(cluster, topic, range(10, 20), batching_enabled=False)
    trim(cluster, topic)
    if reloaded:
        admin(cluster, "PUT", f"{topic}/unload")
    with follow(topic, start=positions).iter_batches(batch_size=5) as batches:
        assert take(batches, 10) == list(range(10, 20))


def test_rows_that_a_filter_dropped_are_acknowledged_while_no_other_row_comes(cluster: RayCluster, topic: str) -> None:
    with Publisher(cluster, topic) as publisher:
        publisher.publish([7, *range(1_000, 1_200)])
        kept = follow(topic).filter(lambda row: int(row["value"]) < 1_000, num_cpus=0)
        with kept.iter_batches(batch_size=16) as batches, ThreadPoolExecutor(1) as pool:
            assert numbers_in(next(batches)) == [7]
            assert subscription(cluster, topic)["msgBacklog"] > 0
            waiting = pool.submit(next, batches)
            wait_acknowledged(cluster, topic)
            assert not waiting.done()
            publisher.publish([8])
            assert numbers_in(waiting.result(WAIT_S)) == [8]
        with kept.iter_batches(auto_acknowledge=False) as batches:
            assert numbers_in(next(batches)) == [8]
            batches.acknowledge()
            publisher.publish(range(1_000, 1_100))
            publisher.publish([9])
            assert numbers_in(next(batches)) == [9]
    with follow(topic).iter_batches() as batches:  # what was dropped was not acknowledged by itself
        assert take(batches, 101) == [*range(1_000, 1_100), 9]


def test_functions_run_in_tasks_and_change_rows_without_changing_positions(cluster: RayCluster, topic: str) -> None:
    publish(cluster, topic, range(200), batching_enabled=False)

    def doubled(batch: Any, times: int) -> Any:
        values = batch["value"].astype(int)
        return {"number": values.repeat(times), "process": [os.getpid()] * (len(values) * times)}

    prime = follow(topic).filter(pc.field("__sequenceId") >= 100, num_cpus=0)
    mapped = prime.map_batches(doubled, fn_kwargs={"times": 2}, num_cpus=0)
    with mapped.iter_batches(batch_size=10, batch_format="pandas") as batches:
        first = cast(pd.DataFrame, next(batches))
        assert first["number"].tolist() == [number for number in range(100, 110) for _ in range(2)]
        assert os.getpid() not in set(first["process"])
        before = batches.positions()
    with follow(topic, start=before).iter_batches() as batches:
        assert take(batches, 90) == list(range(110, 200))

    def fails(batch: Any) -> Any:
        raise ZeroDivisionError("the function fails")

    with follow(topic).map_batches(fails, num_cpus=0).iter_batches() as batches:
        publish(cluster, topic, [1])
        with pytest.raises(ZeroDivisionError, match="the function fails"):
            next(batches)
        assert list(batches) == [] and not readers(topic)


def test_typed_columns_stay_when_the_schema_evolves(cluster: RayCluster, topic: str) -> None:
    def write(rows: list[dict[str, Any]]) -> None:
        ray.data.from_items(rows).write_datasink(magnetar.data.TopicDatasink(topic, schema="avro"))

    ray.data.DataContext.get_current().enable_progress_bars = False
    write([{"carrier": "a", "delay": 1}])
    with follow(topic, schema="auto", columns=["delay", "carrier"]).iter_batches(batch_format="pandas") as batches:
        assert cast(pd.DataFrame, next(batches)).to_dict("records") == [{"delay": 1, "carrier": "a"}]
        admin(cluster, "GET", f"{topic}/stats")
        write([{"carrier": "b", "delay": 2, "gate": "7"}])  # a version that came after the read began
        assert cast(pd.DataFrame, next(batches)).to_dict("records") == [{"delay": 2, "carrier": "b"}]
        publish(cluster, topic, [77])  # no record of the schema
        with pytest.raises(SchemaSerializationError, match="does not fit"):
            while True:
                next(batches)


def test_messages_in_chunks_and_encrypted_ones_are_rows(cluster: RayCluster, topic: str) -> None:
    body = os.urandom(12 << 20)
    with cluster.client() as client:
        producer = client.create_producer(topic, chunking_enabled=True)
        for content in (b"1", body, b"2"):
            producer.send(content)
    with follow(topic).iter_batches(batch_size=2, batch_format="pyarrow") as batches:
        rows = [value for batch in itertools.islice(batches, 2) for value in cast(pa.Table, batch)["value"].to_pylist()]
        assert rows == [b"1", body, b"2"]
        batches.acknowledge()
    wait_acknowledged(cluster, topic)


def test_positions_between_the_chunks_of_a_message_give_its_row_once(cluster: RayCluster, topic: str) -> None:
    """The small messages come on a connection of their own, so that some lie between the chunks of the large ones."""
    official = pulsar.Client(cluster.service_url, logger=logging.getLogger("pulsar"))
    with cluster.client() as client:
        large = client.create_producer(topic, chunking_enabled=True)
        small = official.create_producer(topic)
        sizes = list(range(21_000_000, 21_000_006))
        with ThreadPoolExecutor(1) as senders:
            sent = senders.submit(lambda: [large.send(b"x" * size) for size in sizes])
            while not sent.done():
                small.send(b"small")
            sent.result()
        small.send(b"last")
    official.close()
    lengths: list[int] = []
    between = 0
    positions: Any = "earliest"
    while not lengths or lengths[-1] != len(b"last"):
        with follow(topic, start=positions).iter_batches(batch_size=1, batch_format="pyarrow") as batches:
            for batch in batches:
                lengths.append(len(cast(pa.Table, batch)["value"][0].as_py()))
                positions = json.loads(json.dumps(batches.positions()))
                if any("<" in text for text in positions.values()):
                    between += 1
                    break
                if lengths[-1] == len(b"last"):
                    break
    assert between, "no position lay between chunks"
    assert [one for one in lengths if one in sizes] == sizes
    with cluster.client() as client:
        reader = client.create_reader(topic, magnetar.MessageId.earliest)
        wanted: list[int] = []
        while reader.has_message_available():
            wanted.append(len(reader.read_next(10_000).data()))
    assert lengths == wanted


def test_partitions_that_are_added_are_followed_from_their_beginning(
    cluster: RayCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_batches, "PARTITIONS_LOOK_S", 0.2)
    admin(cluster, "PUT", f"{topic}/partitions", 1)
    publish(cluster, topic, range(100))
    with follow(topic, start="latest").iter_batches(batch_size=30) as batches:
        publish(cluster, topic, range(100, 200))
        assert take(batches, 100) == list(range(100, 200))
        admin(cluster, "POST", f"{topic}/partitions", 3)
        publish(cluster, topic, range(200, 500))
        assert sorted(take(batches, 300)) == list(range(200, 500))
        assert len(batches.positions()) == 3


def test_several_topics_are_followed_together(cluster: RayCluster, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "ab"]
    for place, name in enumerate(names):
        publish(cluster, name, range(place * 100, place * 100 + 100))
    with follow(names, concurrency=2).iter_batches() as batches:
        assert sorted(take(batches, 200)) == list(range(200))


def test_readers_end_when_the_iterator_is_forgotten(cluster: RayCluster, topic: str) -> None:
    publish(cluster, topic, range(10))
    batches = follow(topic).iter_batches()
    assert take(batches, 10) == list(range(10)) and readers(topic)
    del batches
    gc.collect()
    wait_until(lambda: not readers(topic) and not subscription(cluster, topic)["consumers"], "no reader is left", 30)


def test_two_programs_share_the_partitions_of_a_subscription(cluster: RayCluster, topic: str) -> None:
    admin(cluster, "PUT", f"{topic}/partitions", 4)
    found: list[list[int]] = [[], []]

    def run(batches: magnetar.data.FollowedBatches, rows: list[int]) -> None:
        for batch in batches:
            rows += numbers_in(batch)
            batches.acknowledge()

    with follow(topic).iter_batches() as one, follow(topic).iter_batches() as other, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, batches, rows) for batches, rows in zip((one, other), found, strict=True)]
        publish(cluster, topic, range(1_000))
        wait_until(lambda: sum(map(len, found)) >= 1_000, "all rows have come", WAIT_S)
        one.close()
        other.close()
        for each in running:
            each.result(WAIT_S)
    assert sorted(itertools.chain(*found)) == list(range(1_000)) and all(found)


class Deadly(magnetar.CryptoKeyReader):
    """Ends the process that asks it for a private key."""

    def __init__(self) -> None:
        pass

    def get_private_key(self, key_name: str, metadata: Any) -> Any:
        os._exit(1)


def test_readers_that_end_again_and_again_end_the_iteration(
    cluster: RayCluster, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(followed_batches, "LOSSES_MAX", 2)
    public, private = write_key_files(tmp_path)
    keys = magnetar.CryptoKeyReader(str(public), str(private))
    publish(cluster, topic, [1], encryption_key="key", crypto_key_reader=keys)
    with follow(topic, crypto_key_reader=Deadly()).iter_batches() as batches:
        with pytest.raises(magnetar.FollowFailed, match="lost a reader 3 times in a row"):
            next(batches)
    with follow(topic, crypto_key_reader=keys).iter_batches() as batches:
        assert numbers_in(next(batches)) == [1]


def test_another_thread_can_end_an_iteration_that_waits(cluster: RayCluster, topic: str) -> None:
    batches = follow(topic).iter_batches()
    ending = threading.Timer(0.5, batches.close)
    ending.start()
    assert list(batches) == []
    ending.join()
    wait_until(lambda: not subscription(cluster, topic)["consumers"], "no consumer is left", 30)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"start": "newest"}, "start must be"),
        ({"start": {"x": "1:2"}}, "no partition of what is followed"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"schema": "avro"}, "schema must be"),
        ({"columns": ["nothing"]}, "there is no column"),
        ({"lifetime": "detached"}, "follow takes no lifetime"),
        ({"num_cpus": "many"}, "Ray refuses"),
        ({"service_url": "pulsar://localhost:1"}, "belong together"),
    ],
)
def test_impossible_arguments_are_refused(cluster: RayCluster, topic: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(magnetar.InvalidConfiguration, match=why):
        follow(topic, **options).iter_batches()
    assert not readers(topic)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch_format": "torch"}, "batch_format must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": None, "batch_wait_ms": None}, "must have a time"),
        ({"prefetch_batches": -1}, "prefetch_batches must be"),
    ],
)
def test_impossible_batches_are_refused(cluster: RayCluster, topic: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(magnetar.InvalidConfiguration, match=why):
        follow(topic).iter_batches(**options)
