"""Figures in Ray's metrics: read from the node as Prometheus reads them, and compared with what was done."""

import itertools
import re
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import magnetar
from magnetar.actors.processes.ray_figures import BOOKIE_FIGURES, BROKER_FIGURES, COORDINATOR_FIGURES
from magnetar.cluster.ray_cluster import RayCluster
from support.servers.ray_nodes import wait_until

EXPORT_TIMEOUT_S = 60
"""Processes report every 5 s, and Ray exports every 10 s."""
LABELS = ("process", "subscription", "quantile", "queue", "status")
_numbers = itertools.count()


def exported(cluster_id: str = "") -> dict[str, dict[str, float]]:
    """By name of a figure: its values by process, subscription or case. Processes that were replaced are added up."""
    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if re.match("ray_magnetar_", sample.name) and sample.labels.get("cluster", "") == cluster_id:
                labels = [sample.labels.get(one, "") for one in LABELS]
                found[sample.name.removeprefix("ray_")][" ".join(filter(None, labels))] += sample.value
    return found


@pytest.mark.promise("31.25")
def test_figures_of_the_processes_of_a_cluster_are_in_rays_metrics(
    start_smallest: Callable[[Path], RayCluster], tmp_path: Path
) -> None:
    """On a cluster of its own, whose figures begin at 0."""
    cluster = start_smallest(tmp_path)
    with cluster.client() as client:
        consumer = client.subscribe("measured", "s", receiver_queue_size=100)
        producer = client.create_producer("measured")
        for number in range(40):
            producer.send(b"x" * 1000 + str(number).encode())
        messages = [consumer.receive(10_000) for _ in range(40)]
        for message in messages[:25]:
            consumer.acknowledge(message)
        wanted = {
            "magnetar_brokers": {"coordinator": 1.0},
            "magnetar_bookies": {"coordinator": 2.0},
            "magnetar_topics": {"coordinator": 1.0},
            "magnetar_broker_topics_count": {"broker-1": 1.0},
            "magnetar_broker_subscriptions_count": {"broker-1": 1.0},
            "magnetar_broker_producers_count": {"broker-1": 1.0},
            "magnetar_broker_consumers_count": {"broker-1": 1.0},
            "magnetar_broker_in_messages_total": {"broker-1": 40.0},
            "magnetar_broker_out_messages_total": {"broker-1": 40.0},
            "magnetar_broker_msg_backlog": {"broker-1": 15.0},
            "magnetar_bookie_writable": {"bookie-1": 1.0, "bookie-2": 1.0},
        }

        def others() -> dict[str, object]:
            found = exported(cluster.cluster_id)
            return {name: found[name] for name, values in wanted.items() if found[name] != values}

        wait_until(lambda: not others(), f"all figures are as they should be: {wanted}", EXPORT_TIMEOUT_S)
        wait_until(
            lambda: all(
                exported(cluster.cluster_id)["magnetar_bookie_add_entries_total"].get(bookie, 0) >= 40
                for bookie in ("bookie-1", "bookie-2")
            ),
            "both bookies have each entry",
            EXPORT_TIMEOUT_S,
        )
        found = exported(cluster.cluster_id)
        sizes = [found[f"magnetar_broker_{way}_bytes_total"]["broker-1"] for way in ("in", "out")]
        assert sizes[0] == sizes[1] > 40_000
        names = {one.name for one in (*COORDINATOR_FIGURES, *BROKER_FIGURES, *BOOKIE_FIGURES) if one.kind == "gauge"}
        assert names <= found.keys()

        def has_times() -> bool:
            producer.send(b"again")  # times are those of the last minute
            found = exported(cluster.cluster_id)
            publish, sync = found["magnetar_broker_publish_latency"], found["magnetar_bookie_journal_sync"]
            median, slow, longest = (publish[f"broker-1 {quantile}"] for quantile in (0.5, 0.99, 1.0))
            # The clock of a loop has milliseconds, so the median of a fast disk is 0.
            return 0 <= median <= slow <= longest > 0 and sync["bookie-1 1.0"] > 0 and sync["bookie-2 1.0"] > 0

        wait_until(has_times, "there are times of publishes and synced writes", EXPORT_TIMEOUT_S)


@pytest.mark.promise("31.25")
def test_figures_of_a_consume_are_in_rays_metrics(cluster: RayCluster) -> None:
    topic = f"consumed-{next(_numbers)}"

    def handle(message: magnetar.Message) -> None:
        if message.data() == b"bad":
            raise ValueError("bad")

    with cluster.client() as client:
        consuming = magnetar.consume(topic, "s", handle, num_cpus=0, max_redeliver_count=1, concurrency=(1, 2))
        with consuming:
            producer = client.create_producer(topic)
            for data in (b"good", b"good", b"bad"):
                producer.send(data)
            place = f"public/default/{topic}:s"
            wanted = {
                "magnetar_consume_done_total": 2.0,
                "magnetar_consume_failed_total": 2.0,
                "magnetar_consume_dead_letters_total": 1.0,
                "magnetar_consume_workers": 1.0,
                "magnetar_consume_backlog": 0.0,
            }
            wait_until(
                lambda: {name: exported()[name].get(place) for name in wanted} == wanted,
                "all figures are as they should be",
                EXPORT_TIMEOUT_S,
            )
        wait_until(
            lambda: exported()["magnetar_consume_workers"].get(place) == 0.0, "no worker is left", EXPORT_TIMEOUT_S
        )


@pytest.mark.filterwarnings("ignore:::ray", "ignore::ResourceWarning")  # Ray warns of settings that it makes itself
@pytest.mark.promise("31.25")
def test_figures_of_a_task_queue_of_serve_are_in_rays_metrics(cluster: RayCluster) -> None:
    queue = f"measured-tasks-{next(_numbers)}"
    config = TaskProcessorConfig(
        queue_name=queue,
        adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
        adapter_config=magnetar.serve.MagnetarAdapterConfig(),
        max_retries=0,
    )
    policy = AutoscalingPolicy(
        policy_function=magnetar.serve.BacklogAutoscalingPolicy, policy_kwargs={"queue_name": queue}
    )
    scaling = AutoscalingConfig(min_replicas=1, max_replicas=1, policy=policy)

    @serve.deployment(ray_actor_options={"num_cpus": 0}, autoscaling_config=scaling)
    @task_consumer(task_processor_config=config)
    class Divider:
        @task_handler(name="divide")
        def divide(self, one: int, other: int) -> float:
            return one / other

    serve.start(proxy_location="Disabled")
    try:
        serve.run(Divider.bind(), name=queue, route_prefix=None)
        tasks: Any = instantiate_adapter_from_config(config)
        for other in (1, 2, 0):
            tasks.enqueue_task_sync("divide", [1, other])
        place = f"persistent://public/default/{queue}"
        wanted = {f"{place} SUCCESS": 2.0, f"{place} FAILURE": 1.0}
        wait_until(
            lambda: (
                wanted.items() <= exported()["magnetar_serve_tasks_total"].items()
                and exported()["magnetar_serve_backlog"].get(place) == 0.0
            ),
            "the tasks are counted",
            EXPORT_TIMEOUT_S,
        )
        tasks.close()
    finally:
        serve.shutdown()
