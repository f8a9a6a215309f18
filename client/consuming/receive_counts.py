"""What a consumer has received from one partition: counted once per entry.

A message counts as received when the application takes it. What is counted is opened entries; what still lies in the
receive queue is subtracted when somebody asks, and what is dropped there is taken back.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from ..statistics.intervals import Counts, Interval
from .message import Message, Opened

_payload_of = itemgetter(2)


class Waiting(NamedTuple):
    """What the receive queue holds of one source."""

    opened: int = 0
    """Messages of opened entries."""
    opened_bytes: int = 0
    unopened: int = 0
    """Messages of other entries."""


NOTHING_WAITS = Waiting()


class ReceiveFigures(NamedTuple):
    """Of one partition at one moment. Counts are messages, bytes, failures, acknowledgements, failed ones."""

    total: Counts
    current: Counts
    last: Counts
    """Of the last whole interval, or of the first one so far."""
    last_s: float
    waiting: int


class ReceiveCounts:
    """Of one source of a receive queue. Changed under the queue's lock; any thread may read."""

    __slots__ = ("_interval", "bytes", "failed", "messages")

    def __init__(self, now_s: float) -> None:
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self._interval = Interval(now_s)

    def opened(self, messages: Sequence[Message]) -> None:
        """An entry was opened, and these are for the application."""
        self.messages += len(messages)
        self.bytes += payload_bytes(messages)

    def dropped(self, messages: Sequence[Message]) -> None:
        """The application does not get these after all."""
        self.messages -= len(messages)
        self.bytes -= payload_bytes(messages)

    def end_interval(self, now_s: float, waiting: Waiting, acks: tuple[int, int]) -> None:
        self._interval.end(now_s, self._counts(waiting, acks))

    def figures(self, now_s: float, waiting: Waiting, acks: tuple[int, int]) -> ReceiveFigures:
        """What is known now. `acks` are the acknowledgements, and those that failed."""
        counts = self._counts(waiting, acks)
        last, last_s = self._interval.last(now_s, counts)
        return ReceiveFigures(counts, self._interval.since(counts), last, last_s, waiting.opened + waiting.unopened)

    def _counts(self, waiting: Waiting, acks: tuple[int, int]) -> Counts:
        return (self.messages - waiting.opened, self.bytes - waiting.opened_bytes, self.failed, *acks)


def payload_bytes(messages: Sequence[Message]) -> int:
    if isinstance(messages, Opened):
        return len(messages) * len(messages.payloads[0])  # they are of one size, or it would not be `Opened`
    return sum(map(len, map(_payload_of, messages)))


def waiting_in(messages: Iterable[Message], unopened: Iterable[tuple[object, int]]) -> dict[object, Waiting]:
    """By source, from messages of opened entries, and from sources and numbers of messages of other entries."""
    found: dict[object, Waiting] = {}
    for message in messages:
        before = found.get(message.source, NOTHING_WAITS)
        found[message.source] = Waiting(before.opened + 1, before.opened_bytes + len(message[2]), before.unopened)
    for source, count in unopened:
        before = found.get(source, NOTHING_WAITS)
        found[source] = before._replace(unopened=before.unopened + count)
    return found
