"""Bugs of topics that are followed in batches of rows."""

from contextlib import ExitStack
from typing import Any

from magnetar.data.entry_batches import EntryBatches
from magnetar.data.followed_feed import FollowedFeed
from magnetar.data.positions import EARLIEST_PLACE, RowPlace
from magnetar.data.row_cutting import RowCutter

from .mutant import Mutant, replace


def _do_not_move_back(stack: ExitStack) -> None:
    async def moving_back(self: FollowedFeed, *place: Any) -> None:
        """The subscription stays where it stands."""

    replace(stack, FollowedFeed, "_move_back", moving_back)


def _take_again(stack: ExitStack) -> None:
    taking = EntryBatches._new_part

    def new_part(self: EntryBatches, entry: Any) -> Any:
        self._taken[entry.topic] = EARLIEST_PLACE
        return taking(self, entry)

    replace(stack, EntryBatches, "_new_part", new_part)


def _acknowledge_beyond_missing_chunks(stack: ExitStack) -> None:
    replace(stack, EntryBatches, "acknowledged_by", lambda self, name, place: place)


def _forget_first_chunks(stack: ExitStack) -> None:
    replace(stack, EntryBatches, "_with_chunks", lambda self, name, place: place)


def _name_whole_entries(stack: ExitStack) -> None:
    taking = RowCutter.take

    def take(self: RowCutter, rows_max: int) -> Any:
        table, marks = taking(self, rows_max)
        return table, {name: RowPlace(*place.position) for name, place in marks.items()}

    replace(stack, RowCutter, "take", take)


FOLLOWING = (
    Mutant(
        "not moved back",
        "who begins at positions gets what the subscription gives, whatever was acknowledged",
        "I4",
        _do_not_move_back,
        "following",
    ),
    Mutant(
        "entry taken again",
        "an entry that is delivered again gives its rows again",
        "I5",
        _take_again,
        "following",
    ),
    Mutant(
        "beyond a missing chunk",
        "what is finished is acknowledged up to its place, whatever chunks came to another reader",
        "I7",
        _acknowledge_beyond_missing_chunks,
        "following",
    ),
    Mutant(
        "first chunk unnamed",
        "positions do not name the first chunk of a message whose row lies behind",
        "I4",
        _forget_first_chunks,
        "following",
    ),
    Mutant(
        "whole entry named",
        "a place inside a batch of messages names the whole entry",
        "I7",
        _name_whole_entries,
        "following",
    ),
)
