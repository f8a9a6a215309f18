"""Which partition of a topic each row goes to, for all rows of an Arrow batch at once.

A key decides by its hash, as in our clients and in Java's. Rows without a key go to the partitions in turn, many
neighbours to one. All of it follows from the row, its number and its task. So a task that is repeated sends each row to
the same partition.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyarrow brings no types.

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...client.core.configuration import HashingScheme
from ...protocol.hashing import INT31_MASK, java_string_hash, murmur3_32
from .encoding import Int64s

TURN_ROWS = 4_096
"""So many neighbours without a key go to one partition: entries stay large."""
_BASE = np.uint32(31)


def partition_of_rows(
    keys: "pa.Array | None", rows: Int64s, partitions: int, start: int, scheme: HashingScheme
) -> Int64s:
    """The partition of each row.

    Args:
        keys: Keys as strings, null or empty for none; None if no row has one.
        rows: The number of each row in its task.
        partitions: How many partitions the topic has, at least 1.
        start: Where the turns begin, so that tasks with few rows do not all begin with the same partition.
        scheme: The hash of keys.
    """
    if partitions == 1:
        return np.zeros(len(rows), np.int64)
    turns = (start + rows // TURN_ROWS) % partitions
    if keys is None:
        return turns
    hashes = java_string_hashes(keys) if scheme is HashingScheme.JavaStringHash else _murmur3_hashes(keys)
    keyed = np.asarray(pc.fill_null(pc.greater(pc.binary_length(keys), 0), False))
    return np.where(keyed, hashes % partitions, turns)


def java_string_hashes(keys: "pa.Array") -> Int64s:
    """`java_string_hash` of each string; 0 for null."""
    data, ends, sizes = _bytes_of(keys)
    hashes = np.zeros(len(keys), np.int64)
    filled = np.flatnonzero(sizes)
    if not len(filled):
        return hashes
    # A byte at a place counts its value times 31 to the number of bytes behind it, modulo 2³².
    behind = np.repeat(ends[filled], sizes[filled]) - 1 - np.arange(len(data))
    powers = np.full(int(sizes.max()), _BASE, np.uint32)
    powers[0] = 1
    powers = np.multiply.accumulate(powers, dtype=np.uint32)
    summed = np.add.reduceat(data.astype(np.uint32) * powers[behind], ends[filled] - sizes[filled], dtype=np.uint32)
    hashes[filled] = summed & np.uint32(INT31_MASK)
    if data.max() > 0x7F:  # Java counts units of UTF-16
        wide = np.flatnonzero(np.logical_or.reduceat(data > 0x7F, ends[filled] - sizes[filled]))
        for place in filled[wide]:
            hashes[place] = java_string_hash(keys[int(place)].as_py())
    return hashes


def _murmur3_hashes(keys: "pa.Array") -> Int64s:
    found = pc.dictionary_encode(pc.fill_null(keys, ""))
    hashes = [murmur3_32(key.encode()) & INT31_MASK for key in found.dictionary.to_pylist()]
    return np.asarray(hashes, np.int64)[np.asarray(found.indices)]


def _bytes_of(texts: "pa.Array") -> tuple[npt.NDArray[np.uint8], Int64s, Int64s]:
    """The bytes of all texts, where each ends in them, and how many each has; none for null."""
    sizes = np.asarray(pc.fill_null(pc.binary_length(texts), 0), np.int64)
    whole = pc.fill_null(texts, "").cast(pa.large_string())
    first = whole.offset
    offsets = np.frombuffer(whole.buffers()[1], np.int64)[first : first + len(whole) + 1]
    data = np.frombuffer(whole.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[1:] - offsets[0], sizes
