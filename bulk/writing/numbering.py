"""Sequence ids that make a repeated task known to the broker's deduplication.

Spark may run a task again: after a failure, or for speculation. A driver that comes back runs the unfinished
micro-batch of its checkpoint again. With deduplication each row is nevertheless stored once, by these invariants:

1. **A row has one identity.** It is the producer's name, the number of the micro-batch, and the number of the row in
   its task. The name has the write and the number of the task (`producer_name`). A write that is no stream is
   micro-batch 0.
2. **Sequence ids of a name rise.** Micro-batches come one after the other, and the rows of a task in their order.
3. **What is stored of a task is a prefix, in each partition of a topic.** Entries go out in order, and nothing is
   stored behind one that failed (`stop_on_failure`).
4. **One attempt at a time.** The broker admits one producer of a name. When it admits one, nothing of that name is
   under way. So the last sequence id that it answers is final, and says where the prefix ends.
5. **An attempt begins behind the prefix.** It sends no row of it again.
6. **Entries of all attempts end at the same rows.** Numbers of rows and bytes decide, and no time. An attempt that
   Spark has given up may come back when its successor has failed, too. Each of its entries is then known or new as a
   whole.
7. **An attempt has the rows of the first one, in their order.** Spark alone can keep this. It is checked: the last
   sequence id has a digest of the whole prefix. An attempt whose rows differ stores nothing behind the prefix.
8. **A row keeps its partition.** Where a row goes depends on its key or number, and on how many partitions the topic
   has. The sequence id has that number. An attempt that finds a prefix goes on with the number of the prefix, even if
   the topic has grown since.

A sequence id has, from its highest bit: the micro-batch, the number of partitions (1 without), the row, and the digest.
Names change with the era of a micro-batch (`BATCHES_PER_NAME`), so that the micro-batch fits into a few bits.
"""

from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from ...protocol.errors import InvalidConfiguration
from .encoding import Int64s

BATCH_BITS, PARTITIONS_BITS, ROW_BITS, DIGEST_BITS = 12, 11, 28, 12
"""63 bits together: Java's clients read sequence ids as signed numbers of 64 bits."""
BATCHES_PER_NAME = 1 << BATCH_BITS
PARTITIONS_MAX = (1 << PARTITIONS_BITS) - 1
ROWS_MAX = 1 << ROW_BITS
DIGEST_MASK = (1 << DIGEST_BITS) - 1


class RowsDiffer(Exception):
    """The topic has other rows under the name of this task than this attempt. The text says how."""


class RowNumber(NamedTuple):
    """What a sequence id says."""

    batch: int
    """Within its era."""
    partitions: int
    row: int
    digest: int

    @property
    def sequence_id(self) -> int:
        """A number that is not negative, of 63 bits at most."""
        high = (self.batch << PARTITIONS_BITS | self.partitions) << ROW_BITS | self.row
        return high << DIGEST_BITS | self.digest

    @staticmethod
    def parse(sequence_id: int) -> "RowNumber | None":
        """None for −1, which a broker answers when it knows nothing of a name."""
        if sequence_id < 0:
            return None
        high, digest = divmod(sequence_id, 1 << DIGEST_BITS)
        high, row = divmod(high, ROWS_MAX)
        batch, partitions = divmod(high, PARTITIONS_MAX + 1)
        return RowNumber(batch, partitions, row, digest)


def producer_name(write: str, task: int, batch: int | None) -> str:
    """The name of a task's producers. `batch` is None for a write that is no stream."""
    return f"{write}-{task}" if batch is None else f"{write}-{task}-{batch // BATCHES_PER_NAME}"


def partitions_to_use(name: str, batch: int, stored: list[RowNumber | None], partitions: int) -> int:
    """How many partitions of a topic the rows of a micro-batch are spread over.

    Args:
        name: Of the producers, for errors.
        batch: The micro-batch of this attempt, in its era.
        stored: What each partition answered.
        partitions: How many partitions the topic has now, at least 1.

    Raises:
        RowsDiffer: If rows of a later micro-batch are stored, or the topic has fewer partitions than it had.
        InvalidConfiguration: If it has more than sequence ids can say.
    """
    if partitions > PARTITIONS_MAX:
        raise InvalidConfiguration(
            f"a topic of {partitions} partitions is beyond the {PARTITIONS_MAX} that can be written exactly once: "
            "leave producerName and exactlyOnce out"
        )
    found = [one for one in stored if one is not None]
    later = max((one.batch for one in found), default=batch)
    if later > batch:
        raise RowsDiffer(f"the producer {name} has stored rows of micro-batch {later}, which is behind {batch}")
    used = {one.partitions for one in found if one.batch == batch} or {partitions}
    if len(used) > 1 or max(used) > partitions:
        raise RowsDiffer(f"the producer {name} has stored rows in {max(used)} partitions, and there are {partitions}")
    return used.pop()


class StoredPrefix:
    """The rows of one task that one partition of a topic gets, and what it has of them. See the module."""

    def __init__(self, name: str, batch: int, partitions: int, stored: RowNumber | None) -> None:
        self._name = name
        self._number = RowNumber(batch, partitions, 0, 0)
        self._stored = stored if stored is not None and stored.batch == batch else None
        self._reached = self._stored is None
        """Whether all of the prefix has passed."""
        self._digest = 0

    def pass_over(self, rows: Int64s, data: memoryview, ends: Int64s) -> int:
        """How many of these rows are in the prefix: they must not be sent.

        Args:
            rows: The numbers of the next rows that belong here, rising.
            data: What they are in an entry, end to end.
            ends: Where each of them ends in `data`.

        Raises:
            RowsDiffer: If the prefix has other rows.
        """
        if self._reached or self._stored is None or not len(rows):
            return 0
        known = int(np.searchsorted(rows, self._stored.row, "right"))
        if known:
            self._digest = crc32c(data[: int(ends[known - 1])], self._digest)
            self._reached = int(rows[known - 1]) == self._stored.row
        if self._reached and self._digest & DIGEST_MASK != self._stored.digest:
            raise self._differ(f"row {self._stored.row} or one before it is another one")
        if known < len(rows) and not self._reached:
            raise self._differ(f"row {self._stored.row} belonged to this partition, and does not now")
        return known

    def number(self, first_row: int, last_row: int, data: memoryview) -> tuple[int, int]:
        """The first and the last sequence id of an entry that has the next rows, which are `data`.

        Raises InvalidConfiguration when the task has more rows than can be told apart.
        """
        if last_row >= ROWS_MAX:
            raise InvalidConfiguration(f"a task has more than {ROWS_MAX} rows: use more tasks, with repartition")
        self._digest = crc32c(data, self._digest)
        last = self._number._replace(row=last_row, digest=self._digest & DIGEST_MASK).sequence_id
        return (last if first_row == last_row else self._number._replace(row=first_row).sequence_id), last

    @property
    def known_row(self) -> int:
        """The last row of the prefix, −1 without one."""
        return -1 if self._stored is None else self._stored.row

    def check_end(self) -> None:
        """There are no more rows. Raises RowsDiffer if the prefix has more."""
        if not self._reached:
            raise self._differ(f"row {self.known_row} is stored, and this attempt has fewer rows")

    def _differ(self, how: str) -> RowsDiffer:
        return RowsDiffer(f"the producer {self._name} has stored other rows than this attempt has: {how}")
