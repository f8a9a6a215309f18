"""What a consumer of the client hands over that starts at some place of a log: the model for bulk reads.

The client's own filter, assembly of chunks, decryption and opening of entries run here, one entry after the other.

In one case the model is Pulsar's clients. A read may begin within a message whose chunks are stored twice. Pulsar's
clients drop chunks that come without a first one. Ours keeps them, because a Shared subscription brings chunks in any
order, and fills them up with chunks of the second copy. It gives the same message, one chunk or two earlier.
"""

import datetime
from collections.abc import Iterable

from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.bulk.decryption import NO_KEYS, ReadKeys
from magnetar.client.consuming.chunks import IncompleteMessages, is_chunk
from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.consuming.start_filter import StartFilter
from magnetar.client.core.message_id import MessageId
from magnetar.client.crypto.decryption import Discarded, MessageDecryptor
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.message_id import Position, WireMessageId

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SIZE_MAX_BYTES = 1 << 30

Log = Iterable[tuple[Position, bytes]]


def messages_of(
    log: Log, topic: str, partition: int, start: MessageId, end: WireMessageId, keys: ReadKeys = NO_KEYS
) -> list[Message]:
    """The messages from `start` on, up to and with `end`. Raises what the consumer's `receive` raises."""

    class Entry(ReceivedEntry):
        crypto = MessageDecryptor(keys.reader, keys.action)

    wanted, chunks = StartFilter(start, True), IncompleteMessages(0, False, 0.0, SIZE_MAX_BYTES)
    found: list[Message] = []
    begun: set[str] = set()
    for position, body in log:
        if position > end.position:
            break
        metadata, payload = parse_entry(body)
        entry: ReceivedEntry | None = Entry(topic, partition, *position, metadata, bytes(payload))
        if wanted.drops(entry):
            continue
        if is_chunk(entry):
            begun |= {metadata.uuid} if metadata.chunk_id == 0 else set()
            if metadata.uuid not in begun:
                continue
            begun -= {metadata.uuid} if metadata.chunk_id == metadata.num_chunks_from_msg - 1 else set()
            entry = chunks.arrive(entry, 0.0).whole
            if entry is None or wanted.drops(entry):
                continue
        entry.wanted = wanted.wanted(entry)
        try:
            opened = entry.open(SIZE_MAX_BYTES)
        except Discarded:
            continue
        last = end.batch_index if position == end.position and end.batch_index >= 0 else SIZE_MAX_BYTES
        found += [message for message in opened if message.message_id().batch_index() <= last]
    return found


def rows_of(messages: Iterable[Message], window: TimeWindow | None = None) -> list[dict[str, object]]:
    """Messages as the rows of a bulk read, those of a window of publish times."""
    window = window or TimeWindow()
    return [row_of(message) for message in messages if window.holds(message.publish_timestamp())]


def row_of(message: Message) -> dict[str, object]:
    """All columns of one message."""
    single, event_time_ms = message[3], message.event_timestamp()
    return {
        "value": None if message.has_null_value() else message.data(),
        "__key": single.partition_key if single is not None and single.HasField("partition_key") else None,
        "__topic": message.topic_name(),
        "__partition": message.entry.partition,
        "__messageId": message.message_id().serialize(),
        "__publishTime": EPOCH + datetime.timedelta(milliseconds=message.publish_timestamp()),
        "__eventTime": EPOCH + datetime.timedelta(milliseconds=event_time_ms) if event_time_ms else None,
        "__messageProperties": message.properties(),
        "__producerName": message.producer_name(),
        "__sequenceId": message.sequence_id(),
    }
