"""Who is at the other end: the providers that the settings name, asked by method.

Every broker and every admin has one `ClientAuthentication`. It also takes the tokens of `ray_tokens`.
The rules are Pulsar's (`ServerCnx`, `AuthenticationService`):

- A method that no provider has, or none at all, is the anonymous role, if there is one. Else it is refused.
- Of several providers of one method the first that accepts counts. If none does, the client gets the first refusal.
- A proxy's role is one of `proxyRoles`. It has to name its client's role, which is no proxy's. Others may name only
  themselves. With `authenticateOriginalAuthData` the client's credential is checked. Else the proxy is believed.

The text of a refusal never has a part of a credential in it.
"""

import logging
from typing import NamedTuple

from ...protocol.errors import AuthenticationError, AuthorizationError, ServiceUnitNotReady
from ...protocol.pulsar_pb2 import AuthMethodAthens, AuthMethodYcaV1, CommandConnect
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.settings.security import words
from .credentials import DATA_MAX_BYTES, NOBODY, Credential, Peer, Principal
from .providers import AuthenticationProvider, make_providers
from .ray_tokens import RayTokenProvider

logger = logging.getLogger(__name__)

NONE = "none"
"""The method of clients that give no credential."""
_OLD_METHODS = {AuthMethodYcaV1: "ycav1", AuthMethodAthens: "athens"}
"""Of clients before version 7 of the protocol, which give a number."""


class Proof(NamedTuple):
    """A credential as it was sent: the method's name, and its data."""

    method: str
    data: bytes


class Verified(NamedTuple):
    """In whose name a connection acts, and until when each credential holds."""

    principal: Principal
    own: Credential
    original: Credential | None = None
    """Of a proxy's client, where it was checked."""


class ClientAuthentication:
    """See the module."""

    def __init__(self, env: Environment, settings: Settings, client_key: bytes = b"") -> None:
        self.enabled = settings.authentication_enabled
        self.refresh_s = settings.authentication_refresh_check_s
        self._anonymous = settings.anonymous_user_role
        self._proxies = words(settings.proxy_roles)
        self._checks_original = settings.authenticate_original_auth_data
        self._providers: list[AuthenticationProvider] = make_providers(env, settings) if self.enabled else []
        if self.enabled and client_key and settings.ray_client_role:
            self._providers.append(RayTokenProvider(env, settings, client_key))

    async def start(self) -> None:
        """Have the providers read their keys. Raises SettingError."""
        for provider in self._providers:
            await provider.start()

    @property
    def methods(self) -> list[str]:
        """The methods that there are providers for."""
        return list(dict.fromkeys(provider.method for provider in self._providers))

    async def verify(self, proof: Proof, peer: Peer) -> Credential:
        """Whose credential it is. Raises AuthenticationError, and ServiceUnitNotReady if it cannot be checked now."""
        if len(proof.data) > DATA_MAX_BYTES:
            raise AuthenticationError(f"the credential has {len(proof.data)} bytes: {DATA_MAX_BYTES} at most are read")
        refusal: AuthenticationError | None = None
        for provider in self._providers:
            if provider.method != proof.method:
                continue
            try:
                found = await provider.authenticate(proof.data, peer)
            except AuthenticationError as error:
                refusal = refusal or error
            except ServiceUnitNotReady:
                raise
            except Exception as error:  # of a class of the operator: nobody gets in by its defect
                logger.exception("the provider of the method %s failed", proof.method)
                refusal = refusal or AuthenticationError(f"the credential cannot be checked: {type(error).__name__}")
            else:
                if found.role:
                    return found
                refusal = refusal or AuthenticationError("the credential has no role")
        if refusal is not None:
            raise refusal
        if self._anonymous:
            return Credential(self._anonymous)
        given = "gave no credential" if proof.method == NONE else f"has the method {proof.method[:100]!r}"
        raise AuthenticationError(f"the client {given}: this cluster takes {', '.join(self.methods)}")

    async def connect(self, command: CommandConnect, peer: Peer) -> Verified:
        """In whose name a connection acts that began so.

        Raises AuthenticationError, AuthorizationError, ServiceUnitNotReady.
        """
        if not self.enabled:
            return Verified(NOBODY, Credential(""))
        own = await self.verify(proof_of(command), peer)
        original: Credential | None = None
        named = command.original_principal
        if self._checks_original and own.role in self._proxies:
            if not command.HasField("original_auth_data"):
                raise AuthenticationError("the proxy has to show the credential of its client (original_auth_data)")
            sent = Proof(command.original_auth_method or NONE, command.original_auth_data.encode())
            original = await self.verify(sent, peer._replace(certificate=None))
            if named and named != original.role:
                raise AuthenticationError("the original principal is not the role of the original credential")
            named = original.role
        return Verified(self.principal(own.role, named), own, original)

    def principal(self, role: str, original_role: str) -> Principal:
        """A role, and the one that it names as its client's. Raises AuthorizationError."""
        if role in self._proxies:
            if not original_role:
                raise AuthorizationError(f"the proxy {role} has to name the role of its client (original_principal)")
            if original_role in self._proxies:
                raise AuthorizationError(f"the proxy {role} names {original_role}, which is the role of a proxy, too")
            return Principal(role, original_role)
        if original_role and original_role != role:
            raise AuthorizationError(f"{role} names another role, which only proxies may: add it to proxyRoles")
        return Principal(role)


def proof_of(command: CommandConnect) -> Proof:
    """What a CONNECT shows. Old clients give the method as a number."""
    if command.auth_method_name:
        return Proof(command.auth_method_name, command.auth_data)
    if command.HasField("auth_method"):
        return Proof(_OLD_METHODS.get(command.auth_method, NONE), command.auth_data)
    return Proof(NONE, command.auth_data)
