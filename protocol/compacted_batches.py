"""What compaction reads and changes in a batch: the keys of its messages, and which of them it keeps.

A batch of which some messages are compacted away keeps its number of messages, so that ids stay what they were. A
message that is compacted away has metadata that says so, and no payload. The entry's metadata lists the indexes that
are kept (`compacted_batch_indexes`). All this is Pulsar's format.

Reading keys is work per message. The usual metadata (key, size, sequence id) is read by hand; everything else goes
through protobuf.
"""

from collections.abc import Collection
from struct import Struct

from google.protobuf.message import DecodeError

from .batches import MESSAGE_SIZE_MIN_BYTES
from .compression import CompressionType, compress, decompress
from .entries import build_entry, message_count, split_broker_metadata
from .errors import ProtocolError
from .pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_SIZE = Struct(">I")
_KEY_TAG = 2 << 3 | 2
_PAYLOAD_SIZE_TAG = 3 << 3
_SEQUENCE_ID_TAG = 8 << 3
_COMPACTED_OUT = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_COMPACTED_MESSAGE = _SIZE.pack(len(_COMPACTED_OUT)) + _COMPACTED_OUT

MessageKey = tuple[bytes | None, int]
"""The key of a message (None without one) and the size of its payload; a size of −1 where it is compacted away."""


def is_readable_batch(metadata: MessageMetadata) -> bool:
    """Whether the broker can look into the batch. It cannot into an encrypted one."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def keys_of_batch(metadata: MessageMetadata, payload: memoryview, size_max: int) -> list[MessageKey]:
    """The keys and payload sizes of a batch's messages, in order. Raises ProtocolError for a damaged batch."""
    return [(key, size) for key, size, _, _ in _pieces(_plain(metadata, payload, size_max), message_count(metadata))]


def keep_of_batch(
    entry: bytes, metadata: MessageMetadata, payload: memoryview, kept: Collection[int], size_max: int
) -> bytes:
    """The entry with the messages of these indexes only; the entry itself where that changes nothing.

    Raises ProtocolError for a damaged batch.
    """
    data = _plain(metadata, payload, size_max)
    pieces = _pieces(data, message_count(metadata))
    if all(index in kept or size < 0 for index, (_, size, _, _) in enumerate(pieces)):
        return entry
    body = b"".join(
        [data[start:end] if index in kept else _COMPACTED_MESSAGE for index, (_, _, start, end) in enumerate(pieces)]
    )
    changed = MessageMetadata()
    changed.CopyFrom(metadata)
    changed.uncompressed_size = len(body)
    del changed.compacted_batch_indexes[:]
    changed.compacted_batch_indexes.extend(sorted(kept))
    if metadata.compression != CompressionType.NONE:
        body = compress(metadata.compression, body)
    return split_broker_metadata(entry)[0] + build_entry(changed, body)


def _plain(metadata: MessageMetadata, payload: memoryview, size_max: int) -> bytes:
    if metadata.compression == CompressionType.NONE:
        return bytes(payload)
    return decompress(metadata.compression, payload, metadata.uncompressed_size, size_max)


def _pieces(data: bytes, count: int) -> list[tuple[bytes | None, int, int, int]]:
    """Of each message: key, payload size (−1 where it is compacted away), where it begins and ends in the batch."""
    end = len(data)
    if count * MESSAGE_SIZE_MIN_BYTES > end:
        raise ProtocolError(f"a batch of {end} bytes claims to hold {count} messages", count=count, size_bytes=end)
    unpack_size = _SIZE.unpack_from
    found: list[tuple[bytes | None, int, int, int]] = []
    position = 0
    for _ in range(count):
        start = position
        header = start + 4
        if header > end:
            raise _cut_off(end)
        behind = header + unpack_size(data, start)[0]
        if behind > end:
            raise _cut_off(end)
        key, size = _read_metadata(data, header, behind)
        position = behind + max(size, 0)
        if position > end:
            raise _cut_off(end)
        found.append((key, size, start, position))
    if position != end:
        raise ProtocolError(f"a batch has {end - position} bytes behind its last message", count=count)
    return found


def _read_metadata(data: bytes, start: int, end: int) -> tuple[bytes | None, int]:
    """Key and payload size of `SingleMessageMetadata`: a key of up to 127 bytes, the size, perhaps a sequence id."""
    key: bytes | None = None
    at = start
    if end - at > 2 and data[at] == _KEY_TAG and data[at + 1] < 0x80:
        behind = at + 2 + data[at + 1]
        key = data[at + 2 : behind]
        at = behind
    if at + 1 < end and data[at] == _PAYLOAD_SIZE_TAG:
        at += 1
        byte = data[at]
        size = byte & 0x7F
        if byte > 0x7F and at + 1 < end:
            at += 1
            byte = data[at]
            size |= (byte & 0x7F) << 7
        if byte < 0x80:
            at += 1
            if at == end or (data[at] == _SEQUENCE_ID_TAG and _is_varint(data, at + 1, end)):
                return key, size
    return _parse_metadata(data[start:end])


def _is_varint(data: bytes, start: int, end: int) -> bool:
    """Whether these bytes are one number and nothing else."""
    if not start < end <= start + 10 or data[end - 1] > 0x7F:
        return False
    return all(byte > 0x7F for byte in data[start : end - 1])


def _parse_metadata(data: bytes) -> tuple[bytes | None, int]:
    try:
        single = SingleMessageMetadata.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"the metadata of a message in a batch cannot be decoded: {error}") from None
    if single.payload_size < 0 or not single.IsInitialized():
        raise ProtocolError("the metadata of a message in a batch lacks a required field")
    if single.compacted_out:
        if single.payload_size:
            raise ProtocolError("a message that is compacted away has a payload")
        return None, -1
    return single.partition_key.encode() if single.HasField("partition_key") else None, single.payload_size


def _cut_off(size: int) -> ProtocolError:
    return ProtocolError("a batch is cut off", size_bytes=size)


def keyed_size(metadata: MessageMetadata, payload: memoryview) -> MessageKey:
    """Key and size of an entry that is one message, or that only its consumers can read; a size of 0 removes the
    key."""
    if not metadata.HasField("partition_key"):
        return None, len(payload)
    if metadata.null_value:
        size = 0
    else:
        size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
    return metadata.partition_key.encode(), size
