"""Which messages a compaction keeps: against a dictionary, entry by entry; shares of the keys; chunks; what is odd."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.compaction.survivors import EVERYTHING, INCOMPLETE_MS, KeyScan, Rules, by_entry, keep, kept_indexes
from magnetar.protocol.batches import decode_batch, encode_single
from magnetar.protocol.compression import CompressionType, compress, decompress
from magnetar.protocol.entries import build_entry, parse_entry
from magnetar.protocol.frames import MAGIC_BROKER_METADATA
from magnetar.protocol.pulsar_pb2 import BrokerEntryMetadata, KeyValue, MessageMetadata

RULES = Rules(retain_null_key=False, decompressed_size_max=1 << 20, keys_size_max=1 << 20, now_ms=10 * INCOMPLETE_MS)
Keyed = tuple[str | None, bytes]


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=RULES.now_ms, **fields)  # type: ignore[arg-type]


def batch(messages: Sequence[Keyed], kind: int = CompressionType.NONE, **single: object) -> bytes:
    payload = b"".join(encode_single(body, partition_key=key, **single) for key, body in messages)  # type: ignore[arg-type]
    fields = metadata(num_messages_in_batch=len(messages), compression=kind, uncompressed_size=len(payload))
    return build_entry(fields, compress(kind, payload))


def message(key: str | None, body: bytes, **fields: object) -> bytes:
    return build_entry(metadata(partition_key=key, **fields), body)


def compacted(entries: Sequence[bytes], rules: Rules = RULES, piece: int = 3) -> dict[int, bytes]:
    """Entries by number as a compaction leaves them, with as many shares as the bound asks for."""
    shares, arrays = [EVERYTHING], []
    while shares:
        share = shares.pop()
        scan = KeyScan(rules, share, notes=not arrays)
        for first in range(0, len(entries), piece):
            scan.add(first, entries[first : first + piece])
        if scan.too_large:
            shares += share.split()
        else:
            arrays.append(scan.survivors())
    return {number: keep(entries[number], kept, 1 << 20) for number, kept in by_entry(arrays)}


def readable(entry: bytes) -> list[Keyed]:
    """What a consumer sees of an entry."""
    fields, payload = parse_entry(entry)
    if not fields.HasField("num_messages_in_batch"):
        return [(fields.partition_key if fields.HasField("partition_key") else None, bytes(payload))]
    plain = decompress(fields.compression, payload, fields.uncompressed_size, 1 << 20)
    found = decode_batch(plain, fields.num_messages_in_batch)
    return [
        (one.partition_key if one is not None and one.HasField("partition_key") else None, body)
        for one, body in found
        if one is None or not one.compacted_out
    ]


KEYS = st.sampled_from([None, "a", "b", "c", "d", "é" * 70])
MESSAGES = st.lists(st.tuples(KEYS, st.sampled_from([b"", b"1", b"22", b"x" * 200])), min_size=1, max_size=6)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(MESSAGES, st.sampled_from([0, 1, 2, 3, 4]), st.booleans()), max_size=12),
    st.booleans(),
    st.sampled_from([0, 700, 1 << 20]),
)
def test_a_compaction_leaves_the_last_message_of_each_key_like_a_dict(shape, retain, size_max):
    entries = [
        batch(messages, kind, sequence_id=7 if sequenced else None)
        if kind or len(messages) > 1
        else message(*messages[0])
        for messages, kind, sequenced in shape
    ]
    rules = RULES._replace(retain_null_key=retain, keys_size_max=max(size_max, 700))
    want: dict[str, bytes] = {}
    keyless = []
    for messages, _, _ in shape:
        for key, body in messages:
            if key is None:
                keyless.append(body)
            elif body:
                want[key] = body
            else:
                want.pop(key, None)
    left = compacted(entries, rules)
    seen = [one for number in sorted(left) for one in readable(left[number])]
    assert {key: body for key, body in seen if key is not None} == want
    assert len([key for key, _ in seen if key is not None]) == len(want)
    assert [body for key, body in seen if key is None] == (keyless if retain else [])
    again = compacted([left[number] for number in sorted(left)], rules)
    assert list(again.values()) == [left[number] for number in sorted(left)], "a second compaction changes nothing"


def test_a_compacted_batch_keeps_its_indexes_and_says_which_are_left():
    entry = batch([("a", b"1"), ("b", b"2"), ("a", b"3"), (None, b"4")], CompressionType.ZSTD)
    left = compacted([entry, message("b", b"5")])
    fields, _ = parse_entry(left[0])
    assert fields.num_messages_in_batch == 4 and list(fields.compacted_batch_indexes) == [2]
    assert readable(left[0]) == [("a", b"3")] and kept_indexes(left[0], 1 << 20) == [2]
    assert left[1] == message("b", b"5")


def test_what_is_not_changed_keeps_its_bytes_and_the_section_of_the_broker_stays():
    entry = batch([("a", b"1"), ("b", b"2")])
    assert compacted([entry]) == {0: entry}
    inner = BrokerEntryMetadata(broker_timestamp=7, index=3).SerializeToString()
    section = MAGIC_BROKER_METADATA + len(inner).to_bytes(4, "big") + inner
    left = compacted([section + entry, message("a", b"3")])[0]
    assert left.startswith(section) and readable(left) == [("b", b"2")]


def test_empty_payloads_and_null_values_remove_their_key():
    entries = [message("a", b"1"), message("b", b"1"), message("a", b""), message("b", b"x", null_value=True)]
    assert compacted(entries) == {}
    assert compacted([*entries, message("a", b"2")]) == {4: message("a", b"2")}


def test_a_damaged_batch_and_what_is_no_message_are_kept_whole():
    torn = build_entry(metadata(num_messages_in_batch=3), b"nonsense")
    assert compacted([torn, b"junk", message("a", b"1")]) == {0: torn, 1: b"junk", 2: message("a", b"1")}


def test_an_encrypted_batch_counts_as_one_message_with_the_key_of_its_entry():
    def encrypted(key: str | None) -> bytes:
        fields = metadata(num_messages_in_batch=2, partition_key=key)
        fields.encryption_keys.add(key="k", value=b"v", metadata=[KeyValue(key="a", value="b")])
        return build_entry(fields, b"secret")

    assert compacted([encrypted("a"), encrypted("a"), encrypted(None)]) == {1: encrypted("a")}
    keyless = compacted([encrypted(None)], RULES._replace(retain_null_key=True))
    assert keyless == {0: encrypted(None)}


def test_markers_of_the_broker_are_dropped():
    assert compacted([message(None, b"m", marker_type=21)], RULES._replace(retain_null_key=True)) == {}


def chunk(key: str, uuid: str, index: int, count: int, published: int = RULES.now_ms) -> bytes:
    fields = metadata(
        partition_key=key, uuid=uuid, chunk_id=index, num_chunks_from_msg=count, total_chunk_msg_size=count
    )
    fields.publish_time = published
    return build_entry(fields, b"c")


@pytest.mark.promise("34.2")
def test_a_chunked_message_is_kept_or_dropped_with_all_its_chunks():
    old = [chunk("a", "u1", index, 2) for index in range(2)]
    new = [chunk("a", "u2", index, 3) for index in range(3)]
    interleaved = [old[0], new[0], old[1], new[1], new[2]]
    assert compacted(interleaved) == {1: new[0], 3: new[1], 4: new[2]}
    assert compacted([*interleaved, message("a", b"")]) == {}


def test_chunks_sent_twice_count_from_the_last_first_chunk():
    sent = [chunk("a", "u", 0, 2), chunk("a", "u", 0, 2), chunk("a", "u", 1, 2)]
    assert sorted(compacted(sent)) == [1, 2]


def test_chunks_of_an_incomplete_message_are_kept_for_an_hour():
    fresh, stale = chunk("a", "u", 0, 2), chunk("b", "v", 0, 2, RULES.now_ms - INCOMPLETE_MS)
    assert compacted([fresh, stale]) == {0: fresh}


@pytest.mark.promise("34.4")
def test_more_keys_than_fit_are_scanned_in_shares_with_the_same_outcome():
    entries = [
        batch([(f"key-{number % 900}", b"%d" % number) for number in range(base, base + 50)])
        for base in range(0, 3000, 50)
    ]
    small = RULES._replace(keys_size_max=100_000)
    scan = KeyScan(small)
    scan.add(0, entries)
    assert scan.too_large
    assert compacted(entries, small) == compacted(entries)


def test_what_is_counted_as_kept_and_seen():
    scan = KeyScan(RULES._replace(retain_null_key=True))
    scan.add(0, [batch([("a", b"1"), ("a", b"2"), (None, b"3")]), message("b", b"4"), b"junk"])
    scan.survivors()
    assert (scan.messages, scan.kept) == (5, 4)


@pytest.mark.parametrize("count", [0, 1000])
def test_a_batch_that_claims_an_impossible_count_is_kept_whole(count):
    entry = build_entry(metadata(num_messages_in_batch=count), b"\x00\x00\x00\x02\x18\x00")
    assert compacted([entry]) == {0: entry}
