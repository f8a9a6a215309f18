"""A running cluster as its user sees it, on Ray or embedded: where it is, a client for it, its status, its end."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ..protocol.addresses import joined_urls
from ..protocol.cluster_status import ClusterStatus, DesiredView, DrainView, RestartView
from ..protocol.errors import ClusterError, MagnetarError, NoSuchKey, RestartStopped
from ..protocol.names import COORDINATOR_ID, ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER

if TYPE_CHECKING:
    from ..client.blocking.client import Client


DRAIN_POLL_S = 0.5
SILENCE_MAX_S = 60.0
"""A drain is waited for, although the coordinator does not answer, for this long."""
RESTART_ORDER = (ROLE_BOOKIE, ROLE_BROKER, ROLE_ADMIN)


class Cluster(ABC):
    """A running cluster. As a context manager it stops the cluster at the end."""

    def __init__(self, cluster_id: str, service_urls: Sequence[str], admin_url: str) -> None:
        self.cluster_id = cluster_id
        self.service_urls = list(service_urls)
        """One URL a broker."""
        self.admin_url = admin_url

    @property
    def service_url(self) -> str:
        """One URL with all brokers, as every Pulsar client takes it: `pulsar://host:6650,host:6652`."""
        return joined_urls(self.service_urls)

    def client(self, **options: Any) -> "Client":
        """Create a client of this cluster.

        Args:
            options: Options of `magnetar.Client`.

        Returns:
            The client.

        Raises:
            InvalidConfiguration: If an option is impossible.
            OperationNotSupported: If an option asks for a feature that is not supported.
        """
        from ..client.blocking.client import Client

        return Client(self.service_url, **options)

    @abstractmethod
    def status(self) -> ClusterStatus:
        """Return what runs: actors, addresses, epochs, topics, disks.

        `magnetar status` prints it.

        Returns:
            Plain values.

        Raises:
            ClusterError: If the cluster does not answer.
        """

    @abstractmethod
    def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        """Change how many brokers and bookies run. The cluster remembers it.

        With fewer, those with the highest numbers drain. The call does not wait; see `wait_drained`.

        Args:
            brokers: Number of brokers. None leaves it as it is.
            bookies: Number of bookies. None leaves it as it is.

        Returns:
            What should run now.

        Raises:
            NotAllowedError: If no broker would remain, or too few bookies for the ensembles of ledgers.
        """

    @abstractmethod
    def drain(self, member: str) -> DesiredView:
        """Have a broker or bookie give up what it has, and end. The call does not wait; see `wait_drained`.

        The topics of a broker move to other brokers. The ledgers of a bookie are copied to other bookies; then its
        directory is emptied.

        Args:
            member: A broker or bookie, such as `broker-3`.

        Returns:
            What should run now.

        Raises:
            NoSuchKey: If there is no such member.
            NotAllowedError: If no broker would remain, or too few bookies for the ensembles of ledgers.
        """

    @abstractmethod
    def undrain(self, member: str) -> DesiredView:
        """Have a broker or bookie that drains stay after all.

        Args:
            member: A broker or bookie, such as `broker-3`.

        Returns:
            What should run now.

        Raises:
            NoSuchKey: If there is no such member, or it has ended already.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Read `service_urls` and `admin_url` again: brokers come and go, and move."""

    def wait_drained(
        self, timeout_s: float | None = None, *, on_progress: Callable[[Mapping[str, DrainView]], None] | None = None
    ) -> dict[str, str]:
        """Wait until all members that drain have ended, and those that were added run.

        A bookie has ended when its directory is removed and its cookie is deleted.
        A process that fails when this call begins is not waited for.

        Args:
            timeout_s: How long to wait, in seconds. None waits as long as it takes.
            on_progress: Called with what each draining member still has, about twice a second.

        Returns:
            Bookies that have ended and whose directories are left over, and for each the reason and what to do. The
            coordinator has met these since it started.

        Raises:
            ClusterError: If they have not ended in time, or the cluster does not answer for a minute.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        answered = time.monotonic()
        failing: set[str] | None = None
        while True:
            try:
                status = self.status()
            except MagnetarError:  # the coordinator may be restarting, and the drain goes on after that
                now = time.monotonic()
                if now - answered > SILENCE_MAX_S or (deadline is not None and now > deadline):
                    raise
                time.sleep(DRAIN_POLL_S)
                continue
            answered = time.monotonic()
            desired = status.get("desired")
            draining = desired["draining"] if desired is not None else {}
            if on_progress is not None:
                on_progress(draining)
            if failing is None:  # such as a bookie whose disk is lost, to which the drain is the remedy
                failing = {one["node_id"] for one in status["processes"] if one["restarts"] and one["problem"]}
            states = {one["node_id"]: one["state"] for one in status["processes"]}
            if desired is not None:  # one that was just added, or undrained, has no process yet
                states = {**dict.fromkeys([*desired["brokers"], *desired["bookies"]], "starting"), **states}
            settled = ("running", "absent")
            starting = [one for one, state in states.items() if state not in settled and one not in failing]
            if not draining and not starting:
                self.refresh()
                return desired.get("left_over", {}) if desired is not None else {}
            if deadline is not None and time.monotonic() > deadline:
                raise ClusterError(
                    f"{', '.join([*draining, *starting])} did not get ready within {timeout_s} s: `magnetar status` "
                    "says what is left"
                )
            time.sleep(DRAIN_POLL_S)

    def restart(
        self, processes: Sequence[str] = (), *, on_progress: Callable[[str, RestartView | None], None] | None = None
    ) -> list[RestartView]:
        """Restart processes one after the other, while clients go on.

        A broker gives its topics to others first. A bookie is restarted when each entry has all its copies. The
        coordinator comes last.

        Args:
            processes: Such as `bookie-2` or `coordinator`, in this order. By default all, the coordinator last.
            on_progress: Called with a process and None when its turn has come, and with how long it took afterwards.

        Returns:
            How long each took.

        Raises:
            NoSuchKey: If one is no process of this cluster. None was restarted.
            RestartStopped: If one could not be restarted safely, or did not come back. The message, and the detail
                `left`, say which are left.
        """
        status = self.status()
        known = sorted(status["processes"], key=lambda one: RESTART_ORDER.index(one["role"]))
        every = [*(one["node_id"] for one in known), COORDINATOR_ID]
        chosen = list(dict.fromkeys(processes)) or every
        unknown = [one[:100] for one in chosen if one not in every]
        if unknown:
            raise NoSuchKey(f"{', '.join(unknown)} is no process of this cluster: choose among {', '.join(every)}")
        found: list[RestartView] = []
        for position, process in enumerate(chosen):
            if on_progress is not None:
                on_progress(process, None)
            try:
                view = self._restart_one(process)
            except MagnetarError as error:
                left = chosen[position:]
                raise RestartStopped(
                    f"{error}. Left are {', '.join(left)}: go on with `magnetar restart {' '.join(left)}`",
                    left=" ".join(left),
                ) from error
            found.append(view)
            if on_progress is not None:
                on_progress(process, view)
        return found

    @abstractmethod
    def _restart_one(self, process: str) -> RestartView:
        """Restart a process of the cluster. Raises MagnetarError."""

    @abstractmethod
    def accept_lost_ledgers(self) -> list[list[int]]:
        """Give up the ledgers that restored metadata does not know.

        Bookies delete them with their next collection. There is no way back.

        Returns:
            Ranges of their ids, as first and end (exclusive).

        Raises:
            MagnetarError: If the coordinator refuses.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop everything in good order and wait for it.

        A second call does nothing.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.cluster_id} at {self.service_url}>"
