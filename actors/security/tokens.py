"""Tokens: JSON Web Tokens (RFC 7519), signed with a secret or a private key.

The key decides about the algorithm, never the token: a secret verifies HS256, HS384 and HS512, as far as it is long
enough, and a public key the one algorithm of `tokenPublicAlg`. A token without signature is refused.
"""

from collections.abc import Mapping
from typing import cast

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from ...protocol.errors import AuthenticationError, SettingError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from .credentials import Credential, Peer

SYMMETRIC = {"HS256": 32, "HS384": 48, "HS512": 64}
"""How many bytes a secret needs for each: as many as the hash has (RFC 7518, 3.2)."""
SECRET_MIN_BYTES = 32
FILE_SCHEME = "file://"
DATA_SCHEME = "data:"
TOKEN_KEYWORD = "token:"
"""Some clients put this before their token."""


class TokenProvider:
    """See the module. The role is the claim `tokenAuthClaim`."""

    method = "token"

    def __init__(self, env: Environment, settings: Settings) -> None:
        self._env = env
        self._settings = settings
        self._key: bytes | PublicKeyTypes = b""
        self._algorithms: list[str] = []

    async def start(self) -> None:
        """Read the key. Raises SettingError."""
        settings = self._settings
        if bool(settings.token_secret_key) == bool(settings.token_public_key):
            raise SettingError("the provider `token` needs tokenSecretKey or tokenPublicKey, and not both")
        if settings.token_secret_key:
            content = await self._content("tokenSecretKey", settings.token_secret_key)
            self._key = content
            self._algorithms = algorithms_of(self._key)
            if len(self._key) < SECRET_MIN_BYTES:
                raise SettingError(
                    f"tokenSecretKey has {len(self._key)} bytes: take {SECRET_MIN_BYTES} random bytes, as "
                    "`magnetar tokens create-secret-key` makes them"
                )
        else:
            content = await self._content("tokenPublicKey", settings.token_public_key)
            try:
                self._key, self._algorithms = public_key_of(content), [settings.token_public_alg]
            except (ValueError, UnsupportedAlgorithm) as error:
                raise SettingError(f"tokenPublicKey is no public key in PEM or DER: {error}") from error

    async def _content(self, setting: str, place: str) -> bytes:
        try:
            return await self._env.offload.run(self._env.files.read_bytes, path_of(setting, place))
        except OSError as error:
            raise SettingError(f"the file of {setting} cannot be read: {error}") from error

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        """Raises AuthenticationError. No text has the token in it."""
        if not data:
            raise AuthenticationError("the client sent no token")
        return self.verify(data)

    def verify(self, data: bytes) -> Credential:
        """The role of a token, and until when it holds. Raises AuthenticationError."""
        token = data.removeprefix(TOKEN_KEYWORD.encode())
        try:
            # The times are checked below, against the service's clock.
            unchecked = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
            claims = cast(
                "Mapping[str, object]",
                jwt.decode(token, self._key, algorithms=self._algorithms, options=unchecked),  # type: ignore[arg-type]
            )
        except jwt.InvalidSignatureError:
            raise AuthenticationError("the token is signed with another key than that of this cluster") from None
        except jwt.InvalidAlgorithmError:
            raise AuthenticationError(f"the token is not signed with {' or '.join(self._algorithms)}") from None
        except (jwt.PyJWTError, ValueError):
            raise AuthenticationError("the token is malformed: it is no signed JSON Web Token") from None
        self._check_times(claims)
        self._check_audience(claims)
        role = claims.get(self._settings.token_auth_claim)
        if not isinstance(role, str) or not role:
            raise AuthenticationError(f"the token has no role: the claim {self._settings.token_auth_claim} is missing")
        end = _time_of(claims, "exp")
        return Credential(role, None if end is None else int((end + self._settings.token_allowed_clock_skew_s) * 1000))

    def _check_times(self, claims: Mapping[str, object]) -> None:
        skew_s, now_s = self._settings.token_allowed_clock_skew_s, self._env.clock.now_ms() / 1000
        end, begin = _time_of(claims, "exp"), _time_of(claims, "nbf")
        if end is not None and now_s >= end + skew_s:
            raise AuthenticationError(f"the token has expired {max(0, round(now_s - end))} s ago: get a new one")
        if begin is not None and now_s < begin - skew_s:
            raise AuthenticationError(f"the token holds only in {round(begin - now_s)} s")

    def _check_audience(self, claims: Mapping[str, object]) -> None:
        claim, wanted = self._settings.token_audience_claim, self._settings.token_audience
        if not claim:
            return
        found = claims.get(claim)
        names = cast("list[object]", found) if isinstance(found, list) else [found]
        if wanted not in names:
            raise AuthenticationError(f"the token is not for {wanted}: its claim {claim} names others, or nobody")


def path_of(setting: str, place: str) -> str:
    """The path that `file://…`, or a bare path, names. Raises SettingError."""
    if place.startswith(DATA_SCHEME):
        raise SettingError(f"{setting} must name a file: settings are shown, and a key in them would be, too")
    path = place.removeprefix(FILE_SCHEME)
    if not path.startswith("/"):
        raise SettingError(f"{setting} must be an absolute path, as file:///path")
    return path


def algorithms_of(secret: bytes) -> list[str]:
    """What a secret is long enough for, the usual one first."""
    return [name for name, size in SYMMETRIC.items() if len(secret) >= size]


def public_key_of(content: bytes) -> PublicKeyTypes:
    """The public key in a file: PEM or DER. Raises ValueError, UnsupportedAlgorithm."""
    if content.lstrip().startswith(b"-----"):
        return load_pem_public_key(content)
    return load_der_public_key(content)


def _time_of(claims: Mapping[str, object], name: str) -> float | None:
    """Seconds since the epoch. Raises AuthenticationError for what is none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 40:
        raise AuthenticationError(f"the token is malformed: its claim {name} is no time")
    return float(value)
