"""Batches of payloads into typed rows: versions between each other, nulls, pairs, and errors that name their entry."""

import base64
import io
import json
import pickle
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.members.contracts_broker import SchemaRow
from magnetar.actors.schemas.definition import SchemaDefinition, pack_parts
from magnetar.bulk.arrow_decoding import EntryDecoder
from magnetar.bulk.typed.choice import RowShape, chosen, parse_choice, row_shape
from magnetar.bulk.typed.columns import COLUMNS, METADATA_COLUMNS
from magnetar.bulk.typed.key_value_columns import decoded_keys
from magnetar.bulk.typed.payloads import PayloadMisfit, payloads_of
from magnetar.protocol.batches import encode_batch, encode_single
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import (
    IncompatibleSchema,
    InvalidConfiguration,
    NotAllowedError,
    SchemaSerializationError,
)
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.schema_types import SchemaType

TOPIC = "persistent://public/default/flights"
OLD = {"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "F",
    "fields": [{"name": "b", "type": "string", "default": "-"}, {"name": "a", "type": "long"}],
}


def version(number: int, kind: SchemaType, data: Any = b"", **properties: str) -> SchemaRow:
    return SchemaRow(number, int(kind), data if isinstance(data, bytes) else json.dumps(data).encode(), 0, properties)


AVRO = [version(0, SchemaType.AVRO, OLD), version(1, SchemaType.AVRO, NEW)]


def shape(rows: list[SchemaRow], choice: Any = "auto", columns: list[str] | None = None) -> RowShape:
    return row_shape(columns, chosen(TOPIC, choice, rows), rows)


def avro(definition: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), value)
    return out.getvalue()


def entry(payloads: list[bytes | None], schema_version: bytes, keys: list[str] | None = None) -> bytes:
    header = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, num_messages_in_batch=len(payloads))
    if schema_version:
        header.schema_version = schema_version
    if keys is None and None not in payloads:
        return build_entry(header, encode_batch(payloads))
    pieces = [
        encode_single(
            payload=payload or b"",
            partition_key=None if keys is None else keys[place],
            event_time=0,
            properties={},
            sequence_id=None,
            null_value=payload is None,
        )
        for place, payload in enumerate(payloads)
    ]
    return build_entry(header, b"".join(pieces))


def of(number: int) -> bytes:
    return number.to_bytes(8, "big")


def read(made: RowShape, entries: list[bytes]) -> pa.RecordBatch:
    decoder = EntryDecoder(TOPIC, -1, None, pickle.loads(pickle.dumps(made)))
    for entry_id, body in enumerate(entries):
        decoder.add(9, entry_id, body)
    batch = decoder.take()
    batch.validate(full=True)
    assert batch.schema == made.schema
    return batch


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"", of(0), of(1)]), st.lists(st.none() | st.integers(-9, 9), max_size=4))))
def test_versions_lie_between_each_other_and_nulls_are_null(drawn: list[tuple[bytes, list[int | None]]]) -> None:
    entries: list[bytes] = []
    expected: list[dict[str, Any]] = []
    for given_version, values in drawn:
        if not values:
            continue
        is_old = given_version == of(0)
        data = [
            None if one is None else avro(OLD, {"a": one}) if is_old else avro(NEW, {"b": "x", "a": one})
            for one in values
        ]
        entries.append(entry(data, given_version))
        for one in values:
            nothing = {"b": None, "a": None}
            expected.append(nothing if one is None else {"b": "-" if is_old else "x", "a": one})
    batch = read(shape(AVRO), entries)
    assert batch.select(["b", "a"]).to_pylist() == expected
    assert batch.schema.names == ["b", "a", *METADATA_COLUMNS]


def test_columns_come_in_the_order_that_is_asked_for() -> None:
    body = entry([avro(NEW, {"b": "x", "a": 5})], of(1))
    assert read(shape(AVRO, columns=["a", "__producerName", "b"]), [body]).to_pylist() == [
        {"a": 5, "__producerName": "p", "b": "x"}
    ]
    assert read(shape(AVRO, 0, ["a"]), [entry([avro(OLD, {"a": 5})], of(0))]).to_pylist() == [{"a": 5}]


def test_payloads_that_no_column_needs_are_not_decoded() -> None:
    assert read(shape(AVRO, columns=["__sequenceId"]), [entry([b"no avro"], of(1))]).to_pylist() == [
        {"__sequenceId": 0}
    ]


def test_errors_name_the_entry() -> None:
    good = entry([avro(NEW, {"b": "x", "a": number}) for number in range(5)], of(1))
    bad = entry([avro(NEW, {"b": "x", "a": 1}), b"\x08ab"], of(1))
    with pytest.raises(SchemaSerializationError, match=r'entry 9:2 of .*flights .*cut off.*schema="bytes"') as found:
        read(shape(AVRO), [good, entry([None], of(1)), bad, good])
    assert found.value.details == {"ledger_id": 9, "entry_id": 2, "topic": TOPIC}
    with pytest.raises(
        SchemaSerializationError, match=r"entry 9:1 .* with version 7 of the schema, which the topic no longer has"
    ):
        read(shape(AVRO), [good, entry([b"x"], of(7)), good])
    with pytest.raises(IncompatibleSchema, match=r"with version 1 .*the field a: long cannot be read as int"):
        read(shape(AVRO, 0), [good])
    mixed = [version(0, SchemaType.INT8), *AVRO[1:]]
    with pytest.raises(IncompatibleSchema, match="it is INT8, not AVRO"):
        read(shape(mixed), [entry([b"\x05"], of(0))])


def test_what_can_be_chosen() -> None:
    assert [parse_choice(one) for one in (None, "bytes", "auto", 0, 5)] == [None, None, "auto", 0, 5]
    for wrong in ("avro", -1, True, 1.0, "0"):
        with pytest.raises(InvalidConfiguration, match='must be "auto", "bytes" or the number of a version'):
            parse_choice(wrong)
    assert chosen(TOPIC, "auto", []) is None
    assert chosen(TOPIC, "auto", [version(0, SchemaType.NONE)]) is None
    found = chosen(TOPIC, 0, AVRO)
    assert isinstance(found, SchemaDefinition) and json.loads(found.data) == OLD
    with pytest.raises(InvalidConfiguration, match="no version 2 of its schema: it has versions 0 to 1"):
        chosen(TOPIC, 2, AVRO)
    assert row_shape(None).columns == COLUMNS
    with pytest.raises(InvalidConfiguration, match="no column 'c': choose from b, a, __key"):
        shape(AVRO, columns=["c"])
    with pytest.raises(InvalidConfiguration, match="none, or not different"):
        shape(AVRO, columns=["a", "a"])
    with pytest.raises(NotAllowedError, match=r'its type is EXTERNAL.*schema="bytes"'):
        shape([version(0, SchemaType.EXTERNAL)])
    with pytest.raises(NotAllowedError, match="schemas of type 99"):
        shape([version(0, 99)])  # type: ignore[arg-type]
    taken = {**OLD, "fields": [{"name": "__topic", "type": "int"}]}
    with pytest.raises(InvalidConfiguration, match="a field '__topic', which is the name of another column"):
        shape([version(0, SchemaType.AVRO, taken)])


# ---- Single values and pairs ----


def test_a_single_value_of_another_size_is_refused() -> None:
    whole = [version(0, SchemaType.INT32)]
    assert read(shape(whole), [entry([b"\xff\xff\xff\xfb"], of(0))])["value"].to_pylist() == [-5]
    with pytest.raises(SchemaSerializationError, match=r"entry 9:0 .*INT32 has 4 bytes, not 3"):
        read(shape(whole), [entry([b"\0\0\0\1", b"abc"], of(0))])
    for kind, data in (
        (SchemaType.STRING, b"\xff"),
        (SchemaType.LOCAL_DATE, (1 << 40).to_bytes(8, "big")),
        (SchemaType.TIMESTAMP, (1 << 62).to_bytes(8, "big")),
        (SchemaType.INSTANT, (1 << 50).to_bytes(8, "big") + bytes(4)),
        (SchemaType.LOCAL_TIME, (86_400 * 10**9).to_bytes(8, "big")),
        (SchemaType.LOCAL_DATE_TIME, bytes(8) + b"\xff" * 8),
    ):
        with pytest.raises(SchemaSerializationError, match="entry 9:0"):
            read(shape([version(0, kind)]), [entry([data], of(0))])


def pair_version(key: SchemaType, value: SchemaType, data: Any, encoding: str) -> SchemaRow:
    packed = pack_parts(b"", json.dumps(data).encode())
    properties = {"key.schema.type": key.name, "value.schema.type": value.name, "kv.encoding.type": encoding}
    return SchemaRow(0, int(SchemaType.KEY_VALUE), packed, 0, properties)


def packed(part: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "big") + part


def test_inline_pairs_are_two_columns_and_a_part_may_be_null() -> None:
    made = shape([pair_version(SchemaType.STRING, SchemaType.AVRO, NEW, "INLINE")])
    data = [
        packed(b"k") + packed(avro(NEW, {"b": "x", "a": 1})),
        packed(None) + packed(avro(NEW, {"b": "", "a": 2})),
        packed(b"") + packed(None),
        None,
    ]
    batch = read(made, [entry(data, of(0))])
    assert batch["key"].to_pylist() == ["k", None, "", None]
    assert batch["value"].to_pylist() == [{"b": "x", "a": 1}, {"b": "", "a": 2}, None, None]
    for bad in (b"", packed(b"k")[:-1], packed(b"k"), b"\xff\xff\xff\xfe", packed(b"k") + b"\x7f\xff\xff\xff"):
        with pytest.raises(SchemaSerializationError, match=r"entry 9:0 .*cut off"):
            read(made, [entry([bad], of(0))])


def test_separated_pairs_have_their_key_in_the_message() -> None:
    made = shape([pair_version(SchemaType.STRING, SchemaType.AVRO, NEW, "SEPARATED")])
    keys = [base64.b64encode(text.encode()).decode() for text in ("", "a", "ab", "abc", "abcd")]
    data = [avro(NEW, {"b": "x", "a": number}) for number in range(4)]
    batch = read(made, [entry([*data, None], of(0), keys)])
    assert batch["key"].to_pylist() == ["", "a", "ab", "abc", "abcd"]
    assert batch["value"].to_pylist() == [*({"b": "x", "a": number} for number in range(4)), None]
    assert batch["__key"].to_pylist() == keys
    assert read(made._replace(columns=("key",)), [entry(data, of(0))])["key"].to_pylist() == [None] * 4
    for bad in ("abc", "ab=c", "a===", "ab!c"):
        with pytest.raises(SchemaSerializationError, match=r"entry 9:0 .*no base64"):
            read(made, [entry([data[0]], of(0), [bad])])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.binary(max_size=9), max_size=6))
def test_keys_in_base64_are_those_of_pythons_decoder(keys: list[bytes]) -> None:
    column = pa.array([base64.b64encode(key).decode() for key in keys], pa.string())
    assert decoded_keys(payloads_of(column)[0]).listed() == keys


@settings(max_examples=60, deadline=None)
@given(st.from_regex(r"[ab+/!]{0,8}={0,2}", fullmatch=True))
def test_a_key_is_base64_exactly_if_python_says_so(key: str) -> None:
    payloads, _ = payloads_of(pa.array([key]))
    try:
        expected = base64.b64decode(key, validate=True)
        if len(key) % 4:
            raise ValueError("Python takes more padding than there may be")
    except ValueError:
        with pytest.raises(PayloadMisfit):
            decoded_keys(payloads)
    else:
        assert decoded_keys(payloads).listed() == [expected]


def test_slices_of_columns_are_read_where_they_begin() -> None:
    column = pa.array([b"no", b"one", None, b"three"], pa.binary()).slice(1)
    payloads, places = payloads_of(column)
    assert payloads.listed() == [b"one", b"three"]
    assert np.array_equal(places, [0, 2])
