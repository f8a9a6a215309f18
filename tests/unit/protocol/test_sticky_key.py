"""The sticky key of an entry, and its hash."""

import base64

import pytest

from magnetar.protocol.entries import build_entry
from magnetar.protocol.hashing import INT31_MASK, murmur3_32
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.sticky_key import NONE_KEY, sticky_hash, sticky_key


def metadata(**fields):
    return MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, **fields)


@pytest.mark.promise("18.2")
@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "k", "ordering_key": b""}, b"k"),
        ({"partition_key": ""}, b""),
        (
            {"partition_key": base64.b64encode(b"\xff\0").decode(), "partition_key_b64_encoded": True},
            b"\xff\0",
        ),
        ({"partition_key": "not base64", "partition_key_b64_encoded": True}, b"not base64"),
        ({}, b"p-7"),
    ],
)
def test_ordering_key_before_key_before_producer_and_sequence_id(fields, expected):
    assert sticky_key(metadata(**fields)) == expected
    assert sticky_hash(build_entry(metadata(**fields), b"payload")) == murmur3_32(expected) & INT31_MASK


def test_rubbish_has_the_key_of_none():
    assert sticky_hash(b"rubbish") == murmur3_32(NONE_KEY) & INT31_MASK


@pytest.mark.promise("18.4")
def test_the_order_of_the_page():
    assert sticky_hash(build_entry(metadata(partition_key="Order-3459134"), b"")) == 964695987
