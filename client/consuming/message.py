"""Messages as consumers get them, and the entries that they share.

An entry is checked when it arrives and opened (decompressed, cut into messages) when the application comes to it. A
message keeps its entry and its index; everything else is looked up on demand.

What a batch opens to makes its messages when somebody looks at them (`Opened`), and is acknowledged as a whole. A
message is a tuple underneath: all those of a batch are made, taken apart and compared in C.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, NamedTuple, overload

from ...protocol.ack_sets import open_messages
from ...protocol.batches import decode_batch, decode_uniform
from ...protocol.compression import decompress
from ...protocol.entries import is_batch, message_count
from ...protocol.errors import CryptoError, MagnetarError, ProtocolError
from ...protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from ..core.message_id import ChunkedMessageId, MessageId, TopicMessageId, positions_of
from ..crypto.context import EncryptionContext
from ..crypto.decryption import MessageDecryptor
from ..crypto.keys import ConsumerCryptoFailureAction
from ..schemas.schema import DecodedValue
from .undelivered import encrypted, lone_chunk, refuse_unknown_compression, too_large

if TYPE_CHECKING:
    from .partition_consumer import SchemaReading, WrittenWith

LARGE_BYTES = 256 * 1024
"""Decompressed size from which on coroutines leave opening to a thread. Measured for this size: ZLIB takes 0.4 ms and
LZ4 0.3 ms, before the batch is cut into messages. The way to a thread and back takes 0.08 ms.
"""


class ReceivedEntry:
    """One entry of a topic as it was received, with all that its messages have in common."""

    __slots__ = (
        "ack_set",
        "batched",
        "chunks",
        "count",
        "entry_id",
        "failure",
        "generation",
        "ledger_id",
        "metadata",
        "opened",
        "partition",
        "payload",
        "permits",
        "redelivery_count",
        "source",
        "topic",
        "undecrypted",
        "wanted",
    )

    crypto: ClassVar[MessageDecryptor | None] = None
    """What opens encrypted messages."""
    names_topic = False
    """Whether ids of its messages name the topic."""
    is_first_delivery: ClassVar[bool] = False
    """Whether its broker said so. Only brokers of Magnetar do, to consumers that asked (`MarkedConsumer`)."""
    reading: ClassVar["SchemaReading | WrittenWith | None"] = None
    """What decodes values by a schema; None: values are payloads."""

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
        self.source = source  # who received it, and under which of its subscriptions in time (`generation`)
        self.generation = generation
        self.chunks: tuple[ReceivedEntry, ...] = ()
        """Of a message put together from chunks (`chunks`): their entries in order. This is the last one."""
        self.wanted: Callable[[int], bool] | None = None
        """Which messages of the batch, by index, the consumer wants; None: all."""
        self.undecrypted = False
        """Whether it was handed over as it is, encrypted."""
        self.failure: MagnetarError | None = None
        """Why it cannot be opened, if that showed when it arrived."""
        self.opened: Sequence[Message] | None = None
        """What `prepare` made."""
        self.batched = is_batch(metadata)
        self.count = message_count(metadata)
        self.permits = self.count if not ack_set else open_messages(ack_set, self.count)

    @property
    def position(self) -> tuple[int, int]:
        """(ledger, entry)."""
        return (self.ledger_id, self.entry_id)

    @property
    def is_large(self) -> bool:
        """Whether opening it takes so long that an event loop should not do it, and no thread has prepared it."""
        if self.reading is not None and self.reading.lacks(self):
            return True  # asking the broker for the writer's schema takes long
        if self.opened is not None or self.failure is not None:
            return False
        return (
            bool(self.chunks)
            or bool(self.metadata.encryption_keys)
            or (bool(self.metadata.compression) and self.metadata.uncompressed_size >= LARGE_BYTES)
        )

    def prepare(self, decompressed_size_max: int) -> None:
        """Open it ahead, on a thread: `open` then gives at once what came of it."""
        try:
            self.opened = self.open(decompressed_size_max)
        except MagnetarError as error:
            self.failure = error

    def open(self, decompressed_size_max: int) -> "Sequence[Message]":
        """The entry's messages, without those already acknowledged or not wanted.

        Raises CryptoError, OperationNotSupported (an unknown compression), MessageTooBig, ProtocolError for
        what cannot be decoded, or `failure`.
        """
        metadata = self.metadata
        if self.failure is not None:
            raise self.failure
        if self.opened is not None:
            return self.opened
        payload: bytes | memoryview = self.payload
        if metadata.num_chunks_from_msg > 1 and not self.chunks:
            raise lone_chunk()
        if metadata.encryption_keys or self.chunks:
            try:
                payload = self._whole_payload()
            except CryptoError:
                if self.crypto is None or self.crypto.action is not ConsumerCryptoFailureAction.CONSUME:
                    raise
                self.undecrypted, self.batched = True, False
                return [Message((self, -1, b"".join([part.payload for part in self.chunks or (self,)]), metadata))]
        if metadata.compression:
            if metadata.uncompressed_size > decompressed_size_max:
                raise too_large(metadata.uncompressed_size, decompressed_size_max)
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size, decompressed_size_max)
        elif metadata.uncompressed_size:
            refuse_unknown_compression(metadata)
        if not self.batched:
            return [Message((self, -1, bytes(payload), metadata))]
        data = payload if isinstance(payload, bytes) else bytes(payload)
        wanted = self.wanted
        plain = decode_uniform(data, self.count)
        if plain is not None and not self.ack_set and wanted is None:
            return Opened(self, plain)
        pieces = decode_batch(data, self.count)
        if not self.ack_set and wanted is None:
            messages = [Message((self, index, data, single)) for index, (single, data) in enumerate(pieces)]
        else:
            messages = [
                Message((self, index, data, single))
                for index, (single, data) in enumerate(pieces)
                if self._is_open(index) and (wanted is None or wanted(index))
            ]
        if any(single is not None and single.compacted_out for single, _ in pieces):
            return [message for message in messages if not message.is_compacted_out]
        return messages

    def _whole_payload(self) -> bytes | memoryview:
        """The payload, decrypted, and put together from the chunks. Theirs are not needed afterwards, and let go."""
        parts = self.chunks or (self,)
        payloads = [part.payload for part in parts]
        if self.metadata.encryption_keys:
            if self.crypto is None:
                raise encrypted()
            payloads = [self.crypto.decrypt(part.metadata, part.payload) for part in parts]
        if not self.chunks:
            return payloads[0]
        payload = b"".join(payloads)
        if len(payload) != self.metadata.total_chunk_msg_size:
            raise ProtocolError(
                f"its chunks have {len(payload)} bytes together, but claim {self.metadata.total_chunk_msg_size}"
            )
        for chunk in self.chunks:
            chunk.payload = b""
        return payload

    def _is_open(self, index: int) -> bool:
        word, bit = divmod(index, 64)
        return not self.ack_set or (word < len(self.ack_set) and bool(self.ack_set[word] >> bit & 1))


class Message(tuple[ReceivedEntry, int, bytes, SingleMessageMetadata | MessageMetadata | None]):
    """A received message. Names and meanings are those of the official client's Message.

    Underneath: its entry, its index, its payload, and its metadata (None for a message that has none of its own).
    """

    __slots__ = ()

    def data(self) -> bytes:
        """Return the payload.

        Returns:
            The bytes; empty for a null value.
        """
        return self[2]

    def value(self) -> DecodedValue:
        """Return the value, decoded by the consumer's schema with the definition that it was written with.

        Returns:
            The value, None for a null value. Without a schema: the payload, empty for a null value.

        Raises:
            SchemaSerializationError: If the payload does not fit the schema.
            MagnetarError: Why the definition that it was written with cannot be fetched.
        """
        reading = self[0].reading
        return self[2] if reading is None else reading.value(self)

    def properties(self) -> dict[str, str]:
        """Return the properties of the message.

        Returns:
            Names and values.
        """
        single = self[3]
        return {} if single is None else {pair.key: pair.value for pair in single.properties}

    def partition_key(self) -> str:
        """Return the partition key.

        Returns:
            The key, empty if there is none.
        """
        single = self[3]
        return "" if single is None else single.partition_key

    def ordering_key(self) -> str:
        """Return the ordering key.

        Returns:
            The key, empty if there is none.
        """
        single = self[3]
        return "" if single is None else single.ordering_key.decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """Return when the producer published the message.

        Returns:
            Milliseconds since the epoch.
        """
        return self[0].metadata.publish_time

    def event_timestamp(self) -> int:
        """Return the time that the application gave the message.

        Returns:
            Milliseconds since the epoch, 0 if none.
        """
        single = self[3]
        return 0 if single is None else single.event_time

    def message_id(self) -> MessageId:
        """Return the id of the message.

        Returns:
            The id.
        """
        entry = self[0]
        size = entry.count if entry.batched else 0
        if not entry.chunks and not entry.names_topic:
            return MessageId(entry.partition, entry.ledger_id, entry.entry_id, self[1], size)
        place = MessageId(entry.partition, entry.ledger_id, entry.entry_id, self[1], size)
        if entry.chunks:
            place = ChunkedMessageId(entry.partition, tuple([chunk.position for chunk in entry.chunks]))
        return TopicMessageId.of(entry.topic, place) if entry.names_topic else place

    def topic_name(self) -> str:
        """Return the topic or partition that the message came from.

        Returns:
            The full name.
        """
        return self[0].topic

    def redelivery_count(self) -> int:
        """Return how often the broker delivered the message before.

        Returns:
            The number of earlier deliveries.
        """
        return self[0].redelivery_count

    def producer_name(self) -> str:
        """Return the name of the producer.

        Returns:
            The name.
        """
        return self[0].metadata.producer_name

    def sequence_id(self) -> int:
        """Return the producer's number of the message.

        Returns:
            The sequence id.
        """
        single = self[3]
        if isinstance(single, SingleMessageMetadata) and single.HasField("sequence_id"):
            return single.sequence_id
        return self[0].metadata.sequence_id + max(self[1], 0)

    def schema_version(self) -> bytes:
        """Return the version of the schema that the message was published with.

        Returns:
            The version, empty if none.
        """
        return self[0].metadata.schema_version

    def has_null_value(self) -> bool:
        """Return whether the message is a null value.

        Returns:
            True if it is.
        """
        single = self[3]
        return single is not None and single.null_value

    def encryption_context(self) -> EncryptionContext | None:
        """Return how the message is encrypted.

        Returns:
            The keys and parameters; None for a message that was published unencrypted.
        """
        metadata = self[0].metadata
        return EncryptionContext(metadata, failed=self[0].undecrypted) if metadata.encryption_keys else None

    @property
    def source(self) -> object:
        """The consumer of the partition that it came through; None after pickling."""
        return self[0].source

    @property
    def entry(self) -> ReceivedEntry:
        """The entry that it shares with the rest of its batch."""
        return self[0]

    @property
    def is_compacted_out(self) -> bool:
        """Whether compaction took the payload of this message from its batch."""
        single = self[3]
        return isinstance(single, SingleMessageMetadata) and single.compacted_out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self[0] is other[0] and self[1] == other[1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((id(self[0]), self[1]))

    def __repr__(self) -> str:
        return f"Message({self.message_id().text}, {len(self[2])} bytes)"

    def __reduce__(self) -> tuple[object, ...]:
        entry, single = self[0], self[3]
        state = (
            (entry.topic, entry.partition, entry.ledger_id, entry.entry_id),
            entry.metadata.SerializeToString(),
            (entry.redelivery_count, self[1]),
            self[2],
            None if single is None or single is entry.metadata else single.SerializeToString(),
            positions_of(self.message_id()) if entry.chunks else (),
            entry.undecrypted,
            None if entry.reading is None else entry.reading.of_pickle(entry),
        )
        return (_restore, state)


entry_of: Callable[[Message], ReceivedEntry] = itemgetter(0)


def is_first_delivery(message: Message) -> bool:
    """Whether no consumer of the subscription was sent the message before, as its broker knows.

    False on any doubt, and for a message in chunks. `actors/dispatch/first_deliveries.py` says what that is worth.
    """
    entry = entry_of(message)
    return entry.is_first_delivery and not entry.chunks


INDEXES = tuple(range(1_000))
"""Shared by the messages of all batches of usual size: the same objects are quickly found to be equal."""


class Opened(Sequence[Message]):
    """Plain messages of one batch, with indexes in sequence from `first` on. They are made again at each access."""

    __slots__ = ("entry", "first", "payloads")

    def __init__(self, entry: ReceivedEntry, payloads: list[bytes], first: int = 0) -> None:
        self.entry = entry
        self.payloads = payloads
        self.first = first

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Message]:
        indexes = INDEXES if self.end <= len(INDEXES) else range(self.end)
        return map(Message, zip(repeat(self.entry), indexes[self.first :], self.payloads, repeat(None)))

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        if isinstance(place, slice):
            return [*self][place]
        index = range(self.first, self.end)[place]
        return Message((self.entry, index, self.payloads[place], None))

    @property
    def end(self) -> int:
        """The index behind the last one."""
        return self.first + len(self.payloads)

    def split(self, length: int) -> "tuple[Opened, Opened]":
        """The first so many, and the rest."""
        rest = Opened(self.entry, self.payloads[length:], self.first + length)
        return Opened(self.entry, self.payloads[:length], self.first), rest

    @property
    def run(self) -> "Run":
        """All of them."""
        return Run(self.entry, self.first, self.end)


class Run(NamedTuple):
    """Messages of one entry with indexes in sequence: `first` up to, not including, `end`."""

    entry: ReceivedEntry
    first: int
    end: int


def _restore(
    place: tuple[str, int, int, int],
    metadata: bytes,
    numbers: tuple[int, int],
    data: bytes,
    single: bytes | None,
    chunks: tuple[tuple[int, int], ...] = (),
    undecrypted: bool = False,
    reading: "WrittenWith | None" = None,
) -> Message:
    parsed = MessageMetadata.FromString(metadata)
    redeliveries, index = numbers
    kind = ReceivedEntry if reading is None else type("RestoredEntry", (ReceivedEntry,), {"reading": reading})
    entry = kind(*place, parsed, b"", redelivery_count=redeliveries)
    entry.undecrypted = undecrypted
    if undecrypted:
        entry.batched = False
    entry.chunks = tuple([ReceivedEntry(*place[:2], *position, parsed, b"") for position in chunks])
    if index < 0:
        return Message((entry, index, data, parsed))
    return Message((entry, index, data, None if single is None else SingleMessageMetadata.FromString(single)))
