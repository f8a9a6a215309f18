"""`magnetar metadata migrate` while the cluster runs on Ray, under a producer and a consumer."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import magnetar
from magnetar.cluster.command_line import app
from magnetar.cluster.directory import ClusterDirectory
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.errors import ClusterError
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.sql import SqlMetadataStore
from support.servers import ray_nodes
from support.servers.postgresql_server import PostgresqlServer, running

TOPIC = "under-way"
SEND_TIMEOUT_MS = 60_000
RECEIVE_TIMEOUT_MS = 30_000
PAUSE_S = 0.01
"""Between two messages. A producer without a pause would keep from the processors what starts meanwhile."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with running() as server:
        yield server


@pytest.fixture
def database(server: PostgresqlServer) -> str:
    """The URL of an empty database."""
    server.drop_table("magnetar_metadata")
    return server.url


class Traffic:
    """A producer and a consumer that go on until `end`, and may not fail."""

    def __init__(self, client: magnetar.Client) -> None:
        self.acknowledged: list[bytes] = []
        self.received: list[bytes] = []
        self.errors: list[Exception] = []
        self._consumer = client.subscribe(TOPIC, "s")
        self._producer = client.create_producer(TOPIC, send_timeout_millis=SEND_TIMEOUT_MS)
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(run,)) for run in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def go_on(self) -> None:
        """Wait until 20 more messages are acknowledged, and received."""
        for done in (self.acknowledged, self.received):
            wanted = len(done) + 20
            ray_nodes.wait_until(lambda done=done, wanted=wanted: self.errors or len(done) >= wanted, "traffic", 60)
        assert self.errors == []

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        assert self.errors == []

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self.errors.append(error)

    def _publish(self) -> None:
        while not self._ending.is_set():
            data = b"%d" % len(self.acknowledged)
            self._producer.send(data)
            self.acknowledged.append(data)
            self._ending.wait(PAUSE_S)
        self._producer.send(b"last")

    def _consume(self) -> None:
        data = b""
        while data != b"last":
            message = self._consumer.receive(RECEIVE_TIMEOUT_MS)
            self._consumer.acknowledge(message)
            data = message.data()
            self.received.append(data)


def migrate(directory: Path, to: str) -> str:
    result = CliRunner().invoke(app, ["metadata", "migrate", "--to", to, "--data-dir", str(directory)])
    assert result.exit_code == 0, result.output
    return result.output


async def takes_a_coordinator(url: str) -> bool:
    env = Environment.real()
    try:
        store = await SqlMetadataStore.open(env, url, beside=True)
        try:
            await take_office(store)
        finally:
            await store.close()
    except ClusterError:
        return False
    finally:
        env.close()
    return True


def epoch_of(cluster: RayCluster) -> int:
    """0 while Ray starts the coordinator again."""
    try:
        return cluster.status()["coordinator"]["epoch"]
    except Exception:  # of Ray, in many kinds
        return 0


def test_nothing_is_lost_while_the_metadata_moves_to_postgresql(
    start_cluster: Callable[..., RayCluster], database: str, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    cluster = start_cluster(path)
    epoch = cluster.status()["coordinator"]["epoch"]
    client = cluster.client()
    client.subscribe(TOPIC, "keeper").close()
    traffic = Traffic(client)
    traffic.go_on()
    assert "no deputy" in migrate(path, database)
    traffic.go_on()
    ray_nodes.wait_until(lambda: epoch_of(cluster) > epoch, "the coordinator is active on PostgreSQL", 60)
    client.subscribe("new-topic", "keeper").close()  # takes a coordinator
    client.create_producer("new-topic").send(b"new")  # takes a ledger
    traffic.go_on()
    traffic.end()
    assert traffic.received == [*traffic.acknowledged, b"last"]
    sqlite = ClusterDirectory(path).sqlite_url
    assert not asyncio.run(takes_a_coordinator(sqlite))
    client.close()
    cluster.stop()
    with start_cluster(path) as again, again.client() as reader:
        consumer = reader.subscribe(TOPIC, "keeper")
        found = [consumer.receive(RECEIVE_TIMEOUT_MS).data() for _ in traffic.received]
        assert found == traffic.received
        new = reader.create_reader("new-topic", magnetar.MessageId.earliest)
        assert new.read_next(RECEIVE_TIMEOUT_MS).data() == b"new"
    identity = ClusterDirectory(path).load_identity()
    assert identity is not None and identity.metadata_url == database
