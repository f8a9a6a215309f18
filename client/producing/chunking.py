"""From one message that is larger than an entry may be to the entries of its chunks.

A message is compressed as a whole and then cut; each chunk is an entry of its own. All chunks carry the message's
metadata and sequence id, and besides: `uuid` (`<producer>-<sequence id>`), `chunk_id` from 0 on,
`num_chunks_from_msg`, and `total_chunk_msg_size`, the bytes of all chunks together. The largest chunk and its metadata
are as large as the broker lets an entry be.

Among what a producer has under way, every chunk but the last is a `Chunk`, and the last is the message's own `Batch`.
So the message has one outcome. Its receipt is the last chunk's, and when one chunk fails, the message fails and its
other chunks are taken back (`take_back`). Chunks without a receipt are sent again like any other entry.
"""

from collections import deque
from collections.abc import Callable

from ...protocol.commands import varint
from ...protocol.errors import MessageTooBig
from .outbox import Batch

TOTAL_MAX_BYTES = (1 << 31) - 1
"""The protocol counts the bytes of all chunks in a signed number of 32 bits."""

_UUID = b"\xd2\x01"
_CHUNK_COUNT = b"\xd8\x01"
_TOTAL_SIZE = b"\xe0\x01"
_CHUNK_ID = b"\xe8\x01"


class Chunk(Batch):
    """An entry with a chunk that is not the last of its message. Nobody waits for its receipt alone."""

    __slots__ = ()

    def __init__(self, whole: Batch, entry: bytes) -> None:
        super().__init__(
            [], [], whole.first_sequence_id, whole.last_sequence_id, batched=False, encoded=False, attributes=None
        )
        self.chunks = whole.chunks
        self.entry = entry


def cut(
    size_max_bytes: int, uuid: str, metadata: bytes, payload: bytes, build: Callable[[bytes, memoryview], bytes]
) -> list[bytes]:
    """The entries of a message's chunks; `build` makes one of its metadata and its part of the payload.

    Raises MessageTooBig if the metadata leaves no room, or the message is larger than chunks can say.
    """
    size = len(payload)
    if size > TOTAL_MAX_BYTES:
        raise MessageTooBig(
            f"the message has {size} bytes, and chunks can hold {TOTAL_MAX_BYTES}: send less",
            size_bytes=size,
            size_max_bytes=TOTAL_MAX_BYTES,
        )
    name = uuid.encode()
    head = metadata + _UUID + varint(len(name)) + name + _TOTAL_SIZE + varint(size)
    # A number of chunks is no longer than the number of bytes.
    room = size_max_bytes - len(head) - len(_CHUNK_COUNT) - len(_CHUNK_ID) - 2 * len(varint(size))
    if room <= 0:
        raise MessageTooBig(
            f"the message has {len(metadata)} bytes of metadata, and the broker accepts {size_max_bytes} with a chunk: "
            "give it fewer properties",
            size_bytes=len(metadata),
            size_max_bytes=size_max_bytes,
        )
    view = memoryview(payload)
    count = -(-size // room)
    head += _CHUNK_COUNT + varint(count)
    return [build(head + _CHUNK_ID + varint(index), view[index * room : (index + 1) * room]) for index in range(count)]


def in_order(whole: Batch, entries: list[bytes]) -> list[Batch]:
    """What is under way for a message of several entries: its chunks, and last the message itself."""
    whole.chunks = []
    whole.entry = entries[-1]
    return [*(Chunk(whole, entry) for entry in entries[:-1]), whole]


def take_back(inflight: deque[Batch]) -> Batch:
    """Take the entry at the head, and if it is a chunk the whole message with it. Returns what has the callbacks."""
    first = inflight.popleft()
    while isinstance(first, Chunk):
        first = inflight.popleft()
    return first
