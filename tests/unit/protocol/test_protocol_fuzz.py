"""Bytes from strangers: whatever comes in, only the protocol's own errors come out, and memory stays bounded."""

import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol import batches, bookie_wire, commands, entries, frames, rpc_frames
from magnetar.protocol import pulsar_pb2 as pb
from magnetar.protocol.errors import ChecksumError, EntryCorrupt, FrameTooLarge, MagnetarError, ProtocolError
from magnetar.protocol.message_id import WireMessageId
from support.files.rpc_frames import encode_frame_header

ALLOWED = (ProtocolError, FrameTooLarge, EntryCorrupt, ChecksumError)

ENTRY = entries.build_entry(
    pb.MessageMetadata(
        producer_name="producer",
        sequence_id=1,
        publish_time=1_700_000_000_000,
        properties=[pb.KeyValue(key="k", value="v")],
        num_messages_in_batch=2,
    ),
    batches.encode_single(b"one", partition_key="key", properties={"a": "b"}) + batches.encode_batch([b"two"]),
)
LEDGER_ENTRY = bookie_wire.encode_entry_header(1, 0, 2, 1, len(ENTRY), ENTRY) + ENTRY
PULSAR_SEEDS = [
    commands.send_header(1, 2, 3, 2, len(ENTRY)) + ENTRY,
    commands.message_header(1, 2, 3, 4, 5, [-1, 7], len(ENTRY)) + ENTRY,
    commands.ack(1, [(1, 2)], request_id=5, partial=[(3, 4, [1], 2)]),
    commands.encode(pb.CommandConnect(client_version="x", protocol_version=21)),
    commands.encode(pb.CommandSubscribe(topic="t", subscription="s", subType="Shared", consumer_id=1, request_id=2)),
]
RPC_SEED = encode_frame_header(0, 1, 7, len(LEDGER_ENTRY)) + LEDGER_ENTRY


def read_pulsar(data: bytes) -> None:
    for frame in frames.FrameDecoder(1 << 16).feed(data):
        str(frame.command)
        if frame.entry is not None:
            read_entry(frame.entry)


def read_entry(data: bytes) -> None:
    for verify in (True, False):
        metadata, payload = entries.parse_entry(data, verify=verify)
        str(metadata)
        batches.decode_batch(payload, entries.message_count(metadata))


def read_metadata(data: bytes) -> None:
    entries.parse_metadata(data)
    entries.parse_broker_metadata(data)
    entries.entry_checksum_ok(data)


def read_unverified(data: bytes) -> None:
    metadata, payload = entries.parse_entry(data, verify=False)
    batches.decode_payloads(payload, entries.message_count(metadata))


DECODERS: list[tuple[Callable[[bytes], object], list[bytes]]] = [
    (read_pulsar, PULSAR_SEEDS),
    (frames.decode_command, [seed[8:] for seed in PULSAR_SEEDS[2:]]),
    (read_entry, [ENTRY]),
    (read_metadata, [ENTRY, b"\x0e\x02\x00\x00\x00\x02\x08\x01" + ENTRY]),
    (read_unverified, [ENTRY]),
    (lambda data: batches.decode_batch(data, 2), [batches.encode_batch([b"one", b"two"])]),
    (lambda data: rpc_frames.RpcFrameDecoder(1 << 16).feed(data), [RPC_SEED]),
    (bookie_wire.decode_entry, [LEDGER_ENTRY]),
    (bookie_wire.decode_entry_header, [LEDGER_ENTRY]),
    (bookie_wire.decode_add, [b"\x01" + LEDGER_ENTRY]),
    (bookie_wire.decode_read, [bookie_wire.encode_read(1, 0, 2, 3, 4)]),
    (bookie_wire.decode_read_answer, [b"".join(bookie_wire.encode_read_answer(5, [LEDGER_ENTRY, LEDGER_ENTRY]))]),
    (bookie_wire.decode_ledger, [bytes(16)]),
    (bookie_wire.decode_ledger_end, [bytes(16)]),
    (WireMessageId.deserialize, [WireMessageId(1, 2, 3, 4, 5).serialize()]),
]
IDS = [f"{index}-{decoder.__name__}" for index, (decoder, _) in enumerate(DECODERS)]


def feed(decoder: Callable[[bytes], object], data: bytes) -> bool:
    try:
        decoder(data)
    except MagnetarError as error:
        assert isinstance(error, ALLOWED), error
        return False
    return True


@pytest.mark.parametrize(("decoder", "seeds"), DECODERS, ids=IDS)
def test_good_bytes_pass(decoder: Callable[[bytes], object], seeds: list[bytes]) -> None:
    assert all(feed(decoder, seed) for seed in seeds)


@pytest.mark.parametrize(("decoder", "seeds"), DECODERS, ids=IDS)
@settings(max_examples=40)
@given(data=st.binary(max_size=200))
def test_any_bytes(decoder: Callable[[bytes], object], seeds: list[bytes], data: bytes) -> None:
    feed(decoder, data)


@pytest.mark.parametrize(("decoder", "seeds"), DECODERS, ids=IDS)
def test_damaged_bytes(decoder: Callable[[bytes], object], seeds: list[bytes]) -> None:
    chance = random.Random(7)
    for _ in range(1500):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            position = chance.randrange(len(data)) if data else 0
            match chance.randrange(5):
                case 0:
                    data[position : position + 1] = chance.randbytes(1)
                case 1:
                    del data[position : position + chance.randint(1, 9)]
                case 2:
                    data[position:position] = chance.randbytes(chance.randint(1, 9))
                case 3:
                    data[position : position + 4] = chance.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
                case _:
                    data += data[position:]
        feed(decoder, bytes(data))


@pytest.mark.parametrize(("decoder", "seeds"), DECODERS, ids=IDS)
def test_huge_numbers_allocate_nothing(decoder: Callable[[bytes], object], seeds: list[bytes]) -> None:
    inputs = [
        bytes(seed[:cut]) + number + seed[cut + 4 :]
        for seed in seeds
        for cut in range(0, len(seed), 2)
        for number in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff")
    ]
    tracemalloc.start()
    try:
        for data in inputs:
            feed(decoder, data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(
    st.lists(st.sampled_from(PULSAR_SEEDS), min_size=1, max_size=3),
    st.integers(1, 64),
    st.integers(0, 300),
    st.integers(0, 255),
)
def test_chunks_do_not_change_the_outcome(seeds: list[bytes], step: int, position: int, value: int) -> None:
    stream = bytearray(b"".join(seeds))
    stream[position % len(stream)] = value
    whole, pieces = frames.FrameDecoder(1 << 12), frames.FrameDecoder(1 << 12)
    found: list[frames.Frame] = []
    failed: MagnetarError | None = None
    try:
        for start in range(0, len(stream), step):
            found += pieces.feed(stream[start : start + step])
            assert pieces.buffered_bytes <= 4 + (1 << 12)
    except MagnetarError as error:
        failed = error
    try:
        assert whole.feed(stream) == found
        assert failed is None
    except MagnetarError:
        # Of two errors in one chunk the size of the later frame may be seen first, so the types can differ.
        assert failed is not None
