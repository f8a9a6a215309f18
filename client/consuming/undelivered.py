"""The errors of messages that cannot be handed over: encrypted or damaged ones, wrong chunks, too large a batch.

Such a message is not acknowledged, because acknowledging deletes it. `receive` raises the error that is made here, once
per delivery by the broker. The next call continues with the messages behind it. The entry stays unacknowledged until it
can be decoded, the application acknowledges its id, or an operator skips it.

No such entry is asked for again at once. A damaged one (its checksum does not match) may have suffered on the way, so
it is negatively acknowledged, each time with a longer delay. All others would look the same again: they come again only
with the next subscription, or when the application asks for redelivery.
"""

from google.protobuf.unknown_fields import UnknownFieldSet

from ...protocol.errors import (
    ChecksumError,
    CryptoError,
    InvalidMessage,
    MagnetarError,
    MessageTooBig,
    OperationNotSupported,
)
from ...protocol.pulsar_pb2 import MessageMetadata
from ..core.message_id import MessageId


def encrypted() -> CryptoError:
    """An encrypted message. Pulsar's default without a key is the same: neither delivered nor acknowledged."""
    return CryptoError("it is encrypted, and this client cannot decrypt it; consume it with a client that has the key")


def lone_chunk() -> OperationNotSupported:
    """A part of a message, where a whole one should be."""
    return OperationNotSupported("it is one chunk of a larger message")


def unknown_compression(kind: int) -> OperationNotSupported:
    """A payload in a format that this client does not have."""
    return OperationNotSupported(f"this client does not know its compression {kind}; consume it with a newer client")


def too_large(size_bytes: int, size_max_bytes: int) -> MessageTooBig:
    """A payload that would be larger than allowed when decompressed."""
    return MessageTooBig(
        f"it has {size_bytes} bytes decompressed, and {size_max_bytes} are allowed; "
        "raise the client's decompressed_size_max_bytes",
        size_bytes=size_bytes,
        size_max_bytes=size_max_bytes,
    )


def unreadable(error: Exception) -> MagnetarError:
    """What decoding an entry failed with. A checksum that does not match is an error of its own, the rest is one."""
    if isinstance(error, ChecksumError):
        return ChecksumError("its checksum does not match: the network, the storage or its producer damaged it")
    if isinstance(error, CryptoError | OperationNotSupported | MessageTooBig):
        return error
    return InvalidMessage(f"its bytes cannot be decoded ({error}); check the client that published it")


def not_delivered(topic: str, message_id: MessageId, why: MagnetarError, durable: bool) -> MagnetarError:
    """What `receive` raises: an error of the same class as `why`, with the message's place in text and details."""
    ledger_id, entry_id, _, partition, _ = message_id
    text = f"message {message_id.text} of {topic} was not delivered: {why.message}."
    if durable:
        place = f"MessageId({partition}, {ledger_id}, {entry_id})"
        text += f" It stays unacknowledged. To give it up, acknowledge {place} or skip it in the subscription"
    else:
        text += " The next read continues behind it"
    return type(why)(text, **why.details, topic=topic, partition=partition, ledger_id=ledger_id, entry_id=entry_id)


def refuse_unknown_compression(metadata: MessageMetadata) -> None:
    """Refuse an entry whose compression this client does not know.

    Protobuf takes a value that an enumeration lacks for an unknown field. Such an entry looks uncompressed, and its
    payload would be handed over as it is. A producer that compresses states the size before, so only entries with that
    size are looked at.
    """
    for field in UnknownFieldSet(metadata):
        if field.field_number == MessageMetadata.COMPRESSION_FIELD_NUMBER:
            raise unknown_compression(field.data)
