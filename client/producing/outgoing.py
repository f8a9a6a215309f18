"""A message on its way from the application into a batch or an entry: what it carries, checked."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast

from ...protocol.commands import varint
from ...protocol.errors import InvalidMessage
from ..core.outgoing_message import OutgoingMessage
from ..schemas.schema import EncodedKey


class Outgoing:
    """A message with more than a payload. One that has a payload alone is its `bytes`, from the call to the batch."""

    __slots__ = (
        "content",
        "deliver_at_ms",
        "event_timestamp",
        "ordering_key",
        "partition_key",
        "properties",
        "schema_version",
        "seen",
        "sequence_id",
    )

    def __init__(
        self,
        content: bytes | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        event_timestamp: int | None = None,
        deliver_at_ms: int | None = None,
        schema_version: bytes = b"",
    ) -> None:
        self.content = content
        """None is a null value (a tombstone)."""
        self.properties = properties
        self.partition_key = partition_key
        self.ordering_key = ordering_key
        self.sequence_id = sequence_id
        self.event_timestamp = event_timestamp
        self.deliver_at_ms = deliver_at_ms
        """Such a message is an entry of its own, even with batching."""
        self.schema_version = schema_version
        """If it is not that of the producer's schema. All messages of a batch must have the same."""
        self.seen: OutgoingMessage | None = None
        """What interceptors saw of it, if there are any."""

    @property
    def payload(self) -> bytes:
        """Empty for a null value."""
        return self.content or b""

    def numbered(self, sequence_id: int) -> "Outgoing":
        """The same message with a sequence id, for a batch."""
        return Outgoing(
            self.content,
            self.properties,
            self.partition_key,
            self.ordering_key,
            sequence_id,
            self.event_timestamp,
            schema_version=self.schema_version,
        )

    def encode(self) -> bytes:
        """The message as a piece of a batch: its SingleMessageMetadata, by hand because it is made once per message."""
        content = self.content or b""
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
        if self.content is None:
            metadata += b"\x48\x01"
        return len(metadata).to_bytes(4, "big") + metadata + content


def seen_of(message: bytes | Outgoing) -> OutgoingMessage:
    """What routers see of a message."""
    if isinstance(message, bytes):
        return OutgoingMessage(message, None, None, None, None)
    if message.seen is not None:
        return message.seen
    return OutgoingMessage(
        message.content, message.properties, message.partition_key, message.ordering_key, message.event_timestamp
    )


def as_bytes(content: object) -> bytes:
    """A payload as bytes. Raises InvalidMessage for what is none."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, bytearray):
        return bytes(content)
    if isinstance(content, memoryview):
        return content.tobytes()
    raise InvalidMessage(f"a payload must be bytes, not {type(content).__name__}")


def payloads_of(contents: Sequence[object]) -> list[bytes]:
    """Payloads as bytes, in a list of their own. Raises InvalidMessage."""
    if {*map(type, contents)} == {bytes}:
        return [*cast("Sequence[bytes]", contents)]
    return [as_bytes(content) for content in contents]


def payload_of(content: object) -> bytes | None:
    """A payload as bytes, None for a null value. Raises InvalidMessage."""
    return None if content is None else as_bytes(content)


def delivery_time_ms(deliver_at: object, deliver_after: object, now_ms: int) -> int | None:
    """When a message is to be delivered, None for at once. As in the official client, `deliver_after` goes first.

    Raises InvalidMessage.
    """
    if deliver_after:
        if not isinstance(deliver_after, timedelta) or deliver_after < timedelta(0):
            raise InvalidMessage(f"deliver_after must be a timedelta that is not negative, not {deliver_after!r}")
        return now_ms + deliver_after // timedelta(milliseconds=1)
    if not deliver_at:
        return None
    if not isinstance(deliver_at, int) or not 0 <= deliver_at < 1 << 63:
        raise InvalidMessage(f"deliver_at must be milliseconds since the epoch, not {deliver_at!r}")
    return deliver_at


def checked(
    content: bytes | None,
    properties: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    ordering_key: str | None = None,
    sequence_id: int | None = None,
    event_timestamp: int | None = None,
    deliver_at_ms: int | None = None,
) -> bytes | Outgoing:
    """A message: its payload, if it carries nothing else. Raises InvalidMessage."""
    if (
        content is not None
        and not properties
        and partition_key is None
        and ordering_key is None
        and sequence_id is None
        and event_timestamp is None
        and deliver_at_ms is None
    ):
        return content
    if partition_key is not None:
        _check_text("partition_key", partition_key)
    if ordering_key is not None:
        _check_text("ordering_key", ordering_key)
    for name, number in (("sequence_id", sequence_id), ("event_timestamp", event_timestamp)):
        if number is not None and (
            not isinstance(number, int)  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            or not 0 <= number < 1 << 63
        ):
            raise InvalidMessage(f"{name} must be a non-negative 64-bit number, not {number!r}")
    if properties:
        for key, value in properties.items():
            _check_text("a property's name", key)
            _check_text("a property", value)
    return Outgoing(content, properties, partition_key, ordering_key, sequence_id, event_timestamp, deliver_at_ms)


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} must be a string, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"{what} is not valid Unicode: {error}") from None


def _text(tag: bytes, text: str) -> bytes:
    """A string field."""
    data = text.encode("utf-8", "surrogateescape")  # an ordering key that was received may be any bytes
    return tag + varint(len(data)) + data
