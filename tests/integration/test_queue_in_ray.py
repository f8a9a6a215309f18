"""`magnetar.Queue` in Ray tasks and actors: in the place of `ray.util.queue.Queue`."""

import inspect
import json
import os
import signal
import urllib.request
from typing import Any

import pytest
import ray
import ray.util.queue
from ray.exceptions import RayTaskError, WorkerCrashedError

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from support.servers.ray_nodes import wait_until

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(num_cpus=0, max_retries=0)
def put(one: magnetar.Queue, items: list[Any]) -> None:
    for item in items:
        one.put(item)


@ray.remote(num_cpus=0, max_retries=0)
def get(one: magnetar.Queue, count: int) -> list[Any]:
    return [one.get(timeout=60) for _ in range(count)]


@ray.remote(num_cpus=0, max_retries=0)
def get_and_die(one: magnetar.Queue) -> None:
    one.get(timeout=60)
    os.kill(os.getpid(), signal.SIGKILL)


@ray.remote(num_cpus=0, max_retries=0)
def fail_with_a_lease(one: magnetar.Queue) -> None:
    with one.lease(timeout=60):
        raise ZeroDivisionError


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, one: magnetar.Queue) -> None:
        self.queue = one

    async def work(self, *, fails: bool) -> Any:
        item = await self.queue.get_async(timeout=60)
        if fails:
            raise ZeroDivisionError
        return item


def answer(reference: Any) -> Any:
    return ray.get(reference, timeout=120)


@pytest.mark.promise("31.22")
def test_tasks_pass_items_to_each_other() -> None:
    one = magnetar.Queue()
    getting = [get.remote(one, 10) for _ in range(2)]
    answer(put.remote(one, [*range(20)]))
    assert sorted([*answer(getting[0]), *answer(getting[1])]) == [*range(20)]
    assert one.empty()
    one.shutdown()


@pytest.mark.promise("31.22")
def test_a_task_that_is_killed_or_fails_with_a_lease_gives_its_item_back() -> None:
    one = magnetar.Queue()
    one.put("order")
    with pytest.raises(WorkerCrashedError):
        answer(get_and_die.remote(one))
    with pytest.raises(RayTaskError, match="ZeroDivisionError"):
        answer(fail_with_a_lease.remote(one))
    assert answer(get.remote(one, 1)) == ["order"]
    one.shutdown()


def backlog(cluster: RayCluster, one: magnetar.Queue) -> int:
    """The items that are not acknowledged."""
    with urllib.request.urlopen(f"{cluster.admin_url}/admin/v2/{one.name.replace('://', '/')}/stats") as found:
        return json.load(found)["subscriptions"]["queue"]["msgBacklog"]


def test_a_failed_call_of_an_actor_gives_its_item_back_and_one_that_returns_is_done(cluster: RayCluster) -> None:
    one = magnetar.Queue()
    one.put_nowait_batch(["first", "second"])
    worker: Any = Worker.remote(one)
    with pytest.raises(RayTaskError, match="ZeroDivisionError"):
        answer(worker.work.remote(fails=True))
    assert {answer(worker.work.remote(fails=False)) for _ in range(2)} == {"first", "second"}
    wait_until(lambda: backlog(cluster, one) == 0, "the calls that returned are acknowledged")
    one.shutdown()


def test_functions_are_items_and_references_to_objects_of_ray_are_not() -> None:
    one = magnetar.Queue()
    one.put(lambda: 42)
    assert one.get(timeout=60)() == 42
    with pytest.raises(TypeError, match="put the object itself"):
        one.put({"deep": [ray.put(1)]})
    one.shutdown()


def test_the_calls_are_those_of_rays_queue() -> None:
    for name, theirs in inspect.getmembers(ray.util.queue.Queue, inspect.isfunction):
        if name.startswith("_") and name not in ("__init__", "__len__"):
            continue
        ours = inspect.signature(getattr(magnetar.Queue, name)).parameters
        wanted = inspect.signature(theirs).parameters
        assert [*ours][: len(wanted)] == [*wanted], name
        assert [ours[one].default for one in wanted] == [one.default for one in wanted.values()], name
    assert issubclass(magnetar.Empty, ray.util.queue.Empty.__base__)
    assert issubclass(magnetar.Full, ray.util.queue.Full.__base__)
