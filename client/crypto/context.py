"""What a message says of its encryption, with the face of the official client's EncryptionContext."""

from ...protocol.compression import CompressionType
from ...protocol.entries import is_batch
from ...protocol.pulsar_pb2 import EncryptionKeys, MessageMetadata


class EncryptionKey:
    """A data key, wrapped for one reader."""

    def __init__(self, key: EncryptionKeys) -> None:
        self._key = key

    @property
    def key(self) -> str:
        """The name of the key that it is wrapped with."""
        return self._key.key

    @property
    def value(self) -> bytes:
        """The wrapped data key."""
        return self._key.value

    @property
    def metadata(self) -> dict[str, str]:
        """What the producer's key reader said of the key."""
        return {pair.key: pair.value for pair in self._key.metadata}

    def __repr__(self) -> str:
        return f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"


class EncryptionContext:
    """How a message is encrypted: enough for an application that has the keys to decrypt it."""

    def __init__(self, metadata: MessageMetadata, *, failed: bool) -> None:
        self._metadata = metadata
        self._failed = failed

    def keys(self) -> list[EncryptionKey]:
        """Return the data key, once for each reader that it is wrapped for.

        Returns:
            The wrapped keys.
        """
        return [EncryptionKey(key) for key in self._metadata.encryption_keys]

    def param(self) -> bytes:
        """Return the nonce.

        Returns:
            12 bytes.
        """
        return self._metadata.encryption_param

    def algorithm(self) -> str:
        """Return the algorithm that the producer named.

        Returns:
            The name; empty from most clients.
        """
        return self._metadata.encryption_algo

    def compression_type(self) -> CompressionType:
        """Return how the payload was compressed before it was encrypted.

        Returns:
            The compression.
        """
        return CompressionType(self._metadata.compression)

    def uncompressed_message_size(self) -> int:
        """Return the size of the payload before compression.

        Returns:
            Bytes, 0 without compression.
        """
        return self._metadata.uncompressed_size

    def batch_size(self) -> int:
        """Return how many messages the batch has.

        Returns:
            The number, −1 without a batch.
        """
        return self._metadata.num_messages_in_batch if is_batch(self._metadata) else -1

    def is_decryption_failed(self) -> bool:
        """Return whether the payload is still encrypted.

        Returns:
            True if it is.
        """
        return self._failed

    def __repr__(self) -> str:
        return (
            f"EncryptionContext(algorithm={self.algorithm()}, compression_type={self.compression_type().name}, "
            f"uncompressed_message_size={self.uncompressed_message_size()}, "
            f"is_decryption_failed={self.is_decryption_failed()}, keys={self.keys()})"
        )
