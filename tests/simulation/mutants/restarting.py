"""Bugs of our own choosing in rolling restarts. See `own` for how a mutant is made."""

from contextlib import ExitStack

from magnetar.actors.coordinator.office import Office
from magnetar.actors.processes import restarts
from magnetar.actors.processes.reconciler import Reconciler
from magnetar.actors.processes.supervisor import Supervisor
from magnetar.protocol.errors import ClusterError

from .mutant import Mutant, replace


def _do_not_look_at_copies(stack: ExitStack) -> None:
    async def none(office: Office, member: str) -> str:
        return ""

    replace(stack, restarts, "_lacking", none)


def _do_not_wait_for_the_process(stack: ExitStack) -> None:
    """The restart is over when it was asked for; the member may still have its session."""

    async def restart(self: Supervisor[object], member: str) -> None:
        kept = self._kept.get(member)
        if kept is None:
            raise ClusterError(f"{member} is no process of this cluster")
        kept.retargeted.set()

    replace(stack, Supervisor, "restart", restart)


def _rest_for_good(stack: ExitStack) -> None:
    rest = Reconciler.rest
    replace(stack, Reconciler, "rest", lambda self, member: rest(self, member) if member else None)


def _do_not_empty_brokers(stack: ExitStack) -> None:
    async def release(self: Reconciler[object], node: object) -> None:
        """The broker is closed with all its topics."""

    replace(stack, Reconciler, "_release", release)


RESTARTING = (
    Mutant(
        "hasty restart",
        "a bookie is restarted although entries lack copies",
        "I17",
        _do_not_look_at_copies,
        "restarting",
    ),
    Mutant(
        "unfinished restart",
        "a restart ends before the process is back",
        "I8",
        _do_not_wait_for_the_process,
        "restarting",
    ),
    Mutant(
        "rest for good",
        "a broker that was restarted gets no topics any longer",
        "I8",
        _rest_for_good,
        "restarting",
    ),
    Mutant(
        "full broker",
        "a broker is restarted before its topics have gone to others",
        "I17",
        _do_not_empty_brokers,
        "restarting",
    ),
)
