"""Decoded entries into batches of rows, each with the exact places where it ends. Pure: no I/O.

A *run* is a record batch with the entries that it came from: how many rows each gave. Rows leave in the order in which
runs came. A batch may end inside an entry. Its place then names the last message by its index. An entry that gave no
row (its messages were left out) counts as passed with the rows before it.

The messages of an entry have consecutive indexes, unless compaction or a decryption left some out. Such an entry is not
divided: a batch ends before it, or has all of it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from .positions import Marks, RowPlace


class EntryPart(NamedTuple):
    """The rows of an entry, or of a part of it with consecutive indexes."""

    rows: int
    last: RowPlace
    """The place of the last row."""
    first_index: int = -1
    """The index of the first row; −1 if the part is not divided."""


class _Run:
    """A record batch of one partition, and how much of it has left."""

    def __init__(self, topic: str, batch: pa.RecordBatch, parts: Sequence[EntryPart]) -> None:
        self.topic = topic
        self.batch = batch
        self._parts = parts
        self._ends: list[int] = []
        """Of each part: the rows up to its end."""
        end = 0
        for part in parts:
            end += part.rows
            self._ends.append(end)
        assert end == batch.num_rows
        self.taken = 0

    @property
    def left(self) -> int:
        return self.batch.num_rows - self.taken

    def end_within(self, rows_max: int) -> int:
        """Where a piece of up to so many rows ends, counted from the beginning of the run."""
        wanted = self.taken + rows_max
        if wanted >= self.batch.num_rows:
            return self.batch.num_rows
        place = bisect_right(self._ends, wanted)  # the part that has the row behind the end
        begin = self._ends[place - 1] if place else 0
        return wanted if self._parts[place].first_index >= 0 or begin == wanted else begin

    def end_of_next_part(self) -> int:
        return self._ends[bisect_right(self._ends, self.taken)]

    def place_at(self, end: int) -> RowPlace:
        """The last message of the rows up to `end`, and of entries without rows behind it."""
        place = bisect_right(self._ends, end)
        begin = self._ends[place - 1] if place else 0
        if begin == end:
            return self._parts[place - 1].last
        part = self._parts[place]
        return part.last._replace(batch_index=part.first_index + end - begin - 1)


class RowCutter:
    """See the module. Not thread-safe."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._runs: deque[_Run] = deque()
        self.rows = 0
        """Rows that have not left."""

    @property
    def is_empty(self) -> bool:
        """Whether `take` would give neither rows nor places."""
        return not self._runs

    def add(self, topic: str, batch: pa.RecordBatch, parts: Sequence[EntryPart]) -> None:
        """What was decoded of one partition, behind what came of it before. `parts` is not empty."""
        self._runs.append(_Run(topic, batch, parts))
        self.rows += batch.num_rows

    def take(self, rows_max: int) -> tuple[pa.Table, Marks]:
        """The next rows, and where they end in each partition that they are of.

        At most `rows_max`, unless an undivided entry alone has more. Of runs without rows there are only the places.
        """
        pieces: list[pa.RecordBatch] = []
        marks: dict[str, RowPlace] = {}
        room = rows_max
        while self._runs and (room > 0 or not self._runs[0].left):
            run = self._runs[0]
            end = run.end_within(max(room, 0))
            if end == run.taken and run.left:
                if pieces:
                    break
                end = run.end_of_next_part()
            marks[run.topic] = run.place_at(end)
            if end > run.taken:
                pieces.append(run.batch.slice(run.taken, end - run.taken))
            room -= end - run.taken
            self.rows -= end - run.taken
            run.taken = end
            if run.left:
                break
            self._runs.popleft()
        return pa.Table.from_batches(pieces, schema=self._schema), marks
