"""How a cursor's state lies in its ledger: snapshots of one or more entries each, the last complete one counts.

    entry body = msgpack [part, parts, bytes]       parts of one snapshot follow each other, part counts from 0

A snapshot is complete when all its parts are there, and only then does it replace the one before: however many entries
a state needs, it switches at once. Nothing of a state is ever cut off to make it fit.
"""

import asyncio
from typing import Any, cast

from ..protocol.errors import MagnetarError, MetadataError, ProtocolError
from .ledger_reader import LedgerReader
from .ledger_writer import LedgerWriter
from .metadata_store import pack, unpack

PART_SIZE_MAX_BYTES = 1 << 20


def split(state: bytes, part_size_max: int = PART_SIZE_MAX_BYTES) -> list[bytes]:
    """The entry bodies of a snapshot."""
    pieces = [state[start : start + part_size_max] for start in range(0, len(state), part_size_max)] or [b""]
    return [pack([number, len(pieces), piece]) for number, piece in enumerate(pieces)]


async def append(writer: LedgerWriter, state: bytes, part_size_max: int = PART_SIZE_MAX_BYTES) -> None:
    """Write a snapshot; returns when all of it is durable. Raises what the writer's adds raise."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bodies = split(state, part_size_max)

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


async def read_last(reader: LedgerReader, last_entry: int) -> bytes | None:
    """The last complete snapshot of a closed cursor ledger, None when it has none.

    Raises what reading raises: an unreadable cursor is an error, never an empty one.
    """
    end = last_entry
    while end >= 0:
        part, parts, piece = _decode((await reader.read(end, end, 1))[0].body)
        first = end - part
        if part == parts - 1 and first >= 0:
            pieces = [_decode(entry.body) for entry in await reader.read_all(first, end - 1)] if parts > 1 else []
            if [found[:2] for found in pieces] != [(number, parts) for number in range(parts - 1)]:
                raise MetadataError(f"the snapshot at {reader.ledger_id}:{first} is not what was written")
            return b"".join(found[2] for found in pieces) + piece
        end -= 1  # of a snapshot whose writing was broken off
    return None


def _decode(body: bytes) -> tuple[int, int, bytes]:
    try:
        part, parts, piece = cast("list[Any]", unpack(body))
        if not 0 <= int(part) < int(parts):
            raise ValueError(f"part {part} of {parts}")
        return int(part), int(parts), bytes(piece)
    except (TypeError, ValueError, OverflowError, ProtocolError) as error:
        raise MetadataError(f"not a part of a cursor's snapshot: {error!r}") from error
