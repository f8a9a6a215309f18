"""Bugs of our own choosing in deduplication."""

from contextlib import ExitStack

from magnetar.actors.topics.deduplication import SequenceIds

from .mutant import Mutant, replace


def _keep_what_was_pushed(stack: ExitStack) -> None:
    """As if all that was pushed were persisted: the next attempt gets a receipt, and is not stored."""

    def forget_pushed(self: SequenceIds) -> None:
        self.persisted.update(self._pushed)
        self._pushed = dict(self.persisted)

    replace(stack, SequenceIds, "forget_pushed", forget_pushed)


DEDUPLICATION = (
    Mutant("#5218", "what was pushed is not set back after a failed write", "I5", _keep_what_was_pushed, "cluster"),
)
