"""Where keys come from, and what happens when they are not to be had. Names are those of Pulsar's clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ...runtime.files import RealFiles


class ConsumerCryptoFailureAction(IntEnum):
    """What a consumer does with a message that it cannot decrypt."""

    FAIL = 0
    """`receive` raises CryptoError; the message stays unacknowledged."""
    DISCARD = 1
    """Acknowledge the message and go on."""
    CONSUME = 2
    """Hand the message over as it is, encrypted. A batch is one message then."""


class ProducerCryptoFailureAction(IntEnum):
    """What a producer does when it cannot encrypt."""

    FAIL = 0
    """Creating the producer raises CryptoError."""
    SEND = 1
    """Send messages unencrypted."""


@dataclass(frozen=True)
class EncryptionKeyInfo:
    """A key as PEM text, and what travels with every message that is encrypted with it."""

    key: bytes
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


class CryptoKeyReader:
    """Reads one public and one private key from files, whatever the names of keys. Derive from it for other sources."""

    def __init__(self, public_key_path: str = "", private_key_path: str = "") -> None:
        """Name the files.

        Args:
            public_key_path: File with the public key in PEM form, for producers.
            private_key_path: File with the private key in PEM form, for consumers.
        """
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key that a producer encrypts with. May be called from any thread.

        Args:
            key_name: One of the producer's `encryption_key`.
            metadata: Empty.

        Returns:
            The key. Its metadata travels with the messages.

        Raises:
            Exception: Of any kind, if there is no such key.
        """
        return EncryptionKeyInfo(RealFiles().read_bytes(self.public_key_path))

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the private key that a consumer decrypts with. May be called from any thread.

        Args:
            key_name: The name that the message gives for its key.
            metadata: What the message says of that key.

        Returns:
            The key.

        Raises:
            Exception: Of any kind, if there is no such key.
        """
        return EncryptionKeyInfo(RealFiles().read_bytes(self.private_key_path))
