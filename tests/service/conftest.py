"""Fixtures of the service tests."""

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pulsar
import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.spark.raydp_session import JAVA_OPTIONS
from magnetar.spark.reading.frame import release_all
from magnetar.storage.managed import trimming
from support.fakes.broker import FakeBroker, FakeBrokerThread
from support.servers import postgresql_server
from support.servers.admin_http import Http, admin_of, join_broker
from support.servers.coordination import coordination
from support.servers.embedded_cluster import EmbeddedCluster
from support.spark import spark4
from support.spark.jars import jars
from support.spark.spark4 import Spark4


@pytest.fixture(scope="session", autouse=True)
def trimmed_at_once() -> Iterator[None]:
    """A topic is trimmed when it is opened, not within ten seconds. So a test that reads what nothing keeps fails each
    time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trimming, "OPEN_SPREAD_S", 0.0)
        yield


@pytest.fixture(scope="session")
def postgresql() -> Iterator[postgresql_server.PostgresqlServer]:
    """A running PostgreSQL server; the test is skipped, with the reason, where none can be had."""
    with postgresql_server.running() as server:
        yield server


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """A scripted broker."""
    started = await FakeBroker().start()
    yield started
    await started.stop()


@pytest.fixture
def broker_thread() -> Iterator[FakeBrokerThread]:
    """A scripted broker on a thread of its own, for blocking clients."""
    running = FakeBrokerThread()
    with running:
        yield running


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A cluster in a background thread, for all tests of a file. The mark `cluster_settings` says which."""
    mark = request.node.get_closest_marker("cluster_settings")
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), **(mark.kwargs if mark is not None else {})) as running:
        yield running


@pytest.fixture(scope="module")
def admin_url(cluster: EmbeddedCluster) -> str:
    """`http://host:port` of an admin of `cluster`."""
    return cluster.run(cluster.start_admin())


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark4]:
    """A Spark 4 for all tests of a file; they are skipped, with the reason, where none can be had."""
    reason = spark4.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with Spark4(tmp_path_factory.mktemp("spark4") / "log") as running:
        yield running


@pytest.fixture(scope="session")
def connector_jar() -> str | None:
    """The jar of the Pulsar Spark connector; None where Maven Central cannot be reached."""
    try:
        return str(jars("connector")[0])
    except OSError:
        return None


@pytest.fixture
def connector(connector_jar: str | None) -> str:
    """The jar, which `local_spark` has. The test is skipped, with the reason, where it cannot be had."""
    if connector_jar is None:
        pytest.skip("the Pulsar Spark connector is not in build/jars, and Maven Central does not answer")
    return connector_jar


@pytest.fixture(scope="module")
def local_spark(connector_jar: str | None) -> Iterator[Any]:
    """A Spark 3.5 on this machine alone, without Ray. All files have the same, because a process has one JVM."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        made = (
            SparkSession.Builder()
            .master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.jars", connector_jar or "")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .getOrCreate()
        )
        yield made
        release_all()
        made.stop()


@pytest.fixture
def official_client(cluster: EmbeddedCluster) -> Iterator[pulsar.Client]:
    """The official Python client of `cluster`."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    connected = pulsar.Client(cluster.service_url, operation_timeout_seconds=20, logger=logger)
    yield connected
    with contextlib.suppress(pulsar.AlreadyClosed):  # a producer learns at this moment that it is fenced
        connected.close()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    """A client of `broker`."""
    async with AsyncClient(broker.url, operation_timeout_seconds=3) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """The admin of a coordinator with two brokers."""
    async with coordination() as cluster:
        await join_broker(cluster, 1)
        await join_broker(cluster, 2)
        async with admin_of(cluster) as found:
            yield found
