"""`magnetar.Queue`: the calls of `ray.util.queue.Queue`, and who holds what."""

import asyncio
import gc
import json
import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until


class Urls(NamedTuple):
    service_url: str
    admin_url: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("queues"), brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def urls(cluster: EmbeddedCluster) -> Urls:
    return Urls(cluster.service_url, cluster.run(cluster.start_admin()))


def new_queue(urls: Urls, maxsize: int = 0, **options: Any) -> magnetar.Queue:
    return magnetar.Queue(maxsize, service_url=urls.service_url, admin_url=urls.admin_url, **options)


def again(one: magnetar.Queue) -> magnetar.Queue:
    """Another handle, as a Ray task gets it."""
    return pickle.loads(pickle.dumps(one))


def test_items_come_in_the_order_in_which_they_were_put(urls: Urls) -> None:
    one = new_queue(urls)
    items = [1, "two", {"three": [3]}, None, b"\0" * 100_000]
    for item in items:
        one.put(item)
    assert len(one) == one.size() == one.qsize() == 5 and not one.empty() and not one.full()
    assert [one.get() for _ in items] == items
    assert one.empty() and one.size() == 0
    one.shutdown()


def test_an_empty_queue_says_so(urls: Urls) -> None:
    one = new_queue(urls)
    with pytest.raises(magnetar.Empty):
        one.get_nowait()
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        one.get(timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    with pytest.raises(ValueError, match="non-negative"):
        one.get(timeout=-1)
    one.put("later")
    assert one.get(timeout=10) == "later"
    one.shutdown()


def test_a_full_queue_says_so_and_takes_items_again_when_there_is_room(urls: Urls) -> None:
    one = new_queue(urls, 2)
    one.put_nowait_batch(["a", "b"])
    assert one.full()
    with pytest.raises(magnetar.Full):
        one.put_nowait("c")
    with pytest.raises(queue.Full):
        one.put("c", timeout=0.2)
    with pytest.raises(magnetar.Full, match="Cannot add 2 items"):
        one.put_nowait_batch(["c", "d"])
    waiting = threading.Thread(target=one.put, args=("c",))
    waiting.start()
    assert one.get() == "a"
    waiting.join(20)
    assert not waiting.is_alive() and one.size() == 2
    one.shutdown()


def test_a_batch_is_taken_whole_or_not_at_all(urls: Urls) -> None:
    one = new_queue(urls)
    one.put_nowait_batch(range(5))
    assert one.get_nowait_batch(3) == [0, 1, 2]
    with pytest.raises(magnetar.Empty, match="Cannot get 3 items"):
        one.get_nowait_batch(3)
    assert one.get_nowait_batch(0) == []
    assert one.get_nowait_batch(2) == [3, 4]
    with pytest.raises(TypeError):
        one.get_nowait_batch("2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nonnegative"):
        one.get_nowait_batch(-1)
    with pytest.raises(TypeError, match="Iterable"):
        one.put_nowait_batch(3)  # type: ignore[arg-type]
    one.shutdown()


async def test_coroutines_put_and_get(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    getting = [asyncio.create_task(one.get_async()) for _ in range(20)]
    await asyncio.gather(*(one.put_async(number) for number in range(20)))
    assert sorted(await asyncio.gather(*getting)) == list(range(20))
    with pytest.raises(magnetar.Empty):
        await one.get_async(block=False)
    with pytest.raises(magnetar.Empty):
        await one.get_async(timeout=0.1)
    await asyncio.to_thread(one.shutdown)


def test_a_handle_that_waited_in_vain_keeps_no_item_from_the_others(urls: Urls) -> None:
    one = new_queue(urls)
    others = [again(one) for _ in range(3)]
    for other in others:
        with pytest.raises(magnetar.Empty):
            other.get(timeout=0.05)
    one.put_nowait_batch(range(10))
    assert sorted(one.get(timeout=10) for _ in range(10)) == list(range(10))
    one.shutdown()


def test_a_handle_whose_waits_end_at_once_keeps_no_item_from_the_others(urls: Urls) -> None:
    one = new_queue(urls)
    other = again(one)
    for _ in range(3):
        with pytest.raises(magnetar.Empty):
            other.get(timeout=1e-6)
    one.put("item")
    assert one.get(timeout=10) == "item"
    one.shutdown()


def test_an_item_is_there_at_once_although_the_handle_waited_in_vain_before(urls: Urls) -> None:
    one = new_queue(urls)
    for number in range(30):
        with pytest.raises(magnetar.Empty):
            one.get(timeout=0.01)
        one.put(number)
        assert one.get_nowait() == number
    one.shutdown()


def test_a_lease_that_ends_with_an_error_gives_its_item_back(urls: Urls) -> None:
    one = new_queue(urls)
    one.put("order")
    with pytest.raises(ZeroDivisionError), one.lease() as order:
        assert order == "order" and one.size() == 0
        raise ZeroDivisionError
    with one.lease(timeout=10) as order:
        assert order == "order"
    one.close()
    assert new_queue(urls, name=one.name).size() == 0
    with pytest.raises(magnetar.AlreadyClosed, match="make a new one"):
        one.get(timeout=1)


async def test_a_task_that_fails_gives_its_item_back_and_one_that_returns_does_not(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    await one.put_async("order")

    async def work(*, fails: bool) -> Any:
        item = await one.get_async(timeout=10)
        if fails:
            raise ZeroDivisionError
        return item

    with pytest.raises(ZeroDivisionError):
        await asyncio.create_task(work(fails=True))
    assert await asyncio.create_task(work(fails=False)) == "order"
    await asyncio.to_thread(one.close)
    other = await asyncio.to_thread(again, one)
    assert await asyncio.to_thread(backlog, other) == 0
    await asyncio.to_thread(other.shutdown)


async def test_the_task_that_calls_holds_the_item_although_another_one_awaits_it(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    for number in range(4):
        await one.put_async(number)

    async def work() -> None:
        assert await asyncio.wait_for(one.get_async(), 10) == 0
        got = await asyncio.gather(one.get_async(), asyncio.create_task(one.get_async()))  # done with the one before
        assert sorted(got) == [1, 2]
        assert await asyncio.to_thread(backlog, one) == 3
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.create_task(work())
    assert sorted([await one.get_async(timeout=10) for _ in range(3)]) == [1, 2, 3]
    await asyncio.to_thread(one.shutdown)


def test_the_thread_that_runs_a_loop_for_one_get_holds_the_item(urls: Urls) -> None:
    one = new_queue(urls)
    one.put("item")
    assert asyncio.run(one.get_async(timeout=10)) == "item"
    assert backlog(one) == 1
    with pytest.raises(magnetar.Empty):
        one.get_nowait()
    assert backlog(one) == 0
    one.shutdown()


async def test_asyncio_still_reports_the_error_of_a_task_that_nobody_awaits(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    await one.put_async("item")
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    async def work() -> None:
        await one.get_async(timeout=10)
        raise ZeroDivisionError

    task = asyncio.create_task(work())
    await asyncio.wait({task})
    del task
    await asyncio.to_thread(wait_until, lambda: gc.collect() >= 0 and bool(reported), "the error is reported")
    assert [type(error) for error in reported] == [ZeroDivisionError]
    await asyncio.to_thread(one.shutdown)


def test_the_items_of_threads_that_have_ended_are_done(urls: Urls) -> None:
    one = new_queue(urls)
    one.put_nowait_batch(range(10))
    threads = [threading.Thread(target=one.get) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    wait_until(lambda: backlog(one) == 0, "the threads are done with their items")
    one.shutdown()


class Poison:
    def __reduce__(self) -> tuple[Any, ...]:
        return divmod, (1, 0)


async def test_an_item_that_cannot_be_unpickled_is_given_back(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    await one.put_async(Poison())
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await one.get_async(timeout=10)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(one.get, timeout=10)
        with pytest.raises(ZeroDivisionError):
            async with one.lease_async(timeout=10):
                pass
    assert await asyncio.to_thread(backlog, one) == 1
    await asyncio.to_thread(one.shutdown)


async def test_many_puts_at_once_wait_for_each_other(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    await asyncio.gather(*(one.put_async(number) for number in range(2_500)))
    assert await asyncio.to_thread(one.size) == 2_500
    await asyncio.to_thread(one.shutdown)


async def test_a_cancelled_get_loses_nothing(urls: Urls) -> None:
    one = await asyncio.to_thread(new_queue, urls)
    seen: list[int] = []
    for number in range(30):
        getting = asyncio.create_task(one.get_async())
        await asyncio.sleep(0)
        putting = asyncio.create_task(one.put_async(number))
        await asyncio.sleep(0.001 * (number % 5))
        getting.cancel()
        try:
            seen.append(await getting)
        except asyncio.CancelledError:
            pass
        await putting
    while len(seen) < 30:
        seen.append(await one.get_async(timeout=10))
    assert sorted(seen) == list(range(30))
    await asyncio.to_thread(one.shutdown)


def test_a_dropped_handle_is_done_with_what_it_held(urls: Urls) -> None:
    one = new_queue(urls)
    one.put_nowait_batch(["done", "next"])
    other = again(one)
    assert other.get() == "done"
    del other
    gc.collect()
    wait_until(lambda: backlog(one) == 1, "the handle acknowledges what it held")
    assert one.get() == "next"
    one.shutdown()


def backlog(one: magnetar.Queue) -> int:
    """The items that are not acknowledged: those that wait, and those that somebody holds."""
    path = one.name.replace("://", "/")
    with urllib.request.urlopen(f"{one._admin_url}/admin/v2/{path}/stats") as answer:
        return json.load(answer)["subscriptions"]["queue"]["msgBacklog"]


def get_and_die(one: magnetar.Queue) -> None:
    one.get()
    os.kill(os.getpid(), 9)


def get_and_end(one: magnetar.Queue) -> None:
    one.get()


def test_what_a_killed_process_held_goes_to_another_unlike_that_of_an_ended_one(urls: Urls) -> None:
    one = new_queue(urls)
    one.put_nowait_batch(["first", "second"])
    spawn = multiprocessing.get_context("spawn")
    for target, code in ((get_and_die, -9), (get_and_end, 0)):
        process = spawn.Process(target=target, args=(one,))
        process.start()
        process.join(60)
        assert process.exitcode == code
    assert one.get(timeout=20) == "second"
    assert one.empty()
    one.shutdown()


def script(one: magnetar.Queue, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has a handle `one`."""
    begin = f"import os, pickle, sys\none = pickle.loads({pickle.dumps(one)!r})\n"
    return subprocess.run([sys.executable, "-P", "-c", begin + text], capture_output=True, text=True, timeout=60)


def test_a_program_that_an_error_ends_gives_its_item_back(urls: Urls) -> None:
    one = new_queue(urls)
    one.put("order")
    failed = script(one, "print(one.get())\n1 / 0\n")
    assert failed.stdout == "order\n" and "ZeroDivisionError" in failed.stderr
    assert one.get(timeout=10) == "order"
    one.shutdown()


def test_a_fork_of_a_program_with_a_queue_ends(urls: Urls) -> None:
    one = new_queue(urls)
    text = "one.size()\nchild = os.fork()\nchild or sys.exit(7)\n"
    text += "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    assert script(one, text).stdout == "7\n"
    one.shutdown()


def test_the_child_of_a_fork_uses_the_queue_with_connections_of_its_own(urls: Urls) -> None:
    one = new_queue(urls)
    one.put("parent")
    process = multiprocessing.get_context("fork").Process(target=one.put, args=("child",))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert [one.get(timeout=10), one.get(timeout=10)] == ["parent", "child"]
    one.shutdown()


def test_items_outlive_a_restart_of_their_broker(cluster: EmbeddedCluster, urls: Urls) -> None:
    one = new_queue(urls)
    one.put_nowait_batch(range(3))
    held = one.get()
    number = cluster.owner(one.name)
    cluster.run(cluster.stop_broker(number))
    cluster.run(cluster.start_broker(number))
    rest = [one.get(timeout=30) for _ in range(2)]
    assert (held, sorted(rest)) == (0, [1, 2])
    one.shutdown()


def test_a_deleted_queue_does_not_come_back_and_those_who_wait_learn_it(urls: Urls) -> None:
    one = new_queue(urls)
    others = [again(one) for _ in range(3)]
    others[0].put("item")
    assert others[0].get() == "item"
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            others[1].get(timeout=60)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: waits(others[1]), "the handle waits")
    one.shutdown()
    waiting.join(30)
    assert [type(error) for error in errors] == [magnetar.TopicNotFound]
    for other in others:
        with pytest.raises(magnetar.TopicNotFound):
            other.put("item")
        with pytest.raises(magnetar.TopicNotFound):
            other.get(timeout=1)
        with pytest.raises(magnetar.ClusterError, match="404"):
            other.size()


def waits(one: magnetar.Queue) -> bool:
    return one._open is not None and one._open._waiting > 0


@pytest.mark.parametrize("opened", [True, False])
def test_closing_a_handle_ends_those_who_wait_for_it(urls: Urls, opened: bool) -> None:
    one = new_queue(urls)
    closed = one if opened else again(one)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            closed.get(timeout=60)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: waits(closed) if opened else closed._open is not None, "the handle is in use")
    closed.close()
    waiting.join(30)
    assert [(type(error), "make a new one" in str(error)) for error in errors] == [(magnetar.AlreadyClosed, True)]
    again(one).shutdown()


def test_a_queue_of_a_name_is_the_same_for_all(urls: Urls) -> None:
    new_queue(urls, name="orders").put("book")
    found = new_queue(urls, name="orders")
    assert found.get(timeout=10) == "book" and found.name == "persistent://public/default/orders"
    found.shutdown()
    assert new_queue(urls, name="orders").empty()


def test_what_is_no_queue_is_refused(urls: Urls) -> None:
    with pytest.raises(magnetar.InvalidConfiguration, match="positive number"):
        new_queue(urls, -1)
    with pytest.raises(magnetar.InvalidConfiguration, match="keeps nothing"):
        new_queue(urls, name="non-persistent://public/default/x")
    requested = urllib.request.Request(
        f"{urls.admin_url}/admin/v2/persistent/public/default/parted/partitions",
        b"3",
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(requested).close()
    with pytest.raises(magnetar.InvalidConfiguration, match="a queue has none: choose another name"):
        new_queue(urls, name="parted")
    one = new_queue(urls)
    with pytest.raises(magnetar.MessageTooBig):
        one.put(b"x" * 6_000_000)
    one.put("small")
    assert one.get(timeout=10) == "small"
    one.shutdown()
    with pytest.raises(magnetar.InvalidConfiguration, match="pass both"):
        magnetar.Queue(service_url=urls.service_url)
