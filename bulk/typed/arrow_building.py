"""Arrow arrays out of NumPy's numbers and of places in bytes, without a Python object for each item."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

import numpy as np
import pyarrow as pa

from ...protocol.errors import InvalidConfiguration
from .payloads import PayloadMisfit

TIMESTAMP = pa.timestamp("us", tz="UTC")
LOCAL_TIMESTAMP = pa.timestamp("us")
DECIMAL_BYTES = 16
DECIMAL_DIGITS_MAX = 38
_MS_MAX = ((1 << 63) - 1) // 1000


def bits_of(mask: np.ndarray | None) -> pa.Buffer | None:
    """A mask in Arrow's form, a bit for each item."""
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))


def numbers(kind: pa.DataType, values: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Numbers of the type's width, or truths."""
    data = bits_of(values) if pa.types.is_boolean(kind) else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [bits_of(valid), data])


def texts(
    kind: pa.DataType, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, valid: np.ndarray | None
) -> pa.Array:
    """Binary or text, which lies at ascending places in `data`. Raises PayloadMisfit for text that is not UTF-8.

    The values and the gaps between them are an array on `data` itself, of which Arrow takes every second item.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = starts
    offsets[1::2] = starts + sizes
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    found = both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if valid is not None:
        found = pa.Array.from_buffers(pa.binary(), count, [bits_of(valid), *found.buffers()[1:]])
    if kind == pa.binary():
        return found
    try:
        return found.cast(kind)
    except pa.ArrowInvalid:
        raise PayloadMisfit("a text is not UTF-8") from None


def microseconds(values_ms: np.ndarray) -> np.ndarray:
    """Milliseconds as microseconds. Raises PayloadMisfit for what 64 bits cannot hold."""
    if len(values_ms) and not (-_MS_MAX <= int(values_ms.min()) and int(values_ms.max()) <= _MS_MAX):
        raise PayloadMisfit("a time in milliseconds does not fit into a timestamp")
    return values_ms * 1000


def decimals(
    kind: pa.Decimal128Type, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, valid: np.ndarray | None
) -> pa.Array:
    """Decimal numbers, whose digits are big-endian numbers in two's complement.

    Raises PayloadMisfit for too many digits.
    """
    size_max = int(sizes.max()) if len(sizes) else 0
    if size_max > DECIMAL_BYTES:
        raise PayloadMisfit(f"a decimal number has {size_max} bytes, more than {DECIMAL_BYTES}")
    present = sizes > 0
    negative = present & (data[starts] >= 128)
    digits = np.where(negative, np.uint8(255), np.uint8(0))[:, None].repeat(DECIMAL_BYTES, axis=1)
    last = starts + sizes - 1
    for place in range(size_max):  # the byte of that rank, of all numbers that have it
        has = sizes > place
        digits[has, place] = data[last[has] - place]
    found = pa.Array.from_buffers(kind, len(starts), [bits_of(valid), pa.py_buffer(digits)])
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raise PayloadMisfit(f"a decimal number has more than {kind.precision} digits") from None
    return found


def list_offsets(counts: np.ndarray) -> pa.Array:
    """Where each list begins, and the end, with 32 bits: all that Spark reads."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets.astype(np.int32))


def repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """A column of one value. Raises InvalidConfiguration if the value is none of that type."""
    try:
        one = pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidConfiguration(f"the default {value!r:.60} is no {kind}: {error}") from error
    return one.take(pa.array(np.zeros(count, np.int32)))
