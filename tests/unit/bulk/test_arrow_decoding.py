"""Decoding entries to Arrow: every column against a plain per-message reading, bounds, and what must be refused."""

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.arrow_decoding import EntryDecoder, TimeWindow, encode_block
from magnetar.bulk.typed.choice import RowShape
from magnetar.bulk.typed.columns import SCHEMA
from magnetar.protocol.batches import encode_batch, encode_single
from magnetar.protocol.compression import CompressionType, compress
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import EntryCorrupt
from magnetar.protocol.message_id import WireMessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata

TOPIC = "persistent://public/default/flights-partition-3"
PUBLISHED_MS = 1_700_000_000_123
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def at(time_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=time_ms)


def metadata(sequence_id: int = 7, publish_time: int = PUBLISHED_MS, **more: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p-1", sequence_id=sequence_id, publish_time=publish_time, **more)  # type: ignore[arg-type]


def batch_entry(
    pieces: list[bytes], compression: int = CompressionType.NONE, sequence_id: int = 7, publish_time: int = PUBLISHED_MS
) -> bytes:
    payload = b"".join(pieces)
    header = metadata(sequence_id, publish_time, num_messages_in_batch=len(pieces))
    if compression != CompressionType.NONE:
        header.compression = compression  # type: ignore[assignment]
        header.uncompressed_size = len(payload)
        payload = compress(compression, payload)
    return build_entry(header, payload)


def plain_entry(payloads: list[bytes], **more: int) -> bytes:
    header = metadata(num_messages_in_batch=len(payloads), **more)
    return build_entry(header, encode_batch(payloads))


def decode(entries: dict[tuple[int, int], bytes], partition: int = 3, **bounds: int) -> list[dict[str, object]]:
    decoder = EntryDecoder(TOPIC, partition)
    for (ledger_id, entry_id), body in entries.items():
        decoder.add(ledger_id, entry_id, body, **bounds)
    batch = decoder.take()
    batch.validate(full=True)
    return batch.to_pylist()


keys = st.none() | st.text(max_size=6)
messages = st.fixed_dictionaries(
    {
        "payload": st.binary(max_size=30),
        "partition_key": keys,
        "event_time": st.integers(0, 2_000_000_000_000),
        "properties": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
        "sequence_id": st.none() | st.integers(0, 1 << 40),
        "null_value": st.booleans(),
    }
)
batches = st.lists(st.lists(messages, min_size=1, max_size=8), min_size=1, max_size=5)


@settings(max_examples=60)
@given(batches, st.sampled_from(CompressionType), st.integers(-1, 300))
def test_every_column_of_every_message_arrives(
    drawn: list[list[dict[str, Any]]], compression: CompressionType, partition: int
) -> None:
    decoder = EntryDecoder(TOPIC, partition)
    expected: list[dict[str, object]] = []
    for entry_id, batch in enumerate(drawn):
        pieces = [encode_single(**message) for message in batch]
        decoder.add(300, entry_id, batch_entry(pieces, compression))
        for index, message in enumerate(batch):
            event_time = message["event_time"]
            assert isinstance(event_time, int)
            expected.append(
                {
                    "value": None if message["null_value"] else message["payload"],
                    "__key": message["partition_key"],
                    "__topic": TOPIC,
                    "__partition": partition,
                    "__messageId": WireMessageId(300, entry_id, partition, index, len(batch)).serialize(),
                    "__publishTime": at(PUBLISHED_MS),
                    "__eventTime": at(event_time) if event_time else None,
                    "__messageProperties": dict(message["properties"]),
                    "__producerName": "p-1",
                    "__sequenceId": 7 + index if message["sequence_id"] is None else message["sequence_id"],
                }
            )
    batch = decoder.take()
    batch.validate(full=True)
    rows = batch.to_pylist(maps_as_pydicts="strict")
    assert rows == expected


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.booleans())
def test_plain_batches_of_equal_and_of_differing_sizes(payloads: list[bytes], equal: bool) -> None:
    if equal:
        payloads = [payloads[0].ljust(5, b"x")] * len(payloads)
    rows = decode({(5, 6): plain_entry(payloads)})
    assert [row["value"] for row in rows] == payloads
    assert [row["__sequenceId"] for row in rows] == list(range(7, 7 + len(payloads)))
    ids = [WireMessageId(5, 6, 3, index, len(payloads)).serialize() for index in range(len(payloads))]
    assert [row["__messageId"] for row in rows] == ids
    assert rows[0]["__key"] is None
    assert rows[0]["__messageProperties"] == []


def test_a_large_batch_has_the_message_ids_of_the_official_form() -> None:
    rows = decode({(1 << 40, 70_000): plain_entry([b"a"] * 20_000)})
    assert len(rows) == 20_000
    for index in (0, 127, 128, 16_383, 16_384, 19_999):
        assert rows[index]["__messageId"] == WireMessageId(1 << 40, 70_000, 3, index, 20_000).serialize()


def test_a_payload_that_looks_like_headers_is_not_mistaken_for_them() -> None:
    piece = encode_single(b"12345678")
    payloads = [piece, piece + b"", piece]
    rows = decode({(1, 1): plain_entry(payloads)})
    assert [row["value"] for row in rows] == payloads


def test_one_message_alone() -> None:
    header = metadata(partition_key="k", event_time=5)
    header.properties.add(key="a", value="1")
    rows = decode({(1, 2): build_entry(header, b"hello"), (1, 3): build_entry(metadata(null_value=True), b"")}, -1)
    assert [row["value"] for row in rows] == [b"hello", None]
    assert [row["__key"] for row in rows] == ["k", None]
    assert rows[0]["__messageId"] == WireMessageId(1, 2).serialize()
    assert [row["__eventTime"] for row in rows] == [at(5), None]
    assert [row["__messageProperties"] for row in rows] == [[("a", "1")], []]
    assert rows[0]["__partition"] == -1


def test_a_batch_of_one_has_a_batch_index() -> None:
    rows = decode({(1, 2): plain_entry([b"x"])})
    assert rows[0]["__messageId"] == WireMessageId(1, 2, 3, 0, 1).serialize()


def test_compacted_messages_are_not_there_and_the_others_keep_their_index() -> None:
    pieces = [encode_single(value, partition_key="k", sequence_id=place) for place, value in enumerate((b"a", b"b"))]
    dropped = bytearray(pieces[0])
    header = bytes(dropped[4:-1]) + b"\x20\x01"  # compacted_out = true
    gone = len(header).to_bytes(4, "big") + header + b"a"
    rows = decode({(1, 1): batch_entry([gone, pieces[1]])})
    assert [(row["value"], row["__sequenceId"]) for row in rows] == [(b"b", 1)]
    assert rows[0]["__messageId"] == WireMessageId(1, 1, 3, 1, 2).serialize()


@pytest.mark.parametrize("columns", [("__publishTime",), ("__messageId", "value")])
def test_a_compacted_batch_has_the_rows_that_are_left_whatever_the_columns(columns: tuple[str, ...]) -> None:
    header = encode_single(b"a", partition_key="k")[4:-1] + b"\x20\x01"  # compacted_out = true
    body = batch_entry([len(header).to_bytes(4, "big") + header + b"a", encode_single(b"b", partition_key="k")])
    decoder = EntryDecoder(TOPIC, 3, shape=RowShape(columns))
    decoder.add(1, 1, body, compacted_at=(9, 0))
    assert decoder.take().num_rows == 1


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(-1, -1, "abcd"), (2, -1, "cd"), (-1, 1, "ab"), (1, 2, "bc"), (3, 3, "d"), (4, -1, ""), (-1, 9, "abcd")],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_bounds_inside_a_batch(first: int, last: int, expected: str, keyed: bool) -> None:
    letters = [letter.encode() for letter in "abcd"]
    pieces = [encode_single(letter, partition_key="k" if keyed else None) for letter in letters]
    rows = decode({(1, 1): batch_entry(pieces)}, first_batch_index=first, last_batch_index=last)
    assert b"".join(row["value"] for row in rows).decode() == expected  # type: ignore[misc]
    assert [row["__sequenceId"] for row in rows] == [7 + "abcd".index(letter) for letter in expected]


def test_bounds_of_time_take_whole_entries_and_are_half_open() -> None:
    decoder = EntryDecoder(TOPIC, 3, TimeWindow(100, 200))
    for entry_id, time_ms in enumerate((99, 100, 199, 200)):
        decoder.add(1, entry_id, plain_entry([b"x"], publish_time=time_ms))
    assert decoder.take().column("__publishTime").to_pylist() == [at(100), at(199)]


def test_times_before_the_epoch_and_times_beyond_a_timestamp() -> None:
    early = encode_single(b"a", event_time=(1 << 64) - 1000)
    assert decode({(1, 1): batch_entry([early])})[0]["__eventTime"] == at(-1000)
    with pytest.raises(EntryCorrupt, match="1:2"):
        decode({(1, 2): batch_entry([encode_single(b"a", event_time=1 << 62)])})


def test_nothing_is_an_empty_batch_of_the_schema() -> None:
    batch = EntryDecoder(TOPIC, 3).take()
    assert batch.num_rows == 0
    assert batch.schema == SCHEMA
    assert pa.ipc.open_stream(encode_block(batch)).read_all().schema == SCHEMA


def test_a_decoder_is_empty_after_take() -> None:
    decoder = EntryDecoder(TOPIC, 3)
    decoder.add(1, 0, batch_entry([encode_single(b"a", partition_key="k")]))
    assert decoder.take().num_rows == decoder.size_bytes + 1 == 1
    decoder.add(1, 1, plain_entry([b"b", b"c"]))
    assert decoder.rows == 2
    assert decoder.take().column("__key").null_count == 2


def test_blocks_are_ipc_streams() -> None:
    decoder = EntryDecoder(TOPIC, 3)
    decoder.add(1, 0, plain_entry([b"x"] * 10))
    batch = decoder.take()
    assert pa.ipc.open_stream(encode_block(batch)).read_all().to_batches()[0].equals(batch)


@pytest.mark.parametrize("kind", ["truncated", "flipped", "count", "compressed", "key"])
def test_damage_is_an_error_that_names_the_entry(kind: str) -> None:
    body = plain_entry([b"abc"] * 5)
    if kind == "truncated":
        body = body[:-1]
    elif kind == "flipped":
        body = body[:-2] + bytes([body[-2] ^ 1]) + body[-1:]
    elif kind == "count":
        body = build_entry(metadata(num_messages_in_batch=6), encode_batch([b"abc"] * 5))
    elif kind == "compressed":
        header = metadata(num_messages_in_batch=1, compression=CompressionType.ZSTD, uncompressed_size=1 << 31)
        body = build_entry(header, b"x")
    elif kind == "key":
        piece = encode_single(b"v", partition_key="kk").replace(b"kk", b"\xff\xfe")
        body = batch_entry([piece])
    with pytest.raises(EntryCorrupt) as caught:
        decode({(8, 9): body})
    assert caught.value.details["ledger_id"] == 8
    assert caught.value.details["entry_id"] == 9


def test_markers_of_transactions_are_no_rows() -> None:
    entries = {(1, 0): build_entry(metadata(marker_type=21), b""), (1, 1): build_entry(metadata(), b"x")}
    assert [row["value"] for row in decode(entries)] == [b"x"]
