"""Hashes that clients and brokers must agree on: they decide partitions and Key_Shared slots.

Producers choose a partition with `java_string_hash` (the default) or `murmur3_32`, masked to 31 bits, modulo the
number of partitions. Brokers place keys on Key_Shared consumers with `murmur3_32`.
"""

from array import array
from sys import byteorder

import mmh3

# Java's int without its sign, as partition routing wants it.
INT31_MASK = 0x7FFFFFFF
_UINT32_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0), unsigned; mask with `INT31_MASK` where Java's signed int matters."""
    return mmh3.hash(data, 0, signed=False)


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` (31·h + c over UTF-16 units, 32 bits), masked to 31 bits."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    if byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & _UINT32_MASK
    return value & INT31_MASK
