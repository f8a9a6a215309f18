"""The checkpoint: one small file that says what a bookie's directory consists of, replaced as a whole.

It lists the sealed segments with their lengths, the first journal that a start must replay, and the journals known to
exist from there on. It also has the ledger states of that moment: fences, tombstones, limbo. Whatever it does not list
and is older than `replay_from` is rubbish of an interrupted compaction or removal, and is deleted at start. So each
change of the set of files is one atomic step. A crash between two steps leaves either the old set or the new one.

A checkpoint that cannot be decoded is corruption. `replay.py` then builds the set from the files themselves. The bookie
goes into limbo, because fences may be missing.
"""

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from ...protocol.errors import EntryCorrupt, ProtocolError
from ...runtime.files import Files
from ...runtime.rpc.messages import pack, unpack
from .held_ledgers import IdRanges

CHECKPOINT_NAME = "checkpoint"
_MAGIC = b"MGNTRCK2"
_HEAD_SIZE = len(_MAGIC) + 4


@dataclass
class Checkpoint:
    """See the module. Ledger ids are unsigned 64 bit."""

    instance: str
    next_file_id: int = 1
    replay_from: int = 1
    segments: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    """Sealed: (file id, kind suffix, end offset), oldest first."""
    journals: list[int] = field(default_factory=list[int])
    """Unsealed journals that existed, by file id."""
    fenced: dict[int, int] = field(default_factory=dict[int, int])
    """Nonce by ledger id."""
    given_up: list[int] = field(default_factory=list[int])
    """Fenced ledgers whose entries were dropped."""
    tombstones: IdRanges = field(default_factory=IdRanges)
    limbo: str = ""
    """Why the bookie is in limbo; empty when it is not."""
    fence_floor: int = 0
    """Ledgers below it that the bookie holds nothing of take no ordinary adds: their fences may have been lost."""

    def encode(self) -> bytes:
        body = pack(
            {
                "instance": self.instance,
                "next_file_id": self.next_file_id,
                "replay_from": self.replay_from,
                "segments": self.segments,
                "journals": self.journals,
                "given_up": _encode_ids(self.given_up),
                "fenced": _encode_ids(self.fenced),
                "nonces": _encode_ids(self.fenced.values()),
                "tombstones": [_encode_ids(column) for column in self.tombstones.columns],
                "limbo": self.limbo,
                "fence_floor": self.fence_floor,
            }
        )
        return _MAGIC + crc32c(_MAGIC + body).to_bytes(4, "big") + body

    def write(self, files: Files, path: str) -> None:
        """Put it in the place of the one before. Raises DiskFull, OSError."""
        files.write_atomic(path, self.encode())

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        """Raises EntryCorrupt for a checkpoint that is damaged, or holds what no bookie writes."""
        body = data[_HEAD_SIZE:]
        if data[: len(_MAGIC)] != _MAGIC or int.from_bytes(data[len(_MAGIC) : _HEAD_SIZE], "big") != crc32c(
            _MAGIC + body
        ):
            raise EntryCorrupt("the checkpoint is damaged")
        try:
            return cls._from_fields(unpack(body))
        except (KeyError, TypeError, ValueError, ProtocolError) as error:  # written by something else than `encode`
            raise EntryCorrupt(f"the checkpoint cannot be decoded: {error!r}") from error

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> "Checkpoint":
        firsts, lasts = fields["tombstones"]
        runs = list(zip(_decode_ids(firsts), _decode_ids(lasts), strict=True))
        if any(first > last for first, last in runs):
            raise ValueError("a run of deleted ledgers ends before it begins")
        return cls(
            _text(fields["instance"]),
            _number(fields["next_file_id"]),
            _number(fields["replay_from"]),
            [(_number(file_id), _text(kind), _number(end)) for file_id, kind, end in fields["segments"]],
            [_number(file_id) for file_id in fields["journals"]],
            dict(zip(_decode_ids(fields["fenced"]), _decode_ids(fields["nonces"]), strict=True)),
            _decode_ids(fields["given_up"]),
            IdRanges(runs),
            _text(fields["limbo"]),
            _number(fields["fence_floor"]),
        )


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not the number of a file, an offset or a ledger")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _encode_ids(ids: Iterable[int]) -> bytes:
    column = array("Q", ids)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _decode_ids(data: bytes) -> list[int]:
    column = array("Q")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()
