"""Payloads of single values, as Pulsar's Java client encodes them, into the column `value`.

Numbers are big-endian and have a fixed size. DATE and TIMESTAMP hold milliseconds since the epoch, INSTANT seconds and
nanoseconds, LOCAL_DATE days, LOCAL_DATE_TIME days and nanoseconds of the day. They become timestamps in microseconds,
and days; a finer part is cut off. TIME becomes milliseconds of the day, LOCAL_TIME microseconds of the day: numbers,
because Spark 3.5 has no type for them.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...protocol.schema_types import SchemaType
from .arrow_building import LOCAL_TIMESTAMP, TIMESTAMP, microseconds, numbers, texts
from .columns import VALUE
from .payloads import PayloadDecoder, PayloadMisfit, Payloads

DAY_MS = 86_400_000
DAY_US = DAY_MS * 1000
DAY_NS = DAY_US * 1000
SECOND_NS = 1_000_000_000


class Packed(NamedTuple):
    """A value of fixed size: its numbers, the column's type, and how they become what the column holds."""

    form: tuple[str, ...]
    kind: pa.DataType
    make: Callable[..., np.ndarray]


def _same(values: np.ndarray) -> np.ndarray:
    return values


def _truth(values: np.ndarray) -> np.ndarray:
    return values != 0


def _bounded(values: np.ndarray, least: int, most: int, what: str) -> np.ndarray:
    if len(values) and not (least <= int(values.min()) and int(values.max()) <= most):
        raise PayloadMisfit(f"{what} is not between {least} and {most}")
    return values


def _days(values: np.ndarray) -> np.ndarray:
    return _bounded(values, -(1 << 31), (1 << 31) - 1, "a number of days").astype(np.int32)


def _instant(seconds: np.ndarray, nanoseconds: np.ndarray) -> np.ndarray:
    most = (1 << 63) // 1_000_000 - 2
    whole = _bounded(seconds, -most, most, "a number of seconds") * 1_000_000
    return whole + _bounded(nanoseconds, 0, SECOND_NS - 1, "a number of nanoseconds") // 1000


def _local(days: np.ndarray, nanoseconds: np.ndarray) -> np.ndarray:
    most = (1 << 63) // DAY_US - 2
    whole = _bounded(days, -most, most, "a number of days") * DAY_US
    return whole + _bounded(nanoseconds, 0, DAY_NS - 1, "a number of nanoseconds") // 1000


def _time(values: np.ndarray) -> np.ndarray:
    return (values % DAY_MS).astype(np.int32)


def _local_time(values: np.ndarray) -> np.ndarray:
    return _bounded(values, 0, DAY_NS - 1, "a number of nanoseconds") // 1000


PACKED = {
    SchemaType.BOOLEAN: Packed(("u1",), pa.bool_(), _truth),
    SchemaType.INT8: Packed(("i1",), pa.int8(), _same),
    SchemaType.INT16: Packed(("i2",), pa.int16(), _same),
    SchemaType.INT32: Packed(("i4",), pa.int32(), _same),
    SchemaType.INT64: Packed(("i8",), pa.int64(), _same),
    SchemaType.FLOAT: Packed(("f4",), pa.float32(), _same),
    SchemaType.DOUBLE: Packed(("f8",), pa.float64(), _same),
    SchemaType.DATE: Packed(("i8",), TIMESTAMP, microseconds),
    SchemaType.TIMESTAMP: Packed(("i8",), TIMESTAMP, microseconds),
    SchemaType.TIME: Packed(("i8",), pa.int32(), _time),
    SchemaType.INSTANT: Packed(("i8", "i4"), TIMESTAMP, _instant),
    SchemaType.LOCAL_DATE: Packed(("i8",), pa.date32(), _days),
    SchemaType.LOCAL_TIME: Packed(("i8",), pa.int64(), _local_time),
    SchemaType.LOCAL_DATE_TIME: Packed(("i8", "i8"), LOCAL_TIMESTAMP, _local),
}
PLAIN = {SchemaType.STRING: pa.string(), SchemaType.NONE: pa.binary()}
"""Text, and bytes as they are."""


def primitive_type(kind: SchemaType) -> pa.DataType | None:
    """The type of the column; None for a schema that is not of single values."""
    return PACKED[kind].kind if kind in PACKED else PLAIN.get(kind)


class PrimitiveDecoder(PayloadDecoder):
    def __init__(self, schema: SchemaType) -> None:
        """`schema` is one that `primitive_type` knows."""
        kind = primitive_type(schema)
        super().__init__([pa.field(VALUE, kind)])
        self._schema = schema
        self._kind = kind

    def decode(self, payloads: Payloads) -> list[pa.Array]:
        sizes = payloads.ends - payloads.starts
        packed = PACKED.get(self._schema)
        if packed is None:
            return [texts(self._kind, payloads.data, payloads.starts, sizes, None)]
        expected = sum(np.dtype(form).itemsize for form in packed.form)
        if (sizes != expected).any():
            wrong = int(sizes[np.flatnonzero(sizes != expected)[0]])
            raise PayloadMisfit(f"{self._schema.client_name} has {expected} bytes, not {wrong}")
        whole = payloads.data[payloads.starts[:, None] + np.arange(expected)]
        parts: list[np.ndarray] = []
        start = 0
        for form in packed.form:
            size = np.dtype(form).itemsize
            part = np.ascontiguousarray(whole[:, start : start + size]).view(f">{form}").reshape(-1)
            parts.append(part.astype(form))
            start += size
        return [numbers(self._kind, packed.make(*parts), None)]
