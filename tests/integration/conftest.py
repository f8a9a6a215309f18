"""One Ray for all integration tests, started by them, and on it one cluster for those that break nothing.

Tests that kill or stop processes start a cluster of their own with `start_cluster`; only one runs at a time, because
the actors' names are fixed.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

import magnetar
from magnetar.cluster.ray_cluster import RayCluster

StartCluster = Callable[..., RayCluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a cluster of their own come late, because each of them stops the shared one, and those on several Ray
    nodes last. Those of Spark stay together, because they share a session of Spark.
    """

    def turn(item: pytest.Item) -> int:
        if item.path.name == "test_spark_read.py":
            return 1
        if item.path.parent.name == "nodes":
            return 3
        return 2 if "start_cluster" in getattr(item, "fixturenames", ()) else 0

    items.sort(key=turn)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray of our own, whatever else runs on this machine."""
    os.environ.pop("RAY_ADDRESS", None)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


class _Clusters:
    """The cluster that runs now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.shared: RayCluster | None = None

    def start(self, **options: Any) -> RayCluster:
        """Start a cluster in place of the one that runs."""
        self.stop_shared()
        started = magnetar.start(**{"port": 0, "admin_port": 0, **options})
        assert isinstance(started, RayCluster)
        return started

    def share(self) -> RayCluster:
        """The shared cluster; its data comes back if another one ran meanwhile."""
        if self.shared is None:
            self.shared = self.start(data_dir=self._directory)
        return self.shared

    def stop_shared(self) -> None:
        if self.shared is not None:
            shared, self.shared = self.shared, None
            shared.stop()


@pytest.fixture(scope="session")
def clusters(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Clusters]:
    found = _Clusters(tmp_path_factory.mktemp("shared-cluster"))
    yield found
    found.stop_shared()


@pytest.fixture
def cluster(clusters: _Clusters) -> RayCluster:
    """A running cluster that other tests use as well: 2 brokers, 3 bookies. Leave its processes alone."""
    return clusters.share()


@pytest.fixture
def greetings(cluster: RayCluster) -> Iterator[RayCluster]:
    """A cluster whose topic `greetings` holds two messages or more, and keeps them."""
    with cluster.client() as client:
        for name in ("keeper", "readers"):
            client.subscribe("greetings", name).close()
        producer = client.create_producer("greetings")
        producer.send(b"hello")
        producer.send(b"again")
    yield cluster


@pytest.fixture
def start_cluster(clusters: _Clusters) -> Iterator[StartCluster]:
    """`start_cluster(directory, **options)` starts a cluster there that this test may harm; `options` are those of
    `magnetar.start`. Those that the test does not stop are stopped at its end.
    """
    started: list[RayCluster] = []

    def start(directory: Path, **options: Any) -> RayCluster:
        cluster = clusters.start(data_dir=directory, **options)
        started.append(cluster)
        return cluster

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture(autouse=True)
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ray tasks defined in a test module are sent as they are: workers cannot import test modules."""
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
