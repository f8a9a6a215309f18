"""Messages as consumers get them, and the entries that they share.

An entry is checked when it arrives and opened (decompressed, cut into messages) when the application comes to it. A
message keeps its entry and its index; everything else is looked up on demand.
"""

from collections.abc import Callable

from google.protobuf.unknown_fields import UnknownFieldSet

from ..protocol.batches import decode_batch
from ..protocol.compression import decompress
from ..protocol.entries import is_batch, message_count
from ..protocol.errors import MagnetarError
from ..protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from .message_id import MessageId
from .undelivered import chunk, encrypted, too_large, unknown_compression


class Entry:
    """One entry of a topic as it was received, with all that its messages have in common."""

    __slots__ = (
        "ack_set",
        "batched",
        "count",
        "entry_id",
        "failure",
        "generation",
        "ledger_id",
        "metadata",
        "partition",
        "payload",
        "redelivery_count",
        "source",
        "topic",
        "wanted",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        ledger_id: int,
        entry_id: int,
        metadata: MessageMetadata,
        payload: bytes | memoryview,
        *,
        redelivery_count: int = 0,
        ack_set: tuple[int, ...] = (),
        source: object = None,
        generation: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.metadata = metadata
        self.payload = payload
        self.redelivery_count = redelivery_count
        self.ack_set = ack_set
        """Words of 64 bits; a bit that is set stands for a message not yet acknowledged. Empty: none is."""
        self.source = source
        """Who received it, and under which of its subscriptions in time."""
        self.generation = generation
        self.wanted: Callable[[int], bool] | None = None
        """Which messages of the batch, by index, the consumer wants; None: all."""
        self.failure: MagnetarError | None = None
        """Why it cannot be opened, if that showed when it arrived."""
        self.batched = is_batch(metadata)
        self.count = message_count(metadata)

    @property
    def position(self) -> tuple[int, int]:
        """(ledger, entry)."""
        return (self.ledger_id, self.entry_id)

    def open(self, decompressed_size_max: int) -> "list[Message]":
        """The entry's messages, without those already acknowledged or not wanted.

        Raises CryptoError, OperationNotSupported (a chunk, an unknown compression), MessageTooBig, ProtocolError for
        what cannot be decoded, or `failure`.
        """
        metadata = self.metadata
        if self.failure is not None:
            raise self.failure
        if metadata.encryption_keys:
            raise encrypted()
        if metadata.num_chunks_from_msg > 1:
            raise chunk()
        payload: bytes | memoryview = self.payload
        if metadata.compression:
            if metadata.uncompressed_size > decompressed_size_max:
                raise too_large(metadata.uncompressed_size, decompressed_size_max)
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size, decompressed_size_max)
        elif metadata.uncompressed_size:
            _refuse_unknown_compression(metadata)
        if not self.batched:
            return [Message(self, -1, bytes(payload), metadata)]
        pieces = decode_batch(payload, self.count)
        wanted = self.wanted
        if not self.ack_set and wanted is None:
            messages = [Message(self, index, data, single) for index, (single, data) in enumerate(pieces)]
        else:
            messages = [
                Message(self, index, data, single)
                for index, (single, data) in enumerate(pieces)
                if self._is_open(index) and (wanted is None or wanted(index))
            ]
        if any(single is not None and single.compacted_out for single, _ in pieces):
            return [message for message in messages if not message.is_compacted_out]
        return messages

    def _is_open(self, index: int) -> bool:
        word, bit = divmod(index, 64)
        return not self.ack_set or (word < len(self.ack_set) and bool(self.ack_set[word] >> bit & 1))


def _refuse_unknown_compression(metadata: MessageMetadata) -> None:
    """Protobuf takes a value that an enumeration lacks for an unknown field: such an entry looks uncompressed, and its
    payload would be handed over as it is. Whoever compresses says the size before, so only such entries are looked at.
    """
    for field in UnknownFieldSet(metadata):
        if field.field_number == MessageMetadata.COMPRESSION_FIELD_NUMBER:
            raise unknown_compression(field.data)


class Message:
    """A received message. Names and meanings are those of the official client's Message."""

    __slots__ = ("_data", "_entry", "_index", "_single")

    def __init__(
        self, entry: Entry, index: int, data: bytes, single: MessageMetadata | SingleMessageMetadata | None
    ) -> None:
        self._entry = entry
        self._index = index
        self._data = data
        self._single = single

    def data(self) -> bytes:
        """The payload; empty for a null value."""
        return self._data

    def value(self) -> bytes:
        """The payload; with schemas it will be what the schema makes of it."""
        return self._data

    def properties(self) -> dict[str, str]:
        """The application's properties."""
        single = self._single
        return {} if single is None else {pair.key: pair.value for pair in single.properties}

    def partition_key(self) -> str:
        """The key, empty if there is none."""
        return "" if self._single is None else self._single.partition_key

    def ordering_key(self) -> str:
        """The ordering key, empty if there is none."""
        return "" if self._single is None else self._single.ordering_key.decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """When the producer published it, in milliseconds since the epoch."""
        return self._entry.metadata.publish_time

    def event_timestamp(self) -> int:
        """The time that the application gave it, in milliseconds, 0 if none."""
        return 0 if self._single is None else self._single.event_time

    def message_id(self) -> MessageId:
        """Where it is stored."""
        entry = self._entry
        size = entry.count if entry.batched else 0
        return MessageId(entry.partition, entry.ledger_id, entry.entry_id, self._index, size)

    def topic_name(self) -> str:
        """The topic (or partition) it came from, in full."""
        return self._entry.topic

    def redelivery_count(self) -> int:
        """How often it was delivered before, as far as the broker knows."""
        return self._entry.redelivery_count

    def producer_name(self) -> str:
        """Who published it."""
        return self._entry.metadata.producer_name

    def sequence_id(self) -> int:
        """The producer's number for it."""
        single = self._single
        if isinstance(single, SingleMessageMetadata) and single.HasField("sequence_id"):
            return single.sequence_id
        return self._entry.metadata.sequence_id + max(self._index, 0)

    def schema_version(self) -> bytes:
        """The version of the schema it was published with, empty if none."""
        return self._entry.metadata.schema_version

    def has_null_value(self) -> bool:
        """Whether it is a null value (a tombstone)."""
        return self._single is not None and self._single.null_value

    @property
    def source(self) -> object:
        """The consumer of the partition that it came through; None after pickling."""
        return self._entry.source

    @property
    def entry(self) -> Entry:
        """The entry that it shares with the rest of its batch."""
        return self._entry

    @property
    def is_compacted_out(self) -> bool:
        """Whether compaction took the payload of this message from its batch."""
        return isinstance(self._single, SingleMessageMetadata) and self._single.compacted_out

    def __repr__(self) -> str:
        return f"Message({self.message_id().text}, {len(self._data)} bytes)"

    def __reduce__(self) -> tuple[object, ...]:
        entry, single = self._entry, self._single
        state = (
            (entry.topic, entry.partition, entry.ledger_id, entry.entry_id),
            entry.metadata.SerializeToString(),
            entry.redelivery_count,
            self._index,
            self._data,
            None if single is None or single is entry.metadata else single.SerializeToString(),
        )
        return (_restore, state)


def _restore(
    place: tuple[str, int, int, int], metadata: bytes, redeliveries: int, index: int, data: bytes, single: bytes | None
) -> Message:
    parsed = MessageMetadata.FromString(metadata)
    entry = Entry(*place, parsed, b"", redelivery_count=redeliveries)
    if index < 0:
        return Message(entry, index, data, parsed)
    return Message(entry, index, data, None if single is None else SingleMessageMetadata.FromString(single))
