"""A running Spark 4 that reads topics through the data source; see `driver` for the program."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / "build" / "spark4" / "bin" / "python"


def reason_to_skip() -> str | None:
    """Why no Spark 4 can be started here; None if one can."""
    if not PYTHON.exists():
        return "PySpark 4 is not in build/spark4: run .ci/spark4"
    return None if os.environ.get("JAVA_HOME") else "there is no Java: JAVA_HOME is not set"


class SparkFailed(Exception):
    """What Spark's program answered in place of rows."""


class Spark4:
    """Use as `with`. The program starts at once and answers when its session is up."""

    def __init__(self, log: Path) -> None:
        self.log = log
        """What Spark prints."""
        self._log = log.open("w")
        environment = {**os.environ, "PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": str(ROOT / "tests")}
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", "support.spark.driver"],
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
            self._process.wait(30)
        finally:
            self._process.kill()
            self._log.close()

    def ask(self, options: dict[str, str], sql: str, **further: Any) -> dict[str, Any]:
        """The answer to a question about a read. Raises SparkFailed with Spark's error."""
        return self._ask({"options": options, "sql": sql, **further})

    def write(self, write: dict[str, str], sql: str, **further: Any) -> dict[str, Any]:
        """Write the rows of a query, with these options. Raises SparkFailed with Spark's error."""
        return self._ask({"write": write, "sql": sql, **further})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
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
