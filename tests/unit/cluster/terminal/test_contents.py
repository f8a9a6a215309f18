"""What `magnetar produce` makes of its options."""

import json
from pathlib import Path

import pytest

from magnetar.client.schemas.avro_schema import AvroSchema
from magnetar.client.schemas.key_value import KeyValueEncodingType, KeyValueSchema
from magnetar.cluster.terminal.sending import Contents, payloads, properties_of, schema_of
from magnetar.protocol.errors import InvalidConfiguration, SchemaSerializationError
from magnetar.protocol.schema_types import SchemaType

RECORD = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]})


def test_texts_are_split_at_the_separator_and_files_come_after_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1,\xff")
    two.write_bytes(b"")
    assert payloads(["a,b", "c"], [f"{one},{two}"], ",", "bytes") == [b"a", b"b", b"c", b"1,\xff", b""]
    assert payloads(["a,b|c"], [], "|", "bytes") == [b"a,b", b"c"]
    assert payloads(["a,b"], [], "", "bytes") == [b"a,b"]


def test_a_file_that_is_missing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        payloads([], ["/nowhere/at/all"], ",", "bytes")


def test_properties_are_pairs() -> None:
    assert properties_of(["a=1,b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1", "a=1,"):
        with pytest.raises(InvalidConfiguration):
            properties_of([wrong])


def test_schemas_are_registered_and_take_what_is_encoded_already() -> None:
    assert schema_of("bytes", "string", None) is None
    text = schema_of("string", "string", None)
    assert text is not None and text.info is not None and text.info.type is SchemaType.STRING
    assert text.encode("é".encode()) == "é".encode()
    with pytest.raises(SchemaSerializationError):
        text.encode(b"\xff")
    as_json = schema_of(f"json:{RECORD}", "string", None)
    assert as_json is not None and as_json.info is not None
    assert (as_json.info.type, json.loads(as_json.info.definition)) == (SchemaType.JSON, json.loads(RECORD))


def test_a_text_for_an_avro_schema_is_its_value_as_json() -> None:
    schema = schema_of(f"avro:{RECORD}", "string", None)
    assert schema is not None and schema.info is not None and schema.info.type is SchemaType.AVRO
    found = payloads(['{"count": 3}'], [], "", f"avro:{RECORD}")
    assert AvroSchema(None, json.loads(RECORD)).decode(schema.encode(found[0])) == {"count": 3}
    with pytest.raises(InvalidConfiguration, match="JSON"):
        payloads(["count"], [], "", f"avro:{RECORD}")


@pytest.mark.parametrize("wrong", ["nonsense", "avro", "avro:no", "json:[]", ""])
def test_a_schema_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidConfiguration):
        schema_of(wrong, "string", None)


def test_pairs_have_the_key_as_a_part_of_the_value() -> None:
    schema = schema_of("string", "string", "separated")
    assert isinstance(schema, KeyValueSchema) and schema.encoding_type is KeyValueEncodingType.SEPARATED
    contents = Contents([b"v"], b"k", {}, schema, pairs=True)
    assert contents.message_key is None
    assert schema.encode(contents.value(b"v")) == b"v"
    with pytest.raises(InvalidConfiguration, match="separated or inline"):
        schema_of("string", "string", "both")


def test_a_key_without_pairs_is_the_messages_key() -> None:
    contents = Contents([b"v"], b"k")
    assert (contents.message_key, contents.value(b"v")) == ("k", b"v")
    with pytest.raises(InvalidConfiguration, match="UTF-8"):
        _ = Contents([b"v"], b"\xff").message_key
