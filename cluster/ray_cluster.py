"""A cluster on Ray: started, found again, stopped.

`start` creates one actor, the coordinator's, with the whole plan as its argument; that one creates the others and keeps
them running. What was started is written to `run.json`, so that another process can look at it and stop it. Stopping
ends our own actors, and a Ray that `start` started; never another one.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from ..actors.desired.planner import Machine
from ..actors.processes.plan import is_wildcard, log_directory
from ..actors.processes.ray_launcher import coordinator_options, launch_ahead
from ..actors.processes.restarts import BACK_TIMEOUT_S, SAFE_TIMEOUT_S, SETTLE_TIMEOUT_S, STEP_TIMEOUT_S, restart_view
from ..actors.processes.survey import ray_machines
from ..protocol.cluster_status import ClusterStatus, DesiredView, RestartView
from ..protocol.errors import ClusterError, DirectoryLocked, MagnetarError, RestartStopped
from ..protocol.names import COORDINATOR_ACTOR, COORDINATOR_ID, actor_name
from ..runtime import retry
from ..runtime.backoff import LimitedBackoff
from ..runtime.data_directory import recorded_ray
from ..runtime.environment import Environment
from ..runtime.ray_calls import ask, find_actor, gcs_address, kill_actor, named_actors, start_actor
from . import ray_session
from .directory import ClusterDirectory
from .handle import Cluster
from .preparing import Prepared, StartOptions, check_early, prepare
from .ray_authentication import how_to_authenticate
from .ray_session import RaySession

if TYPE_CHECKING:
    from ..actors.processes.ray_actors import ClientInformation, CoordinatorActor, MemberActor

logger = logging.getLogger(__name__)

T = TypeVar("T")

READY_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 90.0
STOP_BOUND_S = 240.0
"""After so long a stop ends by force. It is more than the waits of a stop in good order take together."""
LOCK_WAIT_S = 10.0
"""A start waits so long for the lock of the metadata. Ray says that an actor has ended before its process has."""
LOCK_POLL_INITIAL_S = 0.05
LOCK_POLL_MAX_S = 0.5
COORDINATOR_POLL_S = 0.1
COORDINATOR_WAIT_S = 60.0
"""A stop waits so long for a coordinator that is being restarted. Then it kills the cluster's actors."""


class CoordinatorAway(ClusterError):
    """The coordinator's actor exists and does not answer: Ray may be starting it again."""


class RayCluster(Cluster):
    """A cluster on the Ray that this process is connected to."""

    def __init__(self, information: "ClientInformation", session: RaySession, directory: ClusterDirectory) -> None:
        super().__init__(information["cluster_id"], information["service_urls"], information["admin_url"])
        self._session = session
        self._directory = directory
        self._stopped = False

    def status(self) -> ClusterStatus:
        status = _ask(_coordinator().status())
        return {
            **status,
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "ray": {"address": self._session.address, "kind": self._session.kind},
            "data_directory": str(self._directory.path),
            "log_directory": log_directory(str(self._directory.path)),
        }

    def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        return _ask(_coordinator().scale(brokers, bookies))

    def drain(self, member: str) -> DesiredView:
        return _ask(_coordinator().drain(member))

    def undrain(self, member: str) -> DesiredView:
        return _ask(_coordinator().undrain(member))

    def _restart_one(self, process: str) -> RestartView:
        if process != COORDINATOR_ID:
            return self._answer(_coordinator().restart_member(process), STEP_TIMEOUT_S + ANSWER_TIMEOUT_S)
        began = time.monotonic()
        epoch = self.status()["coordinator"]["epoch"]
        # Its answer is lost if the process is quicker to end than to say so; the epoch tells.
        with contextlib.suppress(*_actor_is_away()):
            self._answer(_coordinator().restart_coordinator(), SAFE_TIMEOUT_S + ANSWER_TIMEOUT_S)
        safe = time.monotonic()
        self._wait_for_next_coordinator(epoch)
        back = time.monotonic()
        self._answer(_coordinator().wait_settled(process), SETTLE_TIMEOUT_S + ANSWER_TIMEOUT_S)
        return restart_view(process, began, safe, back, time.monotonic())

    def _wait_for_next_coordinator(self, epoch: int) -> None:
        """Return when a coordinator with a higher epoch answers. Raises RestartStopped."""
        deadline = time.monotonic() + BACK_TIMEOUT_S
        problem = "it does not answer"
        while time.monotonic() < deadline:
            try:
                if self.status()["coordinator"]["epoch"] > epoch:
                    return
            except (*_actor_is_away(), MagnetarError) as error:  # of the process that ends, too
                problem = str(error).strip().partition("\n")[0]
            time.sleep(COORDINATOR_POLL_S)
        raise RestartStopped(
            f"{COORDINATOR_ID} did not come back within {BACK_TIMEOUT_S:.0f} s: {problem}. Ray starts it again until "
            f"it runs: read its log, {COORDINATOR_ID}.log"
        )

    def _answer(self, answer: Awaitable[T], timeout_s: float = ANSWER_TIMEOUT_S) -> T:
        """What the coordinator says. Raises its own error, without the tracebacks that Ray adds."""
        from ray.exceptions import RayTaskError

        try:
            return ask(answer, timeout_s)
        except RayTaskError as error:
            if isinstance(error.cause, MagnetarError):
                raise error.cause from None
            raise

    def refresh(self) -> None:
        information = _ask(_coordinator().client_information())
        self.service_urls, self.admin_url = information["service_urls"], information["admin_url"]

    def accept_lost_ledgers(self) -> list[list[int]]:
        return _ask(_coordinator().accept_lost_ledgers())

    def how_to_join(self) -> str:
        """What another program puts into its environment to reach the cluster through Ray."""
        return f"in Ray programs: RAY_ADDRESS={self._session.address}{how_to_authenticate()}"

    def wait_stopped(self) -> None:
        """Return when another process has stopped the cluster. It waits through a restart of the coordinator."""
        from ray.exceptions import ActorUnavailableError, RayActorError

        while not self._stopped:
            try:
                ask(_coordinator().wait_ended())
                return
            except ActorUnavailableError:
                logger.info("the coordinator is being restarted")
            except (ClusterError, RayActorError):
                return

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            _stop_actors()
            self._directory.clear_run()
        finally:
            _end_session(self._session)


def start_on_ray(data_directory: str | os.PathLike[str], options: StartOptions, *, detach: bool) -> RayCluster:
    """Start a cluster on the Ray that is there, or on one that is started for it. See `magnetar.start`."""
    directory = ClusterDirectory(data_directory)
    directory.lock()
    try:
        _clear_leftovers(directory)
        check_early(directory, options)
        threading.Thread(target=_import_ahead, name="import-ahead", daemon=True).start()
        session = ray_session.join_or_start(directory.path, detach=detach)
        try:
            return _start(directory, options, session)
        except BaseException:
            _end_session(session)
            raise
    finally:
        directory.unlock()


def find_on_ray(data_directory: str | os.PathLike[str] | None = None) -> RayCluster:
    """The running cluster: on the Ray that this process has joined, at RAY_ADDRESS, or where `run.json` says.

    Raises ClusterError when there is none.
    """
    import ray

    directory = ClusterDirectory(data_directory) if data_directory is not None else None
    session: RaySession | None = None
    if not ray.is_initialized():
        session = _connect(directory)
    try:
        coordinator = _coordinator()
    except ClusterError:
        elsewhere = recorded_ray(directory.path) if directory is not None and session is None else None
        if elsewhere is None or elsewhere == gcs_address():
            raise
        raise ClusterError(
            f"no Magnetar cluster runs on the Ray at {gcs_address()}, which this process had joined. That of "
            f"{data_directory} runs on the Ray at {elsewhere}: do not call `ray.init()` before `magnetar.connect()`"
        ) from None
    information = _ask(coordinator.client_information())
    found = ClusterDirectory(information["data_directory"])
    run = found.load_run()
    if session is None or session.kind == "joined":
        session = RaySession("joined", gcs_address())
        if run is not None and run["ray"]["address"] == session.address:
            session = RaySession.from_record(run["ray"])
    return RayCluster(information, session, found)


def stop_on_ray(data_directory: str | os.PathLike[str], on_wait: Callable[[str], None] | None = None) -> str:
    """Stop the cluster of a data directory, or what is left of it, and say what was done. Raises ClusterError.

    A coordinator that is being restarted is waited for; `on_wait` is told so. After `STOP_BOUND_S` nothing is asked any
    more, and what `start` wrote down is killed.
    """
    directory = ClusterDirectory(data_directory)
    run = directory.load_run()
    session = RaySession.from_record(run["ray"]) if run is not None else None
    if session is not None and (lost := session.lost_carriers):
        return _stop_by_force(directory, session, f"its Ray had lost its {' and its '.join(lost)}")
    try:
        return ray_session.within(STOP_BOUND_S, lambda: _stop_in_order(directory, session, on_wait))
    except TimeoutError as error:
        if session is None or session.kind == "joined":
            raise ClusterError(
                f"the cluster did not stop within {STOP_BOUND_S:.0f} s. Its Ray was not started by Magnetar, and goes "
                "on: try again, or end that Ray"
            ) from error
        return _stop_by_force(directory, session, f"it did not stop within {STOP_BOUND_S:.0f} s")


def _stop_in_order(
    directory: ClusterDirectory, session: RaySession | None, on_wait: Callable[[str], None] | None
) -> str:
    where = log_directory(str(directory.path))
    try:
        cluster = _find_patiently(directory.path, on_wait)
    except ClusterError as error:
        if session is None:
            raise
        # The coordinator does not answer: end what was written down.
        if session.kind != "joined":
            return _stop_by_force(directory, session, f"the cluster did not answer ({error})")
        if not isinstance(error, CoordinatorAway):
            directory.clear_run()
            return f"there was nothing left to stop: {error}"
        if gcs_address() != session.address:
            raise  # another Ray: its cluster may be one of another directory
        _stop_actors()
        directory.clear_run()
        return f"the cluster did not answer ({error}), so its processes were killed; its logs are in {where}"
    with cluster:
        return f"stopped cluster {cluster.cluster_id}; logs are in {where}"


def _stop_by_force(directory: ClusterDirectory, session: RaySession, why: str) -> str:
    """Kill what carries a Ray of ours, without a call to Ray, and say so."""
    ended = ray_session.kill(session)
    directory.clear_run()
    where = log_directory(str(directory.path))
    return f"{why}, so its processes were killed: {ended} of them still ran; its logs are in {where}"


def _find_patiently(data_directory: str | os.PathLike[str], on_wait: Callable[[str], None] | None) -> RayCluster:
    """As `find_on_ray`. Raises CoordinatorAway after `COORDINATOR_WAIT_S`."""
    began = time.monotonic()
    while True:
        try:
            return find_on_ray(data_directory)
        except CoordinatorAway:
            waited_s = time.monotonic() - began
            if waited_s > COORDINATOR_WAIT_S:
                raise
        if on_wait is not None:
            on_wait(f"waiting for the coordinator, which does not answer yet: {waited_s:.0f} s …")
        time.sleep(COORDINATOR_POLL_S)


def _import_ahead() -> None:
    """Load what `_start` needs while Ray starts, which is mostly waited for."""
    for name in ("..actors.processes.ray_actors", "..storage.metadata.sql"):
        importlib.import_module(name, __package__)


def _start(directory: ClusterDirectory, options: StartOptions, session: RaySession) -> RayCluster:

    from ..actors.processes.ray_actors import CoordinatorActor, MemberActor

    with contextlib.suppress(ValueError):
        find_actor(COORDINATOR_ACTOR)
        raise ClusterError(
            f"a Magnetar cluster already runs on the Ray at {session.address}: "
            "`magnetar status` shows it, `magnetar stop` stops it"
        )
    machines = ray_machines(str(directory.path), only_own=not is_wildcard(options.host))
    prepared = asyncio.run(_prepare(directory, options, machines))
    for told in prepared.told:
        logger.warning("%s", told)
    if prepared.waiting:
        missing = "; ".join(f"{member}: {reason}" for member, reason in prepared.waiting.items())
        logger.warning(
            "some processes wait (%s). If the disk of a bookie is lost, add a bookie and drain that one, or start "
            "again with --accept-lost-disk",
            missing,
        )
    plan = prepared.plan
    directory.save_run({"cluster_id": plan.cluster_id, "ray": session.to_record()})
    coordinator = start_actor(CoordinatorActor, coordinator_options(plan), plan)
    try:
        launch_ahead(plan, MemberActor)
        problems = ask(coordinator.wait_ready(READY_TIMEOUT_S), READY_TIMEOUT_S + 30)
        if problems:
            reasons = "; ".join(f"{node}: {problem}" for node, problem in sorted(problems.items()))
            raise ClusterError(f"the cluster did not start: {reasons}. Read the logs in the data directory")
        information = ask(coordinator.client_information(), ANSWER_TIMEOUT_S)
        if session.kind == "detached":
            session = ray_session.with_descendants(session)
            directory.save_run({"cluster_id": plan.cluster_id, "ray": session.to_record()})
    except BaseException:
        _stop_actors()
        directory.clear_run()
        raise
    return RayCluster(information, session, directory)


async def _prepare(directory: ClusterDirectory, options: StartOptions, machines: list[Machine]) -> Prepared:
    env = Environment.real(threads_max=1)
    try:
        return await retry.limited(
            LimitedBackoff(env.random, LOCK_POLL_INITIAL_S, LOCK_POLL_MAX_S, LOCK_WAIT_S),
            lambda: prepare(env, directory, options, machines),
            retriable=lambda error: isinstance(error, DirectoryLocked),
            on_retry=lambda error, delay_s: logger.info("the metadata is still in use: %s", error),
        )
    finally:
        env.close()


def _actor_is_away() -> tuple[type[Exception], ...]:
    """What a call raises while Ray starts its actor again."""
    from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

    return ActorDiedError, ActorUnavailableError, GetTimeoutError


def process_id(member: str) -> int:
    """The operating system's id of the process of a bookie, a broker or the admin. Raises ValueError if it has none."""
    actor: MemberActor = find_actor(actor_name(member))
    return ask(actor.process_id())


def _coordinator() -> "CoordinatorActor":
    try:
        actor: CoordinatorActor = find_actor(COORDINATOR_ACTOR)
        return actor
    except ValueError as error:
        raise ClusterError("no Magnetar cluster runs on this Ray: start one with `magnetar start`") from error


def _ask(answer: Awaitable[T]) -> T:
    """What the coordinator's actor says. Raises its own error, without the tracebacks that Ray adds; ClusterError when
    it does not answer.
    """
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError

    try:
        return ask(answer, ANSWER_TIMEOUT_S)
    except RayTaskError as error:
        if isinstance(error.cause, MagnetarError):
            raise error.cause from None
        raise
    except (ActorUnavailableError, GetTimeoutError, RayActorError) as error:
        raise CoordinatorAway(
            "the coordinator does not answer: try again, Ray starts it again when it is lost. If the metadata is a "
            "SQLite file, the coordinator runs only on the machine with that file: bring that machine back"
        ) from error


def _stop_actors() -> None:
    """Close the services in order and end their actors, all of them, whatever state they are in."""
    from ray.exceptions import RayError

    try:
        coordinator = _coordinator()
    except ClusterError:
        coordinator = None
    if coordinator is not None:
        try:
            ask(coordinator.stop_cluster(), STOP_TIMEOUT_S)
        except RayError as error:
            logger.warning("the coordinator did not stop the cluster: %s", error)
        # Its supervisor first: it would start again what is killed below.
        kill_actor(coordinator)
    for name in named_actors():
        if name.startswith(actor_name("")):
            with contextlib.suppress(ValueError):
                kill_actor(find_actor(name))


def _end_session(session: RaySession) -> None:
    """Leave Ray, and end it if it is ours; a program that had called ray.init itself stays connected."""
    if session.kind == "detached":
        ray_session.end_detached(session)
    elif session.kind == "local":
        ray_session.disconnect()


def _connect(directory: ClusterDirectory | None) -> RaySession:
    run = directory.load_run() if directory is not None else None
    address = os.environ.get("RAY_ADDRESS")
    # The address of a Ray that is not ours may have changed since, as that of a pod does.
    elsewhere = run is not None and run["ray"]["kind"] == "joined" and address not in (None, "", "local")
    if run is not None and not elsewhere:
        session = RaySession.from_record(run["ray"])
        ray_session.connect_to_session(session)
        return session
    if not address:
        where = f"none runs on {directory.path}" if directory is not None else "no data directory was given"
        raise ClusterError(
            f"no running cluster was found: RAY_ADDRESS is not set, and {where}. Start one with "
            "`magnetar start --detach`, or name the data directory of a running cluster"
        )
    ray_session.connect_to_ray(address)
    return RaySession("joined", address)


def _clear_leftovers(directory: ClusterDirectory) -> None:
    """Forget a run that ended without a word (a reboot, a killed `start`), and end what is left of its Ray.

    Raises ClusterError if it still runs.
    """
    run = directory.load_run()
    if run is None:
        return
    session = RaySession.from_record(run["ray"])
    if any(process.alive for process in session.processes):
        lost = session.lost_carriers
        if not lost:
            raise ClusterError(
                f"a cluster already runs on {directory.path}: `magnetar status` shows it, `magnetar stop` stops it"
            )
        if others := ray_session.other_nodes(session):
            raise ClusterError(
                f"the Ray of the last run on {directory.path} lost its {' and its '.join(lost)} here, but goes on at "
                f"{', '.join(others)}: `magnetar stop` ends what is left, then start again"
            )
        ended = ray_session.kill(session)
        logger.warning(
            "the last run on %s had lost its Ray (%s): %d processes that were left of it were ended",
            directory.path,
            " and ".join(lost),
            ended,
        )
    if session.kind == "detached":
        ray_session.remove_temporary_directory(session)
    directory.clear_run()
