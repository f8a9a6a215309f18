"""Bugs of load balancing."""

from contextlib import ExitStack

from magnetar.actors.balancing.averages import LoadAverages
from magnetar.actors.coordinator.load_balancer import LoadBalancer

from .mutant import Mutant, replace


def _forget_the_grace(stack: ExitStack) -> None:
    replace(stack, LoadBalancer, "_may_move", lambda self, unit: True)


def _trust_the_first_reports(stack: ExitStack) -> None:
    replace(stack, LoadAverages, "settled", True)


BALANCING = (
    Mutant(
        "restless topics",
        "a topic that has just moved for its load moves for it again",
        "I15",
        _forget_the_grace,
        "loading",
    ),
    Mutant(
        "rash coordinator",
        "a coordinator that has just started moves topics by what brokers reported in one moment",
        "I15",
        _trust_the_first_reports,
        "loading",
    ),
)
