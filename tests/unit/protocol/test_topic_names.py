"""Topic names: every way to write one, partitions, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.errors import InvalidTopicName
from magnetar.protocol.topics import TopicName, parse_namespace


@pytest.mark.promise("15.1", "15.2")
@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("x", "persistent://public/default/x"),
        ("t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x", "persistent://t/n/x"),
        ("non-persistent://t/n/x", "non-persistent://t/n/x"),
        ("größe %2F", "persistent://public/default/größe %2F"),
        ("a=b:c.d-e_f/n/x", "persistent://a=b:c.d-e_f/n/x"),
    ],
)
def test_full(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert name.full == str(name) == full
    assert TopicName.parse(full) == name


@pytest.mark.promise("15.1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/b",
        "a/b/c/d",
        "a//b",
        "persistent://",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent://a//c",
        "persistent:///b/c",
        "persistent://a/b/c/d",
        "topic://a/b/c",
        "://a/b/c",
        "persistent://ä/b/c",
        "persistent://a b/b/c",
        "persistent://a/b\n/c",
        "new\nline",
        "nul\0",
        "half\ud800",
        "x" * 5000,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(text)


def test_parts() -> None:
    name = TopicName.parse("non-persistent://t/n/a b-partition-12")
    assert (name.domain, name.tenant, name.namespace_portion, name.local_name) == (
        "non-persistent",
        "t",
        "n",
        "a b-partition-12",
    )
    assert name.partition == 12
    assert name.namespace == "t/n"
    assert not name.persistent
    assert name.partitioned_name == "non-persistent://t/n/a b"
    assert name.path == "non-persistent/t/n/a%20b-partition-12"
    assert TopicName.parse("a%/ü".replace("/", ":")).path == "persistent/public/default/a%25%3A%C3%BC"


@pytest.mark.parametrize(
    "local",
    [
        "x-partition-",
        "x-partition-01",
        "x-partition--1",
        "x-partition-1a",
        "x-partition-１",
        "-partition-0",
        "x-partition-1\u00a0",
    ],
)
def test_names_that_only_look_like_partitions(local: str) -> None:
    name = TopicName.parse(local)
    assert name.partition == -1
    assert name.partitioned_name == name.full


def test_partition_of_a_partition_is_refused() -> None:
    name = TopicName.parse("x")
    assert name.partition_name(3) == "persistent://public/default/x-partition-3"
    with pytest.raises(InvalidTopicName):
        name.partition_topic(3).partition_name(0)
    with pytest.raises(InvalidTopicName):
        name.partition_name(-1)


def test_the_innermost_suffix_counts() -> None:
    name = TopicName.parse("x-partition-1-partition-2")
    assert name.partition == 2
    assert name.without_partition().local_name == "x-partition-1"


@pytest.mark.promise("15.4")
@given(st.text())
def test_any_text(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName as error:
        str(error).encode()
        return
    assert TopicName.parse(name.full) == name
    assert name.path.count("/") == 3
    assert name.path.isascii()


@given(st.integers(0, 999_999_999))
def test_partition_round_trip(index: int) -> None:
    partition = TopicName.parse(TopicName.parse("t/n/x").partition_name(index))
    assert partition.partition == index
    assert partition.without_partition() == TopicName.parse("t/n/x")


def test_namespaces() -> None:
    assert parse_namespace("public/default") == ("public", "default")
    for text in ("", "a", "a/", "/b", "a/b/c", "a b/c"):
        with pytest.raises(InvalidTopicName):
            parse_namespace(text)
