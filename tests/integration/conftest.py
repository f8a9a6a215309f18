"""One Ray for all integration tests, started by them, and on it one cluster for those that break nothing.

Tests that kill processes and wait until others take their place share a second one, `harmed`. Tests that stop a
cluster, or need settings, start one with `start_cluster`. Only one runs at a time, because the actors' names are fixed.
A cluster costs 20 s of a processor: a process for each service, which loads Ray and Magnetar.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ray
from ray import cloudpickle
from ray._private import node
from ray.exceptions import RayError

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.names import ROLE_BOOKIE, ROLE_BROKER
from support.servers.ray_nodes import wait_until

StartCluster = Callable[..., RayCluster]
BROKERS, BOOKIES = 2, 3
"""Of a new cluster."""
UNUSED = ("start_api_server", "start_log_monitor", "start_monitor")
"""Ray's methods that start processes which no test uses."""
SMALLEST = {"brokers": 1, "bookies": 2, "ensemble": "2/2/2"}
"""A cluster of one bookie would have to be allowed by a setting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a cluster of their own come late, because each of them stops those that are shared, and those on
    several Ray nodes last. Those of Spark stay together, because they share a session of Spark. Those of PySpark 4 come
    first: they start a Ray of their own, and no other one runs yet.
    """

    def turn(item: pytest.Item) -> int:
        fixtures = getattr(item, "fixturenames", ())
        if item.path.name == "test_spark4_session.py":
            return -1
        if item.path.name == "test_spark_read.py":
            return 1
        if item.path.parent.name == "nodes":
            return 5
        if "harmed" in fixtures:
            return 3 if "start_cluster" in fixtures else 2
        return 4 if "start_cluster" in fixtures else 0

    items.sort(key=turn)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray of our own, whatever else runs on this machine."""
    os.environ.pop("RAY_ADDRESS", None)
    # The one that reads the logs of all others takes 3 % of a processor all the time.
    with mock.patch.multiple(node.Node, **dict.fromkeys(UNUSED, mock.DEFAULT)):
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


class _Clusters:
    """The cluster that runs now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shared: tuple[str, RayCluster] | None = None

    def start(self, **options: Any) -> RayCluster:
        """Start a cluster in place of the one that runs."""
        self.stop_shared()
        started = magnetar.start(**{"port": 0, "admin_port": 0, **options})
        assert isinstance(started, RayCluster)
        return started

    def share(self, name: str) -> RayCluster:
        """The shared cluster of this name; its data comes back if another one ran meanwhile."""
        if self._shared is None or self._shared[0] != name:
            self._shared = (name, self.start(data_dir=self._directory / name))
        return self._shared[1]

    def stop_shared(self) -> None:
        if self._shared is not None:
            (_, shared), self._shared = self._shared, None
            shared.stop()


@pytest.fixture(scope="session")
def clusters(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Clusters]:
    found = _Clusters(tmp_path_factory.mktemp("shared-cluster"))
    yield found
    found.stop_shared()


@pytest.fixture
def cluster(clusters: _Clusters) -> RayCluster:
    """A running cluster that other tests use as well: 2 brokers, 3 bookies. Leave its processes alone."""
    return clusters.share("whole")


@pytest.fixture
def harmed(clusters: _Clusters) -> RayCluster:
    """A cluster of 2 brokers and 3 bookies whose processes a test may stop and kill. It is whole when the test begins:
    what an earlier one has killed runs again.
    """
    shared = clusters.share("harmed")
    wait_until(lambda: _is_whole(shared), "all brokers and bookies run", 60)
    return shared


def _is_whole(cluster: RayCluster) -> bool:
    try:
        status = cluster.status()
    except (MagnetarError, RayError):  # the coordinator may be away
        return False
    alive = [member["id"] for member in status["members"] if member["role"] in (ROLE_BROKER, ROLE_BOOKIE)]
    # The session of a process that was killed goes on for some seconds, so ask for the processes, too.
    return len(alive) == BROKERS + BOOKIES and all(one["state"] == "running" for one in status["processes"])


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


@pytest.fixture
def start_smallest(start_cluster: StartCluster) -> StartCluster:
    """The same for a cluster of one broker and two bookies, for tests in which their number does not matter."""
    return partial(start_cluster, **SMALLEST)


@pytest.fixture(autouse=True)
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ray tasks defined in a test module are sent as they are: workers cannot import test modules."""
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
