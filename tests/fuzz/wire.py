"""Valid pieces of Pulsar's protocol: commands of every type, entries, batches."""

from random import Random
from typing import Any

from magnetar.protocol import batches, commands, compression, entries
from magnetar.protocol import pulsar_pb2 as pb

from .mutation import U32, fill, mutate

KINDS = {field.name: field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None}
FROM_CLIENTS = (
    "subscribe producer send ack flow unsubscribe close_producer close_consumer ping pong "
    "redeliverUnacknowledgedMessages partitionMetadata lookupTopic seek getLastMessageId getTopicsOfNamespace "
    "getSchema getOrCreateSchema consumerStats newTxn watchTopicList"
).split()
FROM_BROKERS = (
    "connected send_receipt send_error message success error close_producer close_consumer producer_success ping pong "
    "partitionMetadataResponse lookupTopicResponse consumerStatsResponse getLastMessageIdResponse "
    "getTopicsOfNamespaceResponse ackResponse active_consumer_change reachedEndOfTopic"
).split()


def make_batch(random: Random) -> tuple[bytes, int]:
    """The payload of a batch, and how many messages are in it."""
    count = random.randint(1, 8)
    if random.random() < 0.4:
        size = random.randrange(200)
        return batches.encode_batch(
            [random.randbytes(size if random.random() < 0.9 else 7) for _ in range(count)]
        ), count
    pieces = []
    for _ in range(count):
        data = random.randbytes(random.randrange(40))
        metadata = fill(pb.SingleMessageMetadata(), random)
        metadata.payload_size = len(data)
        body = metadata.SerializeToString()
        pieces.append(U32.pack(len(body)) + body + data)
    return b"".join(pieces), count


def make_entry(random: Random) -> bytes:
    """An entry whose checksum holds; often all is as it should be, sometimes the metadata lies about the payload."""
    payload, count = make_batch(random)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=random.randrange(4), publish_time=1)
    if random.random() < 0.3:
        fill(metadata, random)
    if random.random() < 0.8:
        metadata.num_messages_in_batch = count
    if random.random() < 0.9:
        metadata.ClearField("encryption_keys")
    if random.random() < 0.1:
        payload = mutate(payload, random)
    kind = random.randrange(5)
    if random.random() < 0.5:
        metadata.compression = kind  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
        payload = compression.compress(kind, payload)
        if random.random() < 0.2:
            payload = mutate(payload, random)
        if random.random() < 0.1:
            metadata.uncompressed_size = random.choice((0, 1, len(payload), (1 << 31) - 1, (1 << 32) - 1))
    entry = entries.build_entry(metadata, payload)
    if random.random() < 0.1:
        section = fill(pb.BrokerEntryMetadata(), random).SerializeToString()
        entry = b"\x0e\x02" + U32.pack(len(section)) + section + entry
    return mutate(entry, random) if random.random() < 0.1 else entry


def frame(command: bytes, entry: bytes = b"") -> bytes:
    """A frame whose sizes hold, whatever is in it."""
    return U32.pack(4 + len(command) + len(entry)) + U32.pack(len(command)) + command + entry


def make_frame(random: Random, usual: list[str], ids: tuple[int, ...] = (0, 1, 2)) -> bytes:
    """A frame with a random command, mostly one of the `usual`; ids of requests, producers, consumers mostly known."""
    field = KINDS[random.choice(usual) if random.random() < 0.97 else random.choice(list(KINDS))]
    content: Any = fill(getattr(pb.BaseCommand(), field.name), random)
    for name in ("producer_id", "consumer_id", "request_id"):
        if name in content.DESCRIPTOR.fields_by_name and random.random() < 0.9:
            setattr(content, name, random.choice(ids))
    if field.name in ("send", "message"):
        if field.name == "send" and random.random() < 0.5:
            entry = make_entry(random)
            return commands.send_header(1, random.randrange(4), 0, random.randint(1, 8), len(entry)) + entry
        return frame(commands.encode(content)[8:], make_entry(random))
    data = commands.encode(content)
    return frame(mutate(data[8:], random)) if random.random() < 0.05 else data


def make_stream(random: Random, usual: list[str], ids: tuple[int, ...] = (0, 1, 2)) -> bytes:
    """Frames one after the other, sometimes damaged as a whole."""
    stream = b"".join([make_frame(random, usual, ids) for _ in range(random.randint(1, 30))])
    return mutate(stream, random) if random.random() < 0.3 else stream
