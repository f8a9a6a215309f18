"""The checkpoint of a streaming query that this program runs itself: which micro-batch reads what, and which are done.

A directory has two files for each micro-batch, as Spark's own checkpoints have. `offsets/N` says between which offsets
it lies, and is written, durably, before anything of it is read. `commits/N` says that it is done, and is written before
`offsets/N+1`. So the last micro-batch without `commits/N` is run again, with the same offsets and the same number.
"""

import json
from typing import NamedTuple

from ...protocol.errors import InvalidConfiguration
from ...protocol.plain_values import is_text_map
from ...runtime.files import Files
from .offsets import Offset, Reached

KEPT = 100
"""Micro-batches whose files are kept, as Spark keeps them."""


class MicroBatch(NamedTuple):
    """Which of a query's micro-batches, and between which offsets it lies."""

    number: int
    start: Offset
    end: Offset


class OffsetLog:
    """The log in one directory. Use by one query at a time."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._offsets, self._commits = f"{directory}/offsets", f"{directory}/commits"
        for path in (self._offsets, self._commits):
            files.make_directory(path)

    def last(self) -> tuple[MicroBatch | None, bool]:
        """The last micro-batch that was planned, and whether it is done.

        Raises InvalidConfiguration for what no query has written.
        """
        planned, done = self._numbers(self._offsets), self._numbers(self._commits)
        if not planned:
            return None, True
        number = planned[-1]
        path = f"{self._offsets}/{number}"
        try:
            start, end = map(_offset, json.loads(self._files.read_bytes(path)))
        except (ValueError, TypeError) as error:
            raise InvalidConfiguration(f"the checkpoint file {path} is damaged: {error}") from error
        return MicroBatch(number, start, end), number in done

    def plan(self, batch: MicroBatch) -> None:
        """Note what a micro-batch is about to read."""
        self._files.write_atomic(f"{self._offsets}/{batch.number}", json.dumps([batch.start, batch.end]).encode())

    def done(self, batch: MicroBatch) -> None:
        """Note that a micro-batch is done, and forget old ones."""
        self._files.write_atomic(f"{self._commits}/{batch.number}", b"{}")
        old = batch.number - KEPT
        for path in (f"{self._offsets}/{old}", f"{self._commits}/{old}"):
            if self._files.exists(path):
                self._files.remove(path)

    def _numbers(self, path: str) -> list[int]:
        return sorted(int(name) for name in self._files.list(path) if name.isdecimal())


def _offset(given: object) -> Offset:
    if not is_text_map(given):
        raise ValueError("it has no offsets")
    return {topic: str(Reached.parse(str(place))) for topic, place in given.items()}
