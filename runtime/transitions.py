"""State machines as data: a table of allowed transitions, and the check that every change of state passes."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)


def check_transition(table: Mapping[S, frozenset[S]], what: str, old: S, new: S) -> None:
    """Check one change of state.

    Raises RuntimeError when `table` does not allow it. That is a defect of the caller, never an answer to a client.
    """
    if new not in table[old]:
        raise RuntimeError(f"{what} cannot go from {old.value} to {new.value}")
