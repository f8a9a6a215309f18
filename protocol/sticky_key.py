"""The sticky key of an entry: Key_Shared sends entries of one key to one consumer.

It is the ordering key, else the key, else `<producer name>-<sequence id>`, so that entries without a key spread over
all consumers. An entry that cannot be parsed has the key `NONE_KEY`, and its consumer sees what is wrong with it.
"""

import binascii

from .byte_stream import Buffer
from .entries import parse_metadata
from .errors import ProtocolError
from .hashing import INT31_MASK, murmur3_32
from .pulsar_pb2 import MessageMetadata

NONE_KEY = b"NONE_KEY"


def sticky_key(metadata: MessageMetadata) -> bytes:
    """The sticky key of an entry with that metadata. A key that is not the base64 it claims to be counts as text."""
    if metadata.ordering_key:
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        if metadata.partition_key_b64_encoded:
            try:
                return binascii.a2b_base64(key, strict_mode=True)
            except binascii.Error:
                return key
        return key
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def key_hash(metadata: MessageMetadata) -> int:
    """The murmur3 hash of the sticky key of an entry with that metadata, 31 bits."""
    return murmur3_32(sticky_key(metadata)) & INT31_MASK


def sticky_hash(entry: Buffer) -> int:
    """The murmur3 hash of an entry's sticky key, 31 bits."""
    try:
        key = sticky_key(parse_metadata(entry))
    except ProtocolError:
        key = NONE_KEY
    return murmur3_32(key) & INT31_MASK
