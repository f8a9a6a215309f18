"""A driver on a host (`support.nodes.driver`), as the test sees it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .namespaces import Namespaces

TESTS = Path(__file__).resolve().parents[2]
"""Where a driver finds `support`."""
END_TIMEOUT_S = 30.0


class DriverProcess:
    """A process that stays, since each new one would take two seconds to join Ray."""

    def __init__(self, namespaces: Namespaces, environment: Mapping[str, str], log: Path) -> None:
        self._log = log.open("wb")
        self._process = namespaces.popen(
            sys.executable, "-P", "-m", "support.nodes.driver",
            environment=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, function: str, **arguments: object) -> Any:
        """Call a function of `driver.Driver`. Raises RuntimeError with the error of the other side."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"function": function, "arguments": arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended during {function}: read {self._log.name}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{function}: {answer['error']}; read {self._log.name}")
        return answer["answer"]

    def close(self) -> None:
        """End the process, if it runs; what it started stays."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(END_TIMEOUT_S)
        self._log.close()
