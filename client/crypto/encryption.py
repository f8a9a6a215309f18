"""How a producer encrypts: one data key for all its messages, wrapped for every reader, and renewed from time to time.

States: *without a key* at first, *with a key* from the first `renew` that succeeds. A renewal that fails changes
nothing: messages go out with the key that there is, or unencrypted if there is none, which the failure action decides
before (`ready`).

The nonce of each entry is drawn at random, 96 bits of it. A key is used for `RENEWAL_S`, far less than the number of
entries for which random nonces are safe.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...protocol.entries import build_entry
from ...protocol.errors import CryptoError
from ...protocol.pulsar_pb2 import EncryptionKeys, KeyValue, MessageMetadata
from ...runtime.environment import Chance
from .keys import CryptoKeyReader

RENEWAL_S = 4 * 3600.0
RENEWAL_RETRY_S = 60.0
DATA_KEY_SIZE_BYTES = 32
NONCE_SIZE_BYTES = 12
TAG_SIZE_BYTES = 16


class _Key(NamedTuple):
    data_key: bytes
    description: bytes
    """The metadata's field with the wrapped keys."""


class MessageEncryptor:
    """See the module. `renew` is for any thread, the rest for the loop's."""

    def __init__(self, names: Sequence[str], reader: CryptoKeyReader, random: Chance) -> None:
        self._names = names
        self._reader = reader
        self._random = random
        self._key: _Key | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a key."""
        return self._key is not None

    @property
    def overhead_bytes(self) -> int:
        """By so much an entry grows."""
        if self._key is None:
            return 0
        return len(self._key.description) + 2 + NONCE_SIZE_BYTES + TAG_SIZE_BYTES

    def renew(self) -> None:
        """Make a data key and wrap it for all names. Raises CryptoError, and keeps the former one."""
        from .ciphers import wrap  # imported late: most programs do not encrypt

        data_key = self._random.token(DATA_KEY_SIZE_BYTES)
        metadata = MessageMetadata()
        for name in self._names:
            try:
                info = self._reader.get_public_key(name, {})
                wrapped = wrap(info.key, data_key)
            except Exception as error:  # of any kind: the application's key reader raises what it likes
                raise CryptoError(f"the public key {name!r} cannot be used ({error}): check the key reader") from error
            described = [KeyValue(key=key, value=value) for key, value in info.metadata.items()]
            metadata.encryption_keys.append(EncryptionKeys(key=name, value=wrapped, metadata=described))
        self._key = _Key(data_key, metadata.SerializePartialToString())

    def build(self, metadata: bytes, payload: bytes | memoryview) -> bytes:
        """The entry of that payload, encrypted; as it is, if there is no key."""
        from .ciphers import seal

        if self._key is None:
            return build_entry(metadata, payload)
        nonce = self._random.token(NONCE_SIZE_BYTES)
        described = MessageMetadata(encryption_param=nonce).SerializePartialToString()
        return build_entry(metadata + self._key.description + described, seal(self._key.data_key, nonce, payload))
