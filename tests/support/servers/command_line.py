"""The command `magnetar` against a cluster in this process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import magnetar
from magnetar.cluster.command_line import app
from magnetar.cluster.handle import Cluster


class CommandLine:
    """Runs commands. They find the cluster by its URLs in the environment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.environment = {
            "MAGNETAR_SERVICE_URL": cluster.service_url,
            "MAGNETAR_ADMIN_URL": cluster.admin_url,
            "COLUMNS": "200",
        }

    def run(self, *arguments: str) -> Result:
        """Run a command, whatever comes of it."""
        return CliRunner().invoke(app, list(arguments), env=self.environment)

    def __call__(self, *arguments: str) -> str:
        """Run a command that succeeds; returns what it prints."""
        done = self.run(*arguments)
        assert done.exit_code == 0, f"{arguments}: {done.output} {done.exception!r}"
        return done.stdout

    def admin(self, *arguments: str) -> Any:
        """Run a command of `magnetar admin` that succeeds; returns its JSON, None for no answer."""
        printed = self("admin", *arguments, "--json")
        return json.loads(printed) if printed else None

    def fails(self, *arguments: str) -> str:
        """Run a command that fails; returns the one line that it prints about it."""
        done = self.run(*arguments)
        assert done.exit_code == 1, done.output
        return done.stderr.strip().splitlines()[-1]


@contextmanager
def command_line(directory: Path) -> Iterator[CommandLine]:
    """A command line with an embedded cluster of its own."""
    with magnetar.start(
        embedded=True, data_dir=directory, brokers=1, bookies=2, ensemble="2/2/2", port=0, admin_port=0
    ) as cluster:
        yield CommandLine(cluster)
