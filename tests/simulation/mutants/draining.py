"""Bugs of our own choosing in how members are drained and retired. See `own` for how a mutant is made."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace as replaced

from magnetar.actors.coordinator.drains import Drains
from magnetar.actors.desired.state import DesiredMembers
from magnetar.actors.processes.reconciler import Reconciler

from .mutant import Mutant, replace


def _do_not_count_ledgers(stack: ExitStack) -> None:
    async def none(self: Drains, bookies: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(bookies, 0)

    replace(stack, Drains, "_count", none)


def _forget_what_drains(stack: ExitStack) -> None:
    start = DesiredMembers.start

    async def without(self: DesiredMembers) -> None:
        await start(self)
        if self.state is not None:
            self.state = replaced(self.state, draining=frozenset())

    replace(stack, DesiredMembers, "start", without)


def _keep_ended_for_good(stack: ExitStack) -> None:
    replace(stack, Reconciler, "resume", lambda self, member: None)


DRAINING = (
    Mutant(
        "hasty retirement",
        "a bookie is retired before its ledgers are copied",
        "I9",
        _do_not_count_ledgers,
        "draining",
    ),
    Mutant(
        "forgotten drain", "the next coordinator does not go on with a drain", "I8", _forget_what_drains, "draining"
    ),
    Mutant(
        "ended for good",
        "a broker whose number is used again is not started",
        "I8",
        _keep_ended_for_good,
        "draining",
    ),
)
