"""Every process of a cluster is restarted, one after the other, while clients of both kinds go on."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.actors.processes import restarts
from magnetar.actors.processes.local_launcher import LocalLauncher
from magnetar.cluster.handle import Cluster
from magnetar.protocol.errors import NoSuchKey, NotAllowedError, RestartStopped
from magnetar.storage.managed import chain_writer
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until

EVERY = ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "admin", "coordinator"]
GAP_MAX_S = 5.0
"""Of a busy machine; `bench/nodes.py --only rolling` measures it."""


@pytest.fixture(autouse=True)
def quick_rollover(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that lost a bookie is kept for a moment only, so that the tests take seconds and not minutes."""
    monkeypatch.setattr(chain_writer, "DEGRADED_ROLLOVER_MIN_S", 0.5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with magnetar.start(embedded=True, data_dir=tmp_path, port=0, admin_port=0, brokers=2, bookies=3) as running:
        yield running


class Publishing:
    """A thread that sends numbers and waits for each receipt; any error ends it."""

    def __init__(self, producer: Any) -> None:
        self.sent: list[int] = []
        self.longest_s = 0.0
        self.error: Exception | None = None
        self._producer = producer
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                self._producer.send(b"%d" % len(self.sent))
            except Exception as error:
                self.error = error
                return
            self.sent.append(len(self.sent))
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self._ending.wait(0.005)


def incarnations(cluster: Cluster) -> dict[str, str]:
    """Of all members, and the coordinator's epoch."""
    status = cluster.status()
    return {
        **{one["id"]: one["incarnation"] for one in status["members"]},
        "coordinator": str(status["coordinator"]["epoch"]),
    }


def received_numbers(consumer: Any, last: int) -> list[int]:
    """Receive and acknowledge until the number `last`; without what was sent or delivered again."""
    found: list[int] = []
    while not found or found[-1] < last:
        message = consumer.receive(10_000)
        consumer.acknowledge(message)
        number = int(message.data())
        if not found or number > found[-1]:
            found.append(number)
    return found


@pytest.mark.promise("30.11")
def test_every_process_is_restarted_and_clients_of_both_kinds_notice_nothing(cluster: Cluster) -> None:
    before = incarnations(cluster)
    log: list[tuple[str, bool]] = []
    with (
        cluster.client() as ours,
        contextlib.closing(
            pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        ) as official,
    ):
        consumers = [ours.subscribe("ours", "keeper"), official.subscribe("official", "keeper")]
        with (
            Publishing(ours.create_producer("ours")) as first,
            Publishing(official.create_producer("official")) as second,
        ):
            views = cluster.restart(on_progress=lambda process, view: log.append((process, view is not None)))
        for publishing in (first, second):
            assert publishing.error is None
            assert publishing.longest_s < GAP_MAX_S
        for consumer, publishing in zip(consumers, (first, second), strict=True):
            assert received_numbers(consumer, publishing.sent[-1]) == publishing.sent
    assert [view["process"] for view in views] == EVERY
    assert log == [(process, ended) for process in EVERY for ended in (False, True)]
    after = incarnations(cluster)
    assert all(after[process] != before[process] for process in EVERY)
    assert len(first.sent) > 100 and len(second.sent) > 100
    assert cluster.status()["auditor"]["incomplete"] == 0


@pytest.mark.promise("30.11")
@pytest.mark.parametrize(
    ("hangs", "told"),
    [
        (True, "bookie-2 did not come back within 2 s: starting"),
        (False, "bookie-2 cannot be started: OSError: no disk"),
    ],
    ids=["it hangs", "it fails"],
)
def test_a_bookie_that_does_not_come_back_stops_the_restart_and_says_how_to_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, hangs: bool, told: str
) -> None:
    launch, broken = LocalLauncher.launch, threading.Event()
    broken.set()

    async def refuse(self: LocalLauncher, node: Any) -> Any:
        while node.node_id == "bookie-2" and broken.is_set():
            if not hangs:
                raise OSError("no disk")
            await asyncio.sleep(0.05)
        return await launch(self, node)

    monkeypatch.setattr(LocalLauncher, "launch", refuse)
    monkeypatch.setattr(restarts, "BACK_TIMEOUT_S", 2.0)
    monkeypatch.setattr(restarts, "SAFE_TIMEOUT_S", 2.0)
    with cluster.client() as client, Publishing(client.create_producer("kept")) as publishing:
        first = incarnations(cluster)
        with pytest.raises(RestartStopped, match=told) as stopped:
            cluster.restart(["bookie-1", "bookie-2", "bookie-3"])
        assert "go on with `magnetar restart bookie-2 bookie-3`" in str(stopped.value)
        assert stopped.value.details["left"] == "bookie-2 bookie-3"
        second = incarnations(cluster)
        assert second["bookie-1"] != first["bookie-1"] and second["bookie-3"] == first["bookie-3"]
        monkeypatch.setattr(restarts, "SAFE_TIMEOUT_S", 1.0)
        for process in ("bookie-3", "broker-1", "coordinator"):
            with pytest.raises(RestartStopped, match=rf"{process} was not restarted: after 1 s bookie-2 is away"):
                cluster.restart([process])
        assert incarnations(cluster) == second
        broken.clear()
        monkeypatch.setattr(restarts, "SAFE_TIMEOUT_S", 60.0)
        cluster.restart(str(stopped.value.details["left"]).split())
        third = incarnations(cluster)
        assert third["bookie-3"] != second["bookie-3"]
    assert publishing.error is None


def test_an_unknown_process_is_refused_before_anything_is_restarted(cluster: Cluster) -> None:
    before = incarnations(cluster)
    with pytest.raises(NoSuchKey, match="bookie-9 is no process of this cluster: choose among bookie-1"):
        cluster.restart(["bookie-1", "bookie-9"])
    assert incarnations(cluster) == before


def test_one_process_is_restarted_at_a_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a restart waits for what is not safe, another one is refused."""
    waits, goes_on = threading.Event(), threading.Event()

    def not_safe(office: object) -> str:
        waits.set()
        return "" if goes_on.is_set() else "the test is in the way"

    monkeypatch.setattr(restarts, "_absent", not_safe)
    first = threading.Thread(target=cluster.restart, args=(["broker-1"],))
    before = incarnations(cluster)
    first.start()
    try:
        assert waits.wait(10)
        with pytest.raises(RestartStopped, match="broker-1 is being restarted: wait until that has ended") as refused:
            cluster.restart(["coordinator"])
        assert isinstance(refused.value.__cause__, NotAllowedError)
    finally:
        goes_on.set()
        first.join()
    after = incarnations(cluster)
    assert after["broker-1"] != before["broker-1"] and after["coordinator"] == before["coordinator"]


def test_a_broker_says_how_many_of_its_open_ledgers_lack_copies(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=1, bookies=3) as cluster, magnetar.Client(cluster.service_url) as client:

        def lacking() -> int:
            assert cluster.coordinator is not None
            return cluster.run(cluster.coordinator.office.broker_calls.of("broker-1").lacking_copies())

        producer = client.create_producer("counted")
        producer.send(b"before")
        assert lacking() == 0
        cluster.run(cluster.stop_bookie(2))
        producer.send(b"meanwhile")
        wait_until(lambda: lacking() == 1, "the ledger of the topic has an empty slot")
        cluster.run(cluster.start_bookie(2))
        wait_until(lambda: lacking() == 0, "the topic goes on in a ledger with all copies")
        producer.send(b"after")
        assert lacking() == 0
