"""What a subscription has acknowledged: mark-delete position, ranges beyond it, single messages of batches. Pure.

State: everything up to and including `mark_delete` is acknowledged; beyond it the ranges in `_ranges` are; entries in
`batches` are acknowledged in part. All positions are those of a `LedgerChain`.

Transitions: `acknowledge` and `acknowledge_cumulative` only add; `reset` starts again at a position.

Invariants:
- `mark_delete` is as far as it can be: the entry behind it, if it exists, is not acknowledged.
- The mark never passes an entry that is not acknowledged; acknowledging what does not exist changes nothing.
- Ranges of one ledger are disjoint, do not touch, and lie beyond the mark. None is ever dropped.

A cursor's state as bytes: the whole of it, and what changed since it was last written. Pure; knows no chain.

    whole     msgpack {mark, ranges: [[ledger, [first, length − 1, …]], …],
                       batches: [[ledger, entry, size, bits], …], props}
    changes   the same with only the ranges and batches that came since, and props only if they changed

Acknowledging only ever adds, so that changes can be applied in order to a whole state without knowing more. A change
that is no addition (a reset), or too many changes, are not kept here: `lost` is set, and a snapshot is due.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple, cast

from ...protocol.ack_sets import words_to_bits
from ...protocol.errors import MetadataError, ProtocolError
from ...protocol.message_id import Position
from ..metadata.store import pack, unpack
from .acknowledged import Batches, BatchIndexes, EntryRanges, OpenMessages, check_batch_size
from .chain import LedgerChain

CHANGES_MAX = 10_000
"""Ranges and batches that are kept for the next delta."""
RANGES_PER_PIECE = 4096
"""So many are packed without another thread having its turn."""


class Whole(NamedTuple):
    """A copy of a state, to be packed anywhere."""

    mark: Position
    ranges: list[tuple[int, EntryRanges]]
    batches: Batches
    properties: Mapping[str, str]

    @property
    def size(self) -> int:
        """Ranges and batches in it."""
        return sum(len(ranges) for _, ranges in self.ranges) + len(self.batches)

    def pack(self) -> bytes:
        """Equal states give equal bytes. In pieces: packing holds Python's lock, and the loop may want it."""
        starts = [(one, start) for one in self.ranges for start in range(0, len(one[1]), RANGES_PER_PIECE)]
        pieces = [
            b"\x84",  # a map of four
            *(pack("mark"), pack(list(self.mark)), pack("ranges"), b"\xdd", len(starts).to_bytes(4, "big")),
            *(pack([ledger_id, ranges.pairs(start, RANGES_PER_PIECE)]) for (ledger_id, ranges), start in starts),
            *(pack("batches"), pack(_packable(self.batches)), pack("props"), pack(dict(self.properties))),
        ]
        return b"".join(pieces)


class Changes:
    """What came since the last write. `lost`: that is not known, and the next write must be the whole."""

    def __init__(self) -> None:
        self.lost = True
        self._ranges: dict[int, EntryRanges] = {}
        self._batches: dict[Position, None] = {}
        self._properties = False

    def lose(self) -> None:
        """Forget them: the whole is due."""
        self.lost = True
        self._ranges.clear()
        self._batches.clear()
        self._properties = False

    def begin(self) -> None:
        """The whole was copied to be written: count from here."""
        self.lose()
        self.lost = False

    def acknowledged(self, ledger_id: int, entry_id: int) -> None:
        """An entry behind the mark was acknowledged."""
        if self.lost:
            return
        ranges = self._ranges.get(ledger_id)
        if ranges is None:
            ranges = self._ranges[ledger_id] = EntryRanges()
        ranges.add(entry_id, entry_id)
        if len(ranges) > CHANGES_MAX:
            self.lose()

    def batch(self, position: Position) -> None:
        """A part of a batch was acknowledged."""
        if not self.lost:
            self._batches[position] = None
            if len(self._batches) > CHANGES_MAX:
                self.lose()

    def properties(self) -> None:
        """A property changed."""
        self._properties = not self.lost

    def take(self, mark: Position, batches: BatchIndexes, properties: Mapping[str, str]) -> bytes | None:
        """Pack them, and count from here on again; None when they are lost."""
        if self.lost:
            return None
        ranges: list[list[Any]] = []
        for ledger_id in sorted(self._ranges):
            if ledger_id >= mark[0]:
                if ledger_id == mark[0]:
                    self._ranges[ledger_id].remove_up_to(mark[1])
                ranges.append([ledger_id, self._ranges[ledger_id].pairs(0, CHANGES_MAX + 1)])
        record: dict[str, Any] = {
            "mark": list(mark),
            "ranges": ranges,
            "batches": _packable({one: batches[one] for one in self._batches if one in batches}),
        }
        if self._properties:
            record["props"] = dict(properties)
        self.begin()
        return pack(record)


class Read(NamedTuple):
    """A state that was read back, as it was written."""

    mark: Position
    ranges: dict[int, EntryRanges]
    batches: Batches
    properties: dict[str, str]


def read_back(whole: bytes, deltas: list[bytes]) -> Read:
    """A whole state with the changes since. Raises MetadataError for other bytes."""
    try:
        record = cast("Mapping[str, Any]", unpack(whole))
        state = Read(_position(record["mark"]), {}, {}, dict(cast("Mapping[str, str]", record["props"])))
        _apply(state, record)
        for delta in deltas:
            record = cast("Mapping[str, Any]", unpack(delta))
            mark = _position(record["mark"])
            if mark < state.mark:
                raise ValueError(f"the changes move the mark-delete position back from {state.mark} to {mark}")
            if "props" in record:
                state.properties.clear()
                state.properties.update(cast("Mapping[str, str]", record["props"]))
            state = state._replace(mark=mark)
            _apply(state, record)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError, ProtocolError) as error:
        raise MetadataError(f"the state of a cursor cannot be decoded: {error!r}") from error
    return state


def _apply(state: Read, record: Mapping[str, Any]) -> None:
    for ledger_id, flat in record["ranges"]:
        if len(flat) % 2 or not {*map(type, flat)} <= {int} or (flat and min(flat) < 0):
            raise ValueError(f"the ranges of ledger {ledger_id} are not pairs of numbers")
        firsts: list[int] = flat[0::2]
        ranges = state.ranges.get(_count(ledger_id))
        if ranges is None:
            ranges = state.ranges[ledger_id] = EntryRanges()
        ranges.extend(firsts, list(map(add, firsts, flat[1::2])))
    for ledger_id, entry_id, size, packed in record["batches"]:
        bits = int.from_bytes(memoryview(packed), "little")
        if len(packed) != (_count(size) + 7) // 8 or not 0 < bits < 1 << size:
            raise ValueError(f"{bits:#x} of a batch of {size} messages are open")
        state.batches[_count(ledger_id), _count(entry_id)] = (size, bits)


def _packable(batches: Batches) -> list[list[Any]]:
    return [
        [position[0], position[1], size, bits.to_bytes((size + 7) // 8, "little")]
        for position, (size, bits) in sorted(batches.items())
    ]


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not an id or a count")
    return value


def _position(value: Any) -> Position:
    ledger_id, entry_id = value
    if type(ledger_id) is not int or type(entry_id) is not int or ledger_id < -1 or entry_id < -1:
        raise ValueError(f"{ledger_id}:{entry_id} is not a position")
    return (ledger_id, entry_id)


class CursorState:
    """See the module. `chain` is shared with the managed ledger and grows on its own."""

    def __init__(self, chain: LedgerChain, mark_delete: Position, properties: Mapping[str, str] | None = None) -> None:
        self.properties: dict[str, str] = dict(properties or {})
        self.mark_delete = mark_delete
        self._chain = chain
        self._ranges: dict[int, EntryRanges] = {}
        self.batches = BatchIndexes()
        self._changes = Changes()

    # -- questions -----------------------------------------------------------------------------------------------

    @property
    def first_unacknowledged(self) -> Position:
        """The first entry to deliver; the place of the next one to come when all is acknowledged."""
        return self._chain.next_position(self.mark_delete)

    @property
    def range_count(self) -> int:
        return sum(len(ranges) for ranges in self._ranges.values())

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Ledger, first and last entry of each range beyond the mark, in order."""
        for ledger_id in sorted(self._ranges):
            for first, last in self._ranges[ledger_id]:
                yield ledger_id, first, last

    @property
    def part_count(self) -> int:
        """Ranges, and batches that are acknowledged in part: what writing the state costs."""
        return self.range_count + len(self.batches)

    def ranges_before(self, position: Position) -> int:
        """Ranges beyond the mark that begin in front of a position, and batches there that are acknowledged in part."""
        ledger_id, entry_id = position
        ranges = 0
        for one, those in self._ranges.items():
            if one <= ledger_id:
                ranges += len(those) if one < ledger_id else those.count_before(entry_id)
        return ranges + self.batches.count_before(position) if self.batches.sets else ranges

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        if position <= self.mark_delete:
            return True
        if not self._ranges:
            return False
        ranges = self._ranges.get(position[0])
        return ranges is not None and ranges.end_of(position[1]) is not None

    def next_unacknowledged(self, position: Position) -> Position:
        """The first place at or behind `position` that is not acknowledged."""
        if position <= self.mark_delete:
            position = self._chain.next_position(self.mark_delete)
        while (ranges := self._ranges.get(position[0])) is not None:
            end = ranges.end_of(position[1])
            if end is None:
                break
            position = self._chain.next_position((position[0], end))
        return position

    def unacknowledged_run(self, position: Position) -> int:
        """How many existing entries from an unacknowledged one on are not acknowledged, within its ledger."""
        ledger_id, entry_id = position
        info, ranges = self._chain.get(ledger_id), self._ranges.get(ledger_id)
        end = None if ranges is None else ranges.first_behind(entry_id)
        entries = 0 if info is None else info.entries
        return max((entries if end is None else min(end, entries)) - max(entry_id, 0), 0)

    def backlog_entries(self) -> int:
        """Existing entries that are not wholly acknowledged."""
        behind = self._chain.count_between(self.mark_delete, self._chain.last_confirmed)
        return behind - sum(ranges.count for ranges in self._ranges.values())

    # -- changes ---------------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Iterable[Position]) -> bool:
        """Acknowledge whole entries. Returns whether anything changed."""
        changed = False
        for position in positions:
            changed |= self._acknowledge_one(position)
        if changed:
            self._advance()
        return changed

    def acknowledge_batch_index(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        """Acknowledge the messages of a batch whose bits are clear in `ack_set`. Returns whether anything changed.

        Raises NotAllowedError beyond the bounds of `BatchIndexes`.
        """
        if batch_size < 1 or not self._chain.contains(position) or self.is_acknowledged(position):
            return False
        before = self.batches.get(position)
        left = self.batches.narrow(position, batch_size, words_to_bits(ack_set))
        if not left:
            return self.acknowledge([position])
        if self.batches.get(position) == before:
            return False
        self._changes.batch(position)
        return True

    def acknowledge_cumulative(self, position: Position) -> bool:
        """Acknowledge everything up to and including `position`. Returns whether anything changed."""
        if position <= self.mark_delete or position > self._chain.last_confirmed:
            return False
        self.mark_delete = position
        self._forget_up_to_mark()
        self._advance()
        return True

    def reset(self, position: Position, part: OpenMessages | None = None) -> None:
        """Start again: `position` is the first that is not acknowledged. `part`: of the batch there only these messages
        are open. Raises NotAllowedError beyond the bounds of `BatchIndexes`; nothing has changed then."""
        check_batch_size(0 if part is None else part[0])
        self.mark_delete = (position[0], position[1] - 1) if position[1] >= 0 else position
        self._ranges.clear()
        self.batches.clear()
        if part is not None and self._chain.contains(position):
            self.batches.narrow(position, *part)
        self._changes.lose()

    def is_ahead(self, end: Position) -> bool:
        """Whether the mark lies in a ledger behind that of `end`, the chain's highest place, or behind the last entry
        of its own one."""
        ledger_id, entry_id = self.mark_delete
        info = self._chain.get(ledger_id)
        return ledger_id > end[0] or (info is not None and entry_id >= info.entries)

    def begin_again(self) -> None:
        """Start at the first entry that exists, without properties: they are of entries that the chain has not."""
        self.properties.clear()
        self.reset(self._chain.first_position)

    def go_back_to(self, end: Position) -> bool:
        """Put a mark in a later ledger than that of `end`, the chain's highest place, back to it. Whether it was so."""
        ahead = self.mark_delete[0] > end[0]
        if ahead:
            self.mark_delete = end
            self._changes.lose()
        return ahead

    def skip_missing(self) -> bool:
        """Forget ranges of ledgers that are no longer in the chain. Returns whether the mark moved."""
        for ledger_id in [one for one in self._ranges if self._chain.get(one) is None]:
            del self._ranges[ledger_id]
        if self.batches.sets:
            self.batches.retain(lambda position: self._chain.get(position[0]) is not None)
        before = self.mark_delete
        self._advance()
        return self.mark_delete != before

    # -- persistence -------------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The whole state; equal states give equal bytes."""
        return Whole(self.mark_delete, sorted(self._ranges.items()), self.batches.copy(), self.properties).pack()

    def whole(self) -> Whole:
        """A copy of the state, to be packed and written; `changes` count from here on."""
        self._changes.begin()
        ranges = [(ledger_id, ranges.copy()) for ledger_id, ranges in sorted(self._ranges.items())]
        return Whole(self.mark_delete, ranges, self.batches.copy(), dict(self.properties))

    def take_changes(self) -> bytes | None:
        """What changed since `whole` or this was called last, packed; None when it is not known: write the whole."""
        return self._changes.take(self.mark_delete, self.batches, self.properties)

    def lose_changes(self) -> None:
        """What was taken was perhaps not written: the whole is due."""
        self._changes.lose()

    def take_snapshot(self, position: Position, properties: Mapping[str, str]) -> None:
        """Acknowledge everything up to `position`, and have these properties and no others: one change, never a part
        of it."""
        self.properties.clear()
        self.properties.update(properties)
        self._changes.properties()
        self.acknowledge_cumulative(position)

    @staticmethod
    def unpack(value: bytes, chain: LedgerChain, deltas: Sequence[bytes] = ()) -> "CursorState":
        """The inverse of `pack`, with changes applied, as far as the chain has the entries: what is not there is not
        acknowledged. Raises MetadataError for other bytes.
        """
        found = read_back(value, list(deltas))
        state = CursorState(chain, found.mark, found.properties)
        for ledger_id, ranges in found.ranges.items():
            info = chain.get(ledger_id)
            if info is not None:
                ranges.remove_from(info.entries)
                if ranges:
                    state._ranges[ledger_id] = ranges
        state._forget_up_to_mark()
        for position, batch in found.batches.items():
            if chain.contains(position) and not state.is_acknowledged(position):
                state.batches.put(position, batch)
        state.skip_missing()
        return state

    # -- inside ------------------------------------------------------------------------------------------------------

    def _acknowledge_one(self, position: Position) -> bool:
        if position <= self.mark_delete or not self._chain.contains(position):
            return False
        if self.batches.sets:
            self.batches.discard(position)
        ledger_id, entry_id = position
        mark_ledger, mark_entry = self.mark_delete
        if ledger_id == mark_ledger and entry_id == mark_entry + 1:
            ranges = self._ranges.get(ledger_id)
            if ranges is not None and ranges.end_of(entry_id) is not None:
                return False  # it was named before, ahead of its turn: `_advance` will get there
            self.mark_delete = position  # the common case, in order
            return True
        ranges = self._ranges.get(ledger_id)
        if ranges is None:
            ranges = self._ranges[ledger_id] = EntryRanges()
        if not ranges.add(entry_id, entry_id):
            return False
        self._changes.acknowledged(ledger_id, entry_id)
        return True

    def _advance(self) -> None:
        """Let the mark swallow the ranges that begin right behind it."""
        while self._ranges:
            ledger_id, entry_id = self._chain.next_position(self.mark_delete)
            ranges = self._ranges.get(ledger_id)
            if ranges is None:
                break
            end = ranges.end_of(entry_id)
            if end is None:
                break
            self.mark_delete = (ledger_id, end)
            self._forget_up_to_mark()

    def _forget_up_to_mark(self) -> None:
        """Ranges and batches that the mark has reached go; a range that it stands in or touches, it swallows first."""
        mark_ledger, mark_entry = self.mark_delete
        for ledger_id in [one for one in self._ranges if one < mark_ledger]:
            del self._ranges[ledger_id]
        ranges = self._ranges.get(mark_ledger)
        if ranges is not None:
            end = ranges.end_of(mark_entry)
            if end is None:
                end = ranges.end_of(mark_entry + 1)
            if end is not None:
                self.mark_delete = (mark_ledger, end)
            ranges.remove_up_to(self.mark_delete[1])
            if not ranges:
                del self._ranges[mark_ledger]
        if self.batches.sets:
            self.batches.remove_up_to(self.mark_delete)
