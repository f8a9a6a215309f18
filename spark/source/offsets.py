"""Offsets of a streaming query: how far each partition was read.

An offset is a JSON object, because Spark keeps it in its checkpoint. It maps the full name of a partition, or of a
topic without partitions, to the place of the last message that was read. A place is `ledger:entry`, or
`ledger:entry:index` for a message inside a batch. `-1:-1` is before everything. A partition that an offset does not
name begins there: it was created after the query.

The place where a micro-batch ends also says how many entries each of its tasks reads: `ledger:entry/entries`. So a
micro-batch that Spark runs again has the same tasks with the same rows. A sink that counts rows by task relies on it.

`@ledger:entry` at the end is the entry after which the query began. A message in chunks that ends in a micro-batch may
begin in an earlier one, but not before the query.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from ...protocol.errors import InvalidConfiguration
from ...protocol.message_id import EARLIEST_POSITION, Position, WireMessageId

Offset = Mapping[str, str]


class Reached(NamedTuple):
    """The last message that was read: all of an entry, or of its batch up to an index."""

    ledger: int
    entry: int
    batch_index: int = -1
    since: Position = EARLIEST_POSITION
    """The entry after which the query began."""
    split_entries: int = 0
    """How many entries a task reads of the micro-batch that ends here; 0 if the offset does not say it."""

    @staticmethod
    def parse(text: str) -> "Reached":
        """Raises InvalidConfiguration for what is none: somebody has changed the checkpoint."""
        place, found, since = text.partition("@")
        place, has_entries, entries = place.partition("/")
        try:
            numbers, began = _numbers(place, (2, 3)), _numbers(since, (2,)) if found else EARLIEST_POSITION
            index = numbers[2] if len(numbers) == 3 else -1
            split_entries = int(entries) if has_entries else 0
            return Reached(numbers[0], numbers[1], index, (began[0], began[1]), split_entries)
        except ValueError as error:
            raise InvalidConfiguration(f"{text!r:.100} is no place in a topic: the checkpoint is damaged") from error

    @staticmethod
    def before(message_id: WireMessageId) -> "Reached":
        """The place behind which this message is the first."""
        if message_id.batch_index > 0:
            return Reached(message_id.ledger_id, message_id.entry_id, message_id.batch_index - 1)
        return Reached(message_id.ledger_id, message_id.entry_id - 1)

    @property
    def order(self) -> tuple[int, int, float]:
        """Orders places: a whole entry is behind each part of it."""
        return (self.ledger, self.entry, self.batch_index if self.batch_index >= 0 else math.inf)

    @property
    def message_id(self) -> WireMessageId:
        """The last message that was read, or its entry."""
        return WireMessageId(self.ledger, self.entry, -1, self.batch_index)

    @property
    def following(self) -> WireMessageId:
        """The first message id behind it."""
        if self.batch_index >= 0:
            return WireMessageId(self.ledger, self.entry, -1, self.batch_index + 1)
        return WireMessageId(self.ledger, self.entry + 1)

    @property
    def first_wanted(self) -> WireMessageId:
        """The first entry of the query."""
        return WireMessageId(self.since[0], self.since[1] + 1)

    def __str__(self) -> str:
        index = f":{self.batch_index}" if self.batch_index >= 0 else ""
        entries = f"/{self.split_entries}" if self.split_entries else ""
        since = "" if self.since == EARLIEST_POSITION else f"@{self.since[0]}:{self.since[1]}"
        return f"{self.ledger}:{self.entry}{index}{entries}{since}"


def _numbers(text: str, counts: tuple[int, ...]) -> list[int]:
    numbers = [int(one) for one in text.split(":")]
    if len(numbers) not in counts:
        raise ValueError(f"{len(numbers)} numbers are too few or too many")
    return numbers


EARLIEST = Reached(-1, -1)


def place_in(offset: Offset, topic: str) -> Reached:
    """How far a partition was read."""
    return Reached.parse(offset[topic]) if topic in offset else EARLIEST
