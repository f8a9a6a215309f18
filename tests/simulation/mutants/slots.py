"""Bugs of slots: who owns them, who is told, and who has to release them before they move."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from magnetar.actors.broker.ownership import Ownership
from magnetar.actors.coordinator.member_lists import MemberLists
from magnetar.actors.coordinator.placement import SlotPlacement, SlotWishes
from magnetar.actors.coordinator.rebalancing import Rebalancer
from magnetar.actors.coordinator.topic_deletions import TopicDeletions
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


def _do_not_ask_for_a_release(stack: ExitStack) -> None:
    async def release(self: Rebalancer, slots: object, topics: object) -> None:
        """The owner goes on until it hears of the next one."""

    replace(stack, Rebalancer, "_release", release)


def _answer_a_release_at_once(stack: ExitStack) -> None:
    async def release(self: Ownership, **unused: object) -> None:
        """The topics stay open."""

    replace(stack, Ownership, "release", release)


def _keep_the_hold_of_a_dead_owner(stack: ExitStack) -> None:
    """The owner ended while it was to release a slot, which nobody gets from then on."""

    def let_go(self: SlotPlacement, slots: Iterable[int]) -> None:
        unhold(self, [slot for slot in slots if self._wishes.is_settled(self.table.get(slot))])

    unhold = SlotPlacement.unhold
    replace(stack, SlotPlacement, "unhold", let_go)


def _grant_what_is_about_to_move(stack: ExitStack) -> None:
    """From the end of the release until the next owner is stored the old one gets grants."""
    replace(stack, SlotWishes, "may_move", lambda self, slot: slot in self.held)


def _end_a_release_with_what_it_overtook(stack: ExitStack) -> None:
    """Any new entry ends a release, also the one that the release is about. Then grants from before it count."""

    def changing(self: Ownership, changed: SlotRows) -> None:
        table = self.topics.table
        for slot in changed.entries:
            self._released_slots.pop(slot, None)
            for topic in table.of_slot(slot):
                topic.released = 0
        for full_name in changed.exceptions:
            if (found := table.find(full_name)) is not None:
                found.released = 0
        slots_changed(self, changed)

    slots_changed = Ownership.slots_changed
    replace(stack, Ownership, "slots_changed", changing)


def _release_what_came_back(stack: ExitStack) -> None:
    """A release counts however late it comes."""
    replace(stack, Ownership, "_last_of_slot", lambda self, slot: 0)
    replace(stack, Ownership, "_last_of", lambda self, full_name: 0)


def _delete_without_the_owner(stack: ExitStack) -> None:
    """An owner that has not come back to a new coordinator counts as none."""
    replace(stack, TopicDeletions, "_is_away", lambda self, topic: False)


def _do_not_tell_the_owner_of_the_slot(stack: ExitStack) -> None:
    """What was deleted once is not looked at again when its exception has ended."""
    remove, seen = TopicDeletions._remove_data, list[object]()

    async def removing(self: TopicDeletions, deletion: Any, members: Sequence[str]) -> None:
        if not any(one is deletion for one in seen):
            await remove(self, deletion, members)
            seen.append(deletion)

    replace(stack, TopicDeletions, "_remove_data", removing)


SLOTS = (
    Mutant("delta lost", "members are not told of some changes of slots", "I8", _lose_changes, "cluster"),
    Mutant("same slot epoch", "a slot moves without a higher epoch", "I2", _keep_the_epoch_of_a_slot, "cluster"),
    Mutant(
        "release forgotten",
        "a slot moves although its owner was not asked to release it",
        "I16",
        _do_not_ask_for_a_release,
        "cluster",
    ),
    Mutant(
        "empty release",
        "a broker says that it released a slot, and closes no topic",
        "I16",
        _answer_a_release_at_once,
        "cluster",
    ),
    Mutant(
        "held for good",
        "a slot whose owner ends during the release stays without an owner",
        "I8",
        _keep_the_hold_of_a_dead_owner,
        "cluster",
    ),
    Mutant(
        "granted again",
        "an owner that released a slot gets grants until the next one is stored",
        "I16",
        _grant_what_is_about_to_move,
        "cluster",
    ),
    Mutant(
        "release overtaken",
        "a release ends with the change of slots that it overtook",
        "I16",
        _end_a_release_with_what_it_overtook,
        "cluster",
    ),
    Mutant(
        "late release",
        "a release closes what was granted behind it, when it comes late",
        "I16",
        _release_what_came_back,
        "cluster",
    ),
    Mutant(
        "owner left out",
        "a topic is deleted before its owner has come back to a new coordinator",
        "I16",
        _delete_without_the_owner,
        "recreating",
    ),
    Mutant(
        "home left out",
        "the owner of a slot keeps a topic open that was moved alone and deleted since",
        "I16",
        _do_not_tell_the_owner_of_the_slot,
        "recreating",
    ),
)
