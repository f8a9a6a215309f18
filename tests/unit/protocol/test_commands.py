"""Hand-written commands equal what protobuf writes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.protocol import commands, frames
from magnetar.protocol import pulsar_pb2 as pb
from magnetar.protocol.message_id import unsigned64

UINT64 = st.integers(0, (1 << 64) - 1)
IDS = st.integers(-1, (1 << 63) - 1)
COUNTS = st.integers(0, (1 << 31) - 1)
PARTITIONS = st.integers(-1, (1 << 31) - 1)
WORDS = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3)


def decode(data: bytes) -> pb.BaseCommand:
    (frame,) = frames.FrameDecoder(1 << 20).feed(data)
    assert frames.encode_command(frame.command) == data, "not the bytes that protobuf writes"
    return frame.command


def header(data: bytes, entry_size: int) -> pb.BaseCommand:
    """The command of a frame that lacks its entry of `entry_size` bytes."""
    assert int.from_bytes(data[:4], "big") == len(data) - 4 + entry_size
    command = frames.decode_command(data[8:])
    assert command.SerializeToString() == data[8:]
    return command


def message_id(ledger: int, entry: int, partition: int) -> pb.MessageIdData:
    data = pb.MessageIdData(ledgerId=unsigned64(ledger), entryId=unsigned64(entry))
    if partition >= 0:
        data.partition = partition
    return data


@given(UINT64)
@example((1 << 28) - 1)
@example(1 << 28)
@example((1 << 42) - 1)
@example(1 << 42)
def test_varint(value: int) -> None:
    assert b"\x08" + commands.varint(value) == pb.CommandReachedEndOfTopic(consumer_id=value).SerializeToString()


@given(UINT64, UINT64, UINT64, IDS, IDS, PARTITIONS)
def test_send_receipt(producer: int, sequence: int, highest: int, ledger: int, entry: int, partition: int) -> None:
    receipt = decode(commands.send_receipt(producer, sequence, highest, ledger, entry, partition)).send_receipt
    expected = pb.CommandSendReceipt(
        producer_id=producer, sequence_id=sequence, message_id=message_id(ledger, entry, partition)
    )
    if highest:
        expected.highest_sequence_id = highest
    assert receipt == expected


@given(UINT64, UINT64, st.sampled_from(pb.ServerError.values()), st.text(max_size=300))
def test_send_error(producer: int, sequence: int, code: int, text: str) -> None:
    error = decode(commands.send_error(producer, sequence, code, text)).send_error
    assert (error.producer_id, error.sequence_id, error.error, error.message) == (producer, sequence, code, text)


def test_send_error_with_half_a_surrogate_pair() -> None:
    assert decode(commands.send_error(1, 2, 0, "\ud800")).send_error.message == "?"


@given(UINT64, IDS, IDS, PARTITIONS, COUNTS, WORDS, COUNTS, st.none() | UINT64, st.booleans())
def test_message_header(
    consumer: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery: int,
    words: list[int],
    size: int,
    epoch: int | None,
    first: bool,
) -> None:
    end = commands.message_end(epoch, first_delivery=first)
    data = commands.message_header(consumer, ledger, entry, partition, redelivery, words, size, end=end)
    expected = pb.CommandMessage(consumer_id=consumer, message_id=message_id(ledger, entry, partition), ack_set=words)
    if redelivery:
        expected.redelivery_count = redelivery
    if epoch is not None:
        expected.consumer_epoch = epoch
    if first:
        expected.first_delivery = True
    assert header(data, size).message == expected


@given(UINT64, UINT64, UINT64, st.integers(1, 1 << 30), COUNTS, st.booleans())
def test_send_header(producer: int, sequence: int, highest: int, count: int, size: int, is_chunk: bool) -> None:
    send = header(commands.send_header(producer, sequence, highest, count, size, is_chunk=is_chunk), size).send
    assert (send.producer_id, send.sequence_id, send.num_messages) == (producer, sequence, count)
    assert (send.highest_sequence_id, send.is_chunk) == (highest, is_chunk)
    assert send.HasField("highest_sequence_id") == (highest != 0)


@given(UINT64, st.integers(0, (1 << 32) - 1))
def test_flow(consumer: int, permits: int) -> None:
    expected = pb.CommandFlow(consumer_id=consumer, messagePermits=permits)
    assert decode(commands.flow(consumer, permits)).flow == expected


@given(
    UINT64,
    st.lists(st.tuples(IDS, IDS), max_size=4),
    st.booleans(),
    st.none() | UINT64,
    st.lists(st.tuples(IDS, IDS, WORDS, COUNTS), max_size=3),
)
def test_ack(
    consumer: int,
    positions: list[tuple[int, int]],
    cumulative: bool,
    request_id: int | None,
    partial: list[tuple[int, int, list[int], int]],
) -> None:
    data = commands.ack(consumer, positions, cumulative=cumulative, request_id=request_id, partial=partial)
    expected = pb.CommandAck(consumer_id=consumer, ack_type="Cumulative" if cumulative else "Individual")
    expected.message_id.extend(message_id(*position, -1) for position in positions)
    for ledger, entry, words, size in partial:
        expected.message_id.add(ledgerId=unsigned64(ledger), entryId=unsigned64(entry), ack_set=words, batch_size=size)
    if request_id is not None:
        expected.request_id = request_id
    assert decode(data).ack == expected


def test_ping_and_pong() -> None:
    assert decode(commands.ping()).type == pb.BaseCommand.PING
    assert decode(commands.pong()).type == pb.BaseCommand.PONG


def test_only_commands_can_be_framed() -> None:
    with pytest.raises(KeyError):
        commands.encode(pb.MessageMetadata())
