"""How a cursor's state lies in its ledger: snapshots, and behind each what changed since, one record for each write.

    part of a snapshot   msgpack [part, parts, bytes]     parts of one snapshot follow each other, counted from 0
    delta                msgpack [base, number, changes, parts]
                         base: entry of the snapshot's first part; number: from 0, without a gap; parts: the snapshot's

The state is the last snapshot of which all parts are there, with the deltas behind it applied in order. A snapshot
counts from its last part on and not before: however many entries a state needs, it switches at once. What stands behind
an incomplete snapshot is an error, for its writer had ended. Nothing is cut off to make it fit, and an unexpected
record is an error. Reading returns a state that was written, or raises.

A write costs as much as what changed. A snapshot is due when the deltas are as large as the snapshot before them. So
snapshots cost no more than deltas, and both bounds limit what a recovery reads.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from ...protocol.errors import MagnetarError, MetadataError, NoSuchEntry, ProtocolError
from ..ledger.ledgers import Ledgers
from ..ledger.reader import LedgerReader
from ..ledger.writer import LedgerWriter
from ..metadata.store import pack, unpack
from .cursor_record import CursorHome, CursorRecord
from .cursor_state import CursorState

logger = logging.getLogger(__name__)

PART_SIZE_MAX_BYTES = 1 << 20
DELTAS_MAX = 1000
DELTAS_SIZE_MIN_BYTES = 64 << 10
"""So much of deltas is allowed behind a small snapshot."""


class Stored(NamedTuple):
    """What a cursor ledger holds: a packed state and the packed changes since."""

    snapshot: bytes
    deltas: list[bytes]


class CursorLog:
    """The records of one cursor ledger that is being written. One write at a time; a failed one ends its use."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self._base = -1
        self._parts = 0
        self._snapshot_bytes = 0
        self._deltas = 0
        self._delta_bytes = 0

    def takes_delta(self, size: int) -> bool:
        """Whether changes of that size are better written as a delta than in a new snapshot."""
        room = max(DELTAS_SIZE_MIN_BYTES, self._snapshot_bytes) - self._delta_bytes
        return self._parts > 0 and self._deltas < DELTAS_MAX and size <= min(room, PART_SIZE_MAX_BYTES)

    async def snapshot(self, state: bytes) -> None:
        """Write a whole state; returns when all of it is durable. Raises what the writer's adds raise."""
        base = self.writer.last_added + 1
        self._parts = 0  # until it is complete there is nothing that a delta could rest on
        parts = await append(self.writer, state)
        self._base, self._parts, self._snapshot_bytes = base, parts, len(state)
        self._deltas = self._delta_bytes = 0

    async def delta(self, changes: bytes) -> None:
        """Write what changed; durable when this returns. Raises like `snapshot`."""
        parts, self._parts = self._parts, 0
        await add_all(self.writer, [pack([self._base, self._deltas, changes, parts])])
        self._parts = parts
        self._deltas += 1
        self._delta_bytes += len(changes)


def split(state: bytes, part_size_max: int = PART_SIZE_MAX_BYTES) -> list[bytes]:
    """The entry bodies of a snapshot."""
    pieces = [state[start : start + part_size_max] for start in range(0, len(state), part_size_max)] or [b""]
    return [pack([number, len(pieces), piece]) for number, piece in enumerate(pieces)]


async def append(writer: LedgerWriter, state: bytes, part_size_max: int = PART_SIZE_MAX_BYTES) -> int:
    """Write a snapshot; returns the number of its parts when all are durable. Raises what the writer's adds raise."""
    bodies = split(state, part_size_max)
    await add_all(writer, bodies)
    return len(bodies)


async def add_all(writer: LedgerWriter, bodies: Sequence[bytes]) -> None:
    """Write entries, at least one; returns when all are durable. Raises what the writer's adds raise."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def added(position: tuple[int, int] | None, error: MagnetarError | None, *, last: bool) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif last:
            done.set_result(None)

    for number, body in enumerate(bodies):
        is_last = number == len(bodies) - 1
        writer.add(body, lambda position, error, last=is_last: added(position, error, last=last))
    await done


async def read_state(ledgers: Ledgers, record: CursorRecord) -> tuple[bytes | None, list[bytes]]:
    """A stored cursor's last whole state, None when there is none, and the changes since; recovers its ledger.

    Raises what recovery and `read_last` raise.
    """
    if record.ledger_id is None:
        return record.state, []
    metadata = await ledgers.recover(record.ledger_id)
    return await read_last(ledgers.reader(metadata), metadata.last_entry) or (record.state, [])


async def read_or_begin_again(home: CursorHome, name: str, record: CursorRecord) -> tuple[bytes, list[bytes], bool]:
    """Like `read_state`, for a cursor that has a state. Whether it begins again comes last.

    The metadata may have been restored from a backup that names a ledger which was deleted since, when the cursor went
    on in another one. Its position is then unknown. It goes to the first entry that exists, durably: messages come
    again, and none is lost. Without this its topic could never be opened again.

    Raises like `read_state`, and MetadataError when there is no state and no restore that explains it.
    """
    try:
        packed, deltas = await read_state(home.ledgers, record)
    except NoSuchEntry:
        if not _may_be_deleted(home, record):
            raise
        packed, deltas = None, []
    if packed is not None:
        return packed, deltas, False
    if not _may_be_deleted(home, record):
        raise MetadataError(f"cursor {name} of {home.topic_path} has no state")
    first = home.chain.first_position
    logger.error(
        "cursor %s of %s: its state was in ledger %s, which was deleted after the backup. The metadata was "
        "restored from that backup, so the cursor starts again at %s",
        name,
        home.topic_path,
        record.ledger_id,
        first,
    )
    state = CursorState(home.chain, first)
    state.reset(first)
    return state.pack(), [], True


def _may_be_deleted(home: CursorHome, record: CursorRecord) -> bool:
    return record.ledger_id is not None and home.ledgers.client.directory.in_doubt(record.ledger_id)


async def read_last(reader: LedgerReader, last_entry: int) -> Stored | None:
    """What a closed cursor ledger holds in the end, None when it has no complete snapshot.

    Raises what reading raises, and MetadataError: an unreadable cursor is an error, never an empty one.
    """
    end = last_entry
    while end >= 0:
        record = _decode((await reader.read(end, end, 1))[0].body)
        if isinstance(record, _Delta):
            return await _read_from(reader, record.base, record.parts, end)
        if record.part == record.parts - 1:
            return await _read_from(reader, end - record.part, record.parts, end)
        end -= 1  # of a snapshot whose writing was broken off
    return None


async def _read_from(reader: LedgerReader, first: int, parts: int, end: int) -> Stored:
    """The snapshot of so many parts at `first`, and deltas up to `end`."""
    last_part = first + parts - 1
    if first < 0 or last_part > end:
        raise MetadataError(f"a cursor's snapshot of {parts} parts cannot start at {reader.ledger_id}:{first}")
    pieces: list[bytes] = []
    deltas: list[bytes] = []
    for entry in await reader.read_all(first, end):
        record, number = _decode(entry.body), entry.entry_id - first
        if isinstance(record, _Part) and record[:2] == (number, parts):
            pieces.append(record.piece)
        elif isinstance(record, _Delta) and record[:3] == (first, number - parts, parts):
            deltas.append(record.changes)
        else:
            raise MetadataError(f"entry {reader.ledger_id}:{entry.entry_id} is not the cursor's record of that place")
    return Stored(b"".join(pieces), deltas)


class _Part(NamedTuple):
    part: int
    parts: int
    piece: bytes


class _Delta(NamedTuple):
    base: int
    number: int
    parts: int
    changes: bytes


def _decode(body: bytes) -> _Part | _Delta:
    try:
        fields = cast("list[Any]", unpack(body))
        if len(fields) == 4:
            base, number, changes, parts = fields
            record = _Delta(_count(base), _count(number), _count(parts), memoryview(changes).tobytes())
            if not record.parts:
                raise ValueError("a delta names a snapshot without parts")
            return record
        part, parts, piece = fields
        record = _Part(_count(part), _count(parts), memoryview(piece).tobytes())
        if record.part >= record.parts:
            raise ValueError(f"part {part} of {parts}")
        return record
    except (TypeError, ValueError, OverflowError, ProtocolError) as error:
        raise MetadataError(f"an entry of a cursor's ledger cannot be decoded: {error!r}") from error


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
