"""Planning a bulk read, without any I/O: what a user's bounds mean, and how a topic is cut into pieces.

A topic is read as *ranges* of entries of its ledgers. One reader at a time works on a *split*: consecutive ranges of
one partition. Splits are finer than partitions, so that a topic without partitions is read in parallel, and small
ledgers share one.

A message in chunks lies where its last chunk lies. So a split names the ranges of the read that lie *before* it, up to
a bound. Its reader looks there for the chunks that it lacks (`look_back`).

Bounds, each for the topic or, as a mapping, for single partitions:

| given | as `start` | as `end` |
| --- | --- | --- |
| `"earliest"` | everything | nothing |
| `"latest"` | nothing | everything that was published when the read was planned |
| a message id (or its serialized bytes, as in `__messageId`) | from this message on | up to and with this message |
| `datetime`, or milliseconds since the epoch | published at that time or later | published before that time |

So the time windows [a, b) and [b, c) have no message in common and none between them. A `datetime` without a time zone
means local time, as everywhere in Python.

The id of a message in chunks names two entries. As `start` it means the first chunk, as for a consumer that seeks to
it. As `end` it means the last one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, Protocol

from ..protocol.errors import InvalidConfiguration, MagnetarError, ProtocolError
from ..protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position, WireMessageId
from ..protocol.pulsar_pb2 import MessageIdData
from ..storage.metadata.ledger_metadata import LedgerMetadata
from .arrow_decoding import TimeWindow

ENTRY_SIZE_DEFAULT_BYTES = 32 << 10
"""Taken for entries of an open ledger when the broker does not say how large they are."""
SPLIT_SIZE_MIN_BYTES = 1 << 20
SPLIT_SIZE_MAX_BYTES = 16 << 20
TASK_SIZE_BYTES = 64 << 20
"""What one of Spark's tasks reads by default: to begin a task costs as much as to read some megabytes."""
SPLITS_PER_READER = 4
"""So many that readers which finish early find more to do."""
CLOCK_SKEW_MS = 60_000
"""How far the publish times of neighbouring messages may go back: producers on several machines have several clocks."""
LOOK_BACK_MAX_BYTES = 1 << 30
"""So far before a split its reader looks for the chunks of a message that ends there."""
LOOK_BACK_RANGES_MAX = 16
"""So many ledgers before it a split names at most: they travel with each of thousands of splits."""


class SerializableId(Protocol):
    """A message id of any client."""

    def serialize(self) -> bytes: ...


PointInTopic = str | int | datetime | bytes | SerializableId
PointsInTopic = PointInTopic | Mapping[int, PointInTopic]
"""One for the whole topic, or one for each of these partitions."""


class Bounds(NamedTuple):
    """What part of one partition is wanted: ids inclusive, the time window half open."""

    first: WireMessageId = WireMessageId.earliest
    last: WireMessageId = WireMessageId.latest
    window: TimeWindow = TimeWindow()

    def within(self, window: TimeWindow) -> "Bounds":
        """What of this lies in another window, too."""
        return self._replace(window=self.window.intersection(window))

    @property
    def empty(self) -> bool:
        """Whether nothing at all can lie between them."""
        start_ms, end_ms = self.window
        return self.first.position > self.last.position or (
            start_ms is not None and end_ms is not None and start_ms >= end_ms
        )


class LedgerRange(NamedTuple):
    """Entries `first_entry` to `last_entry`, inclusive, of a ledger; a batch index ≥ 0 narrows that entry down.

    Entries of a compacted ledger bring the position that they had in the topic. `compacted_between` are the ids, both
    inclusive, between which they count; None for a ledger of the log.
    """

    ledger: LedgerMetadata
    first_entry: int
    last_entry: int
    first_batch_index: int = -1
    last_batch_index: int = -1
    compacted_between: tuple[WireMessageId, WireMessageId] | None = None

    @property
    def entries(self) -> int:
        return self.last_entry - self.first_entry + 1


class ReadSplit(NamedTuple):
    """What one reader reads in one go: ranges of one partition, in order."""

    topic: str
    partition: int
    window: TimeWindow
    ranges: tuple[LedgerRange, ...]
    before: tuple[LedgerRange, ...] = ()
    """What the read has before them, in order: where messages begin whose last chunk is in a range. Up to a bound."""
    reaches_start: bool = True
    """Whether `before` begins where the read begins. A message that begins before that is not wanted."""
    loss_is_ignored: bool = False
    """Whether a message is left out whose first chunk is not in `before`, though it may be wanted."""

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.ranges)


@dataclass(frozen=True)
class PartitionPlan:
    """What the owner broker said of one partition: its chain of ledgers, and where it begins and ends now.

    `compacted` is its compacted ledger. `first` lies behind what that stands for.
    """

    topic: str
    partition: int
    ledgers: tuple[LedgerMetadata, ...]
    first: Position
    last: Position
    bounds: Bounds
    compacted: LedgerMetadata | None = None
    open_entry_bytes: int = 0
    """Size of an entry in the ledger that is still open, on average; 0 if the broker does not know."""
    chunks_from: WireMessageId | None = None
    """Of a read that goes on behind an earlier one: where that began. Chunks from there on count. None: `bounds.first`.
    """
    loss_is_ignored: bool = False
    """Whether a message is left out whose first chunk is gone, or lies too far back."""


def parse_bounds(
    start: PointsInTopic,
    end: PointsInTopic,
    partitions: Sequence[int],
) -> dict[int, Bounds]:
    """The bounds of each of `partitions` (−1: a topic without any). InvalidConfiguration if impossible."""
    result: dict[int, Bounds] = {}
    for partition in partitions:
        first, start_ms = _point(_of_partition(start, "start", "earliest", partition, partitions), first_chunk=True)
        last, end_ms = _point(_of_partition(end, "end", "latest", partition, partitions))
        for bound in (first, last):
            if bound is not None and bound.partition not in (-1, partition):
                raise InvalidConfiguration(
                    f"the message id {bound} belongs to another partition than {partition}", partition=partition
                )
        result[partition] = Bounds(
            first or WireMessageId.earliest, last or WireMessageId.latest, TimeWindow(start_ms, end_ms)
        )
    return result


def ledger_ranges(plan: PartitionPlan) -> list[LedgerRange]:
    """The wanted entries of one partition, ledger by ledger, the compacted one first.

    Raises ProtocolError when the chain does not reach the end that the broker named.
    """
    bounds = plan.bounds
    start = max(plan.first, bounds.first.position)
    end = min(plan.last, bounds.last.position)
    if bounds.empty:
        return []
    ranges = [] if plan.compacted is None else [_compacted_range(plan.topic, plan.compacted, bounds)]
    if start > end or plan.last[0] < 0:
        return ranges
    for ledger in plan.ledgers:
        if not start[0] <= ledger.ledger_id <= end[0]:
            continue
        if ledger.closed:
            last_entry = ledger.last_entry
        elif ledger.ledger_id == plan.last[0]:
            last_entry = plan.last[1]
        else:
            raise ProtocolError(f"ledger {ledger.ledger_id} of {plan.topic} is not closed and is not the last one")
        first_entry = max(start[1], 0) if ledger.ledger_id == start[0] else 0
        if ledger.ledger_id == end[0]:
            last_entry = min(last_entry, end[1])
        if first_entry <= last_entry:
            ranges.append(
                LedgerRange(
                    ledger,
                    first_entry,
                    last_entry,
                    _batch_index(bounds.first, ledger.ledger_id, first_entry),
                    _batch_index(bounds.last, ledger.ledger_id, last_entry),
                )
            )
    if (
        0 <= plan.last[1]
        and plan.last < bounds.last.position
        and (not plan.ledgers or plan.ledgers[-1].ledger_id < plan.last[0])
    ):
        raise ProtocolError(f"the ledgers of {plan.topic} end before its last position {plan.last}")
    return ranges


def _compacted_range(topic: str, ledger: LedgerMetadata, bounds: Bounds) -> LedgerRange:
    """All of a compacted ledger: where a position lies in it is known only when it is read."""
    if not ledger.closed:
        raise ProtocolError(f"the compacted ledger {ledger.ledger_id} of {topic} is not closed")
    return LedgerRange(ledger, 0, ledger.last_entry, compacted_between=(bounds.first, bounds.last))


def split(plans: Iterable[PartitionPlan], readers: int) -> list[ReadSplit]:
    """Splits of all partitions for that many readers, each about equally large and none too large to hold in memory."""
    return _split(plans, max(readers, 1) * SPLITS_PER_READER, SPLIT_SIZE_MIN_BYTES, SPLIT_SIZE_MAX_BYTES)


def split_by_size(plans: Iterable[PartitionPlan], size_bytes: int, splits_min: int = 1) -> list[ReadSplit]:
    """Splits of all partitions of about `size_bytes`, or smaller ones, so that there are about `splits_min`."""
    return _split(plans, splits_min, 1, size_bytes)


def split_by_entries(plan: PartitionPlan, entries: int) -> list[ReadSplit]:
    """Splits of one partition, of `entries` each and the last one of what is left.

    They follow from the bounds of the plan alone. Splits by size may be others when the same part of a topic is planned
    again: sizes are known better when a ledger is closed.
    """
    ranges = ledger_ranges(plan)
    ones = {found.ledger.ledger_id: 1 for found in ranges}
    return list(_splits_of(plan, _gather(ranges, ones, entries), sizes_of_entries(plan)))


def _split(plans: Iterable[PartitionPlan], number: int, least_bytes: int, most_bytes: int) -> list[ReadSplit]:
    parts = [(plan, ledger_ranges(plan)) for plan in plans]
    sizes = {ledger_id: size for plan, _ in parts for ledger_id, size in sizes_of_entries(plan).items()}
    total_bytes = sum(found.entries * sizes[found.ledger.ledger_id] for _, ranges in parts for found in ranges)
    size_bytes = min(max(total_bytes / number, least_bytes), most_bytes)
    return [found for plan, ranges in parts for found in _splits_of(plan, _gather(ranges, sizes, size_bytes), sizes)]


def _splits_of(
    plan: PartitionPlan, gathered: Iterable[tuple[LedgerRange, ...]], sizes: Mapping[int, int]
) -> Iterator[ReadSplit]:
    past, is_whole = _before_the_plan(plan)
    for ranges in gathered:
        before, reaches_start = _nearest(past, sizes)
        yield ReadSplit(
            plan.topic,
            plan.partition,
            plan.bounds.window,
            ranges,
            before,
            reaches_start and is_whole,
            plan.loss_is_ignored,
        )
        for part in ranges:
            if past and past[-1].ledger.ledger_id == part.ledger.ledger_id:
                part = past.pop()._replace(last_entry=part.last_entry, last_batch_index=part.last_batch_index)
            past.append(part)


def _before_the_plan(plan: PartitionPlan) -> tuple[list[LedgerRange], bool]:
    """What lies before the plan's bounds where chunks count, and whether that is all of it."""
    begin, start = plan.chunks_from, plan.bounds.first
    if begin is None or begin.position >= start.position:
        return [], True
    end = WireMessageId(start.ledger_id, start.entry_id - 1)
    earlier = replace(plan, first=EARLIEST_POSITION, bounds=Bounds(begin, end), compacted=None)
    is_whole = bool(plan.ledgers) and plan.ledgers[0].ledger_id <= begin.ledger_id
    return ledger_ranges(earlier), is_whole


def _nearest(past: Sequence[LedgerRange], sizes: Mapping[int, int]) -> tuple[tuple[LedgerRange, ...], bool]:
    """The nearest of what lies before a split, up to the bounds, and whether that is all of it."""
    found: list[LedgerRange] = []
    room_bytes = LOOK_BACK_MAX_BYTES
    for part in reversed(past):
        entries = min(part.entries, room_bytes // sizes[part.ledger.ledger_id])
        if len(found) == LOOK_BACK_RANGES_MAX or not entries:
            return tuple(found[::-1]), False
        found.append(part._replace(first_entry=part.last_entry - entries + 1))
        if entries < part.entries:
            return tuple(found[::-1]), False
        room_bytes -= entries * sizes[part.ledger.ledger_id]
    return tuple(found[::-1]), True


def _gather(
    ranges: Iterable[LedgerRange], sizes: Mapping[int, int], size_bytes: float
) -> Iterator[tuple[LedgerRange, ...]]:
    """Ranges cut and put together to about `size_bytes` each."""
    gathered: list[LedgerRange] = []
    room_bytes = size_bytes
    for found in ranges:
        entry_bytes = sizes[found.ledger.ledger_id]
        for piece in _cut(found, entry_bytes, size_bytes, room_bytes):
            if gathered and piece.entries * entry_bytes > room_bytes:
                yield tuple(gathered)
                gathered, room_bytes = [], size_bytes
            gathered.append(piece)
            room_bytes -= piece.entries * entry_bytes
    if gathered:
        yield tuple(gathered)


def _cut(found: LedgerRange, entry_bytes: int, size_bytes: float, room_bytes: float) -> list[LedgerRange]:
    """A range in pieces, the first for `room_bytes` (if anything fits there) and the others for `size_bytes`."""
    if room_bytes < entry_bytes:
        room_bytes = size_bytes
    pieces: list[LedgerRange] = []
    first_entry = found.first_entry
    while first_entry <= found.last_entry:
        count = max(1, int((size_bytes if pieces else room_bytes) // entry_bytes))
        last_entry = min(found.last_entry, first_entry + count - 1)
        pieces.append(
            LedgerRange(
                found.ledger,
                first_entry,
                last_entry,
                found.first_batch_index if first_entry == found.first_entry else -1,
                found.last_batch_index if last_entry == found.last_entry else -1,
                found.compacted_between,
            )
        )
        first_entry = last_entry + 1
    return pieces


def sizes_of_entries(plan: PartitionPlan) -> dict[int, int]:
    """By ledger of a plan: about how many bytes each of its entries has."""
    ledgers = plan.ledgers if plan.compacted is None else (plan.compacted, *plan.ledgers)
    return {ledger.ledger_id: entry_size_bytes(ledger, plan.open_entry_bytes) for ledger in ledgers}


def mean_entry_bytes(plan: PartitionPlan) -> int:
    """About how many bytes an entry of the plan has."""
    sizes, ranges = sizes_of_entries(plan), ledger_ranges(plan)
    entries = sum(found.entries for found in ranges)
    total_bytes = sum(found.entries * sizes[found.ledger.ledger_id] for found in ranges)
    return max(total_bytes // entries, 1) if entries else ENTRY_SIZE_DEFAULT_BYTES


def entry_size_bytes(ledger: LedgerMetadata, open_entry_bytes: int = 0) -> int:
    """About how many bytes each entry of a ledger has. `open_entry_bytes` says it of one that is open, if known."""
    if ledger.closed and ledger.last_entry >= 0 and ledger.length:
        return max(1, ledger.length // (ledger.last_entry + 1))
    return open_entry_bytes or ENTRY_SIZE_DEFAULT_BYTES


def _batch_index(bound: WireMessageId, ledger_id: int, entry_id: int) -> int:
    return bound.batch_index if bound.position == (ledger_id, entry_id) else -1


def _of_partition(
    given: PointsInTopic,
    side: str,
    otherwise: str,
    partition: int,
    partitions: Sequence[int],
) -> PointInTopic:
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(partitions))
        if unknown:
            raise InvalidConfiguration(f"{side}: the topic has no partition {unknown[0]}", partition=unknown[0])
        return given.get(partition, otherwise)
    if len(partitions) > 1 and not isinstance(given, str | int | datetime):
        raise InvalidConfiguration(
            f"{side}: a message id names one partition, but the topic has several: give {{partition: id, …}}"
        )
    return given


def start_id(serialized: bytes) -> WireMessageId:
    """The id where a read begins that is to begin with a message: of its first chunk, if it has chunks.

    Raises ProtocolError for bytes that are no message id.
    """
    found = WireMessageId.deserialize(serialized)
    data = MessageIdData.FromString(serialized)
    if not data.HasField("first_chunk_message_id"):
        return found
    first = WireMessageId.from_data(data.first_chunk_message_id)
    return WireMessageId(first.ledger_id, first.entry_id, found.partition)


def _point(given: PointInTopic, *, first_chunk: bool = False) -> tuple[WireMessageId | None, int | None]:
    """A bound as a message id or as milliseconds. With `first_chunk` the id of a message is that of its first chunk."""
    if isinstance(given, str):
        if given == "earliest":
            return WireMessageId(*EARLIEST_POSITION), None
        if given == "latest":
            return WireMessageId(*LATEST_POSITION), None
        raise InvalidConfiguration(f"a bound must be 'earliest', 'latest', a message id or a time, not {given!r}")
    if isinstance(given, datetime):
        return None, round(given.timestamp() * 1000)
    if isinstance(given, bool):
        raise InvalidConfiguration("a bound must be 'earliest', 'latest', a message id or a time, not a bool")
    if isinstance(given, int):
        return None, given
    try:
        serialized = given if isinstance(given, bytes) else bytes(given.serialize())
        return (start_id(serialized) if first_chunk else WireMessageId.deserialize(serialized)), None
    except (AttributeError, TypeError, MagnetarError) as error:
        raise InvalidConfiguration(f"{given!r} is not a bound of a read: {error}") from error
