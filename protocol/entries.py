"""Entries: what a producer sends in one piece, what is stored, and what a consumer gets, byte for byte.

    [0x0e01][u32 crc32c][u32 metadata size][MessageMetadata][payload]

The CRC32C covers everything behind it. A section `[0x0e02][u32 size][BrokerEntryMetadata]` may come first; it is
outside the checksum. The payload is one message, or a batch (`batches`), possibly compressed (`compression`) or
encrypted: the metadata says so. A batch is marked by `num_messages_in_batch` being *present*, even when it is 1.
"""

from struct import Struct

from crc32c import crc32c
from google.protobuf.message import DecodeError

from .byte_stream import Buffer
from .errors import ChecksumError, ProtocolError
from .frames import MAGIC_BROKER_METADATA, MAGIC_CHECKSUM
from .pulsar_pb2 import BrokerEntryMetadata, MessageMetadata

_SIZE = Struct(">I")
_CRC_AND_SIZE = Struct(">II")
_MAGIC_SIZE_BYTES = 2
_CRC_SIZE_BYTES = 4

ENTRY_MESSAGES_MAX = 1 << 24
"""In one entry. Who acknowledges single messages of a batch keeps a bit for each, whatever the batch really holds."""


def build_entry(metadata: bytes | MessageMetadata, payload: bytes | bytearray | memoryview) -> bytes:
    """The entry of that metadata (serialized or not) and payload."""
    if not isinstance(metadata, bytes):
        metadata = metadata.SerializeToString()
    head = _SIZE.pack(len(metadata)) + metadata
    return b"".join((MAGIC_CHECKSUM, _SIZE.pack(crc32c(payload, crc32c(head))), head, payload))


def parse_entry(entry: Buffer, *, verify: bool = True) -> tuple[MessageMetadata, memoryview]:
    """`(metadata, payload)`, the payload a view into `entry`.

    ProtocolError if malformed, ChecksumError if (with `verify`) the checksum does not match.
    """
    view = memoryview(entry)
    start = _checksum_start(view)
    if verify and crc32c(view[start + _CRC_SIZE_BYTES :]) != _SIZE.unpack_from(view, start)[0]:
        raise ChecksumError("the checksum of an entry does not match", size_bytes=len(view))
    metadata, metadata_end = _metadata_at(view, start)
    return metadata, view[metadata_end:]


def parse_metadata(entry: Buffer) -> MessageMetadata:
    """The metadata of an entry whose checksum is not looked at; ProtocolError if malformed."""
    view = memoryview(entry)
    return _metadata_at(view, _checksum_start(view))[0]


def parse_broker_metadata(entry: Buffer) -> BrokerEntryMetadata | None:
    """What a broker added in front of an entry, None if nothing; ProtocolError if malformed."""
    view = memoryview(entry)
    start = _checksum_start(view)
    if start == _MAGIC_SIZE_BYTES:
        return None
    section = view[_MAGIC_SIZE_BYTES + _SIZE.size : start - _MAGIC_SIZE_BYTES]
    try:
        return BrokerEntryMetadata.FromString(section)  # pyright: ignore[reportArgumentType]
    except DecodeError as error:
        raise ProtocolError(f"the broker's metadata of an entry cannot be decoded: {error}") from None


def split_broker_metadata(entry: bytes) -> tuple[bytes, bytes]:
    """What a broker added in front of an entry (perhaps nothing), and the entry as it was published."""
    start = _checksum_start(memoryview(entry)) - _MAGIC_SIZE_BYTES
    return entry[:start], entry[start:]


def entry_checksum_ok(entry: Buffer) -> bool:
    """Whether the checksum matches; ProtocolError if there is none to check."""
    view = memoryview(entry)
    start = _checksum_start(view)
    return crc32c(view[start + _CRC_SIZE_BYTES :]) == _SIZE.unpack_from(view, start)[0]


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload is a batch (also one of a single message)."""
    return metadata.HasField("num_messages_in_batch")


def message_count(metadata: MessageMetadata) -> int:
    """How many messages the entry holds, 1 if it is no batch.

    Raises ProtocolError for a batch of fewer than one message, or of more than `ENTRY_MESSAGES_MAX`.
    """
    count = metadata.num_messages_in_batch
    if not 0 < count <= ENTRY_MESSAGES_MAX:
        raise ProtocolError(f"an entry claims to be a batch of {count} messages", count=count)
    return count


def _checksum_start(view: memoryview) -> int:
    """Where the CRC32C of the entry lies, behind any broker's section; ProtocolError if it is not all there."""
    start = 0
    if bytes(view[:_MAGIC_SIZE_BYTES]) == MAGIC_BROKER_METADATA:
        if len(view) < _MAGIC_SIZE_BYTES + _SIZE.size:
            raise ProtocolError("an entry is cut off", size_bytes=len(view))
        start = _MAGIC_SIZE_BYTES + _SIZE.size + _SIZE.unpack_from(view, _MAGIC_SIZE_BYTES)[0]
    if bytes(view[start : start + _MAGIC_SIZE_BYTES]) != MAGIC_CHECKSUM:
        raise ProtocolError("an entry has no checksum", size_bytes=len(view))
    start += _MAGIC_SIZE_BYTES
    if len(view) < start + _CRC_AND_SIZE.size:
        raise ProtocolError("an entry is cut off", size_bytes=len(view))
    return start


def _metadata_at(view: memoryview, start: int) -> tuple[MessageMetadata, int]:
    """The metadata and where it ends, given where the CRC32C lies; ProtocolError if malformed."""
    metadata_start = start + _CRC_AND_SIZE.size
    metadata_end = metadata_start + _SIZE.unpack_from(view, start + _CRC_SIZE_BYTES)[0]
    if metadata_end > len(view):
        raise ProtocolError("the metadata of an entry is cut off", size_bytes=len(view))
    try:
        metadata = MessageMetadata.FromString(view[metadata_start:metadata_end])  # pyright: ignore[reportArgumentType]
    except DecodeError as error:
        raise ProtocolError(f"the metadata of an entry cannot be decoded: {error}") from None
    if not metadata.IsInitialized():
        raise ProtocolError("the metadata of an entry lacks a required field")
    return metadata, metadata_end


def is_marker(metadata: MessageMetadata) -> bool:
    """Whether an entry is a marker: something that brokers tell each other, such as the end of a transaction, and no
    message. No consumer and no reader gets it."""
    return metadata.HasField("marker_type")
