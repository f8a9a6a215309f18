"""Encrypted entries in a bulk read: where private keys come from, and what becomes of what they do not open.

The three actions are those of a consumer (`ConsumerCryptoFailureAction`). FAIL ends the read with an error. DISCARD
leaves the entry out. CONSUME gives it as it is stored: one row, also for a batch or for a message in chunks.

With FAIL an entry is only decrypted when a column needs it. With the other two it always is, because the rows that
there are depend on it.

Keys travel with the tasks of a read, and are never logged. The file that a `CryptoKeyReader` names is read where the
read is planned: other machines need not have it. A key reader of another class travels as it is. The thread that reads
entries asks it, once for each data key, and waits.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..client.crypto.decryption import Discarded, MessageDecryptor
from ..client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader, EncryptionKeyInfo
from ..protocol.errors import CryptoError, InvalidConfiguration
from ..protocol.pulsar_pb2 import MessageMetadata
from ..runtime.files import RealFiles

KEY_SUFFIX = ".pem"
KEYS_MAX = 1_000
"""Files in a directory of keys: all of them travel with each task."""
KEY_SIZE_MAX_BYTES = 64 << 10


class PrivateKeys(CryptoKeyReader):
    """Private keys by name, read beforehand, and perhaps one for all other names."""

    def __init__(self, keys: Mapping[str, bytes], otherwise: bytes | None = None) -> None:
        super().__init__()
        self._keys = dict(keys)
        self._otherwise = otherwise

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """The key of that name. Raises CryptoError if there is none."""
        key = self._keys.get(key_name, self._otherwise)
        if key is None:
            raise CryptoError(f"there is no file {key_name}{KEY_SUFFIX} in the directory of private keys")
        return EncryptionKeyInfo(key)

    def __repr__(self) -> str:
        return f"PrivateKeys({sorted(self._keys)})"


class ReadKeys(NamedTuple):
    """What a read decrypts with. Never logged."""

    reader: CryptoKeyReader | None = None
    action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL

    def __repr__(self) -> str:
        return f"ReadKeys({'no reader' if self.reader is None else type(self.reader).__name__}, {self.action.name})"

    def portable(self) -> "ReadKeys":
        """The same for other machines: a file that is named is read now. Raises InvalidConfiguration."""
        if type(self.reader) is not CryptoKeyReader:
            return self
        return self._replace(reader=PrivateKeys({}, _key_in(self.reader.private_key_path)))


NO_KEYS = ReadKeys()


def read_keys(reader: object, action: ConsumerCryptoFailureAction) -> ReadKeys:
    """What a caller gave. Raises InvalidConfiguration for something else."""
    if not (reader is None or isinstance(reader, CryptoKeyReader)):
        raise InvalidConfiguration(f"crypto_key_reader must be a CryptoKeyReader, not {type(reader).__name__}")
    try:
        return ReadKeys(reader, ConsumerCryptoFailureAction(action))
    except ValueError as error:
        raise InvalidConfiguration(
            f"crypto_failure_action must be a ConsumerCryptoFailureAction, not {action!r}"
        ) from error


def action_named(name: str) -> ConsumerCryptoFailureAction:
    """The action that the data source's option names, in any case. Raises InvalidConfiguration."""
    try:
        return ConsumerCryptoFailureAction[name.upper()]
    except KeyError as error:
        names = ", ".join(ConsumerCryptoFailureAction.__members__)
        raise InvalidConfiguration(
            f"the option cryptoFailureAction must be one of {names}, not {name!r:.100}"
        ) from error


def keys_at(path: str | None, action: ConsumerCryptoFailureAction) -> ReadKeys:
    """The keys in a file, for messages of any key; or in a directory, where NAME.pem is the private key NAME.

    Raises InvalidConfiguration when nothing can be read there.
    """
    if path is None:
        return ReadKeys(None, action)
    files = RealFiles()
    try:
        names = [name for name in files.list(path) if name.endswith(KEY_SUFFIX)]
    except NotADirectoryError:
        return ReadKeys(PrivateKeys({}, _key_in(path)), action)
    except OSError as error:
        raise InvalidConfiguration(f"the private keys at {path} cannot be read: {error}") from error
    if not 0 < len(names) <= KEYS_MAX:
        raise InvalidConfiguration(f"the directory {path} has {len(names)} files *{KEY_SUFFIX}, not 1 to {KEYS_MAX}")
    keys = {name.removesuffix(KEY_SUFFIX): _key_in(f"{path.rstrip('/')}/{name}") for name in names}
    return ReadKeys(PrivateKeys(keys), action)


def _key_in(path: str) -> bytes:
    try:
        key = RealFiles().read_bytes(path)
    except OSError as error:
        raise InvalidConfiguration(f"the private key in {path!r} cannot be read: {error}") from error
    if len(key) > KEY_SIZE_MAX_BYTES:
        raise InvalidConfiguration(f"{path!r} has {len(key)} bytes, and a private key up to {KEY_SIZE_MAX_BYTES}")
    return key


class OpenedPayload(NamedTuple):
    """What is stored in encrypted entries, decrypted or as it is."""

    payload: bytes
    is_decrypted: bool


class EntryOpener:
    """Decrypts the entries of one split. See the module."""

    def __init__(self, keys: ReadKeys) -> None:
        self.decides = keys.action is not ConsumerCryptoFailureAction.FAIL
        """Whether the rows depend on what can be decrypted."""
        self._keys = keys
        self._decryptor = MessageDecryptor(keys.reader, keys.action)

    def open(self, entries: Sequence[tuple[MessageMetadata, bytes | memoryview]]) -> OpenedPayload | None:
        """The payload of a message, which lies in one entry or in several. None: it is left out. Raises CryptoError."""
        try:
            return OpenedPayload(b"".join([self._decryptor.decrypt(*entry) for entry in entries]), True)
        except Discarded:
            return None
        except CryptoError as error:
            if self._keys.action is ConsumerCryptoFailureAction.CONSUME:
                return OpenedPayload(b"".join([payload for _, payload in entries]), False)
            if self._keys.reader is None:
                raise CryptoError(
                    "the topic holds encrypted messages, and the read has no key: pass crypto_key_reader, "
                    "or the option privateKeyPath of the data source"
                ) from None
            raise CryptoError(f"an encrypted message cannot be read: {error.message}") from error
