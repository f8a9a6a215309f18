"""Ray nodes that cannot be looked at: they are left out, the others go on, and they are used when they can be."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nodes.network import Host
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers.ray_nodes import wait_until

NO_MAGNETAR = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "magnetar":
            raise ModuleNotFoundError("No module named 'magnetar'", name="magnetar")

sys.meta_path.insert(0, NotInstalled())
"""
"""For a `sitecustomize`: Python finds no Magnetar, as where it is not installed."""


@pytest.fixture
def bare(hosts: RayHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A Ray node without Magnetar."""
    (tmp_path / "sitecustomize.py").write_text(NO_MAGNETAR)
    node = hosts.nodes[2]
    hosts.kill(node)
    with monkeypatch.context() as changed:
        changed.setitem(hosts.environment, "PYTHONPATH", f"{tmp_path}{os.pathsep}{hosts.environment['PYTHONPATH']}")
        hosts.bring_back(node)
    yield node
    hosts.kill(node)  # the next test gets one with Magnetar


def write(hosts: RayHosts, node: Host, path: Path, text: str) -> str:
    """Write a file on a node; returns what it held, empty for a new one."""
    return hosts.run(
        node,
        "-c",
        f"from pathlib import Path; path = Path({str(path)!r}); path.parent.mkdir(parents=True, exist_ok=True); "
        f"print(path.read_text() if path.exists() else '', end=''); path.write_text({text!r})",
    )


def left_out(cluster: NodesCluster) -> dict[str, str]:
    """By address: why a node is left out."""
    return {node["address"]: node["problem"] for node in cluster.status().get("left_out", [])}


def test_nodes_that_cannot_be_looked_at_are_left_out_and_used_when_mended(hosts: RayHosts, bare: Host) -> None:
    damaged = hosts.nodes[3]
    with hosts.start_cluster(brokers=2, bookies=3) as cluster:
        assert list(left_out(cluster)) == [bare.address]
        assert "No module named 'magnetar'" in left_out(cluster)[bare.address]
        assert bare not in cluster.places().values()
        assert f"Ray node {bare.address}: Magnetar cannot be loaded there" in hosts.magnetar(
            "status", "--data-dir", str(cluster.data_directory)
        )
        bookie = next(one for one, place in cluster.places().items() if place is damaged and one.startswith("bookie"))
        hosts.kill(damaged)
        damaged.start()
        cookie = cluster.data_directory / bookie / "cookie"
        before = write(hosts, damaged, cookie, "damaged")
        hosts.start_ray(damaged)
        wait_until(lambda: damaged.address in left_out(cluster), "the damaged cookie is noticed", 60)
        assert str(cookie) in left_out(cluster)[damaged.address]
        epoch = cluster.status()["coordinator"]["epoch"]
        cluster.kill("coordinator")
        wait_until(lambda: next_epoch(cluster) > epoch, "the next coordinator answers", 60)
        wait_until(lambda: set(left_out(cluster)) == {bare.address, damaged.address}, "it sees both nodes", 30)
        assert bookie not in cluster.places(), "its data is not gone, so it starts nowhere else"
        hosts.kill(bare)
        wait_until(lambda: list(left_out(cluster)) == [damaged.address], "the node that left is forgotten", 60)
        write(hosts, damaged, cookie, before)
        wait_until(lambda: cluster.places().get(bookie) is damaged, "the bookie runs where its data lies", 90)
        assert left_out(cluster) == {}


def test_a_new_cluster_does_not_begin_beside_an_unreadable_directory(hosts: RayHosts) -> None:
    directory = hosts.head.inside / "data-unreadable"
    write(hosts, hosts.nodes[1], directory / "bookie-2" / "cookie", "damaged")
    with pytest.raises(RuntimeError, match=rf"holds data of a cluster: {hosts.nodes[1].address}:bookie-2"):
        hosts.start_cluster(brokers=2, bookies=3, data_dir=str(directory))


def next_epoch(cluster: NodesCluster) -> int:
    """The epoch of the coordinator; 0 while none answers."""
    try:
        return cluster.status()["coordinator"]["epoch"]
    except RuntimeError:
        return 0
