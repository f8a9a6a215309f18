"""A Ray head of our own that outlives this process: `ray start --head`, in a third of its time.

`ray start` begins with a process of its own, which imports Ray once more, and waits for a dashboard process that we
switch off anyway. So the head is started in this process, through the class that `ray start` itself uses. That class is
not part of Ray's public interface: where another version of Ray has changed it, `ray start` is run instead.

Each process gets a session of its own. Otherwise the terminal, `timeout`, or a script that ends the process group of
`magnetar start --detach` would end the cluster's Ray as well.

What is started carries `MARK` in its environment, by which it is found and written down. Ray's Python processes lose it
when they change their titles, so they are found as descendants of the others.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# Ray's own class is typed in part only.

import logging
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from ..protocol.errors import ClusterError
from ..runtime.ray_calls import node_ip_address
from . import processes
from .ports import free_ports
from .processes import Process

if TYPE_CHECKING:
    from ray._raylet import GcsClient

logger = logging.getLogger(__name__)

MARK = "MAGNETAR_RAY_DIRECTORY"
USAGE_VARIABLE = "RAY_USAGE_STATS_ENABLED"
RAY_START_TIMEOUT_S = 90.0
REGISTERED_TIMEOUT_S = 30.0
REGISTERED_POLL_S = 0.02
CONNECT_VARIABLES = {
    # The raylet connects to the object store that it has just started. After a failure it waits a second by default.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
}
END_TIMEOUT_S = 10.0


def start_head(directory: str) -> str:
    """Start a head with its files below `directory`, authenticated as the environment says; returns its address.

    Raises ClusterError; nothing runs then.
    """
    gcs_port, client_port = free_ports("127.0.0.1", 2)
    try:
        with _environment({**CONNECT_VARIABLES, MARK: directory, USAGE_VARIABLE: "0"}):
            try:
                return _start_here(directory, gcs_port)
            except (ImportError, AttributeError, TypeError) as error:
                logger.warning(
                    "this version of Ray has no in-process head (%s): Magnetar starts Ray with `ray start`", error
                )
                processes.kill(processes_of(directory), END_TIMEOUT_S)
                return _start_by_command(directory, gcs_port, client_port)
    except BaseException as error:
        processes.kill(processes_of(directory), END_TIMEOUT_S)
        if isinstance(error, Exception) and not isinstance(error, ClusterError):
            raise ClusterError(f"Ray did not start: {error}") from error
        raise


def processes_of(directory: str) -> list[Process]:
    """The processes of the head that was started with `directory`."""
    return processes.with_environment(MARK, directory)


def _start_here(directory: str, gcs_port: int) -> str:
    from ray._private import node, parameter, services
    from ray._private.authentication import authentication_token_setup

    class Head(node.Node):
        """Without the dashboard's process, which serves nothing here and is waited for."""

        def start_api_server(self, **arguments: object) -> None:
            return None

        def start_ray_processes(self) -> None:
            """Return once the raylet has registered: Ray asks for it next, and asks again only a second later."""
            super().start_ray_processes()
            client = cast("GcsClient", self.get_gcs_client())
            deadline = time.monotonic() + REGISTERED_TIMEOUT_S
            while not client.get_all_node_info(timeout=REGISTERED_TIMEOUT_S) and time.monotonic() < deadline:
                time.sleep(REGISTERED_POLL_S)

    authentication_token_setup.ensure_token_if_auth_enabled(None, create_token_if_missing=True)
    parameters = parameter.RayParams(
        node_ip_address=node_ip_address(),
        gcs_server_port=gcs_port,
        temp_dir=directory,
        include_dashboard=False,
        no_monitor=True,
    )
    with _own_sessions(services):
        head = Head(parameters, head=True, shutdown_at_exit=False, spawn_reaper=False)
    return str(head.address)


@contextmanager
def _own_sessions(services: ModuleType) -> Generator[None]:
    """Each process that Ray's `services` start meanwhile leads a session of its own."""
    before = services.ConsolePopen
    setattr(services, "ConsolePopen", partial(before, start_new_session=True))  # noqa: B010  # types of modules are fixed
    try:
        yield
    finally:
        setattr(services, "ConsolePopen", before)  # noqa: B010


def _start_by_command(directory: str, gcs_port: int, client_port: int) -> str:
    _ray(
        "start",
        "--head",
        f"--port={gcs_port}",
        f"--ray-client-server-port={client_port}",
        f"--temp-dir={directory}",
        "--include-dashboard=false",
        "--no-monitor",
        "--disable-usage-stats",
    )
    return (Path(directory) / "ray_current_cluster").read_text().strip()


def _ray(*arguments: str) -> None:
    command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RAY_START_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"`ray {arguments[0]}` did not end within {RAY_START_TIMEOUT_S:.0f} s: read Ray's logs"
        ) from error
    if result.returncode:
        raise ClusterError(f"`ray {arguments[0]}` failed: {(result.stderr or result.stdout).strip()[-2000:]}")


@contextmanager
def _environment(variables: dict[str, str]) -> Generator[None]:
    """These variables are set for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
