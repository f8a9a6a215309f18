"""Rows of an Arrow batch become the bytes that our client's producers make of single messages."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.writing import encoding
from magnetar.bulk.writing.encoding import encode_rows, portions, varints
from magnetar.bulk.writing.routing import TURN_ROWS, java_string_hashes, partition_of_rows
from magnetar.client.core.configuration import HashingScheme
from magnetar.client.producing.outgoing import Outgoing
from magnetar.protocol.commands import varint
from magnetar.protocol.errors import InvalidMessage
from magnetar.protocol.hashing import INT31_MASK, java_string_hash, murmur3_32

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=140)
MESSAGES = st.tuples(
    st.none() | st.binary(max_size=300),
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    st.none() | st.integers(0, 1 << 42),
)


def batch_of(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    values, keys, ordering_keys, properties, times = zip(*rows, strict=True)
    maps = [None if one is None else list(one.items()) for one in properties]  # type: ignore[attr-defined]
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "__key": pa.array(keys, pa.string()),
            "__orderingKey": pa.array(ordering_keys, pa.string()),
            "__messageProperties": pa.array(maps, pa.map_(pa.string(), pa.string())),
            "__eventTime": pa.array([None if one is None else one * 1_000 + 999 for one in times], pa.timestamp("us")),
        }
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=12), st.integers(0, 11))
def test_rows_are_encoded_as_the_client_encodes_messages(rows: list[tuple[object, ...]], first: int) -> None:
    first = min(first, len(rows) - 1)
    found = encode_rows(batch_of(rows).slice(first))
    wanted = [Outgoing(value, more, key, order, None, time) for value, key, order, more, time in rows[first:]]  # type: ignore[arg-type]
    assert found.messages.to_pylist() == [one.encode() for one in wanted]
    assert found.sizes.tolist() == [len(one.payload) for one in wanted]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_payloads_of_one_size_are_encoded_the_same_way(size: int) -> None:
    rows = [bytes([number]) * size for number in range(7)]
    found = encode_rows(pa.record_batch({"value": pa.array(rows)}).slice(2))
    assert found.messages.to_pylist() == [Outgoing(one).encode() for one in rows[2:]]


def test_strings_and_milliseconds_are_taken_as_they_are() -> None:
    rows = pa.record_batch({"value": pa.array(["ä", "b"]), "__eventTime": pa.array([5, None], pa.int64())})
    wanted = [Outgoing("ä".encode(), event_timestamp=5), Outgoing(b"b")]
    assert encode_rows(rows).messages.to_pylist() == [one.encode() for one in wanted]


def test_what_no_message_can_have_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="is before 1970"):
        encode_rows(pa.record_batch({"value": pa.array([b"a"]), "__eventTime": pa.array([-1], pa.int64())}))
    maps = pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidMessage, match="a property is a string"):
        encode_rows(pa.record_batch({"value": pa.array([b"a"]), "__messageProperties": maps}))


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=20))
def test_numbers_are_varints(numbers: list[int]) -> None:
    import numpy as np

    assert varints(np.array(numbers, np.int64)).to_pylist() == [varint(number) for number in numbers]


def test_a_large_batch_is_encoded_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PORTION_MAX_BYTES", 1_000)
    batch = pa.record_batch({"value": pa.array([b"x" * 90] * 50 + [b"y" * 5_000] * 2)})
    found = list(portions(batch))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))
    assert all(one.nbytes <= 1_000 or one.num_rows == 1 for one in found) and len(found) < 20


@given(st.lists(st.none() | TEXTS, min_size=1, max_size=20))
def test_keys_have_the_hashes_of_other_clients(keys: list[str | None]) -> None:
    import numpy as np

    column = pa.array(keys, pa.string())
    assert java_string_hashes(column).tolist() == [java_string_hash(key or "") for key in keys]
    rows = np.arange(len(keys)) + TURN_ROWS - 3
    for scheme in HashingScheme:
        found = partition_of_rows(column, rows, 7, 5, scheme).tolist()
        hashes = {
            key: (java_string_hash(key) if scheme is HashingScheme.JavaStringHash else murmur3_32(key.encode()))
            for key in keys
            if key
        }
        assert found == [
            (hashes[key] & INT31_MASK) % 7 if key else (5 + int(row) // TURN_ROWS) % 7
            for key, row in zip(keys, rows, strict=True)
        ]
