"""Entries out and in: what the encoder writes, a received entry opens again; hostile ones are refused."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.core.configuration import CompressionType
from magnetar.client.core.message_id import MessageId
from magnetar.client.producing.outbox import Batch, ignore
from magnetar.client.producing.outgoing import Outgoing
from magnetar.client.producing.partition_producer import EntryEncoder
from magnetar.protocol.batches import decode_batch, encode_batch, encode_single
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.errors import MessageTooBig, OperationNotSupported, ProtocolError
from magnetar.protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

LIMIT = 1 << 20


def encoder(compression: CompressionType = CompressionType.NONE) -> EntryEncoder:
    made = EntryEncoder(compression)
    made.registered_as("the-producer", b"")
    return made


def encode(made: EntryEncoder, batch: Batch, now_ms: int) -> bytes:
    (entry,) = made.encode(batch, now_ms)
    return entry


def batch_of(payloads: list[bytes], *, batched: bool = True, attributes: Outgoing | None = None) -> Batch:
    count = len(payloads)
    return Batch(payloads, [ignore] * count, 40, 39 + count, batched=batched, encoded=False, attributes=attributes)


def received(data: bytes, ack_set: tuple[int, ...] = ()) -> ReceivedEntry:
    metadata, payload = parse_entry(data)
    return ReceivedEntry(
        "persistent://public/default/t", 2, 7, 8, metadata, payload, redelivery_count=3, ack_set=ack_set
    )


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_batch_comes_back(compression: CompressionType) -> None:
    payloads = [b"message %d" % number for number in range(100)]
    entry = received(encode(encoder(compression), batch_of(payloads), 1234))
    messages = entry.open(LIMIT)
    assert [message.data() for message in messages] == payloads
    assert [message.message_id() for message in messages] == [MessageId(2, 7, 8, index) for index in range(100)]
    assert [message.sequence_id() for message in messages] == list(range(40, 140))
    last = messages[-1]
    assert (last.publish_timestamp(), last.producer_name(), last.redelivery_count()) == (1234, "the-producer", 3)
    assert (last.properties(), last.partition_key(), last.ordering_key(), last.event_timestamp()) == ({}, "", "", 0)
    assert entry.metadata.highest_sequence_id == 139
    assert entry.metadata.compression == compression


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_message_alone_comes_back_with_everything_on_it(compression: CompressionType) -> None:
    attributes = Outgoing(b"alone", {"a": "1", "ü": "2"}, "key", "order", 40, 99)
    data = encode(encoder(compression), batch_of([b"alone"], batched=False, attributes=attributes), 1234)
    (message,) = received(data).open(LIMIT)
    assert message.data() == b"alone"
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("key", "order", 99)
    assert message.properties() == {"a": "1", "ü": "2"}
    assert message.message_id() == MessageId(2, 7, 8)
    assert message.sequence_id() == 40
    assert not message.has_null_value()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(
    st.binary(max_size=300),
    st.none() | st.dictionaries(texts, texts, max_size=3),
    st.none() | texts,
    st.none() | texts,
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
    st.booleans(),
)
@settings(max_examples=150)
def test_pieces_of_a_batch_are_what_protobuf_reads(
    content: bytes,
    properties: dict[str, str] | None,
    partition_key: str | None,
    ordering_key: str | None,
    sequence_id: int | None,
    event_timestamp: int | None,
    null_value: bool,
) -> None:
    sent = None if null_value else content
    message = Outgoing(sent, properties, partition_key, ordering_key, sequence_id, event_timestamp)
    ((single, data),) = decode_batch(message.encode(), 1)
    assert data == (sent or b"")
    if single is None:
        single = SingleMessageMetadata(payload_size=len(data))
    assert {pair.key: pair.value for pair in single.properties} == (properties or {})
    assert (single.partition_key if single.HasField("partition_key") else None) == partition_key
    assert (single.ordering_key.decode() if single.HasField("ordering_key") else None) == ordering_key
    assert (single.sequence_id if single.HasField("sequence_id") else None) == sequence_id
    assert single.event_time == (event_timestamp or 0)
    assert single.null_value == null_value


def test_null_values() -> None:
    data = encode(encoder(), batch_of([b""], batched=False, attributes=Outgoing(None)), 1)
    (message,) = received(data).open(LIMIT)
    assert message.has_null_value() and message.data() == b""


def test_an_empty_payload_is_a_payload() -> None:
    (message,) = received(encode(encoder(), batch_of([b""], batched=False), 1)).open(LIMIT)
    assert message.data() == b"" and not message.has_null_value()


def test_the_size_limit_holds_after_compression() -> None:
    small = encoder(CompressionType.LZ4)
    small.size_max_bytes = 1000
    small.encode(batch_of([b"x" * 5000], batched=False), 1)
    plain = encoder()
    plain.size_max_bytes = 1000
    with pytest.raises(MessageTooBig) as caught:
        plain.encode(batch_of([b"x" * 1000], batched=False), 1)
    assert caught.value.details["size_max_bytes"] == 1000


def test_messages_already_acknowledged_are_left_out() -> None:
    data = encode(encoder(), batch_of([b"%d" % number for number in range(70)]), 1)
    entry = received(data, ack_set=(0b1010, 0b11))
    assert [message.data() for message in entry.open(LIMIT)] == [b"1", b"3", b"64", b"65"]


def test_messages_not_wanted_are_left_out() -> None:
    data = encode(encoder(), batch_of([b"0", b"1", b"2"]), 1)
    entry = received(data)
    entry.wanted = lambda index: index > 1
    assert [message.data() for message in entry.open(LIMIT)] == [b"2"]


def test_messages_that_compaction_removed_are_left_out() -> None:
    single = encode_batch([b"kept"])
    gone = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    entry = ReceivedEntry("t", -1, 1, 1, metadata, len(gone).to_bytes(4, "big") + gone + single)
    assert [(message.data(), message.message_id().batch_index()) for message in entry.open(LIMIT)] == [(b"kept", 1)]


def metadata(**options: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("described", "payload", "error"),
    [
        (metadata(num_messages_in_batch=3), encode_batch([b"a", b"b"]), ProtocolError),
        (metadata(num_messages_in_batch=10**9), b"abc", ProtocolError),
        (metadata(compression=1, uncompressed_size=LIMIT + 1), b"abc", MessageTooBig),
        (metadata(compression=2, uncompressed_size=3), b"abc", ProtocolError),
        (metadata(num_chunks_from_msg=2), b"abc", OperationNotSupported),
    ],
)
def test_what_cannot_be_read(described: MessageMetadata, payload: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        ReceivedEntry("t", -1, 1, 1, described, payload).open(LIMIT)


def test_a_batch_of_no_messages_is_no_entry() -> None:
    with pytest.raises(ProtocolError):
        ReceivedEntry("t", -1, 1, 1, metadata(num_messages_in_batch=0), b"")


def test_messages_pickle() -> None:
    pieces = [encode_single(b"a", properties={"x": "y"}, partition_key="k"), encode_single(b"b")]
    entry = ReceivedEntry("t", 1, 2, 3, metadata(num_messages_in_batch=2), b"".join(pieces), source=object())
    for message in entry.open(LIMIT):
        copy: Message = pickle.loads(pickle.dumps(message))
        assert copy.data() == message.data()
        assert copy.properties() == message.properties()
        assert copy.message_id() == message.message_id()
        assert copy.topic_name() == "t"
        assert copy.source is None
