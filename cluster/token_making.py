"""Keys and tokens, as `magnetar tokens` makes, checks and shows them. Imported late: it loads the cryptography."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from ..actors.security.tokens import FILE_SCHEME, SYMMETRIC, algorithms_of, public_key_of
from ..protocol.errors import ClusterError

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ASYMMETRIC = (*RSA_ALGORITHMS, *CURVES)
RSA_BITS = 2048

Claims = Mapping[str, object]
SigningKey = bytes | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def new_secret(algorithm: str) -> bytes:
    """A secret key of the size that the algorithm wants. Raises ClusterError."""
    size = SYMMETRIC.get(algorithm)
    return secrets.token_bytes(size) if size else _refuse(f"{algorithm} is none of {', '.join(SYMMETRIC)}")


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """A private key and its public key, in DER. Raises ClusterError."""
    if algorithm not in ASYMMETRIC:
        _refuse(f"{algorithm} is none of {', '.join(ASYMMETRIC)}")
    curve = CURVES.get(algorithm)
    key = ec.generate_private_key(curve) if curve else rsa.generate_private_key(65_537, RSA_BITS)
    return (
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )


def signed(
    claims: dict[str, object],
    headers: dict[str, object],
    secret_key: str | None,
    private_key: str | None,
    algorithm: str | None,
) -> str:
    """A token. Raises ClusterError, OSError."""
    key, allowed = _signing_key(secret_key, private_key)
    if algorithm is not None and algorithm not in allowed:
        _refuse(f"this key signs with {', '.join(allowed)}, not with {algorithm}")
    return jwt.encode(claims, key, algorithm=algorithm or allowed[0], headers=headers or None)


def claims_of(token: str, secret_key: str | None, public_key: str | None, algorithm: str) -> Claims:
    """What a token says, whose signature and time hold. Raises ClusterError, OSError."""
    if (secret_key is None) == (public_key is None):
        _refuse("pass --secret-key or --public-key")
    try:
        if secret_key is not None:
            secret = _content(secret_key)
            return jwt.decode(token, secret, algorithms_of(secret), {"verify_aud": False})
        key = public_key_of(_content(public_key or ""))
        return jwt.decode(token, key, [algorithm], {"verify_aud": False})  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError, UnsupportedAlgorithm) as error:
        _refuse(f"the token is not valid: {error}")


def shown(token: str) -> tuple[Claims, Claims]:
    """The header and the claims of a token, which nobody has checked. Raises ClusterError."""
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        _refuse(f"this is no token: {error}")
    return found["header"], found["payload"]


def _signing_key(secret_key: str | None, private_key: str | None) -> tuple[SigningKey, Sequence[str]]:
    """The key, and the algorithms that it can sign with, the usual one first."""
    if (secret_key is None) == (private_key is None):
        _refuse("pass --secret-key or --private-key")
    if secret_key is not None:
        secret = _content(secret_key)
        allowed = algorithms_of(secret)
        return (secret, allowed) if allowed else _refuse(f"the key in {secret_key} has {len(secret)} bytes: take 32")
    content = _content(private_key or "")
    try:
        is_pem = content.lstrip().startswith(b"-----")
        key = load_pem_private_key(content, None) if is_pem else load_der_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        _refuse(f"{private_key} has no private key in PEM or DER: {error}")
    if isinstance(key, rsa.RSAPrivateKey):
        return key, RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePrivateKey):
        for name, curve in CURVES.items():
            if curve.name == key.curve.name:
                return key, [name]
    _refuse(f"{private_key} has a key of a kind that signs no tokens: use RSA, or a curve of NIST")


def _content(place: str) -> bytes:
    """What a file has. Raises OSError."""
    return Path(place.removeprefix(FILE_SCHEME)).read_bytes()


def _refuse(reason: str) -> NoReturn:
    raise ClusterError(reason)
