"""Avro schemas: what is one, which are the same, and which can read what others wrote."""

from pathlib import Path

import pytest

from magnetar.actors.schemas.avro_definition import InvalidAvro, canonical_text, parse_avro
from magnetar.actors.schemas.compatibility import STEPS_MAX, obstacle

VERDICTS = Path(__file__).with_name("avro_verdicts.tsv")
"""What Avro 1.12.0 for Java says, as Pulsar 4.2.4 asks it: verdict, writer, reader. The pairs are random."""


def record(*fields: str) -> bytes:
    return ('{"type":"record","name":"R","fields":[' + ",".join(fields) + "]}").encode()


def field(name: str, of: str, default: str = "") -> str:
    return f'{{"name":"{name}","type":{of}{default and f", {chr(34)}default{chr(34)}: {default}"}}}'


def verdict(writer: str, reader: str) -> str:
    try:
        written = parse_avro(writer.encode())
    except InvalidAvro:
        return "bad writer"
    try:
        read = parse_avro(reader.encode())
    except InvalidAvro:
        return "bad reader"
    same = canonical_text(written) == canonical_text(read)
    return f"{'refused' if obstacle(written, read) else 'fine'} {'same' if same else 'other'}"


def test_verdicts_are_those_of_avro_for_java():
    rows = [line.split("\t") for line in VERDICTS.read_text().splitlines()]
    assert len(rows) > 250
    wrong = [row for row in rows if verdict(row[1], row[2]) != row[0]]
    assert not wrong


def test_an_obstacle_says_what_and_where():
    old = parse_avro(record(field("a", '{"type":"array","items":"int"}')))
    new = parse_avro(record(field("a", '{"type":"array","items":"string"}'), field("b", '"int"')))
    assert obstacle(old, new) == "the writer lacks field b of R, which has no default"
    narrower = parse_avro(record(field("a", '{"type":"array","items":"string"}')))
    assert obstacle(old, narrower) == "int cannot be read as string (at a.items)"


def test_documentation_and_aliases_do_not_make_another_schema():
    plain = parse_avro(record(field("a", '"int"')))
    told = parse_avro(b'{"doc":"x","name":"R","aliases":["Q"],"type":"record","fields":[{"type":"int","name":"a"}]}')
    assert canonical_text(plain) == canonical_text(told)
    dated = parse_avro(record(field("a", '{"type":"int","logicalType":"date"}')))
    assert canonical_text(plain) != canonical_text(dated)


def test_a_default_of_one_and_one_point_zero_are_different():
    assert canonical_text(parse_avro(record(field("a", '"double"', "1")))) != canonical_text(
        parse_avro(record(field("a", '"double"', "1.0")))
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[] x",
        b"\xff",
        b"NaN",
        b'"nothing"',
        b"1",
        b'{"type":"record","name":"R"}',
        b'{"type":"record","name":"1R","fields":[]}',
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        b'{"type":"enum","name":"E","symbols":["A","A"]}',
        b'{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
        b'{"type":"fixed","name":"F","size":-1}',
        b'["int",["string"]]',
        b'["int","int"]',
        b"[" * 100_000,
        b'{"type":"array","items":' * 400 + b'"int"' + b"}" * 400,
    ],
)
def test_what_is_no_avro_schema_is_refused(text: bytes):
    try:
        canonical_text(parse_avro(text))
    except InvalidAvro:
        return
    assert text.startswith(b'{"type":"array"')  # as deep as this interpreter allows


def test_a_recursive_schema_is_read_and_compared():
    tree = record(field("left", '["null","R"]', "null"), field("value", '"int"'))
    wider = record(field("left", '["null","R"]', "null"), field("value", '"long"'))
    assert obstacle(parse_avro(tree), parse_avro(wider)) == ""
    assert "long cannot be read as int" in obstacle(parse_avro(wider), parse_avro(tree))


def test_schemas_that_would_take_too_long_are_refused():
    count = 400
    names = ",".join(
        f'{{"type":"record","name":"W{i}","fields":[{field("x", chr(34) + "int" + chr(34))}]}}' for i in range(count)
    )
    others = names.replace('"W', '"V').replace('"int"', '"string"')
    assert str(STEPS_MAX) in obstacle(parse_avro(f"[{names}]".encode()), parse_avro(f"[{others}]".encode()))
