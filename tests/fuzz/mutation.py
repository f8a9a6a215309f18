"""From valid inputs to nearly valid ones: damage to bytes, and random but well-formed protobuf messages.

Everything is drawn from a `Random`, so a seed gives the same input again.
"""

import copy
from collections.abc import Sequence
from random import Random
from struct import Struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

U32 = Struct(">I")
SIZE_MAX_BYTES = 1 << 16
"""Inputs are cut to this: what matters happens in small ones."""

_EXTREMES = [
    b"\xff" * 4,
    bytes(4),
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\xff\xff\xff",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    bytes(8),
    b"\xff" * 9 + b"\x01",  # the longest varint
    b"\x80" * 12,  # a varint without end
]
_TEXTS = ["", "t", "persistent://public/default/t", "persistent://public/default/x-partition-0", "bad//name", "ü" * 50]
_NUMBERS = [0, 1, 2, 7, 63, 64, 1000, (1 << 31) - 1]
_UNSIGNED = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)


def mutate(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """`data` with one to a few pieces of damage; `others` are inputs that pieces may be taken from."""
    out = bytearray(data)
    for _ in range(1 + min(random.getrandbits(2), random.getrandbits(2))):
        at = random.randrange(len(out) + 1)
        match random.randrange(10):
            case 0:
                out[at : at + 1] = random.randbytes(1)
            case 1 if out:
                out[at % len(out)] ^= 1 << random.randrange(8)
            case 2:
                del out[at : at + random.randint(1, 12)]
            case 3:
                out[at:at] = random.randbytes(random.randint(1, 12))
            case 4:
                extreme = random.choice(_EXTREMES)
                out[at : at + len(extreme)] = extreme
            case 5 if at + 4 <= len(out):
                near = (U32.unpack_from(out, at)[0] + random.choice((-1, 1, -4, 4, 256))) & 0xFFFFFFFF
                U32.pack_into(out, at, near)
            case 6:
                out[at:at] = out[at : at + random.randint(1, 64)] * random.randint(1, 4)
            case 7 if others:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                out[at : at + random.randint(0, 64)] = other[start : start + random.randint(0, 256)]
            case 8:
                del out[at:]
            case _:
                out[at:at] = random.choice(_EXTREMES)
    return bytes(out[:SIZE_MAX_BYTES])


ODD_VALUES: list[Any] = [
    None, -1, 0, 1, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63), 1.5, float("inf"), float("nan"), "", "text", "\0",
    "\udc80", b"", b"bytes", [], {}, [[]], [1, 2, 3], [None], {"a": 1}, True, "x" * 3000,
]  # fmt: skip
"""What a careless or foreign peer may put where something else belongs."""


def make_odd(value: Any, random: Random) -> None:
    """Put something odd somewhere into nested lists and dictionaries, in place."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    if not keys:
        return
    key = random.choice(list(keys))
    if isinstance(value[key], dict | list) and value[key] and random.random() < 0.7:
        make_odd(value[key], random)
    elif isinstance(value, dict) and random.random() < 0.1:
        del value[key]
    else:
        value[key] = copy.deepcopy(random.choice(ODD_VALUES))


def fill(message: Any, random: Random, depth: int = 0) -> Any:
    """The message with random values, extremes preferred, in all required and some optional fields."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and random.random() < 0.5:
            continue
        if field.message_type is not None:
            if depth < 2 or field.is_required:
                inner = getattr(message, field.name)
                if field.is_repeated:
                    for _ in range(random.choice((0, 1, 1, 3))):
                        fill(inner.add(), random, depth + 1)
                else:
                    inner.SetInParent()
                    fill(inner, random, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend([_value(field, random) for _ in range(random.randrange(4))])
        else:
            setattr(message, field.name, _value(field, random))
    return message


def _value(field: Any, random: Random) -> Any:
    kind = field.type
    if field.enum_type is not None:
        return random.choice(field.enum_type.values).number
    if kind == FieldDescriptor.TYPE_STRING:
        return random.choice(_TEXTS)
    if kind == FieldDescriptor.TYPE_BYTES:
        return random.randbytes(random.randrange(8))
    if kind == FieldDescriptor.TYPE_BOOL:
        return random.random() < 0.5
    if kind in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return random.random()
    if kind in _UNSIGNED:
        return random.choice([*_NUMBERS, (1 << (64 if kind == FieldDescriptor.TYPE_UINT64 else 32)) - 1])
    return random.choice([*_NUMBERS, -1, -(1 << 31)])
