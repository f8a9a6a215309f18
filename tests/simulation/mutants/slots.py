"""Bugs of slots: who owns them, and who is told."""

from contextlib import ExitStack

from magnetar.actors.coordinator.member_lists import MemberLists
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.actors.slots.pages import SlotPages
from magnetar.storage.metadata.slot_rows import SlotRows

from .mutant import Mutant, replace


def _lose_changes(stack: ExitStack) -> None:
    """Every second change is told to nobody, and members do not mind the gap in the numbers."""
    tell = MemberLists.slots_changed

    def telling(self: MemberLists, number: int, rows: SlotRows) -> None:
        if number % 2:
            tell(self, number, rows)

    replace(stack, MemberLists, "slots_changed", telling)
    replace(stack, CoordinatorClient, "_close_gap", lambda self: None)


def _keep_the_epoch_of_a_slot(stack: ExitStack) -> None:
    """A slot goes to another broker under the epoch of the one that has it."""

    async def write(self: SlotPages, entries: object, exceptions: object) -> None:
        same = {slot: one._replace(epoch=self.table.get(slot).epoch or one.epoch) for slot, one in entries.items()}  # type: ignore[attr-defined]
        await writing(self, same, exceptions)  # type: ignore[arg-type]

    writing = SlotPages.write
    replace(stack, SlotPages, "write", write)


SLOTS = (
    Mutant("delta lost", "members are not told of some changes of slots", "I8", _lose_changes, "cluster"),
    Mutant("same slot epoch", "a slot moves without a higher epoch", "I2", _keep_the_epoch_of_a_slot, "cluster"),
)
