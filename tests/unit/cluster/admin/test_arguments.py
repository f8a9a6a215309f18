"""Texts of arguments as values."""

import pytest

from magnetar.cluster.admin import arguments
from magnetar.protocol.errors import InvalidConfiguration, InvalidTopicName


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        ("size", "10", 10),
        ("size", "3k", 3 << 10),
        ("size", "16G", 16 << 30),
        ("size", "1T", 1 << 40),
        ("size", "-1", -1),
        ("megabytes", "10M", 10),
        ("megabytes", "1", 0),
        ("megabytes", "-1", -1),
        ("seconds", "90", 90),
        ("seconds", "2m", 120),
        ("minutes", "3h", 180),
        ("minutes", "100", 100),
        ("minutes", "1w", 7 * 24 * 60),
        ("milliseconds", "1", 1000),
        ("milliseconds", "1500ms", 1500),
        ("moment", "1700000000123", 1700000000123),
        ("moment", "2026-01-31T12:00:00Z", 1769860800000),
        ("position", "earliest", "earliest"),
        ("position", "5:6", {"ledgerId": 5, "entryId": 6}),
        ("message_id", "5:-1:3", {"ledgerId": 5, "entryId": -1}),
        ("json_value", '{"a": [1]}', {"a": [1]}),
        ("real", "0.5", 0.5),
        ("pairs", "a=1,b=", {"a": "1", "b": ""}),
    ],
)
def test_a_text_is_read_as_its_value(read: str, text: str, value: object) -> None:
    assert getattr(arguments, read)(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        ("size", "10X"),
        ("size", "-2"),
        ("size", ""),
        ("seconds", "soon"),
        ("minutes", "-5"),
        ("moment", "yesterday"),
        ("message_id", "earliest"),
        ("message_id", "5"),
        ("whole", "1.5"),
        ("real", "x"),
        ("json_value", "{"),
        ("pairs", "a"),
    ],
)
def test_a_text_that_is_no_value_is_refused(read: str, text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        getattr(arguments, read)(text)


def test_a_topic_is_read_in_any_form_of_its_name() -> None:
    parts = {"tenant": "a", "namespace": "b", "domain": "persistent", "topic": "c d %"}
    assert arguments.topic_parts("persistent://a/b/c d %") == parts
    with pytest.raises(InvalidTopicName):
        arguments.topic_parts("bad://a/b/c")
