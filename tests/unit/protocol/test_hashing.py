"""Hashes against the vectors of the protocol (V1, V2) and against a second way to compute them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.hashing import INT31_MASK, java_string_hash, murmur3_32


@pytest.mark.parametrize(
    ("text", "value"),
    [("k1", 2110152746), ("k2", 1479966664), ("key1", 462881061), ("key2", 1936800180), ("key01", 39696932)],
)
def test_murmur_masked(text: str, value: int) -> None:
    assert murmur3_32(text.encode()) & INT31_MASK == value


@pytest.mark.promise("18.4")
def test_vector_1() -> None:
    value = murmur3_32(b"Order-3459134")
    assert value == 3112179635
    assert value & INT31_MASK == 964695987
    assert value % 65536 == (value & INT31_MASK) % 65536 == 6067
    assert (value & INT31_MASK) % 65535 + 1 == 20788


@pytest.mark.parametrize(
    ("text", "masked", "remainder"),
    [
        ("orders-aggregator-pod-2345-consumer1", 1003084738, 6028),
        ("orders-aggregator-pod-2345-consumer2", 373317202, 29842),
        ("orders-aggregator-pod-2345-consumer100", 320276078, 6533),
    ],
)
def test_vector_2_joined(text: str, masked: int, remainder: int) -> None:
    value = murmur3_32(text.encode()) & INT31_MASK
    assert (value, value % 65535) == (masked, remainder)


@pytest.mark.promise("18.13")
@pytest.mark.parametrize(
    ("point", "masked", "slot"), [("1", 919851442, 2183), ("2", 977177806, 50957), ("100", 793154917, 50348)]
)
def test_vector_2_separated(point: str, masked: int, slot: int) -> None:
    value = murmur3_32(f"orders-aggregator-pod-2345-consumer\0{0}\0{point}".encode()) & INT31_MASK
    assert (value, value % 65535 + 1) == (masked, slot)


@pytest.mark.promise("23.12")
@pytest.mark.parametrize(("text", "value"), [("keykeykeykeykey1", 434058482), ("keykeykey2", 42978643), ("", 0)])
def test_java_string_hash(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@given(st.text(max_size=50))
def test_java_string_hash_over_utf16_units(text: str) -> None:
    value = 0
    for character in text:
        units = [ord(character)]
        if units[0] > 0xFFFF:
            above = units[0] - 0x10000
            units = [0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF)]
        for unit in units:
            value = (value * 31 + unit) % (1 << 32)
    assert java_string_hash(text) == value & INT31_MASK


def test_java_string_hash_of_half_a_surrogate_pair() -> None:
    assert java_string_hash("\ud800") == 0xD800
