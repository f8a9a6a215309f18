"""Entries as producers store them: plain ones, batches, messages in chunks, encrypted or not, and stored again."""

from collections.abc import Sequence
from random import Random

from magnetar.client.crypto.encryption import MessageEncryptor
from magnetar.protocol.batches import encode_single
from magnetar.protocol.compression import CompressionType, compress
from magnetar.protocol.entries import build_entry
from magnetar.protocol.pulsar_pb2 import KeyValue, MessageMetadata


def chunks_of(
    payload: bytes, sizes: Sequence[int], header: MessageMetadata, encryptor: MessageEncryptor | None = None
) -> list[bytes]:
    """The entries of a message that is cut into pieces of these sizes."""
    if sum(sizes) != len(payload):
        raise ValueError("the sizes are those of all pieces of the payload")
    entries: list[bytes] = []
    start = 0
    for index, size in enumerate(sizes):
        metadata = MessageMetadata()
        metadata.CopyFrom(header)
        metadata.uuid = f"{header.producer_name}-{header.sequence_id}"
        metadata.chunk_id, metadata.num_chunks_from_msg = index, len(sizes)
        metadata.total_chunk_msg_size = len(payload)
        entries.append(_built(metadata, payload[start : start + size], encryptor))
        start += size
    return entries


def random_log(random: Random, encryptor: MessageEncryptor | None = None) -> list[bytes]:
    """The entries of several producers, interleaved. Some of them store entries again, or end within a message."""
    streams = [_stored(random, _messages(random, f"p{number}", encryptor)) for number in range(random.randint(1, 4))]
    log: list[bytes] = []
    while any(streams):
        stream = random.choice([one for one in streams if one])
        log += [stream.pop(0) for _ in range(min(random.randint(1, 3), len(stream)))]
    return log


def _messages(random: Random, name: str, encryptor: MessageEncryptor | None) -> list[bytes]:
    entries: list[bytes] = []
    for sequence_id in range(0, random.randint(1, 6) * 10, 10):
        header = MessageMetadata(
            producer_name=name, sequence_id=sequence_id, publish_time=1_000 + random.randint(0, 50)
        )
        seals = encryptor if random.random() < 0.5 else None
        kind = random.choice(("chunks", "chunks", "batch", "plain"))
        if kind == "batch":
            count = random.randint(1, 4)
            header.num_messages_in_batch = count
            key = random.choice((None, "k"))
            pieces = [encode_single(random.randbytes(random.randint(0, 9)), partition_key=key) for _ in range(count)]
            entries.append(_built(header, _compressed(random, header, b"".join(pieces)), seals))
            continue
        if random.random() < 0.5:
            header.partition_key, header.event_time = "key", 5
            header.properties.append(KeyValue(key="a", value=name))
        payload = _compressed(random, header, random.randbytes(random.randint(8, 200)))
        if kind == "plain":
            entries.append(_built(header, payload, seals))
        else:
            pieces_max = min(5, len(payload))
            cuts = sorted(random.sample(range(1, len(payload)), random.randint(1, pieces_max - 1)))
            sizes = [end - start for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
            entries += chunks_of(payload, sizes, header, seals)
    return entries


def _stored(random: Random, entries: list[bytes]) -> list[bytes]:
    """What is stored of a producer's entries when it sends those again of whose receipts it does not know."""
    stored: list[bytes] = []
    received = sent = 0
    while sent < len(entries):
        following = min(sent + random.randint(1, 4), len(entries))
        stored += entries[sent:following]
        sent = following
        if random.random() < 0.25:
            received = sent = random.randint(received, sent)
    return stored[: random.randint(1, len(stored))] if random.random() < 0.2 else stored


def _compressed(random: Random, header: MessageMetadata, payload: bytes) -> bytes:
    if random.random() < 0.5 or not payload:
        return payload
    header.compression = CompressionType.LZ4  # type: ignore[assignment]
    header.uncompressed_size = len(payload)
    return compress(CompressionType.LZ4, payload)


def _built(header: MessageMetadata, payload: bytes, encryptor: MessageEncryptor | None) -> bytes:
    if encryptor is None:
        return build_entry(header, payload)
    return encryptor.build(header.SerializeToString(), payload)
