"""The ciphers of Pulsar's clients: AES-GCM for payloads, RSA-OAEP (SHA-1) for the keys of payloads.

The tag of 16 bytes stands behind the encrypted payload. Only this file knows the library `cryptography`.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from ...protocol.errors import CryptoError


def _padding() -> OAEP:
    return OAEP(MGF1(SHA1()), SHA1(), None)


def wrap(public_key: bytes, data_key: bytes) -> bytes:
    """A data key that only the holder of the private key can read. Raises ValueError or TypeError for a bad key."""
    key = load_pem_public_key(public_key)
    if not isinstance(key, RSAPublicKey):
        raise ValueError(f"it is a key of kind {type(key).__name__}, and RSA is needed")
    return key.encrypt(data_key, _padding())


def unwrap(private_key: bytes, wrapped: bytes) -> bytes:
    """The data key. Raises ValueError or TypeError for a bad key or one that does not fit."""
    key = load_pem_private_key(private_key, None)
    if not isinstance(key, RSAPrivateKey):
        raise ValueError(f"it is a key of kind {type(key).__name__}, and RSA is needed")
    return key.decrypt(wrapped, _padding())


def seal(data_key: bytes, nonce: bytes, payload: bytes | memoryview) -> bytes:
    """The encrypted payload and its tag."""
    return AESGCM(data_key).encrypt(nonce, payload, None)


def open_sealed(data_key: bytes, nonce: bytes, payload: bytes | memoryview) -> bytes:
    """The payload. Raises CryptoError if it was not sealed with that key, or was changed since."""
    try:
        return AESGCM(data_key).decrypt(nonce, payload, None)
    except (InvalidTag, ValueError) as error:
        raise CryptoError(f"its payload does not fit its key ({type(error).__name__})") from None
