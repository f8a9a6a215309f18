"""Bugs of load balancing."""

from contextlib import ExitStack

from magnetar.actors.balancing.balancer import LoadBalancer

from .mutant import Mutant, replace


def _forget_the_grace(stack: ExitStack) -> None:
    replace(stack, LoadBalancer, "_may_move", lambda self, unit: True)


BALANCING = (
    Mutant(
        "restless topics",
        "a topic that has just moved for its load moves for it again",
        "I15",
        _forget_the_grace,
        "loading",
    ),
)
