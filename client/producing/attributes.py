"""What a message carries beside its payload, on its way from the application into a batch or an entry."""

from collections.abc import Mapping

from ...protocol.commands import varint
from ..schemas.schema import EncodedKey


class Attributes:
    """What a message may carry beside its payload. `content` None is a null value (a tombstone)."""

    __slots__ = (
        "deliver_at_ms",
        "event_timestamp",
        "null_value",
        "ordering_key",
        "partition_key",
        "properties",
        "schema_version",
        "sequence_id",
    )

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        event_timestamp: int | None = None,
        null_value: bool = False,
        deliver_at_ms: int | None = None,
        schema_version: bytes = b"",
    ) -> None:
        self.properties = properties
        self.partition_key = partition_key
        self.ordering_key = ordering_key
        self.sequence_id = sequence_id
        self.event_timestamp = event_timestamp
        self.null_value = null_value
        self.deliver_at_ms = deliver_at_ms
        """Such a message is an entry of its own, even with batching."""
        self.schema_version = schema_version
        """If it is not that of the producer's schema. All messages of a batch must have the same."""

    def encode(self, content: bytes) -> bytes:
        """The message as a piece of a batch: its SingleMessageMetadata, by hand because it is made once per message."""
        metadata = b"\x18" + varint(len(content))
        if self.partition_key is not None:
            metadata += _text(b"\x12", self.partition_key)
            if type(self.partition_key) is EncodedKey:
                metadata += b"\x30\x01"
        if self.properties:
            for key, value in self.properties.items():
                pair = _text(b"\x0a", key) + _text(b"\x12", value)
                metadata += b"\x0a" + varint(len(pair)) + pair
        if self.event_timestamp:
            metadata += b"\x28" + varint(self.event_timestamp)
        if self.ordering_key is not None:
            metadata += _text(b"\x3a", self.ordering_key)
        if self.sequence_id is not None:
            metadata += b"\x40" + varint(self.sequence_id)
        if self.null_value:
            metadata += b"\x48\x01"
        return len(metadata).to_bytes(4, "big") + metadata + content


def _text(tag: bytes, text: str) -> bytes:
    """A string field."""
    data = text.encode("utf-8", "surrogateescape")  # an ordering key that was received may be any bytes
    return tag + varint(len(data)) + data
