"""Ranges of key hashes, as applications give them."""

from collections.abc import Iterable
from itertools import pairwise

from ...protocol.errors import InvalidConfiguration

HASHES = 65_536


def checked_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges in order, both ends inclusive. Raises InvalidConfiguration for impossible ones."""
    found: list[tuple[int, int]] = []
    for one in ranges:
        pair = tuple(one)
        if len(pair) != 2 or any(isinstance(end, bool) or not isinstance(end, int) for end in pair):  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison] (callers may be untyped)
            raise InvalidConfiguration(f"a range of key hashes is a pair of integers, not {one!r}")
        if not 0 <= pair[0] <= pair[1] < HASHES:
            raise InvalidConfiguration(f"a range of key hashes lies within 0 to {HASHES - 1}, and {one!r} does not")
        found.append(pair)
    found.sort()
    for (_, end), (start, _) in pairwise(found):
        if start <= end:
            raise InvalidConfiguration(f"ranges of key hashes must not overlap at {start}")
    if not found:
        raise InvalidConfiguration("key_hash_ranges holds no range: give at least one")
    return tuple(found)
