"""Tasks of Ray Serve while replicas, brokers and Serve's controller are killed.

No task is lost, every result is right, and none runs again that was acknowledged. `SERVE_KILL_TASKS=10000` in the
environment makes it so many tasks, `SERVE_KILL_SEED` chooses other kills. Each run prints what was killed.
"""

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.schema import TaskProcessorConfig, TaskResult
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.serve.records import load_status
from support.servers import ray_nodes
from support.servers.ray_nodes import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:::ray"),  # Ray warns of settings that it makes itself
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Serve's own sockets
]
TASKS = int(os.environ.get("SERVE_KILL_TASKS", "2000"))
SEED = int(os.environ.get("SERVE_KILL_SEED", "1"))
QUEUE = f"chaos-{SEED}"
SENDERS = 8
"""Threads that enqueue."""
AHEAD = 200
"""Tasks that are enqueued and not done: so enqueuing goes on while processes are killed."""
KILLS = 10
LATE_S = 0.5
"""A run that began while the result of another one was being stored may have begun so much later on a busy machine."""
STEP_S = 120.0
END_S = 120.0 + TASKS / 20


@pytest.fixture
def application(harmed: RayCluster, tmp_path: Path) -> Iterator[Any]:
    """Three replicas that note each run; gives an adapter that enqueues."""
    config = TaskProcessorConfig(
        queue_name=QUEUE,
        adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
        adapter_config=magnetar.serve.MagnetarAdapterConfig(retry_backoff_s=0.05),
    )
    runs = tmp_path / "runs"
    runs.touch()

    @serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=4, num_replicas=3)
    @task_consumer(task_processor_config=config)
    class Squares:
        @task_handler(name="square")
        def square(self, number: int) -> dict[str, int]:
            with runs.open("a") as file:
                file.write(f"{number} {os.getpid()} {time.monotonic()}\n")
            time.sleep(0.01)  # so that kills meet tasks that run
            return {"of": number, "square": number * number}

    serve.start(proxy_location="Disabled")
    serve.run(Squares.bind(), name="squares", route_prefix=None)
    adapter: Any = instantiate_adapter_from_config(config)
    yield adapter
    adapter.close()
    serve.shutdown()


class Watcher:
    """Follows the topic of statuses, and notes when it first saw that a task is done."""

    def __init__(self, client: magnetar.Client) -> None:
        self.done: dict[str, float] = {}
        """Seconds of the machine's clock, by task."""
        self.room = threading.Semaphore(AHEAD)
        self._reader = client.create_reader(f"{QUEUE}-status", magnetar.MessageId.earliest)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._reader.close()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._reader.read_next(500)
            except magnetar.Timeout:
                continue
            done = load_status("json", message.properties(), message.data()).status == "SUCCESS"
            if done and message.partition_key() not in self.done:
                self.done[message.partition_key()] = time.monotonic()
                self.room.release()


class Killer:
    """Kills one process after the other, each when some more tasks are done."""

    def __init__(self, runs: Path, watcher: Watcher) -> None:
        self.did: Counter[str] = Counter()
        self._runs = runs
        self._watcher = watcher
        self._chance = random.Random(SEED)

    def run(self) -> None:
        """Half of the kills in a fixed order, so that each kind happens; the others by chance."""
        kinds = ["replica", "controller", "broker-1", "broker-2", "replica"]
        kinds += [self._chance.choice(kinds) for _ in range(KILLS - len(kinds))]
        self._chance.shuffle(kinds)
        for kind in kinds:
            more = self._chance.randint(TASKS // (3 * KILLS), TASKS // KILLS)
            self._await_more(min(more, TASKS - len(self._watcher.done)))
            self._kill(kind)
            self.did[kind] += 1

    def _await_more(self, count: int) -> None:
        goal = len(self._watcher.done) + count
        wait_until(lambda: len(self._watcher.done) >= goal, f"{goal} tasks are done; killed: {self.did}", STEP_S)

    def _kill(self, kind: str) -> None:
        if kind == "replica":
            os.kill(self._chance.choice(self._replicas()), signal.SIGKILL)
        elif kind == "controller":
            os.kill(wait_until(_controller, "Serve has a controller", STEP_S), signal.SIGKILL)
        else:
            ray_nodes.kill(kind)

    def _replicas(self) -> list[int]:
        """Living processes that have run tasks."""
        found = {int(line.split()[1]) for line in self._runs.read_text().splitlines()}
        return sorted(one for one in found if Path(f"/proc/{one}").exists())


def _controller() -> int | None:
    try:
        controller: Any = ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve")
        return ray.get(controller.get_pid.remote(), timeout=5)
    except (ValueError, RayError):
        return None


@pytest.mark.promise("31.24")
def test_no_task_is_lost_when_replicas_brokers_and_the_controller_are_killed(
    application: Any, harmed: RayCluster, tmp_path: Path
) -> None:
    began = time.monotonic()
    runs = tmp_path / "runs"
    with harmed.client() as client, Watcher(client) as watcher, ThreadPoolExecutor(SENDERS) as senders:

        def enqueue(number: int) -> TaskResult:
            assert watcher.room.acquire(timeout=STEP_S), "tasks that were enqueued are not done"
            return application.enqueue_task_sync("square", [number])

        enqueued = senders.map(enqueue, range(TASKS))
        killer = Killer(runs, watcher)
        killer.run()
        tasks = list(enqueued)
        ids = {task.id for task in tasks}
        wait_until(lambda: watcher.done.keys() >= ids, "all tasks are done", END_S)
        wait_until(lambda: application.get_metrics_sync()["backlog"] == 0, "all tasks are acknowledged", STEP_S)
    took_s = time.monotonic() - began

    found = [application.get_task_status_sync(task.id) for task in tasks]
    assert {one.status for one in found} == {"SUCCESS"}
    assert [one.result for one in found] == [{"of": number, "square": number * number} for number in range(TASKS)]
    begins: defaultdict[int, list[float]] = defaultdict(list)
    for line in runs.read_text().splitlines():
        number, _, at = line.split()
        begins[int(number)].append(float(at))
    again = sum(len(times) > 1 for times in begins.values())
    print(
        f"seed {SEED}: {TASKS} tasks in {took_s:.0f} s, killed {dict(sorted(killer.did.items()))}, "
        f"{len(begins)} done, {again} ran more than once"
    )
    assert len(begins) == TASKS
    late = {
        number: [round(at - watcher.done[task.id], 3) for at in begins[number]]
        for number, task in enumerate(tasks)
        if max(begins[number]) > watcher.done[task.id] + LATE_S
    }
    assert not late, "tasks ran again whose result was stored"
