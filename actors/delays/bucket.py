"""A bucket: held entries of a subscription, as bytes. Pure.

A bucket is a closed ledger of these entries:

    segments     one or more: count, then four columns: times, ledger ids, entry ids (8 bytes each), slots (2 bytes)
    table        the last one, msgpack {version, slots, segments: [[first time, count], …],
                                        covered: [[ledger id, [first entry, length − 1, …]], …]}

Numbers of segments are little-endian. Over all segments the held entries ascend by time.

*Covered* are the positions that need not be read from the topic while the bucket is there. These are those of its
entries. Positions between them are covered, too, if they were durably acknowledged before the bucket was named.

Nothing that is read is trusted: what is not as described raises EntryCorrupt.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter, le
from struct import Struct
from typing import Any, NamedTuple, cast

from ...protocol.errors import EntryCorrupt, ProtocolError
from ...runtime.rpc.messages import pack, unpack
from ...storage.managed.acknowledged import EntryRanges
from .delayed import TimedEntry, TimedRun

VERSION = 1

_COUNT = Struct("<I")
_COLUMNS = ("q", "q", "q", "H")
_ENTRY_BYTES = 26

Covered = dict[int, EntryRanges]
"""By ledger."""


class BucketSegment(NamedTuple):
    """The time of its first entry, and how many it has."""

    first_ms: int
    entries: int


class BucketTable(NamedTuple):
    """The last entry of a bucket. `slots` says how slots were computed."""

    slots: int
    segments: list[BucketSegment]
    covered: Covered


class BuiltBucket(NamedTuple):
    """A bucket before it is stored. `bodies` are those of the segments."""

    bodies: list[bytes]
    segments: list[BucketSegment]
    covered: Covered


def build(runs: Sequence[tuple[TimedRun, int]], segment_entries_max: int) -> BuiltBucket:
    """A bucket of what these runs have from the given places on, in the order in which `DelayedEntries` takes it.

    May run on any thread: the columns of a run never change.
    """
    ordered = merge(*(_from(run, head) for run, head in runs), key=itemgetter(0))
    bodies: list[bytes] = []
    segments: list[BucketSegment] = []
    found: dict[int, list[int]] = {}
    while piece := list(islice(ordered, segment_entries_max)):
        bodies.append(encode_segment(piece))
        segments.append(BucketSegment(piece[0][0], len(piece)))
        for _, (ledger_id, entry_id), _ in piece:
            found.setdefault(ledger_id, []).append(entry_id)
    return BuiltBucket(bodies, segments, {ledger_id: _ranges(ids) for ledger_id, ids in sorted(found.items())})


def encode_segment(entries: Sequence[TimedEntry]) -> bytes:
    """The body of a segment."""
    run = TimedRun.of(entries)
    columns = (run.times, run.ledgers, run.entries, run.slots)
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return b"".join([_COUNT.pack(len(entries)), *(column.tobytes() for column in columns)])


def decode_segment(body: bytes, segment: BucketSegment) -> TimedRun:
    """The entries of a segment, which the table describes so. Raises EntryCorrupt."""
    count = segment.entries
    if len(body) != _COUNT.size + count * _ENTRY_BYTES or _COUNT.unpack_from(body)[0] != count:
        raise EntryCorrupt(f"a segment of a bucket has {len(body)} bytes, and not {count} entries")
    columns: list[array[int]] = []
    start = _COUNT.size
    for code in _COLUMNS:
        column = array(code)
        end = start + count * column.itemsize
        column.frombytes(body[start:end])
        start = end
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
    times, ledgers, entries, slots = columns
    ascends = all(map(le, times, islice(times, 1, None)))
    if times[0] != segment.first_ms or not ascends or min(ledgers) < 0 or min(entries) < 0:
        raise EntryCorrupt("the entries of a segment of a bucket are out of order, or no positions")
    return TimedRun(times, ledgers, entries, slots, stored=True)


def encode_table(table: BucketTable) -> bytes:
    """The body of the last entry."""
    covered = [[ledger_id, ranges.pairs(0, len(ranges))] for ledger_id, ranges in sorted(table.covered.items())]
    fields = {"version": VERSION, "slots": table.slots, "segments": table.segments, "covered": covered}
    return pack(fields)


def decode_table(body: bytes, segment_count: int) -> BucketTable:
    """The inverse of `encode_table`, for a bucket with so many segments. Raises EntryCorrupt."""
    try:
        fields = cast("Mapping[str, Any]", unpack(body))
        if fields["version"] != VERSION:
            raise ValueError(f"its version is {fields['version']}")
        segments = [BucketSegment(_number(first_ms), _number(count)) for first_ms, count in fields["segments"]]
        covered: Covered = {}
        for ledger_id, flat in fields["covered"]:
            if len(flat) % 2:
                raise ValueError("its ranges are not pairs")
            firsts = [_number(one) for one in flat[0::2]]
            ranges = covered[_number(ledger_id)] = EntryRanges()
            ranges.extend(firsts, [first + _number(more) for first, more in zip(firsts, flat[1::2], strict=True)])
        if len(segments) != segment_count or not segments or not all(one.entries for one in segments) or not covered:
            raise ValueError(f"it has {len(segments)} segments, and not {segment_count}")
        return BucketTable(int(fields["slots"]), segments, covered)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError, ProtocolError) as error:
        raise EntryCorrupt(f"the table of a bucket cannot be decoded: {error!r}") from error


def _from(run: TimedRun, head: int) -> Iterator[TimedEntry]:
    for index in range(head, len(run.times)):
        yield run.times[index], (run.ledgers[index], run.entries[index]), run.slots[index]


def _ranges(entry_ids: Iterable[int]) -> EntryRanges:
    firsts: list[int] = []
    lasts: list[int] = []
    for entry_id in sorted(entry_ids):
        if lasts and entry_id <= lasts[-1] + 1:
            lasts[-1] = entry_id
        else:
            firsts.append(entry_id)
            lasts.append(entry_id)
    ranges = EntryRanges()
    ranges.extend(firsts, lasts)
    return ranges


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 on")
    return value
