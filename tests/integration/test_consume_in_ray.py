"""`magnetar.consume`: a function over the messages of a subscription, in workers that Ray runs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import ray
from ray.util import list_named_actors

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.tasks import consume_pool
from support.servers.ray_nodes import wait_until

pytestmark = pytest.mark.usefixtures("cluster")
WAIT_S = 90.0


@ray.remote(num_cpus=0)
class Ledger:
    """What calls in all workers have done, in order. It also keeps calls waiting until the test lets them go."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.open = asyncio.Event()

    async def add(self, row: Any) -> int:
        self.rows.append(row)
        return len(self.rows)

    async def read(self) -> list[Any]:
        return self.rows

    async def gate(self) -> None:
        await self.open.wait()

    async def let_go(self) -> None:
        self.open.set()


class Book:
    """The test's view of a ledger; workers call it as well."""

    def __init__(self) -> None:
        self.actor: Any = Ledger.remote()

    def add(self, row: Any) -> int:
        return ray.get(self.actor.add.remote(row))

    def rows(self) -> list[Any]:
        return ray.get(self.actor.read.remote(), timeout=WAIT_S)

    def wait_here(self) -> None:
        ray.get(self.actor.gate.remote())

    def let_go(self) -> None:
        ray.get(self.actor.let_go.remote())


def wait_for(book: Book, count: int) -> list[Any]:
    wait_until(lambda: len(book.rows()) >= count, f"{count} calls were made", WAIT_S)
    return book.rows()


@pytest.fixture
def book() -> Iterator[Book]:
    made = Book()
    yield made
    ray.kill(made.actor)


@pytest.fixture
def topic() -> str:
    return f"work-{uuid.uuid4().hex[:12]}"


def start(topic: str, fn: Any, **options: Any) -> magnetar.Consuming:
    return magnetar.consume(topic, "workers", fn, **{"num_cpus": 0, **options})


def publish(cluster: RayCluster, topic: str, texts: list[str], keys: list[str] | None = None) -> None:
    with cluster.client() as client:
        producer = client.create_producer(topic)
        for place, text in enumerate(texts):
            producer.send(text.encode(), partition_key=None if keys is None else keys[place])


def backlog(cluster: RayCluster, topic: str) -> int:
    """The entries that are not acknowledged."""
    with cluster.client() as client:
        partitions = client.get_topic_partitions(topic)
    return sum(_figures(cluster, one)["msgBacklog"] for one in partitions)


def _figures(cluster: RayCluster, topic: str) -> Any:
    path = topic.removeprefix("persistent://").removeprefix("public/default/")
    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{path}/stats"
    with urllib.request.urlopen(url) as found:
        return json.load(found)["subscriptions"]["workers"]


def wait_acknowledged(cluster: RayCluster, topic: str) -> None:
    wait_until(lambda: backlog(cluster, topic) == 0, "all is acknowledged", WAIT_S)


def texts(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_each_message_is_handled_and_acknowledged(cluster: RayCluster, topic: str, book: Book) -> None:
    with start(topic, lambda message: book.add(message.data().decode()), concurrency=2) as consuming:
        publish(cluster, topic, texts(40))
        assert sorted(wait_for(book, 40), key=int) == texts(40)
        wait_acknowledged(cluster, topic)
        stats = consuming.stats()
        assert (stats.done, stats.failed, stats.dead_lettered, stats.replaced) == (40, 0, 0, 0)
        wait_until(lambda: consuming.stats().workers == 2, "both workers run", WAIT_S)
        names = [one["name"] for one in list_named_actors(all_namespaces=True)]
        assert sum(name.startswith(f"consume:public/default/{topic}:workers:") for name in names) == 2
    assert consuming.wait(0)
    assert consuming.stats().done == 40


QUICKLY = magnetar.MultiplierRedeliveryBackoff(50, 200)


def test_a_message_that_fails_comes_again_and_ends_as_a_dead_letter(
    cluster: RayCluster, topic: str, book: Book
) -> None:
    def fail_on_bad(message: magnetar.Message) -> None:
        book.add(message.data().decode())
        if message.data() == b"bad":
            raise ZeroDivisionError("bad")

    with cluster.client() as client:
        letters = client.subscribe(f"{topic}-workers-DLQ", "reader")
        with start(topic, fail_on_bad, concurrency=2, max_redeliver_count=2, backoff=QUICKLY) as consuming:
            publish(cluster, topic, ["good", "bad", "fine"])
            letter = letters.receive(timeout_millis=60_000)
            assert letter.data() == b"bad" and letter.properties()["REAL_SUBSCRIPTION"] == "workers"
            wait_acknowledged(cluster, topic)
            stats = consuming.stats()
    assert sorted(book.rows()) == ["bad", "bad", "bad", "fine", "good"]
    assert (stats.done, stats.failed, stats.dead_lettered) == (2, 3, 1)
    assert "ZeroDivisionError: bad" in stats.last_error


async def leave_in_a_coroutine(message: magnetar.Message) -> None:
    leave(message)


def leave(message: magnetar.Message) -> None:
    if message.data() == b"bad":
        sys.exit("no way on")


async def interrupt_in_a_coroutine(message: magnetar.Message) -> None:
    interrupt(message)


def interrupt(message: magnetar.Message) -> None:
    if message.data() == b"bad":
        raise KeyboardInterrupt("no way on")


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (leave, "SystemExit"),
        (leave_in_a_coroutine, "SystemExit"),
        (interrupt, "KeyboardInterrupt"),
        (interrupt_in_a_coroutine, "KeyboardInterrupt"),
    ],
)
def test_a_call_that_wants_to_end_the_process_has_failed(cluster: RayCluster, topic: str, fn: Any, error: str) -> None:
    with cluster.client() as client:
        letters = client.subscribe(f"{topic}-workers-DLQ", "reader")
        with start(topic, fn, max_redeliver_count=1, backoff=QUICKLY) as consuming:
            publish(cluster, topic, ["good", "bad", "fine"])
            assert letters.receive(timeout_millis=60_000).data() == b"bad"
            wait_acknowledged(cluster, topic)
            stats = consuming.stats()
    assert (stats.done, stats.failed, stats.dead_lettered, stats.replaced) == (2, 2, 1, 0)
    assert stats.last_error == f"{error}: no way on"


def test_a_long_call_does_not_keep_those_before_it_unacknowledged(cluster: RayCluster, topic: str, book: Book) -> None:
    def handle(message: magnetar.Message) -> None:
        if message.data() == b"long":
            book.add("long")
            book.wait_here()

    with start(topic, handle, receiver_queue_size=100) as consuming:
        wait_until(lambda: consuming.stats().workers == 1, "the worker runs", WAIT_S)
        publish(cluster, topic, [*["short"] * 9, "long"])
        wait_for(book, 1)
        wait_until(lambda: backlog(cluster, topic) == 1, "all but the long one are acknowledged", WAIT_S)
        assert consuming.stats().done == 9
        book.let_go()
        wait_acknowledged(cluster, topic)


@pytest.mark.parametrize("workers", [3])
def test_messages_of_a_key_keep_their_order_also_after_errors(
    cluster: RayCluster, topic: str, book: Book, workers: int
) -> None:
    def fail_once(message: magnetar.Message) -> None:
        row = (message.partition_key(), int(message.data()))
        first = row not in failed
        failed.add(row)
        if row[1] % 5 == 0 and first:
            raise ZeroDivisionError
        book.add(row)

    failed: set[Any] = set()  # each worker has its own
    keys = [f"key-{number % 7}" for number in range(70)]
    with start(topic, fail_once, concurrency=workers, key_ordered=True, backoff=QUICKLY) as consuming:
        wait_until(lambda: consuming.stats().workers == workers, "the workers run", WAIT_S)
        publish(cluster, topic, texts(70), keys)
        rows = wait_for(book, 70)
        wait_acknowledged(cluster, topic)
        assert consuming.stats().failed == 14
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in rows:
        by_key[key].append(number)
    assert {key: sorted(numbers) for key, numbers in by_key.items()} == by_key
    assert len(rows) == len({number for _, number in rows}) == 70


def test_in_order_a_message_that_always_fails_is_buried_before_the_next_of_its_key(
    cluster: RayCluster, topic: str, book: Book
) -> None:
    def fail_on_bad(text: str) -> None:
        book.add(text)
        if text == "bad":
            raise ZeroDivisionError

    options: dict[str, Any] = {"schema": magnetar.schema.StringSchema(), "max_redeliver_count": 2, "backoff": QUICKLY}
    with cluster.client() as client:
        letters = client.subscribe(f"{topic}-workers-DLQ", "reader")
        with start(topic, fail_on_bad, concurrency=2, key_ordered=True, **options) as consuming:
            with_schema = client.create_producer(topic, schema=magnetar.schema.StringSchema())
            for text in ("first", "bad", "next"):
                with_schema.send(text, partition_key="one")
            assert wait_for(book, 5) == ["first", "bad", "bad", "bad", "next"]
            assert letters.receive(timeout_millis=60_000).partition_key() == "one"
            wait_acknowledged(cluster, topic)
            assert consuming.stats().dead_lettered == 1


def test_a_killed_worker_is_replaced_and_loses_nothing(cluster: RayCluster, topic: str, book: Book) -> None:
    def die_once(message: magnetar.Message) -> None:
        if book.add(message.data().decode()) == 10:
            os.kill(os.getpid(), signal.SIGKILL)

    with start(topic, die_once, concurrency=2) as consuming:
        publish(cluster, topic, texts(50))
        wait_until(lambda: len(set(book.rows())) == 50, "all messages were handled", WAIT_S)
        wait_acknowledged(cluster, topic)
        wait_until(lambda: consuming.stats().workers == 2, "another worker runs in place of the killed one", WAIT_S)
        assert consuming.stats().replaced == 1
    assert book.rows().count(book.rows()[9]) == 2


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_message_that_kills_its_worker_becomes_a_dead_letter(
    cluster: RayCluster, topic: str, book: Book, batch_size: int | None
) -> None:
    def die_of_bad(given: Any) -> None:
        for text in given if isinstance(given, list) else [given]:
            if text == "bad":
                book.add("bad")
                os._exit(7)
        for text in given if isinstance(given, list) else [given]:
            book.add(text)

    options: dict[str, Any] = {"schema": magnetar.schema.StringSchema(), "max_redeliver_count": 2}
    with cluster.client() as client:
        letters = client.subscribe(f"{topic}-workers-DLQ", "reader")
        with_schema = client.create_producer(topic, schema=magnetar.schema.StringSchema())
        with start(topic, die_of_bad, concurrency=1, batch_size=batch_size, **options) as consuming:
            for text in ("good", "bad", *texts(20)):
                with_schema.send(text)
            letter = letters.receive(timeout_millis=90_000)
            assert (letter.data(), letter.properties()["DEAD_LETTER_REASON"]) == (b"bad", "its worker died")
            wait_until(lambda: {*book.rows()} == {"good", "bad", *texts(20)}, "all others were handled", WAIT_S)
            wait_acknowledged(cluster, topic)
            stats = consuming.stats()
        with pytest.raises(magnetar.Timeout):
            letters.receive(timeout_millis=100)
    assert book.rows().count("bad") == 3
    assert (stats.dead_lettered, stats.replaced) == (1, 3)


def test_only_the_message_that_was_being_handled_is_blamed_for_a_death(
    cluster: RayCluster, topic: str, book: Book
) -> None:
    def name_process(text: str) -> None:
        book.add((text, os.getpid()))
        if text == "slow":
            book.wait_here()

    options: dict[str, Any] = {"schema": magnetar.schema.StringSchema(), "max_redeliver_count": 1}
    with (
        cluster.client() as client,
        start(topic, name_process, concurrency=1, receiver_queue_size=10, **options) as consuming,
    ):
        letters = client.subscribe(f"{topic}-workers-DLQ", "reader")
        producer = client.create_producer(topic, schema=magnetar.schema.StringSchema())
        producer.send("idle")
        _, process = wait_for(book, 1)[0]
        wait_acknowledged(cluster, topic)
        os.kill(process, signal.SIGKILL)  # it handles nothing
        wait_until(lambda: consuming.stats().replaced == 1, "the worker has ended", WAIT_S)
        for text in ("slow", *texts(5)):
            producer.send(text)
        for count in (2, 3):
            text, process = wait_for(book, count)[-1]
            assert text == "slow"
            os.kill(process, signal.SIGKILL)  # the others wait in its queue
        assert letters.receive(timeout_millis=90_000).data() == b"slow"
        assert [text for text, _ in wait_for(book, 8)] == ["idle", "slow", "slow", *texts(5)]
        wait_acknowledged(cluster, topic)
        wait_until(lambda: consuming.stats().dead_lettered == 1, "the dead letter is counted", WAIT_S)


def test_the_pool_grows_with_the_backlog_and_shrinks_without_one(cluster: RayCluster, topic: str, book: Book) -> None:
    def slow(message: magnetar.Message) -> None:
        threading.Event().wait(0.5)
        book.add(os.getpid())

    with start(topic, slow, concurrency=(0, 3)) as consuming:
        wait_until(lambda: consuming.stats().backlog == 0, "the pool has looked", WAIT_S)
        assert consuming.stats().workers == consuming.stats().starting == 0
        publish(cluster, topic, texts(60))
        wait_until(lambda: consuming.stats().workers == 3, "the pool has grown", WAIT_S)
        rows = wait_for(book, 60)
        wait_acknowledged(cluster, topic)
        assert len(set(rows)) == 3
        wait_until(lambda: consuming.stats().workers == 0, "the pool has shrunk", WAIT_S)
        assert consuming.stats().done == 60 and consuming.stats().replaced == 0


def test_all_partitions_count_for_the_size_of_the_pool(cluster: RayCluster, topic: str, book: Book) -> None:
    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/partitions"
    urllib.request.urlopen(urllib.request.Request(url, b"3", {"Content-Type": "application/json"}, method="PUT"))
    with start(topic, lambda message: book.wait_here(), concurrency=(0, 2)) as consuming:
        publish(cluster, topic, texts(6))
        wait_until(lambda: consuming.stats().backlog == 6, "the messages of three partitions are counted", WAIT_S)
        wait_until(lambda: consuming.stats().workers == 2, "two workers run", WAIT_S)
        book.let_go()
        wait_acknowledged(cluster, topic)


def test_calls_get_lists_and_an_error_is_one_of_the_list(cluster: RayCluster, topic: str, book: Book) -> None:
    def fail_first(messages: list[magnetar.Message]) -> None:
        if book.add([one.data().decode() for one in messages]) == 1:
            raise ZeroDivisionError

    options: dict[str, Any] = {"batch_size": 8, "batch_wait_ms": 2_000, "backoff": QUICKLY}
    with start(topic, fail_first, **options) as consuming:
        wait_until(lambda: consuming.stats().workers == 1, "the worker runs", WAIT_S)
        publish(cluster, topic, texts(16))
        wait_acknowledged(cluster, topic)
        stats = consuming.stats()
    rows = book.rows()
    assert len(rows[0]) == 8 and max(map(len, rows)) == 8
    assert sorted([text for row in rows[1:] for text in row], key=int) == texts(16)
    assert (stats.done, stats.failed) == (16, 8)


def test_coroutine_functions_run_on_the_loop_of_the_worker(cluster: RayCluster, topic: str, book: Book) -> None:
    async def handle(message: magnetar.Message) -> None:
        asyncio.get_running_loop()
        await book.actor.add.remote(message.data().decode())

    with start(topic, handle):
        publish(cluster, topic, texts(5))
        assert sorted(wait_for(book, 5)) == texts(5)
        wait_acknowledged(cluster, topic)


class Model:
    """Constructed once per worker."""

    def __init__(self, book: Book, *, factor: int) -> None:
        self.book = book
        self.factor = factor
        self.calls = 0

    def __call__(self, message: magnetar.Message) -> None:
        self.calls += 1
        self.book.add((os.getpid(), self.calls, int(message.data()) * self.factor))


class AsyncModel(Model):
    def __init__(self, book: Book, *, factor: int) -> None:
        super().__init__(book, factor=factor)
        self.loop = asyncio.get_running_loop()

    async def __call__(self, message: magnetar.Message) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert self.loop is asyncio.get_running_loop()
        self.calls += 1
        await self.book.actor.add.remote((os.getpid(), self.calls, int(message.data()) * self.factor))


@pytest.mark.parametrize("kind", [Model, AsyncModel])
def test_a_class_is_constructed_once_per_worker(cluster: RayCluster, topic: str, book: Book, kind: type[Model]) -> None:
    options: dict[str, Any] = {"fn_constructor_args": [book], "fn_constructor_kwargs": {"factor": 3}}
    with start(topic, kind, concurrency=2, **options):
        publish(cluster, topic, texts(12))
        rows = wait_for(book, 12)
    assert sorted(value for _, _, value in rows) == [3 * number for number in range(12)]
    calls: dict[int, list[int]] = defaultdict(list)
    for process, count, _ in rows:
        calls[process].append(count)
    assert all(counts == [*range(1, len(counts) + 1)] for counts in calls.values())


def test_a_stop_lets_calls_finish_and_loses_nothing(cluster: RayCluster, topic: str, book: Book) -> None:
    def handle(message: magnetar.Message) -> None:
        book.add(("begun", message.data().decode()))
        book.wait_here()
        book.add(("done", message.data().decode()))

    consuming = start(topic, handle, concurrency=2)
    publish(cluster, topic, texts(20))
    wait_for(book, 2)
    stopping = threading.Thread(target=consuming.stop)
    stopping.start()
    book.let_go()
    stopping.join()
    begun = {text for what, text in book.rows() if what == "begun"}
    done = {text for what, text in book.rows() if what == "done"}
    assert begun == done and consuming.stats().done == len(done)
    assert backlog(cluster, topic) == 20 - len(done)
    with start(topic, handle, concurrency=2):
        wait_acknowledged(cluster, topic)
    assert sorted(text for what, text in book.rows() if what == "done") == sorted(texts(20))


def test_calls_that_outlast_the_time_of_a_stop_are_given_back(cluster: RayCluster, topic: str, book: Book) -> None:
    def handle(message: magnetar.Message) -> None:
        book.add(message.data().decode())
        book.wait_here()

    consuming = start(topic, handle)
    publish(cluster, topic, ["long"])
    wait_for(book, 1)
    assert not consuming.stop(timeout=0.5)
    assert backlog(cluster, topic) == 1
    book.let_go()
    with start(topic, handle):
        wait_acknowledged(cluster, topic)
    assert book.rows() == ["long", "long"]


DRIVER = """
import sys
import magnetar, ray

ray.init(address=sys.argv[1], log_to_driver=False, namespace="drivers")
book = ray.get_actor(sys.argv[3], "books")

def handle(message):
    ray.get(book.add.remote(message.data().decode()))
    ray.get(book.gate.remote())

magnetar.consume(sys.argv[2], "workers", handle, num_cpus=0).wait()
"""


def test_workers_end_with_their_driver_and_their_messages_come_again(
    cluster: RayCluster, topic: str, book: Book
) -> None:
    name = f"book-{topic}"
    kept: Any = Ledger.options(name=name, namespace="books").remote()
    address = ray.get_runtime_context().gcs_address
    driver = subprocess.Popen([sys.executable, "-P", "-c", DRIVER, address, topic, name])
    try:
        with cluster.client() as client:
            client.subscribe(topic, "workers", magnetar.ConsumerType.Shared).close()
        publish(cluster, topic, ["order"])
        wait_until(lambda: ray.get(kept.read.remote()) == ["order"], "the worker of the driver has the message", WAIT_S)
    finally:
        driver.kill()
        driver.wait()
    with start(topic, lambda message: book.add(message.data().decode())):
        assert wait_for(book, 1) == ["order"]
        wait_acknowledged(cluster, topic)
    named = [one["name"] for one in list_named_actors(all_namespaces=True)]
    assert not any(one.startswith(f"consume:public/default/{topic}") for one in named)
    ray.kill(kept)


def test_workers_that_ray_has_no_room_for_wait_and_do_not_keep_a_stop_waiting(
    topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consume_pool, "BEGIN_WARNING_S", 0.0)
    consuming = start(topic, print, resources={"a machine that is not there": 1})
    wait_until(lambda: consuming.stats().starting == 1, "Ray was asked for a worker", WAIT_S)
    asked = "Each asks Ray for 1 a machine that is not there. Ray has 0 a machine that is not there in all"
    wait_until(lambda: asked in caplog.text, "the log says what is missing", WAIT_S)
    assert (consuming.stats().workers, consuming.stats().replaced) == (0, 0)
    assert consuming.stop(timeout=WAIT_S)


class Broken:
    def __init__(self) -> None:
        raise ZeroDivisionError("no such model")

    def __call__(self, message: magnetar.Message) -> None: ...


def test_workers_that_never_begin_end_with_an_error_that_says_why(topic: str) -> None:
    consuming = start(topic, Broken)
    with pytest.raises(magnetar.ConsumeFailed, match="ZeroDivisionError: no such model"):
        consuming.wait(WAIT_S)
    assert "a worker has ended: ZeroDivisionError: no such model" in consuming.stats().last_error
    with pytest.raises(magnetar.ConsumeFailed):
        consuming.stop()


@ray.remote
def task() -> None: ...


def yields(message: magnetar.Message) -> Iterator[int]:
    yield 1


async def yields_in_a_coroutine(message: magnetar.Message) -> AsyncIterator[int]:
    yield 1


class Yields:
    def __call__(self, message: magnetar.Message) -> Iterator[int]:
        yield 1


def _with_a_lock() -> Any:
    lock = threading.Lock()
    return lambda message: lock


holds_a_lock = _with_a_lock()


class Unpicklable(magnetar.MultiplierRedeliveryBackoff):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": (3, 2)}, "0 <= min <= max"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"dead_letter_topic": "dead"}, "needs max_redeliver_count"),
        ({"max_redeliver_count": 0}, "max_redeliver_count must be"),
        ({"name": "mine"}, "consume takes no name"),
        ({"consumer_options": {"consumer_type": 1}}, "takes no consumer_type"),
        ({"service_url": "pulsar://a:1"}, "belong together"),
        ({"num_gpus": -1}, "Ray refuses"),
        ({"fn_constructor_args": [1]}, "is no class"),
        ({"fn": task}, "below @ray.remote"),
        ({"fn": 3}, "cannot be called"),
        ({"fn": yields}, "remove its yield"),
        ({"fn": yields_in_a_coroutine}, "remove its yield"),
        ({"fn": Yields}, "remove its yield"),
        ({"fn": holds_a_lock}, "cannot be pickled for the workers: cannot pickle '_thread.lock' object"),
        ({"fn": print, "backoff": Unpicklable()}, "cannot be pickled for the workers"),
        ({"key_ordered": "yes"}, "key_ordered must be a bool"),
        ({"resources": 3}, "resources must be a mapping"),
        ({"consumer_options": [1]}, "consumer_options must be a mapping"),
        ({"topic": None}, "topic must be a str"),
        ({"topic": "non-persistent://public/default/a"}, "name a persistent topic"),
    ],
)
def test_what_consume_cannot_do_is_refused_with_what_to_do(topic: str, options: dict[str, Any], says: str) -> None:
    given = {"topic": topic, "subscription": "workers", "fn": print, **options}
    with pytest.raises(magnetar.MagnetarError, match=says):
        magnetar.consume(**given)
