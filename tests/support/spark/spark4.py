"""A running Spark 4 that reads topics through the data source; see `driver` for the program."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / "build" / "spark4" / "bin" / "python"


def reason_to_skip() -> str | None:
    """Why no Spark 4 can be started here; None if one can."""
    if not PYTHON.exists():
        return "PySpark 4 is not in build/spark4: run .ci/spark4"
    return None if os.environ.get("JAVA_HOME") else "there is no Java: JAVA_HOME is not set"


def reason_to_skip_on_ray() -> str | None:
    """Why no Spark 4 can be started on Ray here; None if one can."""
    reason = reason_to_skip()
    if reason is None and not any((PYTHON.parents[1] / "lib").glob("python3*/site-packages/raydp")):
        return "RayDP 1.7 is not in build/spark4: run .ci/spark4"
    return reason


class SparkFailed(Exception):
    """What Spark's program answered in place of rows."""


class Spark4:
    """Use as `with`. The program starts at once and answers when its session is up."""

    end_timeout_s = 30.0

    def __init__(self, log: Path, program: str = "support.spark.driver", *arguments: str) -> None:
        self.log = log
        """What Spark prints."""
        self._log = log.open("w")
        environment = {**os.environ, "PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": str(ROOT / "tests")}
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(self.end_timeout_s)
        finally:
            self._process.kill()
            self._log.close()

    def ask(self, options: dict[str, str], sql: str, **further: Any) -> dict[str, Any]:
        """The answer to a question about a read. Raises SparkFailed with Spark's error."""
        return self._ask({"options": options, "sql": sql, **further})

    def write(self, write: dict[str, str], sql: str, **further: Any) -> dict[str, Any]:
        """Write the rows of a query, with these options. Raises SparkFailed with Spark's error."""
        return self._ask({"write": write, "sql": sql, **further})

    def run(self, code: str) -> str:
        """Run a program with the names `spark` and `magnetar`; what it prints. Raises SparkFailed with its error."""
        return self._ask({"code": code})["printed"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SparkFailed(f"the program ended: see {self.log}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise SparkFailed(found["error"])
        return found

    def rows(self, options: dict[str, str], sql: str, **further: Any) -> list[list[Any]]:
        """The rows of an answer."""
        return self.ask(options, sql, **further)["rows"]


class SparkOnRay(Spark4):
    """A session of `magnetar.spark.session` with PySpark 4, on a Ray and with a cluster of its own: `ray_driver`."""

    end_timeout_s = 120.0

    def __init__(self, log: Path, directory: Path) -> None:
        super().__init__(log, "support.spark.ray_driver", str(directory))
        self._facts: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Where the cluster is, and what runs: waits for the session. Raises SparkFailed if there is none."""
        if self._facts is None:
            self._facts = self._answer()
        return self._facts

    def read_topic(self, topic: str, sql: str, write_topic: str | None = None) -> dict[str, Any]:
        """Read a topic without its address; publish the rows to another one, or answer them."""
        return self._ask({"read_topic": topic, "sql": sql, **({"write_topic": write_topic} if write_topic else {})})

    def stop_session(self) -> bool:
        """End the session, but not the program; whether another session of its name could begin."""
        return self._ask({"stop": True})["is_name_free"]

    def end(self) -> int:
        """End the program, and tell its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(self.end_timeout_s)

    def processes(self) -> list[psutil.Process]:
        """All processes that the program, and those that it started, have started."""
        return psutil.Process(self._process.pid).children(recursive=True)
