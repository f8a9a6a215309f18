"""An entry of a compacted ledger: the position that it had in the topic, and its bytes as they were published."""

from struct import Struct

from .errors import EntryCorrupt
from .message_id import Position

_POSITION = Struct(">qq")


def encode_compacted(position: Position, body: bytes) -> bytes:
    """An entry of a compacted ledger."""
    return _POSITION.pack(*position) + body


def decode_compacted(body: bytes) -> tuple[Position, bytes]:
    """The inverse of `encode_compacted`. Raises EntryCorrupt for what is too short."""
    if len(body) < _POSITION.size:
        raise EntryCorrupt("an entry of a compacted ledger is too short for its position")
    ledger_id, entry_id = _POSITION.unpack_from(body)
    return (ledger_id, entry_id), body[_POSITION.size :]
