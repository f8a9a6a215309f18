"""The Ray under a cluster: the one that is there, or one of our own.

    joined     the program had called ray.init, or RAY_ADDRESS names a Ray: we never end it
    local      started by ray.init in this process, and ends with it
    detached   a head with a temporary directory of its own (`ray_head`); `end_detached` kills the processes that were
               written down at the start, and what they started (`ray stop` would end every Ray of the machine)

A Ray of ours asks for a token: the default of ray.init, and what we ask of a detached one. Ray keeps the token in
`~/.ray/auth_token`, so only this user can connect. Ray never turns that on by itself for a connection to a given
address. So a program connects to a Ray of ours with `connect_to_session`, or has RAY_AUTH_MODE=token in its
environment. What the user has set there is left alone.

Ray is imported inside the functions, because this module is loaded by every `magnetar` command.
"""

import logging
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..protocol.errors import ClusterError
from ..runtime.ray_calls import gcs_address, init, shutdown
from . import processes, ray_head
from .directory import SessionRecord
from .processes import Process

RAY_END_TIMEOUT_S = 10.0
AUTHENTICATION_VARIABLE = "RAY_AUTH_MODE"
TEMPORARY_PREFIX = "magnetar-ray-"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RaySession:
    """A Ray that this process is connected to, and the processes that carry it, if it is not just joined."""

    kind: Literal["joined", "local", "detached"]
    address: str
    temporary_directory: str = ""
    processes: tuple[Process, ...] = field(default=())

    def to_record(self) -> SessionRecord:
        """As plain JSON values."""
        return {
            "kind": self.kind,
            "address": self.address,
            "temporary_directory": self.temporary_directory,
            "processes": [list(process) for process in self.processes],
        }

    @classmethod
    def from_record(cls, record: SessionRecord) -> "RaySession":
        return cls(
            record["kind"],
            record["address"],
            record["temporary_directory"],
            tuple(Process(*process) for process in record["processes"]),
        )


def join_or_start(*, detach: bool) -> RaySession:
    """Connect to the Ray that is there, else start one: detached on request, otherwise one that ends with us.

    Raises ClusterError when there is none to connect to at RAY_ADDRESS, or none can be started.
    """
    import ray

    if ray.is_initialized():
        return RaySession("joined", gcs_address())
    address = os.environ.get("RAY_ADDRESS")
    if address and address != "local":
        connect_to_ray(address)
        return RaySession("joined", gcs_address())
    if detach:
        return _start_detached()
    _init(address="local", include_dashboard=False)
    own = processes.current(os.getpid())
    assert own is not None
    return RaySession("local", gcs_address(), processes=(own,))


def connect_to_session(session: RaySession) -> None:
    """Connect this process to a Ray that was written down. Raises ClusterError."""
    connect_to_ray(session.address, with_token=session.kind != "joined")


def connect_to_ray(address: str, *, with_token: bool = False) -> None:
    """Connect this process to the Ray at `address`. Raises ClusterError if nothing answers there."""
    if with_token:
        _use_token()
    try:
        _init(address=address)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Ray answers at {address} ({error}): check RAY_ADDRESS, or unset it to start a Ray here"
        ) from error


def disconnect() -> None:
    """Leave Ray; a local one ends."""

    shutdown()


def end_detached(session: RaySession) -> None:
    """End a Ray that `join_or_start(detach=True)` started, and remove its temporary directory.

    Nothing in it is asked to end: our services have been closed by then, and Ray's `gcs_server` ignores SIGTERM.
    """
    if session.kind != "detached":
        raise ValueError(f"a {session.kind} Ray was not started by Magnetar and is not ended by it")
    disconnect()
    left = processes.kill(session.processes, RAY_END_TIMEOUT_S)
    if left:
        logger.warning("these processes of Ray did not end: %s", ", ".join(str(process.pid) for process in left))
    remove_temporary_directory(session)


def with_descendants(session: RaySession) -> RaySession:
    """The session with everything that its processes have started by now, to be written down.

    Workers are recorded one by one because they lose their parent, and with it the way to them, when the raylet dies.
    """
    return replace(session, processes=tuple(sorted(processes.descendants(session.processes))))


def remove_temporary_directory(session: RaySession) -> None:
    """Remove what an ended detached Ray left behind: its logs and sockets."""
    if Path(session.temporary_directory).name.startswith(TEMPORARY_PREFIX):
        shutil.rmtree(session.temporary_directory, ignore_errors=True)


def _init(**arguments: object) -> None:

    init(log_to_driver=False, logging_level=logging.ERROR, **arguments)


def _use_token() -> None:
    """Authenticate by token from now on, unless the environment says what to do."""
    if AUTHENTICATION_VARIABLE in os.environ:
        return
    os.environ[AUTHENTICATION_VARIABLE] = "token"
    if "ray" in sys.modules:
        # Ray reads the variable when it is imported; this is how it makes itself read it again.
        from ray import _raylet

        configuration = getattr(_raylet, "Config")  # noqa: B009 (compiled, and not in its stub)
        configuration.initialize("")


def _start_detached() -> RaySession:
    """A head beside whatever other Ray this machine runs: own directory, own ports."""
    # Short, because the sockets below it have to fit into the 107 bytes that Unix allows.
    directory = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir="/tmp")
    _use_token()
    try:
        address = ray_head.start_head(directory)
        session = RaySession("detached", address, directory, tuple(ray_head.processes_of(directory)))
        connect_to_session(session)
    except BaseException:
        processes.kill(ray_head.processes_of(directory), RAY_END_TIMEOUT_S)
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return session
