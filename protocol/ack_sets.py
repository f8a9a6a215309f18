"""Ack sets: which messages of a batch are not acknowledged yet, as 64-bit words on the wire and as one number here.

A bit that is set stands for a message that is not acknowledged. The least significant bit of the first word is that of
the batch's first message. Words that are left out at the end are 0. So a set says nothing of the batch's size.
"""

import struct
from collections.abc import Sequence

WORD_BITS = 64
_WORD_MASK = (1 << WORD_BITS) - 1


def words_to_bits(words: Sequence[int]) -> int:
    """Words, signed or not, as one number."""
    return int.from_bytes(b"".join([(word & _WORD_MASK).to_bytes(8, "little") for word in words]), "little")


def bits_to_words(bits: int) -> list[int]:
    """The inverse of `words_to_bits`, words signed, without zeros at the end."""
    count = -(-bits.bit_length() // WORD_BITS)
    return list(struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little")))


def open_messages(ack_set: Sequence[int], count: int) -> int:
    """How many messages of a batch of `count` are not acknowledged; 1 if all are, for no entry is free of permits."""
    bits = words_to_bits(ack_set)
    if bits.bit_length() > count:
        bits &= (1 << count) - 1
    return max(bits.bit_count(), 1)
