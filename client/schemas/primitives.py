"""Schemas of single values, encoded as Pulsar's Java client encodes them: numbers are big-endian.

Python has one kind of date and one of time. The schemas DATE, TIME and TIMESTAMP hold milliseconds, INSTANT seconds and
nanoseconds, LOCAL_DATE days, LOCAL_TIME nanoseconds, and LOCAL_DATE_TIME days and nanoseconds. Values here have
microseconds; a finer part of a value that somebody else wrote is cut off.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import cast

from ...protocol.errors import SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .schema import Schema, SchemaInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000


class BytesSchema(Schema):
    """Payloads as they are. The default: it registers nothing."""

    def _encode(self, value: object) -> bytes:
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        raise _unfit("BytesSchema", "bytes", value)

    def _encode_many(self, values: Sequence[object]) -> list[bytes]:
        if {*map(type, values)} <= {bytes}:
            return [*cast("Sequence[bytes]", values)]
        return self._one_by_one(values)

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        return data


class StringSchema(Schema):
    """Text in UTF-8."""

    info = SchemaInfo("STRING", SchemaType.STRING, b"null")  # what the official Python client registers

    def _encode(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise _unfit("StringSchema", "str", value)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SchemaSerializationError(f"a value of StringSchema is not valid Unicode: {error}") from None

    def _encode_many(self, values: Sequence[object]) -> list[bytes]:
        try:
            return [*map(str.encode, cast("Sequence[str]", values))]  # it takes nothing but str
        except (TypeError, UnicodeEncodeError):
            return self._one_by_one(values)

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SchemaSerializationError(f"the payload is no STRING: {error}") from None


class PackedSchema(Schema):
    """A value of fixed length."""

    info: SchemaInfo  # pyright: ignore[reportIncompatibleVariableOverride] (never None here)
    form: struct.Struct
    expected: str
    plain: type | None = None
    """Values of exactly this type are packed as they are."""
    _to_numbers: Callable[..., tuple[object, ...]]
    _of_numbers: Callable[..., object]

    def _encode_many(self, values: Sequence[object]) -> list[bytes]:
        if {*map(type, values)} == {self.plain}:
            try:
                return [*map(self.form.pack, values)]
            except (struct.error, OverflowError):
                pass
        return self._one_by_one(values)

    def _encode(self, value: object) -> bytes:
        try:
            return self.form.pack(*type(self)._to_numbers(value))
        except (TypeError, AttributeError, struct.error, OverflowError):
            raise _unfit(type(self).__name__, self.expected, value) from None

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        try:
            return type(self)._of_numbers(*self.form.unpack(data))
        except (struct.error, OverflowError, ValueError) as error:
            kind = self.info.type.client_name
            raise SchemaSerializationError(f"the payload of {len(data)} bytes is no {kind}: {error}") from None


def _unfit(schema: str, expected: str, value: object) -> SchemaSerializationError:
    return SchemaSerializationError(f"{schema} takes {expected}, not {type(value).__name__} {value!r:.60}")


def _whole(value: object) -> tuple[object]:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return (value,)


def _real(value: object) -> tuple[object]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return (value,)


def _truth(value: object) -> tuple[object]:
    if not isinstance(value, bool):
        raise TypeError
    return (value,)


def as_utc(moment: datetime) -> datetime:
    """A moment with its time zone; one without is taken for UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def microseconds(moment: object) -> int:
    """Since the epoch. Raises TypeError for what is no datetime."""
    if not isinstance(moment, datetime):
        raise TypeError
    return (as_utc(moment) - _EPOCH) // _MICROSECOND


def moment_at(microseconds_: int) -> datetime:
    """The moment so many microseconds after the epoch. Raises OverflowError."""
    return _EPOCH + timedelta(microseconds=microseconds_)


def days(day: object) -> int:
    """Since the epoch. Raises TypeError for what is no date."""
    if not isinstance(day, date) or isinstance(day, datetime):
        raise TypeError
    return (day - _FIRST_DAY).days


def day_at(number: int) -> date:
    """The day so many days after the epoch. Raises OverflowError."""
    return _FIRST_DAY + timedelta(days=number)


def microseconds_of_day(value: object) -> int:
    """Since midnight. Raises TypeError for what is no time."""
    if not isinstance(value, time):
        raise TypeError
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def time_at(microseconds_: int) -> time:
    """The time so many microseconds after midnight. Raises ValueError."""
    if not 0 <= microseconds_ < _DAY_US:
        raise ValueError(f"{microseconds_} is no number of microseconds within a day")
    return (datetime.min + timedelta(microseconds=microseconds_)).time()


def _instant(value: object) -> tuple[object, ...]:
    seconds, rest = divmod(microseconds(value), 1_000_000)
    return seconds, rest * 1000


def _local(value: object) -> tuple[object, ...]:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise TypeError
    return days(value.date()), microseconds_of_day(value.time()) * 1000


def _packed(
    name: str,
    kind: SchemaType,
    form: str,
    expected: str,
    _to_numbers: Callable[..., tuple[object, ...]],
    _of_numbers: Callable[..., object],
) -> type[PackedSchema]:
    """A schema class. Its name is what the module calls it, so that it pickles."""
    members: dict[str, object] = {
        "__module__": __name__,
        "__doc__": f"{kind.client_name}: {expected}.",
        "info": SchemaInfo(name, kind),
        "form": struct.Struct(form),
        "expected": expected,
        "plain": _PLAIN.get(_to_numbers),
        "_to_numbers": staticmethod(_to_numbers),
        "_of_numbers": staticmethod(_of_numbers),
    }
    return type(_CLASS_NAMES.get(kind, f"{name.capitalize()}Schema"), (PackedSchema,), members)


def _same(value: object) -> object:
    return value


def _ms(value: object) -> tuple[object]:
    return (microseconds(value) // 1000,)


def _moment_of_ms(ms: int) -> object:
    return moment_at(ms * 1000)


def _ms_of_day(value: object) -> tuple[object]:
    return (microseconds_of_day(value) // 1000,)


def _time_of_ms(ms: int) -> object:
    return time_at(ms % 86_400_000 * 1000)


def _moment_of_instant(seconds: int, nanoseconds: int) -> object:
    return moment_at(seconds * 1_000_000 + nanoseconds // 1000)


def _days(value: object) -> tuple[object]:
    return (days(value),)


def _ns_of_day(value: object) -> tuple[object]:
    return (microseconds_of_day(value) * 1000,)


def _time_of_ns(nanoseconds: int) -> object:
    return time_at(nanoseconds // 1000)


def _moment_of_local(day: int, nanoseconds: int) -> object:
    return datetime.combine(day_at(day), time_at(nanoseconds // 1000))


_PLAIN: dict[Callable[..., tuple[object, ...]], type] = {_whole: int, _real: float, _truth: bool}
_CLASS_NAMES = {
    SchemaType.LOCAL_DATE: "LocalDateSchema",
    SchemaType.LOCAL_TIME: "LocalTimeSchema",
    SchemaType.LOCAL_DATE_TIME: "LocalDateTimeSchema",
}
_MOMENT = "a datetime"
BooleanSchema = _packed("Boolean", SchemaType.BOOLEAN, "?", "a bool", _truth, _same)
Int8Schema = _packed("INT8", SchemaType.INT8, ">b", "an int of 8 bits", _whole, _same)
Int16Schema = _packed("INT16", SchemaType.INT16, ">h", "an int of 16 bits", _whole, _same)
Int32Schema = _packed("INT32", SchemaType.INT32, ">i", "an int of 32 bits", _whole, _same)
Int64Schema = _packed("INT64", SchemaType.INT64, ">q", "an int of 64 bits", _whole, _same)
FloatSchema = _packed("Float", SchemaType.FLOAT, ">f", "a float of 32 bits", _real, _same)
DoubleSchema = _packed("Double", SchemaType.DOUBLE, ">d", "a float", _real, _same)
DateSchema = _packed("Date", SchemaType.DATE, ">q", _MOMENT, _ms, _moment_of_ms)
TimestampSchema = _packed("Timestamp", SchemaType.TIMESTAMP, ">q", _MOMENT, _ms, _moment_of_ms)
TimeSchema = _packed("Time", SchemaType.TIME, ">q", "a time", _ms_of_day, _time_of_ms)
InstantSchema = _packed("Instant", SchemaType.INSTANT, ">qi", _MOMENT, _instant, _moment_of_instant)
LocalDateSchema = _packed("LocalDate", SchemaType.LOCAL_DATE, ">q", "a date", _days, day_at)
LocalTimeSchema = _packed("LocalTime", SchemaType.LOCAL_TIME, ">q", "a time", _ns_of_day, _time_of_ns)
LocalDateTimeSchema = _packed(
    "LocalDateTime", SchemaType.LOCAL_DATE_TIME, ">qq", "a datetime without a time zone", _local, _moment_of_local
)

BY_TYPE: dict[SchemaType, type[Schema]] = {
    kind.info.type: kind
    for kind in (
        BooleanSchema,
        Int8Schema,
        Int16Schema,
        Int32Schema,
        Int64Schema,
        FloatSchema,
        DoubleSchema,
        DateSchema,
        TimeSchema,
        TimestampSchema,
        InstantSchema,
        LocalDateSchema,
        LocalTimeSchema,
        LocalDateTimeSchema,
    )
}
BY_TYPE[SchemaType.STRING] = StringSchema
BY_TYPE[SchemaType.NONE] = BytesSchema
"""The schemas of single values."""
