"""A new release takes the place of an old one, process by process, under load; one that is too new is refused."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import magnetar
from magnetar.protocol.names import VERSION
from magnetar.runtime.rpc.handshake import OURS
from support.nodes.namespaces import reason_to_skip
from support.nodes.publishing import publishing
from support.nodes.ray_hosts import NodesCluster, RayHosts

PROCESSES = ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "admin", "coordinator"]
NO_PART = ("tests", "docs", "bench", "k8s", "build", "dist", ".*", "__pycache__", "*.lock")
RESTART_TIMEOUT_S = 300.0


class Releases:
    """Directories with a release each, and the one that is installed on all hosts.

    The old release is this one. The others are copies with another version. `next` also speaks the next version of the
    internal protocol, and its processes' plans have a field that the old coordinator does not know. `too_new` no longer
    speaks the version of the old one.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "installed"
        self.path.mkdir()
        self._directory = directory
        (directory / "old").mkdir()
        (directory / "old" / "magnetar").symlink_to(Path(magnetar.__file__).parent)
        self._make("next", "7.1.0", OURS.oldest, OURS.newest + 1)
        self._make("too-new", "7.2.0", OURS.newest + 1, OURS.newest + 1)

    def install(self, name: str) -> None:
        """What `pip install` does: processes that start from now on have this release."""
        link = self.path / "magnetar.new"
        link.symlink_to((self._directory / name / "magnetar").resolve())
        link.rename(self.path / "magnetar")

    def _make(self, name: str, version: str, oldest: int, newest: int) -> None:
        package = self._directory / name / "magnetar"
        shutil.copytree(Path(magnetar.__file__).parent, package, ignore=shutil.ignore_patterns(*NO_PART))
        for file, old, new in (
            ("protocol/names.py", f'VERSION = "{VERSION}"', f'VERSION = "{version}"'),
            ("runtime/rpc/handshake.py", f"OLDEST = {OURS.oldest}", f"OLDEST = {oldest}"),
            ("runtime/rpc/handshake.py", f"NEWEST = {OURS.newest}", f"NEWEST = {newest}"),
            (
                "actors/processes/plan.py",
                '    machine: str = ""\n',
                '    later: str = "later"\n    machine: str = ""\n',
            ),
            (
                "actors/processes/ray_actors.py",
                "        return os.getpid()\n",
                "        return os.getpid() * bool(self.later)\n",
            ),
            (
                "actors/processes/ray_actors.py",
                '    """A bookie, broker or admin as a Ray actor."""\n',
                '    """A bookie, broker or admin as a Ray actor."""\n\n'
                "    @property\n    def later(self):\n        return self._member.node.later\n",
            ),
        ):
            path = package / file
            text = path.read_text()
            assert old in text, f"{file} has changed: adapt this test"
            path.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    made = Releases(tmp_path_factory.mktemp("releases"))
    made.install("old")
    return made


@pytest.fixture(scope="module")
def upgraded(releases: Releases) -> Iterator[RayHosts]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with RayHosts(2, path=[str(releases.path)]) as made:
        yield made


def versions(cluster: NodesCluster) -> dict[str, str]:
    """The release of each process."""
    status = cluster.status()
    found = {one["id"]: one["data"].get("version", "") for one in status["members"]}
    return {**found, "coordinator": status["coordinator"].get("version", "")}


@contextmanager
def installed_again(releases: Releases) -> Iterator[None]:
    """The old release is the installed one after the block."""
    try:
        yield
    finally:
        releases.install("old")


@pytest.mark.promise("30.12")
def test_an_upgrade_by_processes_loses_nothing_and_a_too_new_release_is_refused(
    upgraded: RayHosts, releases: Releases
) -> None:
    with (
        upgraded.start_cluster(brokers=2, bookies=3) as cluster,
        upgraded.client.network(),
        cluster.client() as client,
    ):
        data = ["--data-dir", str(cluster.data_directory)]
        with installed_again(releases), publishing(upgraded, client, "upgraded"):
            assert set(versions(cluster).items()) == {(process, VERSION) for process in PROCESSES}
            releases.install("too-new")
            with pytest.raises(RuntimeError) as refused:
                upgraded.magnetar("restart", "bookie-1", *data, timeout_s=RESTART_TIMEOUT_S)
            speaks = f"speaks versions {OURS.newest + 1} to {OURS.newest + 1} of the internal protocol"
            assert speaks in str(refused.value) and "upgrade the older one first" in str(refused.value)
            assert "go on with `magnetar restart bookie-1`" in str(refused.value)
            releases.install("next")
            upgraded.magnetar("restart", "bookie-1", "broker-2", *data, timeout_s=RESTART_TIMEOUT_S)
            found = versions(cluster)
            assert {process for process, version in found.items() if version == "7.1.0"} == {"bookie-1", "broker-2"}
            said = upgraded.magnetar("status", *data)
            assert f"{VERSION}: " in said and "7.1.0: bookie-1, broker-2" in said
            rest = [process for process in PROCESSES if process not in ("bookie-1", "broker-2")]
            upgraded.magnetar("restart", *rest, *data, timeout_s=RESTART_TIMEOUT_S)
            assert set(versions(cluster).values()) == {"7.1.0"}
        assert cluster.ask("missing_copies", copies=3) == []
