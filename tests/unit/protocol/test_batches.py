"""Batches: both paths, and every way the bytes can be wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.batches import decode_batch, decode_payloads, encode_batch, encode_single, plain_header
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.pulsar_pb2 import SingleMessageMetadata

PAYLOADS = st.lists(st.binary(max_size=200), min_size=1, max_size=12)
UNIFORM = st.integers(0, 20).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)


def by_protobuf(payload: bytes, metadata: SingleMessageMetadata | None = None) -> bytes:
    metadata = metadata or SingleMessageMetadata()
    metadata.payload_size = len(payload)
    body = metadata.SerializeToString()
    return len(body).to_bytes(4, "big") + body + payload


@given(st.one_of(PAYLOADS, UNIFORM))
def test_plain(payloads: list[bytes]) -> None:
    data = encode_batch(payloads)
    assert data == b"".join(map(by_protobuf, payloads))
    assert decode_batch(data, len(payloads)) == [(None, payload) for payload in payloads]
    assert decode_payloads(memoryview(data), len(payloads)) == payloads


def test_no_messages() -> None:
    assert encode_batch([]) == b""
    with pytest.raises(ProtocolError):
        decode_batch(b"", 0)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 1 << 20])
def test_header_sizes(size: int) -> None:
    assert plain_header(size) + bytes(size) == by_protobuf(bytes(size))
    for payloads in ([bytes(size)], [bytes(size)] * 3, [bytes(size), b"x"]):
        assert decode_payloads(encode_batch(payloads), len(payloads)) == payloads


TEXT = st.text(max_size=5)


@given(
    st.binary(max_size=10),
    st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    st.none() | TEXT,
    st.integers(0, 1 << 50),
    st.none() | st.integers(0, (1 << 64) - 1),
    st.none() | st.binary(max_size=4),
    st.booleans(),
)
def test_single(
    payload: bytes,
    properties: dict[str, str] | None,
    key: str | None,
    event_time: int,
    sequence_id: int | None,
    ordering_key: bytes | None,
    null_value: bool,
) -> None:
    piece = encode_single(
        payload,
        properties=properties,
        partition_key=key,
        event_time=event_time,
        sequence_id=sequence_id,
        ordering_key=ordering_key,
        null_value=null_value,
    )
    mixed = plain_header(3) + b"abc" + piece + plain_header(3) + b"def"
    (_, first), (metadata, second), (_, third) = decode_batch(mixed, 3)
    assert (first, second, third) == (b"abc", payload, b"def")
    assert decode_payloads(mixed, 3) == [b"abc", payload, b"def"]
    if metadata is None:
        assert (properties or None, key, event_time, sequence_id, ordering_key, null_value) == (
            None,
            None,
            0,
            None,
            None,
            False,
        )
        return
    assert {pair.key: pair.value for pair in metadata.properties} == (properties or {})
    assert (metadata.partition_key if metadata.HasField("partition_key") else None) == key
    assert metadata.event_time == event_time
    assert (metadata.sequence_id if metadata.HasField("sequence_id") else None) == sequence_id
    assert (metadata.ordering_key if metadata.HasField("ordering_key") else None) == ordering_key
    assert metadata.null_value == null_value


def test_key_in_base64() -> None:
    ((metadata, _),) = decode_batch(encode_single(b"", partition_key="aw==", partition_key_b64_encoded=True), 1)
    assert metadata is not None
    assert metadata.partition_key_b64_encoded


def test_messages_that_look_uniform_and_are_not() -> None:
    # Both are as long, together, as two messages of the first one's size.
    first, second = (
        by_protobuf(b"abcdef"),
        by_protobuf(b"ab", SingleMessageMetadata(sequence_id=1 << 7, null_value=False)),
    )
    filler = by_protobuf(b"x" * (len(first) - 6 + 12 - len(second)))
    data = first + second + filler
    assert decode_payloads(data, 3) == [b"abcdef", b"ab", b"x" * (len(first) - 6 + 12 - len(second))]


def test_a_size_written_the_long_way_is_understood() -> None:
    data = b"\x00\x00\x00\x03\x18\x82\x00ab" * 2
    assert decode_payloads(data, 2) == [b"ab", b"ab"]


PLAIN = encode_batch([b"abc", b"defg"])


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (PLAIN, 0),
        (PLAIN, -1),
        (PLAIN, 1),
        (PLAIN, 3),
        (PLAIN, 1 << 31),
        (PLAIN[:-1], 2),
        (PLAIN + b"x", 2),
        (encode_batch([b"abc", b"def"])[:-1], 2),
        (b"\xff\xff\xff\xff\x18\x00", 1),
        (b"\x00\x00\x00\x00\x18\x00", 1),
        (b"\x00\x00\x00\x02\x08\x00", 1),
        (b"\x00\x00\x00\x02\xff\xff", 1),
        (b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01", 1),
        (b"\x00\x00\x00\x05\x18\x00\x12\x01\xff", 1),
        (b"\x00\x00\x00\x04\x18\x00\x0a\x00", 1),
        (by_protobuf(b"abc", SingleMessageMetadata(sequence_id=1)) + b"\x00\x00\x00", 1),
        (by_protobuf(b"abc", SingleMessageMetadata(sequence_id=1)) + bytes(6), 2),
    ],
)
def test_malformed(data: bytes, count: int) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(data, count)
    with pytest.raises(ProtocolError):
        decode_payloads(data, count)
