"""Tokens of clients that find the cluster through Ray: the coordinator's actor makes them, brokers and the admin check.

Who may call actors of a Ray is Ray's decision. A client that can gets such a token with the addresses of the brokers,
and another one for each connection. Its role is `rayClientRole`. A token holds for `TOKEN_LIFE_S`, and lies nowhere: in
no file, setting, environment, pickle or log.

The key is made from the cluster's secret. Only the coordinator, the brokers and the admin have it.
"""

import jwt

from ...protocol.errors import AuthenticationError
from ...protocol.names import RAY_METHOD
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from .credentials import Credential, Peer

ALGORITHM = "HS256"
TOKEN_LIFE_S = 600


def make_ray_token(key: bytes, settings: Settings, now_ms: int) -> str:
    """A token for a client that asks through Ray. Empty where it needs none, or gets none."""
    if not settings.authentication_enabled or not settings.ray_client_role:
        return ""
    claims = {"sub": settings.ray_client_role, "exp": now_ms // 1000 + TOKEN_LIFE_S}
    return jwt.encode(claims, key, algorithm=ALGORITHM)


class RayTokenProvider:
    """Checks them. `key` is that of the cluster's members."""

    method = RAY_METHOD

    def __init__(self, env: Environment, settings: Settings, key: bytes) -> None:
        self._env = env
        self._role = settings.ray_client_role
        self._key = key

    async def start(self) -> None:
        """Nothing has to be read."""

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        """Raises AuthenticationError. A token of a role that `rayClientRole` was before is refused, too."""
        try:
            claims = jwt.decode(
                data, self._key, [ALGORITHM], {"verify_exp": False, "verify_iat": False, "require": ["sub", "exp"]}
            )
            role, end_ms = str(claims["sub"]), int(claims["exp"]) * 1000
        except (jwt.PyJWTError, ValueError, TypeError):
            raise AuthenticationError("the token was not made by this cluster's coordinator") from None
        if role != self._role or self._env.clock.now_ms() >= end_ms:
            raise AuthenticationError("the token of this Ray is over: ask the coordinator for another")
        return Credential(role, end_ms)
