"""Batches: many messages in one entry.

    repeated [u32 metadata size][SingleMessageMetadata][payload]

This is the one place where work is done per message, so it has fast paths. A *plain* message has no metadata but
the size of its payload; its header depends on the size alone. Messages of one size are encoded with a single join,
decoded with slices, and verified by encoding them again and comparing. Everything else goes through protobuf.

A count comes from the entry's metadata, which any producer may have written. So it is compared with the bytes there are
before anything is allocated for it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct

from google.protobuf.message import DecodeError

from .commands import varint
from .errors import ProtocolError
from .pulsar_pb2 import KeyValue, SingleMessageMetadata

_SIZE = Struct(">I")
_PAYLOAD_SIZE_TAG = 3 << 3
# The shortest message: its metadata's size, and metadata with a payload size of one byte.
MESSAGE_SIZE_MIN_BYTES = _SIZE.size + 2

MessagesOfBatch = list[tuple[SingleMessageMetadata | None, bytes]]


@lru_cache(maxsize=4096)
def plain_header(payload_size: int) -> bytes:
    """What stands before a plain message's payload of that size in a batch."""
    metadata = b"\x18" + varint(payload_size)
    return _SIZE.pack(len(metadata)) + metadata


def encode_batch(payloads: Sequence[bytes]) -> bytes:
    """A batch of plain messages."""
    sizes = set(map(len, payloads))
    if len(sizes) == 1:
        header = plain_header(sizes.pop())
        return header + header.join(payloads)
    headers = {size: plain_header(size) for size in sizes}
    return b"".join(chain.from_iterable([(headers[len(payload)], payload) for payload in payloads]))


def encode_single(
    payload: bytes,
    *,
    properties: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    event_time: int = 0,
    sequence_id: int | None = None,
    ordering_key: bytes | None = None,
    null_value: bool = False,
    partition_key_b64_encoded: bool = False,
) -> bytes:
    """One message as a piece of a batch; a batch is its pieces joined. `event_time` is in ms, 0 for none."""
    metadata = SingleMessageMetadata(payload_size=len(payload))
    if properties:
        metadata.properties.extend([KeyValue(key=key, value=value) for key, value in properties.items()])
    if partition_key is not None:
        metadata.partition_key = partition_key
        if partition_key_b64_encoded:
            metadata.partition_key_b64_encoded = True
    if event_time:
        metadata.event_time = event_time
    if sequence_id is not None:
        metadata.sequence_id = sequence_id
    if ordering_key is not None:
        metadata.ordering_key = ordering_key
    if null_value:
        metadata.null_value = True
    body = metadata.SerializeToString()
    return b"%b%b%b" % (_SIZE.pack(len(body)), body, payload)


def decode_batch(payload: bytes | bytearray | memoryview, count: int) -> MessagesOfBatch:
    """The `count` messages of a batch as `(metadata, payload)`, the metadata None for plain messages.

    ProtocolError unless exactly that many whole messages are there.
    """
    data = payload if isinstance(payload, bytes) else bytes(payload)
    plain = decode_uniform(data, count)
    if plain is not None:
        return list(zip(repeat(None), plain, strict=False))
    return _decode_any(data, count)


def decode_payloads(payload: bytes | bytearray | memoryview, count: int) -> list[bytes]:
    """The payloads alone of a batch, for readers that want nothing else; errors as `decode_batch`."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    plain = decode_uniform(data, count)
    if plain is not None:
        return plain
    return [message for _, message in _decode_any(data, count)]


def decode_uniform(data: bytes, count: int) -> list[bytes] | None:
    """The payloads if all messages are plain and of one size, else None, and `decode_batch` is to be asked.

    ProtocolError if so many messages cannot be in so many bytes.
    """
    size = len(data)
    if count < 1 or count * MESSAGE_SIZE_MIN_BYTES > size:
        raise ProtocolError(f"a batch of {size} bytes claims to hold {count} messages", count=count, size_bytes=size)
    if data[_SIZE.size] != _PAYLOAD_SIZE_TAG:
        return None
    message_size, left = divmod(size, count)
    metadata_size: int = _SIZE.unpack_from(data)[0]
    header_size = _SIZE.size + metadata_size
    if left or header_size > message_size:
        return None
    header = plain_header(message_size - header_size)
    if len(header) != header_size:
        return None
    payload_size = message_size - header_size
    # One beyond the end: an empty payload of the last message starts there.
    payloads = [data[start : start + payload_size] for start in range(header_size, size + 1, message_size)]
    return payloads if header + header.join(payloads) == data else None


def _decode_any(data: bytes, count: int) -> MessagesOfBatch:
    """The messages of a batch whatever they are; `count` was held against the size."""
    messages: MessagesOfBatch = []
    # Headers of plain messages seen so far → payload size.
    sizes: dict[bytes, int] = {}
    unpack_size = _SIZE.unpack_from
    parse = SingleMessageMetadata.FromString
    position, end = 0, len(data)
    for _ in range(count):
        start = position + 4
        if start > end:
            raise _cut_off(end)
        metadata_end = start + unpack_size(data, position)[0]
        if metadata_end > end:
            raise _cut_off(end)
        header = data[start:metadata_end]
        metadata = None
        size = sizes.get(header)
        if size is None and len(header) == 3 and header[0] == _PAYLOAD_SIZE_TAG and header[1] > 0x7F >= header[2]:
            # Plain and 128 bytes to 16 KiB long: worth reading by hand where sizes vary.
            size = header[1] & 0x7F | header[2] << 7
        if size is None:
            try:
                metadata = parse(header)
            except DecodeError as error:
                raise ProtocolError(f"the metadata of a message in a batch cannot be decoded: {error}") from None
            size = metadata.payload_size
            if size < 0 or not metadata.IsInitialized():
                raise ProtocolError("the metadata of a message in a batch lacks a required field")
            if header[0] == _PAYLOAD_SIZE_TAG and plain_header(size)[4:] == header:
                sizes[header] = size
                metadata = None
        position = metadata_end + size
        if position > end:
            raise _cut_off(end)
        messages.append((metadata, data[metadata_end:position]))
    if position != end:
        raise ProtocolError(f"a batch has {end - position} bytes behind its last message", count=count)
    return messages


def _cut_off(size: int) -> ProtocolError:
    return ProtocolError("a batch is cut off", size_bytes=size)
