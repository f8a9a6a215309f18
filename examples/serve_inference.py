"""Inference from a task queue, on Ray Serve without GPUs: replicas come with the backlog, and go when it is worked off.

The queue is a topic, so nothing runs beside Ray. A task is acknowledged when its result is stored.
"""

import time

import numpy as np
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import magnetar

QUEUE = TaskProcessorConfig(
    queue_name="flowers",
    adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
    adapter_config=magnetar.serve.MagnetarAdapterConfig(),
)
POLICY = AutoscalingPolicy(
    policy_function=magnetar.serve.BacklogAutoscalingPolicy, policy_kwargs={"queue_name": QUEUE.queue_name}
)
SCALING = AutoscalingConfig(
    min_replicas=0, max_replicas=2, target_ongoing_requests=50, upscale_delay_s=0, downscale_delay_s=1, policy=POLICY
)


def samples(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Flowers as points, with the species of each."""
    species = random.integers(3, size=count)
    return np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])[species] + random.normal(size=(count, 2)), species


@serve.deployment(ray_actor_options={"num_cpus": 0.5}, max_ongoing_requests=50, autoscaling_config=SCALING)
@task_consumer(task_processor_config=QUEUE)
class Classifier:
    def __init__(self) -> None:
        points, species = samples(np.random.default_rng(1), 2_000)
        self.weights = np.linalg.lstsq(np.insert(points, 0, 1.0, axis=1), np.eye(3)[species], rcond=None)[0]

    @task_handler(name="classify")
    def classify(self, point: list[float]) -> int:
        return int(np.argmax([1.0, *point] @ self.weights))


def main() -> None:
    magnetar.connect()
    serve.start(proxy_location="Disabled")  # tasks come from the queue: nobody needs the HTTP proxy
    serve.run(Classifier.bind(), name="flowers", route_prefix=None)
    queue = instantiate_adapter_from_config(QUEUE)
    points, species = samples(np.random.default_rng(2), 300)
    tasks = [queue.enqueue_task_sync("classify", [point]) for point in points.tolist()]
    most = 0
    while (figures := queue.get_metrics_sync())["backlog"] or figures["replicas"]:
        most = max(most, figures["replicas"])
        time.sleep(0.1)
    found = [queue.get_task_status_sync(task.id).result for task in tasks]
    print(f"{len(found)} flowers classified, {np.mean(found == species):.0%} of them rightly")
    print(f"up to {most} replicas, and none when the queue was empty")
    serve.delete("flowers")


if __name__ == "__main__":
    main()
