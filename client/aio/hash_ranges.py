"""Ranges of key hashes: which messages a reader of some of them wants.

The hash is Pulsar's for sticky keys: Murmur3 of the key, modulo 65,536. The key is the ordering key, else the partition
key, else the producer's name and the sequence id.
"""

import base64
import binascii

from ...protocol.hashing import murmur3_32
from ..consuming.message import Message
from ..core.key_ranges import HASHES


def key_hash(message: Message) -> int:
    """The hash that places a message."""
    return murmur3_32(_sticky_key(message)) % HASHES


def _sticky_key(message: Message) -> bytes:
    ordering_key = message.ordering_key()
    if ordering_key:
        return ordering_key.encode("utf-8", "surrogateescape")
    key = message.partition_key()
    if key:
        single = message[3]
        if single is not None and single.partition_key_b64_encoded:
            try:
                return base64.b64decode(key)
            except binascii.Error:
                return key.encode()
        return key.encode()
    return f"{message.producer_name()}-{message.sequence_id()}".encode()
