"""Encryption keys as the commands take them: a path, a `file:` URI, or a `data:` URI with base64."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...client.crypto.keys import CryptoKeyReader, EncryptionKeyInfo
from ...protocol.errors import InvalidConfiguration


class GivenKey(CryptoKeyReader):
    """One key, whatever it is called, for producers or for consumers."""

    def __init__(self, where: str) -> None:
        """Read it. Raises InvalidConfiguration for a URI of another kind, OSError."""
        super().__init__()
        self._info = EncryptionKeyInfo(key_at(where))

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        return self._info

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        return self._info


def key_at(where: str) -> bytes:
    """The text of a key. Raises InvalidConfiguration, OSError."""
    parts = urlsplit(where)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).read_bytes()
    if parts.scheme != "data":
        return Path(where).read_bytes()
    head, _, data = where.partition(",")
    if not head.endswith(";base64"):
        raise InvalidConfiguration("a key in a data: URI is in base64: write data:application/x-pem-file;base64,…")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise InvalidConfiguration(f"the key in the data: URI is no base64: {error}") from None
