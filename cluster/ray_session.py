"""The Ray under a cluster: the one that is there, or one of our own.

    joined     the program had called ray.init, or RAY_ADDRESS names a Ray: we never end it
    local      started by ray.init in this process, and ends with it
    detached   a head with a temporary directory of its own (`ray_head`); `end_detached` kills the processes that were
               written down at the start, and what they started (`ray stop` would end every Ray of the machine)

A Ray of ours asks for a token that lies in the data directory, so only this user can connect (`ray_authentication`).

Ray is imported inside the functions, because this module is loaded by every `magnetar` command.
"""

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from ..protocol.errors import ClusterError
from ..runtime.ray_calls import alive_nodes, gcs_address, init, shutdown
from . import processes, ray_authentication, ray_head
from .directory import SessionRecord
from .processes import Process

RAY_END_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 30.0
"""Ray itself waits for ever when there is a GCS, and no raylet on this machine."""
TEMPORARY_PREFIX = "magnetar-ray-"
CARRIERS = {"gcs_server", "raylet"}
"""The processes without which nobody can join a Ray that was started on this machine."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RaySession:
    """A Ray that this process is connected to, and the processes that carry it, if it is not just joined."""

    kind: Literal["joined", "local", "detached"]
    address: str
    temporary_directory: str = ""
    processes: tuple[Process, ...] = field(default=())
    token_file: str = ""
    """The file with its token, when we made it."""

    @property
    def lost_carriers(self) -> list[str]:
        """Names of the processes whose loss means that nobody can join this Ray. Empty for one that was joined."""
        if self.kind == "joined":
            return []
        return sorted(CARRIERS - set(processes.names(processes.descendants(self.processes))))

    def to_record(self) -> SessionRecord:
        """As plain JSON values."""
        return {
            "kind": self.kind,
            "address": self.address,
            "temporary_directory": self.temporary_directory,
            "processes": [list(process) for process in self.processes],
            "token_file": self.token_file,
        }

    @classmethod
    def from_record(cls, record: SessionRecord) -> "RaySession":
        return cls(
            record["kind"],
            record["address"],
            record["temporary_directory"],
            tuple(Process(*process) for process in record["processes"]),
            record.get("token_file", ""),  # older releases left the token where Ray keeps it
        )


def join_or_start(data_directory: Path, *, detach: bool) -> RaySession:
    """Connect to the Ray that is there, else start one: detached on request, otherwise one that ends with us.

    A Ray that is started keeps its token in `data_directory`.

    Raises ClusterError when there is none to connect to at RAY_ADDRESS, or none can be started.
    """
    import ray

    if ray.is_initialized():
        return RaySession("joined", gcs_address())
    address = os.environ.get("RAY_ADDRESS")
    if address and address != "local":
        connect_to_ray(address)
        return RaySession("joined", gcs_address())
    token_file = ray_authentication.own_token(data_directory)
    if token_file:
        ray_authentication.use_token(token_file)
    if detach:
        return _start_detached(token_file)
    _init(address="local", include_dashboard=False)
    own = processes.current(os.getpid())
    assert own is not None
    return RaySession("local", gcs_address(), processes=(own,), token_file=token_file)


def connect_to_session(session: RaySession) -> None:
    """Connect this process to a Ray that was written down. Raises ClusterError."""
    if lost := session.lost_carriers:
        raise ClusterError(
            f"the Ray at {session.address} is broken: its {' and its '.join(lost)} ended. `magnetar stop` ends "
            "what is left, then start again"
        )
    connect_to_ray(session.address, token_file=session.token_file)


def connect_to_ray(address: str, *, token_file: str = "") -> None:
    """Connect this process to the Ray at `address`. Raises ClusterError if nothing answers there."""
    if token_file:
        ray_authentication.use_token(token_file)
    ray_authentication.authenticate(address)
    try:
        within(CONNECT_TIMEOUT_S, lambda: _init(address=address))
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Ray answers at {address} ({error}): check RAY_ADDRESS, or unset it to start a Ray here"
        ) from error


def within(timeout_s: float, call: Callable[[], T]) -> T:
    """What `call` returns. Raises TimeoutError when it takes longer; it then goes on in a thread of its own.

    For calls into Ray that have no time-out. Such a thread does not keep the process from ending.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="call-into-ray", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {timeout_s:.0f} s")
    return results[0]


def disconnect() -> None:
    """Leave Ray; a local one ends."""
    shutdown()
    ray_authentication.forget()


def end_detached(session: RaySession) -> None:
    """End a Ray that `join_or_start(detach=True)` started, and remove its temporary directory.

    Nothing in it is asked to end: our services have been closed by then, and Ray's `gcs_server` ignores SIGTERM.
    """
    if session.kind != "detached":
        raise ValueError(f"a {session.kind} Ray was not started by Magnetar and is not ended by it")
    disconnect()
    kill(session)


def kill(session: RaySession) -> int:
    """End what carries a Ray of ours, without a word to Ray; returns how many processes ran.

    Of a local Ray the program that started it is left alone, because it may be the user's.
    """
    roots = session.processes
    if session.kind == "local":
        roots = tuple(one for one in processes.descendants(roots) if one not in roots)
    running = len(processes.descendants(roots))
    left = processes.kill(roots, RAY_END_TIMEOUT_S)
    if left:
        logger.warning("these processes of Ray did not end: %s", ", ".join(str(process.pid) for process in left))
    remove_temporary_directory(session)
    return running


def other_nodes(session: RaySession) -> list[str]:
    """Addresses of the nodes that a Ray of ours still has when its raylet on this machine has ended.

    Empty when its GCS has ended, too, or does not answer: then its other nodes end by themselves within a minute.
    """
    if "gcs_server" in session.lost_carriers:
        return []
    if session.token_file:
        ray_authentication.use_token(session.token_file)
    try:
        ray_authentication.authenticate(session.address)
        found = within(ANSWER_TIMEOUT_S, lambda: alive_nodes(session.address))
        # The GCS may not know yet that the raylet of this machine has ended.
        return [address for address in found if address != session.address.rpartition(":")[0]]
    except (ClusterError, TimeoutError) as error:
        logger.warning("the GCS at %s does not answer: %s", session.address, error)
        return []
    finally:
        ray_authentication.forget()


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


def _start_detached(token_file: str) -> RaySession:
    """A head beside whatever other Ray this machine runs: own directory, own ports."""
    # Short, because the sockets below it have to fit into the 107 bytes that Unix allows.
    directory = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir="/tmp")
    try:
        address = ray_head.start_head(directory)
        found = tuple(ray_head.processes_of(directory))
        session = RaySession("detached", address, directory, found, token_file)
        connect_to_session(session)
    except BaseException:
        processes.kill(ray_head.processes_of(directory), RAY_END_TIMEOUT_S)
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return session
