"""Where a chaos run has its cluster: on a Ray of this machine, or on several Ray nodes with addresses of their own."""

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

import ray

import magnetar
from magnetar.cluster.handle import Cluster

from .faults import Faults
from .nodes import Nodes

BROKERS, BOOKIES = 2, 4
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 2000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "addEntryTimeoutSec": 1.0,
    "auditorPeriodicCheckInterval": 10.0,
}


class Site(Protocol):
    """A Ray, and a cluster on it."""

    @property
    def logs(self) -> list[Path]:
        """The directories of Ray's logs."""
        ...

    def start(self) -> Cluster: ...
    def faults(self, seed: int) -> Faults: ...
    def end(self, kept: Path) -> None:
        """End Ray and keep its logs."""
        ...

    def keep_data(self, kept: Path, *, unsafe: bool) -> None:
        """Keep the cluster's data if the run was unsafe, else remove it."""
        ...


class OneMachine:
    """A Ray of this machine that ends with the run."""

    def __init__(self, kept: Path) -> None:
        self._data = kept / "data"
        self._ray = tempfile.mkdtemp(prefix="chaos-ray-")
        os.environ.pop("RAY_ADDRESS", None)
        _connect(address="local", num_cpus=4, include_dashboard=False, _temp_dir=self._ray)

    @property
    def logs(self) -> list[Path]:
        return [Path(self._ray) / "session_latest" / "logs"]

    def start(self) -> Cluster:
        return magnetar.start(
            data_dir=self._data, brokers=BROKERS, bookies=BOOKIES, port=0, admin_port=0, settings=SETTINGS
        )

    def faults(self, seed: int) -> Faults:
        return Faults(seed, BROKERS, BOOKIES)

    def end(self, kept: Path) -> None:
        ray.shutdown()
        shutil.copytree(self.logs[0], kept / "logs", ignore_dangling_symlinks=True)
        shutil.rmtree(self._ray, ignore_errors=True)

    def keep_data(self, kept: Path, *, unsafe: bool) -> None:
        if not unsafe:
            shutil.rmtree(self._data)


class SeveralNodes:
    """The Ray whose head is on this host; see `nodes`."""

    def __init__(self, count: int) -> None:
        self._nodes = Nodes()
        self._count = count
        _connect(address=os.environ["RAY_ADDRESS"])

    @property
    def logs(self) -> list[Path]:
        return self._nodes.logs

    def start(self) -> Cluster:
        return magnetar.start(
            data_dir=self._nodes.inside / "data",
            brokers=self._count,
            bookies=self._count,
            host="0.0.0.0",
            insecure=True,
            settings=SETTINGS,
        )

    def faults(self, seed: int) -> Faults:
        return Faults(seed, self._count, self._count, self._nodes)

    def end(self, kept: Path) -> None:
        ray.shutdown()
        for logs in self.logs:
            host = logs.relative_to(self._nodes.directory / "hosts").parts[0]
            shutil.copytree(logs, kept / "logs" / host, ignore_dangling_symlinks=True, dirs_exist_ok=True)

    def keep_data(self, kept: Path, *, unsafe: bool) -> None:
        if unsafe:
            for data in sorted(self._nodes.directory.glob("hosts/*/data")):
                shutil.copytree(data, kept / "data" / data.parent.name)


def _connect(**options: Any) -> None:
    ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
