"""What a provider of authentication is, and which ones the settings name."""

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from ...protocol.errors import SettingError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from .certificates import CertificateProvider
from .credentials import Credential, Peer
from .passwords import PasswordProvider
from .tokens import TokenProvider


class AuthenticationProvider(Protocol):
    """Verifies the credentials of one method. A class of your own is made with the environment and the settings."""

    method: str
    """The name that clients give in CONNECT, and in the header `X-Pulsar-Auth-Method-Name`."""

    async def start(self) -> None:
        """Read keys and the like. Raises SettingError for what cannot be used."""
        ...

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        """Who the peer is. `data` is what the client sent, at most 64 KiB.

        Raises AuthenticationError; its text is sent to the client.
        """
        ...


MakeProvider = Callable[[Environment, Settings], AuthenticationProvider]

OWN: Mapping[str, MakeProvider] = {
    "token": TokenProvider,
    "basic": PasswordProvider,
    "tls": CertificateProvider,
}
_PULSAR = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
PULSARS = {f"{_PULSAR}Token": "token", f"{_PULSAR}Basic": "basic", f"{_PULSAR}Tls": "tls"}
"""The classes of Pulsar, by which scripts name the same."""


def make_providers(env: Environment, settings: Settings) -> list[AuthenticationProvider]:
    """The providers that `authenticationProviders` names, in its order. Raises SettingError."""
    texts = [text.strip() for text in settings.authentication_providers.split(",") if text.strip()]
    return [_make(text, env, settings) for text in texts]


def _make(text: str, env: Environment, settings: Settings) -> AuthenticationProvider:
    make = OWN.get(PULSARS.get(text, text))
    if make is None:
        make = cast("MakeProvider", load_class("authenticationProviders", text))
    return make(env, settings)


def load_class(setting: str, text: str) -> type:
    """The class that a setting names as `module:Class`. Raises SettingError."""
    module, separator, name = text.partition(":")
    if not separator:
        known = ", ".join(OWN)
        raise SettingError(f"{setting} has {text[:200]!r}, which is unknown: name a class as module:Class, or {known}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"{setting} names {text[:200]!r}, which cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise SettingError(f"{setting} names {text[:200]!r}, which is no class")
    return found
