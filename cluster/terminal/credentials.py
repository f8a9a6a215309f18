"""How a command proves who it is: what the operator gave, or, through Ray, a token of the cluster's coordinator."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from ...protocol.errors import ClusterError
from ...protocol.names import METHOD_HEADER
from ...protocol.plain_values import is_text_map
from ...runtime.token_file import read_token

if TYPE_CHECKING:
    from ...client.core.authentication import Authentication

FILE = "file:"
TOKEN = "token:"
METHODS = {"token": "token", "basic": "basic", "tls": "tls"} | {
    f"org.apache.pulsar.client.impl.auth.Authentication{name}": method
    for name, method in (("Token", "token"), ("Basic", "basic"), ("Tls", "tls"))
}
"""The names that `--auth-plugin` takes. Scripts for Pulsar's tools have the longer ones."""


@dataclass(frozen=True)
class GivenCredential:
    """What the operator gave, if anything: a file with a token, or a method with its parameters as Pulsar's tools take
    them.
    """

    token_file: str = ""
    plugin: str = ""
    params: str = field(default="", repr=False)

    def authentication(self, *, through_ray: bool) -> "Authentication | None":
        """For a client. `through_ray`: the cluster was found so. Raises ClusterError, InvalidConfiguration."""
        from ...client.core.authentication import AuthenticationBasic, AuthenticationTLS, AuthenticationToken
        from ...client.core.ray_credentials import RayAuthentication

        if self.token_file:
            return AuthenticationToken(lambda: _token_in(self.token_file))
        if not self.plugin and not self.params:
            return RayAuthentication() if through_ray else None
        method = METHODS.get(self.plugin or "token")
        if method == "token":
            place = self.params.removeprefix(TOKEN)
            if place.startswith(FILE):
                return AuthenticationToken(lambda: _token_in("/" + place.removeprefix(FILE).lstrip("/")))
            return AuthenticationToken(place)
        if method == "basic":
            given = self._json()
            return AuthenticationBasic(given.get("userId") or given.get("username"), given.get("password"))
        if method == "tls":
            paths: dict[str, str] = {}
            for one in self.params.split(","):
                name, _, path = one.partition(":")
                paths[name.strip()] = path.strip()
            return AuthenticationTLS(paths.get("tlsCertFile", ""), paths.get("tlsKeyFile", ""))
        raise ClusterError(f"--auth-plugin {self.plugin[:200]} is unknown: choose token, basic or tls")

    def headers(self, *, through_ray: bool) -> dict[str, str]:
        """For the admin HTTP. Raises what `authentication` and its `auth_data` raise."""
        found = self.authentication(through_ray=through_ray)
        data = cast("bytes", found.auth_data()) if found is not None else b""
        if found is None or not data:
            return {}
        if found.method_name == "basic":
            return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
        named = {} if found.method_name == "token" else {METHOD_HEADER: found.method_name}
        return {"Authorization": f"Bearer {data.decode()}", **named}

    def _json(self) -> Mapping[str, str]:
        try:
            found: object = json.loads(self.params)
        except ValueError:
            found = None
        if not is_text_map(found):
            raise ClusterError('--auth-params must be JSON: {"userId": "NAME", "password": "PASSWORD"}')
        return {name: str(value) for name, value in found.items()}


NO_CREDENTIAL = GivenCredential()


def _token_in(path: str) -> str:
    """Read again each time, because a new token is written over the old one. Raises ClusterError."""
    try:
        return read_token(path)
    except (OSError, ValueError) as error:
        raise ClusterError(f"the token cannot be read: {error}") from None
