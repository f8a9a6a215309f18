"""The processes of a Spark program that a test has started, and how they end one by one."""

import json
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.spark.spark4 import PYTHON, ROOT

DRIVER, EXECUTOR, WORKER = "org.apache.spark.deploy.SparkSubmit", "CoarseGrainedExecutorBackend", "pyspark.worker"
"""What is in the command lines of these processes. Workers are the Python processes that run tasks."""


class KilledProgram:
    """One life of the program `copying`. Its processes are a session of their own, so that all of them are found."""

    def __init__(self, given: dict[str, Any], log: Path) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": str(ROOT / "tests")}
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [str(PYTHON), "-m", "support.spark.copying", json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=log.parent,
                start_new_session=True,
            )

    def processes(self, text: str) -> list[int]:
        """The processes of this program whose command line has that text."""
        found: list[int] = []
        for place in Path("/proc").iterdir():
            if not place.name.isdigit():
                continue
            try:
                session = int((place / "stat").read_text().rpartition(")")[2].split()[3])
                command = (place / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            if session == self.process.pid and text.encode() in command:
                found.append(int(place.name))
        return sorted(found)

    def kill(self, processes: Iterable[int]) -> None:
        """End processes at once."""
        for number in processes:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def kill_driver(self) -> None:
        """End the driver, its Python and its JVM. Its executors live on for a moment, and so do their tasks."""
        self.kill([*self.processes(DRIVER), self.process.pid])
        self.process.wait()

    def kill_all(self) -> None:
        """End all of it."""
        self.kill(self.processes(""))
        self.process.wait()
