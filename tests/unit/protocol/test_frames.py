"""Pulsar's frames: any chunks, every malformed shape, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import commands
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import FrameTooLarge, MagnetarError, ProtocolError
from magnetar.protocol.frames import FIELD_OF_TYPE, FrameDecoder, decode_command, encode_command
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandFlow,
    CommandLookupTopic,
    CommandPing,
    CommandSuccess,
    MessageIdData,
    MessageMetadata,
)

ENTRY = build_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), b"payload")
SEND = commands.send_header(1, 2, 0, 1, len(ENTRY)) + ENTRY
MESSAGE = commands.message_header(1, 5, 6, -1, 0, None, len(ENTRY)) + ENTRY


def frame(command: bytes, rest: bytes = b"") -> bytes:
    return (4 + len(command) + len(rest)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + rest


PARTS = st.lists(st.sampled_from([SEND, MESSAGE, commands.ping(), commands.flow(1, 5)]), max_size=6)


@given(PARTS, st.integers(1, 200), st.sampled_from([bytes, bytearray, memoryview]))
def test_any_chunks(parts: list[bytes], step: int, kind: type) -> None:
    stream = b"".join(parts)
    decoder = FrameDecoder(1000)
    found = [item for start in range(0, len(stream), step) for item in decoder.feed(kind(stream[start : start + step]))]
    assert [encode_command(item.command)[4:] + (item.entry or b"") for item in found] == [part[4:] for part in parts]
    assert all(
        isinstance(item.entry, bytes) == (part in (SEND, MESSAGE)) for item, part in zip(found, parts, strict=True)
    )
    assert decoder.buffered_bytes == 0


def test_the_entry_is_a_copy() -> None:
    data = bytearray(SEND)
    (item,) = FrameDecoder(1000).feed(memoryview(data))
    data[:] = bytes(len(data))
    assert item.entry == ENTRY
    assert item.command.send.sequence_id == 2


def test_an_entry_with_a_brokers_section_comes_as_it_is() -> None:
    entry = b"\x0e\x02\x00\x00\x00\x02\x08\x01" + ENTRY
    (item,) = FrameDecoder(1000).feed(commands.message_header(1, 5, 6, -1, 0, None, len(entry)) + entry)
    assert item.entry == entry


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        b"\x00\x00\x00\x03\x00\x00\x00",
        frame(b""),
        frame(b"\x08\x12"),
        frame(b"\x08\x63"),
        frame(b"\x08\x02\x12\x00"),
        frame(b"\xff"),
        frame(b"\x92\x01\x00"),
        frame(CommandPing().SerializeToString()),
        frame(BaseCommand(type="PING", flow=CommandFlow(consumer_id=1, messagePermits=1)).SerializePartialToString()),
        frame(commands.ping()[8:], b"x"),
        frame(commands.ping()[8:], ENTRY),
        frame(SEND[8:20]),
        frame(commands.send_header(1, 2, 0, 1, 0)[8:]),
        frame(commands.send_header(1, 2, 0, 1, 0)[8:], b"\x0e"),
        frame(commands.send_header(1, 2, 0, 1, 0)[8:], ENTRY[2:]),
        b"\x00\x00\x00\x08\x00\x00\x00\x09" + commands.ping()[8:] + bytes(8),
        b"\x00\x00\x00\x08\xff\xff\xff\xff" + bytes(4),
    ],
)
def test_malformed(data: bytes) -> None:
    decoder = FrameDecoder(1000)
    with pytest.raises(ProtocolError):
        decoder.feed(data)
    assert decoder.buffered_bytes == 0
    with pytest.raises(ProtocolError, match="broken"):
        decoder.feed(commands.ping())


def test_strings_are_utf8() -> None:
    good = commands.encode(CommandLookupTopic(topic="topic-é", request_id=1))
    assert FrameDecoder(1000).feed(good)[0].command.lookupTopic.topic == "topic-é"
    with pytest.raises(ProtocolError, match="a command cannot be decoded"):
        FrameDecoder(1000).feed(good.replace("é".encode(), b"\xc3\x28"))


def test_required_fields_at_any_depth() -> None:
    command = BaseCommand(type="SEEK")
    command.seek.consumer_id = command.seek.request_id = 1
    command.seek.message_id.CopyFrom(MessageIdData(ledgerId=1))
    with pytest.raises(ProtocolError, match="required"):
        decode_command(command.SerializePartialToString())
    with pytest.raises(ProtocolError, match="incomplete"):
        encode_command(command)
    with pytest.raises(ProtocolError, match="incomplete"):
        commands.encode(command.seek)
    command.seek.message_id.entryId = 2
    assert decode_command(command.SerializeToString()) == command


def test_deep_nesting_is_refused_not_followed() -> None:
    body = b""
    for _ in range(100_000 // 4):
        size = commands.varint(len(body))
        body = b"\x3a" + size + body
        if len(body) > 5000:
            break
    with pytest.raises(ProtocolError):
        decode_command(b"\x08\x1c\xe2\x01" + commands.varint(len(body)) + body)


def test_the_size_limit_is_exact_and_immediate() -> None:
    assert len(FrameDecoder(len(SEND) - 4).feed(SEND)) == 1
    with pytest.raises(FrameTooLarge):
        FrameDecoder(len(SEND) - 5).feed(SEND[:4])


def test_every_type_has_its_field() -> None:
    assert set(FIELD_OF_TYPE) == set(BaseCommand.Type.values())
    for number, field in FIELD_OF_TYPE.items():
        name = BaseCommand.Type.Name(number)
        descriptor = BaseCommand.DESCRIPTOR.fields_by_name[field]
        assert descriptor.number == number
        letters = name.replace("_", "").lower()
        renamed = {
            "partitionedmetadata": "partitionmetadata",
            "partitionedmetadataresponse": "partitionmetadataresponse",
            "lookup": "lookuptopic",
            "lookupresponse": "lookuptopicresponse",
        }
        assert field.replace("_", "").lower() == renamed.get(letters, letters)


def test_every_command_round_trips() -> None:
    for number, field in FIELD_OF_TYPE.items():
        command = BaseCommand(type=BaseCommand.Type.Name(number))
        getattr(command, field).SetInParent()
        required = getattr(command, field).FindInitializationErrors()
        for descriptor in getattr(command, field).DESCRIPTOR.fields:
            if descriptor.name in required and descriptor.message_type is None:
                text = {descriptor.CPPTYPE_STRING: b"x" if descriptor.type == descriptor.TYPE_BYTES else "x"}
                setattr(getattr(command, field), descriptor.name, text.get(descriptor.cpp_type, 1))
        try:
            data = encode_command(command)
        except MagnetarError:
            assert not command.IsInitialized()
            continue
        assert decode_command(data[8:]) == command
        assert commands.encode(getattr(command, field)) == data


def test_success() -> None:
    data = commands.encode(CommandSuccess(request_id=7))
    assert FrameDecoder(100).feed(data)[0].command == BaseCommand(type="SUCCESS", success=CommandSuccess(request_id=7))
