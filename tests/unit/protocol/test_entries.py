"""Entries: layout, checksum, and every way the bytes can be wrong."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import entries
from magnetar.protocol.errors import ChecksumError, ProtocolError
from magnetar.protocol.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata

METADATA = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000)
ENTRY = entries.build_entry(METADATA, b"payload")
SECTION = BrokerEntryMetadata(broker_timestamp=5, index=6).SerializeToString()
WITH_SECTION = b"\x0e\x02" + len(SECTION).to_bytes(4, "big") + SECTION + ENTRY


def test_layout() -> None:
    metadata = METADATA.SerializeToString()
    covered = len(metadata).to_bytes(4, "big") + metadata + b"payload"
    assert ENTRY == b"\x0e\x01" + crc32c(covered).to_bytes(4, "big") + covered
    assert entries.build_entry(metadata, memoryview(b"payload")) == ENTRY


@pytest.mark.parametrize("entry", [ENTRY, bytearray(ENTRY), memoryview(ENTRY), WITH_SECTION])
def test_parse(entry: bytes) -> None:
    metadata, payload = entries.parse_entry(entry)
    assert metadata == entries.parse_metadata(entry) == METADATA
    assert bytes(payload) == b"payload"
    assert entries.entry_checksum_ok(entry)


def test_brokers_section() -> None:
    assert entries.parse_broker_metadata(ENTRY) is None
    section = entries.parse_broker_metadata(WITH_SECTION)
    assert section is not None
    assert (section.broker_timestamp, section.index) == (5, 6)
    with pytest.raises(ProtocolError):
        entries.parse_broker_metadata(b"\x0e\x02\x00\x00\x00\x01\xff" + ENTRY)


@given(st.integers(2, len(ENTRY) - 1), st.integers(1, 255))
def test_every_change_is_noticed(position: int, change: int) -> None:
    data = bytearray(ENTRY)
    data[position] ^= change
    assert not entries.entry_checksum_ok(data)
    with pytest.raises(ChecksumError):
        entries.parse_entry(data)


@given(st.sampled_from([ENTRY, WITH_SECTION]), st.data())
def test_every_cut_is_noticed(entry: bytes, data: st.DataObject) -> None:
    with pytest.raises((ProtocolError, ChecksumError)):
        entries.parse_entry(entry[: data.draw(st.integers(0, len(entry) - 1))])


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e",
        b"\x0e\x00" + ENTRY[2:],
        b"\x0e\x02",
        b"\x0e\x02\xff\xff\xff\xff" + ENTRY,
        b"\x0e\x02\x00\x00\x00\x00" + WITH_SECTION,
        b"\x0e\x01" + bytes(4) + b"\xff\xff\xff\xff",
        ENTRY[2:],
    ],
)
def test_malformed(entry: bytes) -> None:
    for read in (
        entries.parse_metadata,
        entries.parse_broker_metadata,
        lambda data: entries.parse_entry(data, verify=False),
    ):
        if entry.startswith(b"\x0e\x01") and read is entries.parse_broker_metadata:
            continue
        with pytest.raises(ProtocolError):
            read(entry)


@pytest.mark.parametrize("metadata", [b"", b"\xff", b"\x0a\x01p", b"\x0a\x01\xff\x10\x01\x18\x01"])
def test_metadata_that_is_none(metadata: bytes) -> None:
    with pytest.raises(ProtocolError):
        entries.parse_entry(entries.build_entry(metadata, b""))
    with pytest.raises(ProtocolError):
        entries.parse_metadata(entries.build_entry(metadata, b""))


def test_batches_are_marked_by_presence() -> None:
    metadata = MessageMetadata()
    metadata.CopyFrom(METADATA)
    assert not entries.is_batch(metadata)
    assert entries.message_count(metadata) == 1
    metadata.num_messages_in_batch = 1
    assert entries.is_batch(metadata)
    metadata.num_messages_in_batch = 5
    assert entries.message_count(metadata) == 5
    for count in (0, -1, -(1 << 31), entries.ENTRY_MESSAGES_MAX + 1, (1 << 31) - 1):
        metadata.num_messages_in_batch = count
        with pytest.raises(ProtocolError):
            entries.message_count(metadata)
