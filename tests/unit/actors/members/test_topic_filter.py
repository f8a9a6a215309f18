"""Patterns of strangers: what they match, which are refused, and that none takes long."""

import time

import pytest

from magnetar.actors.members.topic_filter import TopicFilter
from magnetar.protocol.errors import InvalidTopicName

SPACE = "persistent://public/default/"


def taken(pattern: str, *locals_: str) -> list[str]:
    return [name.removeprefix(SPACE) for name in TopicFilter(pattern).among(SPACE + one for one in locals_)]


@pytest.mark.parametrize("head", ["persistent://", "non-persistent://", "", "^persistent://"])
def test_the_name_is_matched_as_a_whole_and_without_its_domain(head: str) -> None:
    assert taken(f"{head}public/default/a.", "a1", "a12", "ba1", "größe") == ["a1"]


def test_a_pattern_without_anything_matches_everything() -> None:
    assert taken(".*", "a", "größe") == ["a", "größe"]
    assert taken(".+/gr.*e", "a", "größe") == ["größe"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("public/default/(", "missing )"),
        ("public/default/(?=a)b", "invalid perl operator"),
        ("public/default/(a)\\1", "invalid escape"),
        ("(.{0,30}x){30}", "pattern too large"),
        ("http://public/default/a", "Does not support topic domain: http"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match="Invalid topics pattern: ") as refused:
        TopicFilter(pattern)
    assert reason in str(refused.value)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|b|c|d|e|.?){20}(a?){1000}.*z", ".*[ab].{300}c", "(a*)*b"])
def test_the_worst_patterns_match_a_long_name_within_milliseconds(pattern: str) -> None:
    worst = TopicFilter(pattern)
    began = time.process_time()
    for number in range(20):
        worst.takes(SPACE + "abxx" * 60 + str(number))
    assert time.process_time() - began < 20 * 0.05


@pytest.mark.promise("25.7")
def test_no_pattern_takes_a_system_topic() -> None:
    for pattern in (".*", "public/default/__change_events", "public/default/.*"):
        assert not TopicFilter(pattern).takes("persistent://public/default/__change_events")
