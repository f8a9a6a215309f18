"""The workloads of a chaos run as the runner sees them: in processes of their own, or in actors on the cluster's Ray.

Both take part in the same way: `wait_ready`, `mark`, `stop`, `result`, `kill`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

READY_S, DONE_S = 60.0, 240.0
TESTS = str(Path(__file__).resolve().parents[1])


class Running(Protocol):
    """A workload under way."""

    name: str

    def wait_ready(self) -> None:
        """Return when everything of it is open. Raises RuntimeError."""
        ...

    def mark(self) -> None:
        """Have its consumers remember how much they have been given until now."""
        ...

    def stop(self) -> None: ...
    def result(self) -> Any:
        """What it learned, once it was stopped. Raises RuntimeError when it does not end or failed."""
        ...

    def kill(self) -> None: ...


class ProcessWorkload:
    """A process of `workload_process.py`."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self.name = name
        self._output = directory / f"{name}.json"
        self._log_path = directory / f"{name}.log"
        command = [sys.executable, "-P", "-m", "chaos.workload_process", str(self._output)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the workload {self.name} did not start: {self._log_path.read_text()[-2000:]}")

    def mark(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def result(self) -> Any:
        try:
            status = self._process.wait(DONE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise RuntimeError(f"the workload {self.name} did not end within {DONE_S:.0f} s") from None
        if not self._output.exists():
            raise RuntimeError(f"the workload {self.name} failed ({status}): {self._log_path.read_text()[-2000:]}")
        return json.loads(self._output.read_text())

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class RayActor:
    """A workload inside a Ray worker: the client finds the cluster by itself, through Ray."""

    def __init__(self, directory: str, action: str, arguments: list[str]) -> None:
        sys.path.insert(0, directory)
        from chaos.workload_process import Workload

        self._workload = Workload("ours", None, action, arguments)
        self._ready = threading.Event()
        self._learned: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._learned = self._workload.run(self._ready.set)
        except BaseException as error:
            self._error = error

    def wait_ready(self, timeout_s: float) -> bool:
        return self._ready.wait(timeout_s)

    def mark(self) -> None:
        self._workload.mark()

    def stop(self) -> None:
        self._workload.stop()

    def result(self, timeout_s: float) -> Any:
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return self._learned


class RayWorkload:
    """See `RayActor`. It takes no CPU of Ray's, so that it never waits for a place. It stays on this node,
    which is never harmed.
    """

    def __init__(self, name: str, action: str, *arguments: str) -> None:
        self.name = name
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import it before `RayActor`
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made: Any = ray.remote(RayActor).options(num_cpus=0, max_restarts=0, scheduling_strategy=here)
        self._actor = made.remote(TESTS, action, list(arguments))

    def wait_ready(self) -> None:
        if not self._ask(self._actor.wait_ready.remote(READY_S)):
            raise RuntimeError(f"the workload {self.name} did not start: {self._ask(self._actor.result.remote(1.0))}")

    def mark(self) -> None:
        self._ask(self._actor.mark.remote())

    def stop(self) -> None:
        self._ask(self._actor.stop.remote())

    def result(self) -> Any:
        learned = self._ask(self._actor.result.remote(DONE_S))
        if learned is None:
            raise RuntimeError(f"the workload {self.name} did not end within {DONE_S:.0f} s")
        return json.loads(json.dumps(learned))  # as a process would have written it

    def kill(self) -> None:
        ray.kill(self._actor)

    def _ask(self, answer: Any) -> Any:
        try:
            return ray.get(answer, timeout=READY_S + DONE_S)
        except RayError as error:
            raise RuntimeError(f"the workload {self.name} failed: {error}") from error
