"""From a closed batch to the entry that is sent and stored, or to the entries of a large message's chunks."""

from ...protocol.commands import varint
from ...protocol.compression import CompressionType, compress
from ...protocol.entries import build_entry
from ...protocol.errors import MessageTooBig
from ...protocol.pulsar_pb2 import KeyValue, MessageMetadata
from ..core.connection import MESSAGE_SIZE_DEFAULT_BYTES
from ..crypto.encryption import MessageEncryptor
from ..schemas.schema import EncodedKey
from .attributes import Attributes
from .chunking import cut
from .outbox import Batch

_COMPRESSION = b"\x40"
_UNCOMPRESSED_SIZE = b"\x48"
_BATCH_COUNT = b"\x58"
_SCHEMA_VERSION = b"\x82\x01"
_HIGHEST_SEQUENCE_ID = b"\xc0\x01"


class EntryEncoder:
    """Encodes for one producer. The metadata's frequent fields are written by hand (protobuf allows any order)."""

    def __init__(
        self, compression: CompressionType, *, chunking: bool = False, encryptor: MessageEncryptor | None = None
    ) -> None:
        self._compression = compression
        self._chunking = chunking
        self._encryptor = encryptor
        self._producer = ""
        self._name = b""
        self.size_max_bytes = MESSAGE_SIZE_DEFAULT_BYTES

    def registered_as(self, name: str, schema_version: bytes) -> None:
        """The producer's name and the version of its schema (empty without one): entries carry them from now on."""
        self._producer = name
        encoded = name.encode()
        self._name = b"\x0a" + varint(len(encoded)) + encoded
        if schema_version:
            self._name += _SCHEMA_VERSION + varint(len(schema_version)) + schema_version

    def encode(self, batch: Batch, now_ms: int) -> list[bytes]:
        """The entry of `batch`, published at `now_ms`; several if it has to be cut into chunks.

        Raises MessageTooBig, TypeError or ValueError.
        """
        payload = batch.payload()
        fields = [self._name, b"\x10", varint(batch.first_sequence_id), b"\x18", varint(now_ms)]
        if batch.batched:
            count = len(batch.callbacks)
            fields += (_BATCH_COUNT, varint(count))
            if count > 1:
                fields += (_HIGHEST_SEQUENCE_ID, varint(batch.last_sequence_id))
        if self._compression:
            fields += (_COMPRESSION, varint(self._compression), _UNCOMPRESSED_SIZE, varint(len(payload)))
            payload = compress(self._compression, payload)
        if batch.attributes is not None:
            fields.append(_attributes(batch.attributes, batch.batched).SerializePartialToString())
        metadata = b"".join(fields)
        size, build = len(metadata) + len(payload), build_entry
        if self._encryptor is not None:
            size += self._encryptor.overhead_bytes
            build = self._encryptor.build
        if size > self.size_max_bytes:
            if self._chunking:
                uuid = f"{self._producer}-{batch.first_sequence_id}"
                entry_max = self.size_max_bytes - (size - len(metadata) - len(payload))
                return cut(entry_max, uuid, metadata, payload, build)
            raise MessageTooBig(
                f"the message has {size} bytes, but the broker accepts {self.size_max_bytes}: send less, or raise "
                "maxMessageSize",
                size_bytes=size,
                size_max_bytes=self.size_max_bytes,
            )
        return [build(metadata, payload)]


def _attributes(attributes: Attributes, batched: bool) -> MessageMetadata:
    """The fields of a message, or of a batch's first message, that the entry's metadata shows."""
    metadata = MessageMetadata()
    if attributes.partition_key is not None:
        metadata.partition_key = attributes.partition_key
        if type(attributes.partition_key) is EncodedKey:
            metadata.partition_key_b64_encoded = True
    if attributes.ordering_key is not None:
        metadata.ordering_key = attributes.ordering_key.encode("utf-8", "surrogateescape")
    if attributes.schema_version:
        metadata.schema_version = attributes.schema_version  # behind the producer's own: the last one counts
    if batched:
        return metadata
    if attributes.properties:
        metadata.properties.extend([KeyValue(key=key, value=value) for key, value in attributes.properties.items()])
    if attributes.event_timestamp:
        metadata.event_time = attributes.event_timestamp
    if attributes.null_value:
        metadata.null_value = True
    if attributes.deliver_at_ms is not None:
        metadata.deliver_at_time = attributes.deliver_at_ms
    return metadata
