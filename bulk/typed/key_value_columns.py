"""Pairs of a key and a value with a schema each: the columns `key` and `value`, structs where a part is a record.

INLINE has both in the payload, each behind its size. SEPARATED has the value there, and the key, in base64, as the key
of the message. So a tombstone of SEPARATED keeps its key.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...actors.schemas.definition import SchemaDefinition, key_and_value
from ...protocol.errors import InvalidSchema
from .columns import MESSAGE_KEY, VALUE, VALUE_PADDING
from .payloads import PayloadDecoder, PayloadMisfit, Payloads, no_columns, spread, struct_of

KEY = "key"
_SIZE_BYTES = 4
_BASE64 = np.full(256, 255, np.uint8)
_BASE64[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = np.arange(64)


class Parts(NamedTuple):
    """The schemas of both parts, and where keys travel."""

    key: SchemaDefinition
    value: SchemaDefinition
    separated: bool


def parts_of(definition: SchemaDefinition) -> Parts:
    """The parts of a KEY_VALUE schema. Raises NotAllowedError."""
    try:
        key, value = key_and_value(definition)
    except InvalidSchema as error:
        raise no_columns(str(error)) from None
    return Parts(key, value, definition.properties.get("kv.encoding.type") == "SEPARATED")


class PartDecoder(PayloadDecoder):
    """One part of pairs."""

    def __init__(self, name: str, part: PayloadDecoder, is_record: bool, separated: bool) -> None:
        super().__init__([pa.field(name, pa.struct(part.fields) if is_record else part.fields[0].type)])
        self._part = part
        self._is_record = is_record
        self._separated = separated
        self._place = (KEY, VALUE).index(name)
        if separated and name == KEY:
            self.column = MESSAGE_KEY

    def decode(self, payloads: Payloads) -> list[pa.Array]:
        if self._separated:
            return [self._made(decoded_keys(payloads) if self.column == MESSAGE_KEY else payloads)]
        found, present = inline_parts(payloads)[self._place]
        places = np.flatnonzero(present)
        return [spread(self._made(found.at(places)), places, payloads.total)]

    def _made(self, payloads: Payloads) -> pa.Array:
        return struct_of(self._part, payloads) if self._is_record else self._part.decode(payloads)[0]


def inline_parts(payloads: Payloads) -> tuple[tuple[Payloads, np.ndarray], tuple[Payloads, np.ndarray]]:
    """Keys and values of pairs, and which of them are not null. Raises PayloadMisfit."""
    keys, have_key, after = _part_at(payloads)
    values, have_value, _ = _part_at(Payloads(payloads.data, after, payloads.ends))
    return (keys, have_key), (values, have_value)


def _part_at(payloads: Payloads) -> tuple[Payloads, np.ndarray, np.ndarray]:
    """The part in front of some bytes, whether there is one, and where the rest begins."""
    data, starts, ends = payloads
    begin = starts + _SIZE_BYTES
    if (begin > ends).any():
        raise PayloadMisfit("the pair is cut off")
    sizes = data[starts[:, None] + np.arange(_SIZE_BYTES)].view(">i4").reshape(-1).astype(np.int64)
    if (sizes < -1).any() or (sizes > ends - begin).any():
        raise PayloadMisfit("a part of the pair is cut off")
    stop = begin + np.maximum(sizes, 0)
    return Payloads(data, begin, stop), sizes >= 0, stop


def decoded_keys(payloads: Payloads) -> Payloads:
    """The bytes that keys in base64 stand for. Raises PayloadMisfit for a key that is no base64."""
    data, starts, ends = payloads
    sizes = ends - starts
    if (sizes % 4).any():
        raise PayloadMisfit("the message's key is no base64")
    total = int(sizes.sum())
    firsts = np.cumsum(sizes) - sizes
    text = data[np.repeat(starts - firsts, sizes) + np.arange(total)]
    last = firsts + sizes - 1
    held = sizes > 0
    padding = np.zeros(len(sizes), np.int64)
    padding[held] = (text[last[held]] == ord("=")).astype(np.int64)
    double = np.flatnonzero(padding)
    padding[double] += text[last[double] - 1] == ord("=")
    for depth in (1, 2):
        text[last[padding >= depth] + 1 - depth] = ord("A")
    digits = _BASE64[text].reshape(-1, 4)
    if (digits == 255).any():
        raise PayloadMisfit("the message's key is no base64")
    found = np.empty((len(digits), 3), np.uint8)
    found[:, 0] = digits[:, 0] << 2 | digits[:, 1] >> 4
    found[:, 1] = digits[:, 1] << 4 | digits[:, 2] >> 2
    found[:, 2] = digits[:, 2] << 6 | digits[:, 3]
    begin = firsts // 4 * 3
    whole = np.concatenate((found.reshape(-1), np.frombuffer(VALUE_PADDING, np.uint8)))
    return Payloads(whole, begin, begin + sizes // 4 * 3 - padding)
