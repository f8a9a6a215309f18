"""Bugs of our own choosing in deduplication."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from magnetar.actors.deduplication.topic_deduplication import Deduplication, SequenceIds
from magnetar.protocol.message_id import Position
from magnetar.storage.managed import cursor_storage
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.managed.cursor_storage import CursorKind
from magnetar.storage.managed.trimming import Trimmer

from .mutant import Mutant, replace


def _keep_what_was_pushed(stack: ExitStack) -> None:
    """As if all that was pushed were persisted: the next attempt gets a receipt, and is not stored."""

    def forget_pushed(self: SequenceIds) -> None:
        self.persisted.update(self._pushed)
        self._pushed = dict(self.persisted)

    replace(stack, SequenceIds, "forget_pushed", forget_pushed)


def _name_a_later_place(stack: ExitStack) -> None:
    """Each snapshot has the place of this moment, and the ids of the moment of the last one."""
    take_snapshot = Cursor.take_snapshot

    def taking(self: Any, position: Position, properties: Mapping[str, str]) -> None:
        before, self.wanted_properties = self.__dict__.get("wanted_properties", {}), properties
        take_snapshot(self, position, before)

    replace(stack, Cursor, "take_snapshot", taking)


def _replay_too_little(stack: ExitStack) -> None:
    opening = Deduplication._open

    async def opened(self: Any) -> None:
        await opening(self)
        self._known = self._host.ledger.last_confirmed

    replace(stack, Deduplication, "_open", opened)


def _trim_behind_snapshots(stack: ExitStack) -> None:
    would_trim = Trimmer._would_trim

    def trimming(self: Any, **options: Any) -> list[int]:
        cursors = self._cursors
        self._cursors = {
            name: cursor for name, cursor in cursors.items() if cursor.kind is not CursorKind.DEDUPLICATION
        }
        try:
            return would_trim(self, **options)
        finally:
            self._cursors = cursors

    replace(stack, Trimmer, "_would_trim", trimming)


def _keep_ids_that_are_ahead(stack: ExitStack) -> None:
    """After a restore only the place of the cursor goes back."""
    replace(stack, cursor_storage, "_bring_back", lambda state, kind, end: state.go_back_to(end))


DEDUPLICATION = (
    Mutant("#5218", "what was pushed is not set back after a failed write", "I5", _keep_what_was_pushed, "cluster"),
    Mutant(
        "snapshot ahead", "a snapshot names a place beyond the ids that it has", "I5", _name_a_later_place, "numbered"
    ),
    Mutant("late replay", "the replay begins behind the place of the snapshot", "I5", _replay_too_little, "numbered"),
    Mutant(
        "forgotten snapshot",
        "what no snapshot has is trimmed before it is replayed",
        "I5",
        _trim_behind_snapshots,
        "numbered",
    ),
    Mutant(
        "ids ahead",
        "after a restore deduplication keeps the ids of messages that the topic lost",
        "I5",
        _keep_ids_that_are_ahead,
        "restoring",
    ),
    Mutant(
        "moved without ids",
        "the owner that a topic moves to does not know which sends are stored",
        "I5",
        _replay_too_little,
        "cut off",
    ),
)
