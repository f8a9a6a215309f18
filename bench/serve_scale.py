"""Replicas of a Ray Serve application that come with a burst of tasks, and go when nothing is left to do.

The application has no replica at first, and `BacklogAutoscalingPolicy` decides. Two figures:

- 0 → N: from the first task of the burst until N replicas have subscribed to the queue.
- N → 0: from the last acknowledgement until Serve has told the last replica to stop. Serve goes from N to 1 behind one
  delay of the policy, and from 1 to 0 behind another. The policy asks for the backlog once in `POLL_INTERVAL_S`, and
  Serve asks the policy when it has stopped the others. So the bound is both delays and two of these intervals.

The anchor of the first figure is a plain application with N replicas.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from ray import cloudpickle, serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler
from rows import Report, Row

import magnetar
from magnetar.serve.autoscaling import POLL_INTERVAL_S

NAME = "bench-scale"
REPLICAS = 4
ROUNDS = 3
TASKS = 200
TASK_S = 0.3
DOWN_DELAY_S = 2.0
TO_ZERO_DELAY_S = 3.0
UP_TARGET_S = 10.0
DOWN_TARGET_S = DOWN_DELAY_S + TO_ZERO_DELAY_S + 2 * POLL_INTERVAL_S
END_S = 120.0
LOOK_EVERY_S = 0.1


def run(report: Report) -> None:
    """The rows."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    load = os.getloadavg()[0]
    serve.start(proxy_location="Disabled")
    try:
        plain = [_plain() for _ in range(ROUNDS)]
        adapter = deploy()
        rounds = [_round(adapter) for _ in range(ROUNDS)]
        adapter.close()
    finally:
        serve.shutdown()
    ups, downs, gone = zip(*rounds, strict=True)
    more = (
        f"median of {ROUNDS}; {REPLICAS} replicas of a plain application {statistics.median(plain):.1f} s; "
        f"load {load:.1f} before"
    )
    name = f"Serve tasks: 0 → {REPLICAS} replicas after a burst"
    figure = round(statistics.median(ups), 1)
    report.rows.append(Row(name, figure, "lower", UP_TARGET_S, list(ups), "s", more))
    name = f"Serve tasks: {REPLICAS} → 0 replicas when all is done"
    figure = round(statistics.median(downs), 1)
    more = f"delays of {DOWN_DELAY_S:g} s and {TO_ZERO_DELAY_S:g} s; all gone after {statistics.median(gone):.1f} s"
    report.rows.append(Row(name, figure, "lower", DOWN_TARGET_S, list(downs), "s", more))


def deploy() -> Any:
    """The application; gives the adapter that enqueues."""
    config = TaskProcessorConfig(
        queue_name=NAME,
        adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
        adapter_config=magnetar.serve.MagnetarAdapterConfig(),
    )
    policy = AutoscalingPolicy(
        policy_function=magnetar.serve.BacklogAutoscalingPolicy, policy_kwargs={"queue_name": NAME}
    )
    scaling = AutoscalingConfig(
        min_replicas=0,
        initial_replicas=0,
        max_replicas=REPLICAS,
        target_ongoing_requests=TASKS / REPLICAS / 4,
        upscale_delay_s=0.0,
        downscale_delay_s=DOWN_DELAY_S,
        downscale_to_zero_delay_s=TO_ZERO_DELAY_S,
        policy=policy,
    )

    @serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=4, autoscaling_config=scaling)
    @task_consumer(task_processor_config=config)
    class Waiting:
        @task_handler(name="wait")
        def wait(self) -> None:
            time.sleep(TASK_S)

    serve.run(Waiting.bind(), name=NAME, route_prefix=None)
    return instantiate_adapter_from_config(config)


def _plain() -> float:
    """Seconds until as many replicas run of an application without tasks, which is removed then: Serve's own part."""

    @serve.deployment(ray_actor_options={"num_cpus": 0}, num_replicas=REPLICAS)
    class Idle:
        pass

    began = time.monotonic()
    serve.run(Idle.bind(), name="plain", route_prefix=None)
    took_s = time.monotonic() - began
    serve.delete("plain")
    return took_s


def _round(adapter: Any) -> tuple[float, float, float]:
    """Seconds until all replicas were there, until all were told to stop, and until all were gone."""
    began = time.monotonic()
    for _ in range(TASKS):
        adapter.enqueue_task_sync("wait")
    up = _until(lambda: adapter.get_metrics_sync()["replicas"] >= REPLICAS) - began
    done = _until(lambda: adapter.get_metrics_sync()["backlog"] == 0)
    down = _until(lambda: _running() == 0) - done
    gone = _until(lambda: adapter.get_metrics_sync()["replicas"] == 0) - done
    return up, down, gone


def _running() -> int:
    """Replicas that run, and were not told to stop."""
    states = serve.status().applications[NAME].deployments["Waiting"].replica_states
    return sum(count for state, count in states.items() if str(state) != "STOPPING")


def _until(condition: Callable[[], bool]) -> float:
    """When it was first seen to hold, by the machine's clock."""
    end = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < end, "Serve has not as many replicas as the backlog needs"
        time.sleep(LOOK_EVERY_S)
    return time.monotonic()
