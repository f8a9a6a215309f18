"""State machines as data: a table of allowed transitions, and the check that every change of state passes.

The check is one look-up. Owners make it where a state changes, never for each entry or message.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)


class ForbiddenTransition(RuntimeError):
    """A state machine was told to take a step that its table does not have: a defect of ours, never to be retried."""


def check_transition(table: Mapping[S, Collection[S]], what: object, old: S, new: S) -> None:
    """Check one change of state. `what` becomes text only when the step is forbidden.

    Raises ForbiddenTransition when `table` does not allow it. That is a defect of the caller, never an answer to a
    client.
    """
    if new not in table[old]:
        raise forbidden(what, old, new)


def forbidden(what: object, old: Enum, new: Enum) -> ForbiddenTransition:
    """The error of `check_transition`, for a hot path that looks into its table itself."""
    return ForbiddenTransition(f"{what} cannot go from {old.name.lower()} to {new.name.lower()}")
