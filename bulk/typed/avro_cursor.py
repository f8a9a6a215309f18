"""Reading Avro's numbers in many payloads at once: a cursor for each of them.

A number has 1 to 10 bytes, 7 bits in each, the lowest first. Most have one byte, so that is gathered from all rows
first. Of the others 8 bytes are gathered as one word. Then the length and the value come from arithmetic on words,
which is the same for each length. Only numbers of more than 8 bytes need a look at the bytes behind.

No cursor is trusted: each step is held against the end of its row before its bytes count.
"""

import numpy as np

from .payloads import PayloadMisfit, Payloads

U8 = np.uint64
_HIGH_BITS = U8(0x8080808080808080)
_LOW_BITS = U8(0x7F7F7F7F7F7F7F7F)
_SIZES = U8(0x0102030405060708)
"""Times the mark of the last byte, its highest byte is the number of bytes."""
_FOLDS = (
    (U8(0x7F007F007F007F00), U8(0x007F007F007F007F), U8(1)),
    (U8(0x3FFF00003FFF0000), U8(0x00003FFF00003FFF), U8(2)),
    (U8(0x0FFFFFFF00000000), U8(0x000000000FFFFFFF), U8(4)),
)
"""Pairs of groups of 7, 14 and 28 bits move together."""
_WORD_BYTES = 8


class Source:
    """The bytes that cursors read, also as words of 4 and 8 bytes that begin at each of them."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.words = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))
        self.halves = np.ndarray((len(data) - 3,), "<u4", data.data, strides=(1,))


class AvroCursor:
    """Where each row is read next. Rows are in the order of their bytes.

    All reads raise PayloadMisfit for what is cut off.
    """

    __slots__ = ("at", "end", "source")

    def __init__(self, source: Source, at: np.ndarray, end: np.ndarray) -> None:
        self.source = source
        self.at: np.ndarray = at
        self.end = end

    @classmethod
    def of(cls, payloads: Payloads) -> "AvroCursor":
        """At the beginning of each payload."""
        return cls(Source(payloads.data), payloads.starts, payloads.ends)

    @property
    def count(self) -> int:
        return len(self.at)

    def some(self, places: np.ndarray) -> "AvroCursor":
        """A cursor of its own for the rows at `places`."""
        return AvroCursor(self.source, self.at[places], self.end[places])

    def move(self, size: int | np.ndarray) -> np.ndarray:
        """Move on by sizes that are not negative. Returns where each row was."""
        at = self.at
        if np.less(self.end - at, size).any():
            raise PayloadMisfit("it is cut off")
        self.at = at + size
        return at

    def unsigned(self) -> np.ndarray:
        """A number of each row, as it is written."""
        at, end = self.at, self.end
        if not (at < end).all():
            raise PayloadMisfit("it is cut off")
        first = self.source.data[at]
        longer = first >= 128
        value = first.astype(U8)
        if not longer.any():
            self.at = at + 1
            return value
        if longer.all():
            value, sizes = self._words(at)
        else:
            rows = np.flatnonzero(longer)
            sizes = np.ones(len(at), np.int64)
            value[rows], sizes[rows] = self._words(at[rows])
        if np.less(end - at, sizes).any():
            raise PayloadMisfit("it is cut off")
        self.at = at + sizes
        return value

    def signed(self) -> np.ndarray:
        """A number of each row: the lowest bit of what is written says whether it is negative."""
        value = self.unsigned()
        return (value >> U8(1)).view(np.int64) ^ -(value & U8(1)).view(np.int64)

    def length(self) -> np.ndarray:
        """A number of each row that must not be negative."""
        value = self.signed()
        if (value < 0).any():
            raise PayloadMisfit("a length is negative")
        return value

    def _words(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers that begin at these places, and how many bytes they have."""
        words = self.source.words[at]
        ends = ~words & _HIGH_BITS
        mark = ends & (~ends + U8(1))  # the high bit of the last byte; 0 if that is not among the eight
        sizes = ((mark >> U8(7)) * _SIZES >> U8(56)).astype(np.int64)
        value = words & (mark ^ (mark - U8(1))) & _LOW_BITS
        for high, low, shift in _FOLDS:
            value = ((value & high) >> shift) | (value & low)
        if not sizes.all():
            rows = np.flatnonzero(sizes == 0)
            value[rows], sizes[rows] = self._longest(at[rows], value[rows])
        return value, sizes

    def _longest(self, at: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of 9 or 10 bytes, of which the bits of the first 8 bytes are known."""
        ninth = self.source.data[at + _WORD_BYTES].astype(U8)
        tenth = np.where(ninth < 128, 0, self.source.data[at + _WORD_BYTES + 1]).astype(U8)
        if (tenth > 1).any():
            raise PayloadMisfit("a number has more than 64 bits")
        value = value | (ninth & U8(127)) << U8(56) | tenth << U8(63)
        return value, np.where(ninth < 128, _WORD_BYTES + 1, _WORD_BYTES + 2)
