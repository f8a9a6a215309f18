"""Task queues of Ray Serve on topics: a real Serve application on the cluster's Ray."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig, TaskResult
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.serve.records import load_status, load_task
from support.servers.ray_nodes import wait_until

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore:::ray"),  # Ray warns of settings that it makes itself
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Serve's own sockets
]
_numbers = itertools.count()
_adapters: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def running_serve(ray_session: None) -> Iterator[None]:
    serve.start(proxy_location="Disabled")
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def closed_adapters() -> Iterator[None]:
    yield
    while _adapters:
        _adapters.pop().close()
    for name in serve.status().applications:
        serve.delete(name)


def config_of(**options: Any) -> TaskProcessorConfig:
    given = {one: options.pop(one) for one in ("serializer", "key_ordered") if one in options}
    return TaskProcessorConfig(
        queue_name=f"tasks-{next(_numbers)}",
        adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
        adapter_config=magnetar.serve.MagnetarAdapterConfig(retry_backoff_s=0.05, **given),
        **options,
    )


def deploy(config: TaskProcessorConfig, directory: Path, **options: Any) -> Any:
    """An application whose handlers note in files what they do; returns an adapter that enqueues."""

    @serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=4, **options)
    @task_consumer(task_processor_config=config)
    class Handlers:
        @task_handler(name="add")
        def add(self, one: int, other: int = 0) -> int:
            return one + other

        @task_handler(name="wait")
        async def wait(self, text: str) -> str:
            return text

        @task_handler(name="fail")
        def fail(self, times: int) -> int:
            tried = directory / "tried"
            count = len(tried.read_text()) if tried.exists() else 0
            tried.write_text("x" * (count + 1))
            if count < times:
                raise ValueError(f"attempt {count}")
            return count

        @task_handler(name="note")
        def note(self, name: str, pause_s: float = 0.0) -> None:
            time.sleep(pause_s)
            with (directory / f"note-{name}").open("a") as file:
                file.write(f"{os.getpid()}\n")

        @task_handler(name="begin")
        def begin(self, name: str, pause_s: float) -> None:
            with (directory / f"begun-{name}").open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(pause_s)

        @task_handler(name="leave")
        def leave(self) -> None:
            sys.exit("no way on")

        @task_handler(name="leave in a coroutine")
        async def leave_in_a_coroutine(self) -> None:
            sys.exit("no way on")

        @task_handler(name="cancel")
        async def cancel(self) -> None:
            raise asyncio.CancelledError

        @task_handler(name="circle")
        def circle(self) -> list[Any]:
            (directory / "circle").open("a").write("x")
            circle: list[Any] = []
            circle.append(circle)
            return circle

        @task_handler(name="large")
        def large(self) -> str:
            (directory / "large").open("a").write("x")
            return "x" * (6 << 20)

        @task_handler(name="complain")
        def complain(self, text: str) -> None:
            raise ValueError(text * 20)

        @task_handler(name="die")
        def die(self, how: str, name: str) -> None:
            with (directory / f"note-{name}").open("a") as file:
                file.write(f"{os.getpid()}\n")
            if how == "exit":
                os._exit(3)
            os.kill(os.getpid(), getattr(signal, how))  # of a segmentation fault, or as the kernel does without memory
            time.sleep(60)

        @task_handler(name="turn")
        def turn(self, key: str, number: int) -> None:
            with (directory / f"turn-{key}").open("a") as file:
                file.write(f"+{number} ")
                file.flush()
                time.sleep(random.random() / 50)  # so that tasks that run side by side mix what they write
                file.write(f"-{number} ")

    serve.run(Handlers.bind(), name=config.queue_name, route_prefix=None)
    _adapters.append(instantiate_adapter_from_config(config))
    return _adapters[-1]


def final(adapter: Any, task: TaskResult, timeout_s: float = 60.0) -> TaskResult:
    def ended() -> TaskResult | None:
        found = adapter.get_task_status_sync(task.id)
        return found if found.status in ("SUCCESS", "FAILURE", "REVOKED") else None

    return wait_until(ended, f"task {task.id} ends", timeout_s)


@pytest.mark.promise("31.24")
async def test_tasks_run_and_their_results_are_kept(tmp_path: Path) -> None:
    adapter = deploy(config_of(), tmp_path)
    tasks = [adapter.enqueue_task_sync("add", [number], {"other": 1}) for number in range(20)]
    assert {task.status for task in tasks} == {"PENDING"}
    assert [final(adapter, task).result for task in tasks] == list(range(1, 21))
    later = await adapter.enqueue_task_async("wait", ["hello"], countdown=1.0, task_id="my-task")
    assert later.id == "my-task" and (await adapter.get_task_status_async("my-task")).status == "PENDING"
    assert final(adapter, later).result == "hello"
    slow = adapter.enqueue_task_sync("note", ["slow", 1.0])
    wait_until(lambda: adapter.get_task_status_sync(slow.id).status == "STARTED", "the slow task is shown as started")
    assert final(adapter, slow).status == "SUCCESS"
    wait_until(lambda: adapter.get_metrics_sync()["backlog"] == 0, "all tasks are acknowledged")
    assert adapter.health_check_sync()[0][adapter.get_metrics_sync()["queue"]] == {"ok": "pong", "replicas": 1}
    with pytest.raises(magnetar.InvalidConfiguration, match="no option of a task"):
        adapter.enqueue_task_sync("add", [1], priority=3)
    with pytest.raises(TypeError):
        adapter.enqueue_task_sync("add", [object()])


def test_a_failed_task_is_tried_again_and_then_goes_to_the_queue_of_failed_tasks(tmp_path: Path) -> None:
    config = config_of(max_retries=2, failed_task_queue_name=f"failed-{next(_numbers)}")
    adapter = deploy(config, tmp_path)
    retried = adapter.enqueue_task_sync("fail", [2])
    assert final(adapter, retried).result == 2
    steps = [("RETRY", 0), ("RETRY", 1), ("SUCCESS", 2)]
    assert statuses_of(config.queue_name, retried.id) == steps
    (tmp_path / "tried").unlink()
    failed = final(adapter, adapter.enqueue_task_sync("fail", [5]))
    assert (failed.status, failed.result) == ("FAILURE", "ValueError: attempt 2")
    assert len((tmp_path / "tried").read_text()) == 3
    moved = taken(config.failed_task_queue_name)
    assert moved.name == "fail" and moved.args[:4] == [failed.id, "attempt 2", "[5]", "{}"]
    assert "ValueError: attempt 2" in moved.args[4]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("leave", "SystemExit: no way on"),
        ("leave in a coroutine", "SystemExit: no way on"),
        ("cancel", "CancelledError: "),
        ("circle", "TypeError: the value cannot be written with json: Circular reference detected"),
        ("large", "MessageTooBig: "),
    ],
)
def test_a_handler_that_gives_no_result_has_failed_and_its_replica_goes_on(
    tmp_path: Path, name: str, text: str
) -> None:
    config = config_of(max_retries=0, failed_task_queue_name=f"failed-{next(_numbers)}")
    adapter = deploy(config, tmp_path)
    failed = final(adapter, adapter.enqueue_task_sync(name))
    assert failed.status == "FAILURE" and failed.result.startswith(text)
    assert taken(config.failed_task_queue_name).args[0] == failed.id
    assert final(adapter, adapter.enqueue_task_sync("add", [1])).result == 1
    assert final(adapter, adapter.enqueue_task_sync("wait", ["here"])).result == "here"
    wait_until(lambda: adapter.get_metrics_sync()["backlog"] == 0, "the task does not come again")
    runs = tmp_path / name
    assert not runs.exists() or runs.read_text() == "x"


def test_what_is_told_of_a_failed_task_fits_into_a_message(tmp_path: Path) -> None:
    config = config_of(max_retries=0, failed_task_queue_name=f"failed-{next(_numbers)}")
    adapter = deploy(config, tmp_path)
    failed = final(adapter, adapter.enqueue_task_sync("complain", ["x" * (3 << 20)]))
    assert failed.result.startswith("ValueError: xxx") and len(failed.result) < 200_000
    told = taken(config.failed_task_queue_name).args
    assert told[0] == failed.id and all(text.endswith("…") for text in (told[1], told[2], told[4]))


def statuses_of(queue: str, task_id: str) -> list[tuple[str, int]]:
    """The statuses that were stored of a task, in their order, with the attempt of each."""
    found: list[tuple[str, int]] = []
    with magnetar.Client() as client:
        reader = client.create_reader(f"{queue}-status", magnetar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(10_000)
            if message.partition_key() == task_id:
                status = load_status("json", message.properties(), message.data())
                found.append((status.status, status.attempt))
    return found


def test_tasks_that_nobody_handles_go_to_the_queue_of_unprocessable_ones(tmp_path: Path) -> None:
    config = config_of(unprocessable_task_queue_name=f"odd-{next(_numbers)}")
    adapter = deploy(config, tmp_path)
    unknown = final(adapter, adapter.enqueue_task_sync("nothing", [1]))
    assert unknown.status == "FAILURE" and "'nothing'" in unknown.result
    assert taken(config.unprocessable_task_queue_name).args[:2] == ["nothing", unknown.id]
    with magnetar.Client() as client:
        client.create_producer(config.queue_name).send(b"no task", properties={"serializer": "json"})
    assert taken(config.unprocessable_task_queue_name).args[2] == "b'no task'"
    assert final(adapter, adapter.enqueue_task_sync("add", [1])).result == 1


def taken(queue: str | None) -> Any:
    """The next task of a queue."""
    with magnetar.Client() as client:
        consumer = client.subscribe(queue, "serve", magnetar.ConsumerType.Shared)
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        return load_task("json", message.properties(), message.data())


def test_a_task_that_was_cancelled_does_not_run(tmp_path: Path) -> None:
    adapter = deploy(config_of(), tmp_path)
    cancelled = adapter.enqueue_task_sync("note", ["cancelled"], countdown=1.5)
    adapter.cancel_task_sync(cancelled.id)
    assert final(adapter, cancelled).status == "REVOKED"
    other = adapter.enqueue_task_sync("note", ["other"], countdown=2.0)
    assert final(adapter, other).status == "SUCCESS"
    wait_until(lambda: adapter.get_metrics_sync()["backlog"] == 0, "the cancelled task is acknowledged")
    assert not (tmp_path / "note-cancelled").exists()


def test_a_queue_that_was_deleted_does_not_come_back_by_itself(cluster: RayCluster, tmp_path: Path) -> None:
    config = config_of()
    adapter = deploy(config, tmp_path)
    assert final(adapter, adapter.enqueue_task_sync("add", [1])).result == 1
    delete_topic(cluster, config.queue_name)
    for _ in range(2):
        with pytest.raises(magnetar.TopicNotFound):
            adapter.enqueue_task_sync("add", [2])
    with pytest.raises(magnetar.ClusterError, match="404"):
        adapter.get_metrics_sync()
    _adapters.append(instantiate_adapter_from_config(config))  # makes the queue again
    for one in _adapters:
        assert final(one, one.enqueue_task_sync("add", [3])).result == 3  # by the replica that lost its subscription


def delete_topic(cluster: RayCluster, name: str) -> None:
    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{name}?force=true"
    with urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=30):
        pass


def test_tasks_of_one_key_run_one_after_the_other(tmp_path: Path) -> None:
    adapter = deploy(config_of(key_ordered=True), tmp_path, num_replicas=2)
    tasks = [
        adapter.enqueue_task_sync("turn", [key, number], key=key) for number in range(25) for key in ("a", "b", "c")
    ]
    assert {final(adapter, task).status for task in tasks} == {"SUCCESS"}
    turns = "".join(f"+{number} -{number} " for number in range(25))
    assert {key: (tmp_path / f"turn-{key}").read_text() for key in "abc"} == dict.fromkeys("abc", turns)


@pytest.mark.promise("31.24")
def test_no_task_is_lost_when_replicas_are_killed_and_none_runs_again_that_was_done(tmp_path: Path) -> None:
    adapter = deploy(config_of(), tmp_path, num_replicas=2)
    tasks = [adapter.enqueue_task_sync("note", [str(number), 0.02]) for number in range(200)]
    for _ in range(2):
        wait_until(lambda: notes(tmp_path), "tasks run")
        done = {number for number, task in enumerate(tasks) if is_done(adapter, task)}
        before = {number: (tmp_path / f"note-{number}").read_text() for number in done}
        for process in {int(line) for file in notes(tmp_path) for line in file.read_text().split()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        goal = min(len(done) + 20, 200)
        wait_until(lambda goal=goal: sum(is_done(adapter, task) for task in tasks) >= goal, "other replicas go on", 120)
        assert all((tmp_path / f"note-{number}").read_text() == text for number, text in before.items())
    assert {final(adapter, task, 120).status for task in tasks} == {"SUCCESS"}
    assert len(notes(tmp_path)) == 200


@pytest.mark.promise("31.24")
@pytest.mark.parametrize(("how", "replicas"), [("exit", 1), ("SIGSEGV", 2), ("SIGKILL", 3)])
def test_a_task_that_kills_its_replica_fails_and_all_others_succeed(tmp_path: Path, how: str, replicas: int) -> None:
    config = config_of(max_retries=1, failed_task_queue_name=f"failed-{next(_numbers)}")
    adapter = deploy(config, tmp_path, num_replicas=replicas)
    tasks = [adapter.enqueue_task_sync("note", [str(number), 0.02]) for number in range(25)]
    poison = adapter.enqueue_task_sync("die", [how, "poison"])
    tasks += [adapter.enqueue_task_sync("note", [str(number), 0.02]) for number in range(25, 50)]
    began = time.monotonic()
    failed = final(adapter, poison, 180)
    count = len((tmp_path / "note-poison").read_text().split())
    print(f"failed after {count} runs, {time.monotonic() - began:.1f} s: {failed.result}")
    assert failed.status == "FAILURE" and "replicas died, each while this task ran alone in it" in failed.result
    # Twice alone. Before that it was among others in each replica at most, and others may run it before a note is read.
    assert 2 <= count <= 2 + 2 * replicas
    assert {final(adapter, task, 120).status for task in tasks} == {"SUCCESS"}
    assert taken(config.failed_task_queue_name).args[:3] == [
        failed.id,
        failed.result.partition(": ")[2],
        str([how, "poison"]),
    ]
    wait_until(lambda: adapter.get_metrics_sync()["backlog"] == 0, "all tasks are acknowledged")
    healthy = lambda: serve.status().applications[config.queue_name].status == "RUNNING"  # noqa: E731
    wait_until(healthy, "the application is healthy again", 60)
    assert final(adapter, adapter.enqueue_task_sync("add", [1])).result == 1
    assert len((tmp_path / "note-poison").read_text().split()) == count


def test_tasks_that_ran_in_a_killed_replica_are_not_to_blame_even_without_retries(tmp_path: Path) -> None:
    adapter = deploy(config_of(max_retries=0), tmp_path)
    tasks = [adapter.enqueue_task_sync("begin", [str(number), 2.0]) for number in range(2)]
    for times in (1, 2):
        begun = lambda times=times: all(len(runs(tmp_path, number)) == times for number in range(2))  # noqa: E731
        if times == 1:
            wait_until(begun, "both tasks run")
        else:  # one after the other
            wait_until(lambda: any(len(runs(tmp_path, number)) == 2 for number in range(2)), "one task runs again", 60)
            assert not begun()
        for process in {run for number in range(2) for run in runs(tmp_path, number)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    assert {final(adapter, task, 120).status for task in tasks} == {"SUCCESS"}


def runs(directory: Path, number: int) -> list[int]:
    """The processes that began a task."""
    file = directory / f"begun-{number}"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def notes(directory: Path) -> list[Path]:
    return list(directory.glob("note-*"))


def is_done(adapter: Any, task: TaskResult) -> bool:
    return adapter.get_task_status_sync(task.id).status == "SUCCESS"


@pytest.mark.promise("31.24")
def test_replicas_come_with_the_backlog_and_go_with_it(tmp_path: Path) -> None:
    config = config_of()
    policy = AutoscalingPolicy(
        policy_function=magnetar.serve.BacklogAutoscalingPolicy, policy_kwargs={"queue_name": config.queue_name}
    )
    scaling = AutoscalingConfig(
        min_replicas=0,
        initial_replicas=0,
        max_replicas=3,
        target_ongoing_requests=10,
        upscale_delay_s=0.0,
        downscale_delay_s=1.0,
        downscale_to_zero_delay_s=1.0,
        policy=policy,
    )
    adapter = deploy(config, tmp_path, autoscaling_config=scaling)
    replicas = lambda: adapter.get_metrics_sync()["replicas"]  # noqa: E731
    assert replicas() == 0
    tasks = [adapter.enqueue_task_sync("note", [str(number), 0.3]) for number in range(60)]
    began = time.monotonic()
    wait_until(lambda: replicas() == 3, "three replicas take tasks", 60)
    print(f"three replicas after {time.monotonic() - began:.1f} s")
    assert {final(adapter, task, 120).status for task in tasks} == {"SUCCESS"}
    wait_until(lambda: replicas() == 0, "no replica is left", 120)
