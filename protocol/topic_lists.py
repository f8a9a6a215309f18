"""Lists of topics as clients and brokers compare them: by a hash of their names."""

import struct
from collections.abc import Iterable

import crc32c


def topics_hash(names: Iterable[str]) -> str:
    """The hash of a set of full names of topics and partitions, in whatever order they are given.

    It is Pulsar's: CRC32C over the UTF-8 of the sorted names, joined by commas, as hexadecimal digits from the lowest
    byte on. Names are sorted as Java does, by UTF-16 code units.
    """
    ordered = sorted(names)
    text = ",".join(ordered)
    if not text.isascii():
        text = ",".join(sorted(ordered, key=_utf16))
    return struct.pack("<I", crc32c.crc32c(text.encode())).hex()


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
