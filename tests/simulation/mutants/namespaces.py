"""Bugs of our own choosing in how namespaces are deleted by force. See `own` for how a mutant is made."""

from contextlib import ExitStack

from magnetar.actors.coordinator.namespace_deletions import NamespaceDeletions
from magnetar.actors.coordinator.namespaces import Namespaces

from .mutant import Mutant, replace


def _forget_what_was_marked(stack: ExitStack) -> None:
    replace(stack, NamespaceDeletions, "start", lambda self: None)


def _take_topics_to_the_end(stack: ExitStack) -> None:
    """A namespace exists until its record is gone."""
    replace(stack, Namespaces, "exists", lambda self, name: name in self._namespaces)


NAMESPACES = (
    Mutant(
        "forgotten mark",
        "the next coordinator does not go on with the forced deletion of a namespace",
        "I8",
        _forget_what_was_marked,
        "clearing",
    ),
    Mutant(
        "open to the end",
        "a namespace takes topics while it is deleted by force",
        "I2",
        _take_topics_to_the_end,
        "clearing",
    ),
)
