"""A cursor's state as bytes: the whole of it, and what changed since it was last written. Pure; knows no chain.

    whole     msgpack {mark, ranges: [[ledger, [first, length − 1, …]], …],
                       batches: [[ledger, entry, size, bits], …], props}
    changes   the same with only the ranges and batches that came since, and props only if they changed

Acknowledging only ever adds, so that changes can be applied in order to a whole state without knowing more. A change
that is no addition (a reset), or too many changes, are not kept here: `lost` is set, and a snapshot is due.
"""

from collections.abc import Mapping
from operator import add
from typing import Any, NamedTuple, cast

from ...protocol.errors import MetadataError, ProtocolError
from ...protocol.message_id import Position
from ..metadata.store import pack, unpack
from .acknowledged import Batches, BatchIndexes, EntryRanges

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
