"""How far the partitions of a followed topic were given to the application, and how far it has finished. Pure: no I/O.

`FollowProgress` has two places for each partition, and a flag for each batch that passes:

- `given`: everything up to there was in batches that the application got, or that no row was left in.
- `finished`: the application has finished everything up to there. Only that is acknowledged.

Invariants:

- `finished` never passes `given`, and both only move on.
- `finished` moves when the application says so. Where it says so by asking for the next batch, it also moves over a
  batch without rows if all before is finished. So rows that a filter dropped hold no mark back.
- No mark passes a row that is in use.

As text, a place is `ledger:entry`, or `ledger:entry:index` for a message inside a batch, as in the offsets of the data
source for Spark. `-1:-1` is before everything. A message in chunks is a row where its last chunk lies. Where its first
chunk lies before the place, and its row behind it, `<ledger:entry` follows: the first such chunk. Who begins at the
place needs what lies from there on.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple, cast

from ..protocol.errors import InvalidConfiguration
from ..protocol.message_id import Position
from ..protocol.topics import TopicName

PLACE_TEXT_MAX = 100


class RowPlace(NamedTuple):
    """The last message that was read of a partition: all of an entry, or of its batch up to an index."""

    ledger: int
    entry: int
    batch_index: int = -1
    batch_size: int = 0
    """For the acknowledgement of a part of a batch. It is no part of the text; 0 if it is not known."""
    chunks_from: Position | None = None
    """The first chunk up to here of a message whose row lies behind."""

    @staticmethod
    def parse(text: object) -> "RowPlace":
        """Raises InvalidConfiguration for what is no place."""
        place, mark, chunk = text.partition("<") if isinstance(text, str) and len(text) < PLACE_TEXT_MAX else ("",) * 3
        numbers, first = _numbers_in(place), _numbers_in(chunk)
        is_place = len(numbers) in (2, 3) and min(numbers[:2]) >= -1 and min(numbers[2:], default=0) >= 0
        is_chunk = len(first) == 2 and min(first) >= 0 and tuple(first) <= tuple(numbers[:2])
        if not is_place or (mark and not is_chunk):
            raise InvalidConfiguration(f"{text!r:.100} is no place in a topic: pass positions as `positions` gave them")
        index = numbers[2] if len(numbers) == 3 else -1
        return RowPlace(numbers[0], numbers[1], index, chunks_from=(first[0], first[1]) if mark else None)

    @property
    def position(self) -> Position:
        """The entry."""
        return (self.ledger, self.entry)

    def covers(self, other: "RowPlace") -> bool:
        """Whether everything up to `other` lies up to here, too."""
        if self.position != other.position:
            return self.position > other.position
        return self.batch_index < 0 or 0 <= other.batch_index <= self.batch_index

    def __str__(self) -> str:
        index = f":{self.batch_index}" if self.batch_index >= 0 else ""
        chunk = "" if self.chunks_from is None else "<{}:{}".format(*self.chunks_from)
        return f"{self.ledger}:{self.entry}{index}{chunk}"


def _numbers_in(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(":")]
    except ValueError:
        return []


EARLIEST_PLACE = RowPlace(-1, -1)

Marks = Mapping[str, RowPlace]
"""By full name of a partition, or of a topic without partitions: the last message."""


def parse_positions(given: object) -> dict[str, RowPlace]:
    """What `positions` gave, as it is or as JSON. Raises InvalidConfiguration, InvalidTopicName."""
    found = given
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except ValueError:
            found = None
    if not isinstance(found, Mapping):
        raise InvalidConfiguration(f'start must be "earliest", "latest" or what `positions` gave, not {given!r:.100}')
    places = cast(Mapping[object, object], found)
    return {TopicName.parse(str(name)).full: RowPlace.parse(place) for name, place in places.items()}


class FollowProgress:
    """See the module. Not thread-safe."""

    def __init__(self, begins: Marks, *, moves_by_itself: bool) -> None:
        """`begins` says for each partition where the subscription stands. Unless it `moves_by_itself`, `finished` is
        what the application says, and nothing else.
        """
        self._moves_by_itself = moves_by_itself
        self.given: dict[str, RowPlace] = dict(begins)
        self._finished: dict[str, RowPlace] = dict(begins)

    def begin(self, begins: Marks) -> None:
        """Partitions were added. Those that are known already stay where they are."""
        for name, place in begins.items():
            self.given.setdefault(name, place)
            self._finished.setdefault(name, place)

    def positions(self) -> dict[str, str]:
        """Where another iteration goes on behind what was given. It can be JSON."""
        return {name: str(place) for name, place in sorted(self.given.items())}

    def passed(self, marks: Marks, *, has_rows: bool) -> Marks:
        """The next batch comes to the application, or is passed over. Returns what may be acknowledged by that."""
        moves = self._moves_by_itself and not has_rows and not self._unfinished()
        self.given.update(marks)
        return self.finish() if moves else {}

    def finish(self) -> Marks:
        """The application has finished all that it got. Returns what may be acknowledged by that."""
        news = self._unfinished()
        self._finished.update(news)
        return news

    def finished_of(self, names: frozenset[str]) -> Marks:
        """What may be acknowledged of these partitions, known to the broker or not."""
        return {name: place for name, place in self._finished.items() if name in names}

    def _unfinished(self) -> Marks:
        return {name: place for name, place in self.given.items() if self._finished[name] != place}
