"""Payloads of protobuf in columns: of PROTOBUF_NATIVE, and of PROTOBUF, which lists the numbers of fields."""

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.schemas.definition import SchemaDefinition
from magnetar.bulk.typed.payloads import PayloadMisfit, first_misfit, payloads_of
from magnetar.bulk.typed.protobuf_columns import ProtobufDecoder, fields_of, message_class
from magnetar.protocol.errors import NotAllowedError
from magnetar.protocol.schema_types import SchemaType

Field = descriptor_pb2.FieldDescriptorProto
NUMBERS = {
    "int32": (Field.TYPE_INT32, st.integers(-(1 << 31), (1 << 31) - 1)),
    "sint64": (Field.TYPE_SINT64, st.integers(-(1 << 63), (1 << 63) - 1)),
    "uint32": (Field.TYPE_UINT32, st.integers(0, (1 << 32) - 1)),
    "fixed64": (Field.TYPE_FIXED64, st.integers(0, (1 << 64) - 1)),
    "flag": (Field.TYPE_BOOL, st.booleans()),
    "real": (Field.TYPE_DOUBLE, st.floats(allow_nan=False)),
    "half": (Field.TYPE_FLOAT, st.floats(width=32, allow_nan=False)),
    "text": (Field.TYPE_STRING, st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "raw": (Field.TYPE_BYTES, st.binary(max_size=5)),
}


def file_of() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="LOST", number=7)
    place = file.message_type.add(name="Place")
    place.field.add(name="city", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    place.field.add(name="code", number=2, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    flight = file.message_type.add(name="Flight")
    for number, (name, (kind, _)) in enumerate(NUMBERS.items(), 1):
        flight.field.add(name=name, number=number, type=kind, label=Field.LABEL_OPTIONAL)
        flight.field.add(name=f"{name}_s", number=number + 20, type=kind, label=Field.LABEL_REPEATED)
    maybe = flight.field.add(name="maybe", number=40, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    maybe.proto3_optional, maybe.oneof_index = True, 0
    flight.oneof_decl.add(name="_maybe")
    more: dict[str, Any] = {"type": Field.TYPE_MESSAGE, "type_name": ".air.Place"}
    flight.field.add(name="place", number=41, label=Field.LABEL_OPTIONAL, **more)
    flight.field.add(name="stops", number=42, label=Field.LABEL_REPEATED, **more)
    flight.field.add(name="state", number=43, type=Field.TYPE_ENUM, type_name=".air.State", label=Field.LABEL_OPTIONAL)
    moment: dict[str, Any] = {"type": Field.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}
    flight.field.add(name="at", number=44, label=Field.LABEL_OPTIONAL, **moment)
    pair = flight.nested_type.add(name="PlacesEntry")
    pair.options.map_entry = True
    pair.field.add(name="key", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    pair.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL, **more)
    flight.field.add(name="places", number=45, type=Field.TYPE_MESSAGE, type_name=".air.Flight.PlacesEntry", label=3)
    return file


def native(file: descriptor_pb2.FileDescriptorProto, root: str) -> SchemaDefinition:
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file)
    text = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": file.name,
    }
    return SchemaDefinition(SchemaType.PROTOBUF_NATIVE, json.dumps(text).encode())


DEFINITION = native(file_of(), "air.Flight")
FLIGHT = message_class(DEFINITION, False)


def rows_of(decoder: ProtobufDecoder, data: list[bytes]) -> list[dict[str, Any]]:
    payloads, _ = payloads_of(pa.array(data, pa.binary()))
    batch = pa.RecordBatch.from_arrays(decoder.decode(payloads), schema=pa.schema(decoder.fields))
    batch.validate(full=True)
    return batch.to_pylist(maps_as_pydicts="strict")


VALUES = st.fixed_dictionaries(
    {
        **{name: values for name, (_, values) in NUMBERS.items()},
        **{f"{name}_s": st.lists(values, max_size=3) for name, (_, values) in NUMBERS.items()},
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=5))
def test_single_and_repeated_values_arrive(values: list[dict[str, Any]]) -> None:
    decoder = ProtobufDecoder(FLIGHT, list(values[0]) if values else None, False)
    rows = rows_of(decoder, [FLIGHT(**value).SerializeToString() for value in values])
    for row, value in zip(rows, values, strict=True):
        assert row == value  # a Decimal equals the int
    assert decoder.fields == fields_of(FLIGHT, list(values[0]) if values else None)


def test_messages_enums_maps_and_times_become_structs_text_maps_and_timestamps() -> None:
    place = {"city": "Rome", "code": 5}
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=datetime.UTC)
    stamp = timestamp_pb2.Timestamp()
    stamp.FromDatetime(moment)
    full: Any = FLIGHT(
        maybe=0, place=place, stops=[place, {}], state=7, at={"seconds": stamp.seconds, "nanos": stamp.nanos}
    )
    full.places[3].city = "Oslo"
    names = ["maybe", "place", "stops", "state", "at", "places"]
    unknown = FLIGHT.FromString(b"\xd8\x02\x09")  # a state of number 9
    rows = rows_of(
        ProtobufDecoder(FLIGHT, names, False), [one.SerializeToString() for one in (full, FLIGHT(), unknown)]
    )
    assert rows[0] == {
        "maybe": 0,
        "place": place,
        "stops": [place, {"city": "", "code": 0}],
        "state": "LOST",
        "at": moment,
        "places": {3: {"city": "Oslo", "code": 0}},
    }
    assert rows[1] == {"maybe": None, "place": None, "stops": [], "state": "NEW", "at": None, "places": {}}
    assert rows[2]["state"] == "9"
    kinds = {field.name: str(field.type) for field in fields_of(FLIGHT)}
    assert (kinds["uint32"], kinds["fixed64"], kinds["at"]) == ("int64", "decimal128(20, 0)", "timestamp[us, tz=UTC]")


def test_messages_of_an_older_version_are_read_by_the_numbers_of_fields() -> None:
    old = descriptor_pb2.FileDescriptorProto(name="old.proto", package="air", syntax="proto3")
    message = old.message_type.add(name="Flight")
    message.field.add(name="other_name", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    message.field.add(name="gone", number=99, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(old)
    data = GetMessageClass(pool.FindMessageTypeByName("air.Flight"))(other_name=5, gone="x").SerializeToString()
    assert rows_of(ProtobufDecoder(FLIGHT, ["int32", "text"], False), [data]) == [{"int32": 5, "text": ""}]


def test_a_payload_that_is_none_is_found() -> None:
    decoder = ProtobufDecoder(FLIGHT, None, False)
    good = FLIGHT(int32=5).SerializeToString()
    payloads, _ = payloads_of(pa.array([good, good, b"\x08", good], pa.binary()))
    with pytest.raises(PayloadMisfit):
        decoder.decode(payloads)
    assert first_misfit(decoder, payloads)[0] == 2


def test_a_message_that_contains_itself_has_no_columns() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="n", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    tree.field.add(name="next", number=2, type=Field.TYPE_MESSAGE, type_name=".Tree", label=Field.LABEL_OPTIONAL)
    found = message_class(native(file, "Tree"), False)
    with pytest.raises(NotAllowedError, match=r'message Tree contains itself.*schema="bytes"'):
        fields_of(found)
    assert [field.name for field in fields_of(found, ["n"])] == ["n"]
    with pytest.raises(NotAllowedError, match="is no PROTOBUF_NATIVE"):
        message_class(SchemaDefinition(SchemaType.PROTOBUF_NATIVE, b"{}"), False)


LISTED = [
    {"number": 1, "name": "int32", "type": "INT32", "label": "LABEL_OPTIONAL", "definition": None},
    {"number": 28, "name": "text_s", "type": "STRING", "label": "LABEL_REPEATED", "definition": None},
    {"number": 41, "name": "place", "type": "MESSAGE", "label": "LABEL_OPTIONAL", "definition": None},
    {"number": 43, "name": "state", "type": "ENUM", "label": "LABEL_OPTIONAL", "definition": None},
]


def test_files_of_a_definition_come_in_any_order() -> None:
    text = json.loads(DEFINITION.data)
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text["fileDescriptorSet"]))
    assert [file.name for file in files.file] == ["google/protobuf/timestamp.proto", "flight.proto"]
    turned = descriptor_pb2.FileDescriptorSet(file=reversed(files.file))
    text["fileDescriptorSet"] = base64.b64encode(turned.SerializeToString()).decode()
    found = message_class(SchemaDefinition(SchemaType.PROTOBUF_NATIVE, json.dumps(text).encode()), False)
    assert fields_of(found) == fields_of(FLIGHT)


def test_files_of_a_definition_that_need_each_other_are_refused() -> None:
    file = file_of()
    file.dependency.append(file.name)
    with pytest.raises(NotAllowedError, match="PROTOBUF_NATIVE"):
        message_class(native(file, "air.Flight"), False)


def test_the_schema_protobuf_goes_by_the_numbers_that_it_lists() -> None:
    definition = SchemaDefinition(SchemaType.PROTOBUF, b"{}", {"__PARSING_INFO__": json.dumps(LISTED)})
    decoder = ProtobufDecoder(message_class(definition, True), None, True)
    place = {"city": "Rome", "code": 5}
    data = [FLIGHT(int32=-5, text_s=["a", "b"], place=place, state=7).SerializeToString(), b""]
    assert rows_of(decoder, data) == [
        {"int32": -5, "text_s": ["a", "b"], "place": b"\x0a\x04Rome\x10\x05", "state": 7},
        {"int32": 0, "text_s": [], "place": None, "state": 0},
    ]


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"__PARSING_INFO__": "{"},
        {"__PARSING_INFO__": '[{"number": 1}]'},
        {"__PARSING_INFO__": json.dumps([{**LISTED[0], "type": "GROUP"}])},
        {"__PARSING_INFO__": json.dumps([{**LISTED[0], "number": "x"}])},
        {"__PARSING_INFO__": json.dumps([LISTED[0], LISTED[0]])},
    ],
)
def test_the_schema_protobuf_without_usable_numbers_has_no_columns(properties: dict[str, str]) -> None:
    with pytest.raises(NotAllowedError, match='schema="bytes"'):
        message_class(SchemaDefinition(SchemaType.PROTOBUF, b"{}", properties), True)


def test_numbers_without_a_sign_fit() -> None:
    data = FLIGHT(uint32=(1 << 32) - 1, fixed64=(1 << 64) - 1).SerializeToString()
    rows = rows_of(ProtobufDecoder(FLIGHT, ["uint32", "fixed64"], False), [data])
    assert rows == [{"uint32": (1 << 32) - 1, "fixed64": Decimal((1 << 64) - 1)}]
