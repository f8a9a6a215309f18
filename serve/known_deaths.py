"""In which replicas that died a task was running, as the topic of statuses says. See `deaths`.

Invariants:

- A death that is stored several times counts once: the note of a replica tells of one death of each task.
- At most `DEATHS_MAX` tasks have deaths, and each at most `DEATHS_OF_TASK_MAX`. The oldest ones are forgotten.
"""

from collections import OrderedDict
from typing import NamedTuple

DEATHS_MAX = 10_000
DEATHS_OF_TASK_MAX = 200
"""More than decide anything."""


class Deaths(NamedTuple):
    """In how many replicas that died a task was running."""

    total: int
    alone: int
    """In how many of them no other task was."""


class KnownDeaths:
    """See the module."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, OrderedDict[str, bool]] = OrderedDict()
        """By task: the notes that told of it, and whether it was alone."""

    def enter(self, task_id: str, note: str, *, alone: bool) -> None:
        """A note tells that a task was running."""
        notes = self._of.setdefault(task_id, OrderedDict())
        self._of.move_to_end(task_id)
        notes[note] = alone
        if len(notes) > DEATHS_OF_TASK_MAX:
            notes.popitem(last=False)
        if len(self._of) > DEATHS_MAX:
            self._of.popitem(last=False)

    def of(self, task_id: str) -> Deaths:
        """What is known of a task."""
        notes = self._of.get(task_id)
        return Deaths(len(notes), sum(notes.values())) if notes else Deaths(0, 0)
