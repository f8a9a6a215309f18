"""How a consumer decrypts: the data key of a message is unwrapped once and remembered by its wrapped form."""

from ...protocol.errors import CryptoError
from ...protocol.pulsar_pb2 import EncryptionKeys, MessageMetadata
from .keys import ConsumerCryptoFailureAction, CryptoKeyReader

DATA_KEYS_MAX = 1_000
"""So many unwrapped data keys are remembered. Every producer uses a new one every few hours."""


class Discarded(CryptoError):
    """The message cannot be decrypted, and the consumer is to acknowledge it."""


class MessageDecryptor:
    """See the module. For any thread, one at a time: entries of a consumer are opened one after the other."""

    def __init__(self, reader: CryptoKeyReader | None, action: ConsumerCryptoFailureAction) -> None:
        self.action = action
        self._reader = reader
        self._data_keys: dict[bytes, bytes] = {}

    def decrypt(self, metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
        """The payload. Raises CryptoError if none of the keys helps."""
        from .ciphers import open_sealed  # imported late: most programs do not decrypt

        failure = CryptoError("it is encrypted, and this consumer has no crypto_key_reader")
        for key in metadata.encryption_keys if self._reader is not None else ():
            try:
                return open_sealed(self._data_key(key), metadata.encryption_param, payload)
            except CryptoError as error:
                failure = error
        if self.action is ConsumerCryptoFailureAction.DISCARD:
            raise Discarded(failure.message)
        raise failure

    def _data_key(self, key: EncryptionKeys) -> bytes:
        from .ciphers import unwrap

        known = self._data_keys.get(key.value)
        if known is not None:
            return known
        assert self._reader is not None
        try:
            info = self._reader.get_private_key(key.key, {pair.key: pair.value for pair in key.metadata})
            data_key = unwrap(info.key, key.value)
        except Exception as error:  # of any kind: the application's key reader raises what it likes
            raise CryptoError(f"its key {key.key!r} cannot be unwrapped ({error}); check the key reader") from error
        self._data_keys[key.value] = data_key
        if len(self._data_keys) > DATA_KEYS_MAX:
            del self._data_keys[next(iter(self._data_keys))]
        return data_key
