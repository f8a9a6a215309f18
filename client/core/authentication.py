"""How a client proves who it is. Names and arguments are those of the official Python client.

An object of these classes is asked for a credential before each connection, and again when the broker says that the one
it has is over. Nothing of a credential is in a `repr`, a log or the text of an error.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ...protocol.errors import ErrorGettingAuthenticationData, InvalidConfiguration, MagnetarError
from ...protocol.plain_values import is_text_map

CREDENTIAL_TIMEOUT_S = 30.0
"""So long a function that provides a token may take."""


class SentCredential(NamedTuple):
    """What CONNECT and AUTH_RESPONSE have in them."""

    method: str
    data: bytes


class Authentication:
    """Proves who the client is. Derive from it for a method of your own, which the brokers need a provider for."""

    method_name = "none"
    """The name by which brokers know the method."""
    certificate_path: str | None = None
    """A certificate that TLS shows, for connections with `pulsar+ssl://`."""
    private_key_path: str | None = None
    """Its private key."""

    def auth_data(self) -> bytes | Awaitable[bytes]:
        """Return what proves it now. May be called from any thread, and may wait.

        Returns:
            The data of the method, or something that can be awaited for it.
        """
        return b""

    async def credential(self) -> SentCredential | None:
        """Get what to send now. The client calls it.

        Returns:
            The method's name, and the data. None: nothing is sent.

        Raises:
            ErrorGettingAuthenticationData: If `auth_data` fails, or takes too long.
        """
        try:
            async with asyncio.timeout(CREDENTIAL_TIMEOUT_S):
                found = await asyncio.get_running_loop().run_in_executor(None, self.auth_data)
                data = await found if inspect.isawaitable(found) else found
        except MagnetarError:
            raise
        except TimeoutError:
            raise ErrorGettingAuthenticationData(
                f"{type(self).__name__} gave no credential within {CREDENTIAL_TIMEOUT_S:g} s"
            ) from None
        except Exception as error:
            raise ErrorGettingAuthenticationData(
                f"{type(self).__name__} could not get a credential: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] (classes of users are untyped)
            raise ErrorGettingAuthenticationData(f"{type(self).__name__} gave {type(data).__name__} in place of bytes")
        return SentCredential(self.method_name, data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class AuthenticationToken(Authentication):
    """Shows a token, usually a JSON Web Token."""

    method_name = "token"

    def __init__(self, token: str | Callable[[], str]) -> None:
        """Give the token, or a function that returns it.

        Args:
            token: The token. A function is called before each connection, and when the token is over. So it can return
                a new one. A client that is pickled takes a string along; a function is better that reads a file.

        Raises:
            InvalidConfiguration: If it is neither, or empty.
        """
        if not callable(token) and (not isinstance(token, str) or not token):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidConfiguration("token must be a string that is not empty, or a function that returns one")
        self._token = token

    def auth_data(self) -> bytes:
        """Return the token.

        Returns:
            The token as text of ASCII.
        """
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str) or not token:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ErrorGettingAuthenticationData("the function of AuthenticationToken returned no token")
        return token.strip().encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AuthenticationToken) and self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)


class AuthenticationBasic(Authentication):
    """Shows a name and a password."""

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        """Give both, or a JSON text with `username`, `password` and perhaps `method`.

        Args:
            username: The name, which is the role.
            password: The password.
            method: The name by which brokers know the method.
            auth_params_string: The three as a JSON object.

        Raises:
            InvalidConfiguration: If the name or the password is missing, or the text is no such JSON.
        """
        if auth_params_string is not None:
            given = _json_of("AuthenticationBasic", auth_params_string)
            username, password = given.get("username"), given.get("password")
            method = given.get("method", "basic")
        if not username or password is None:
            raise InvalidConfiguration("AuthenticationBasic needs username and password")
        self.method_name = method
        self._data = f"{username}:{password}".encode()

    def auth_data(self) -> bytes:
        """Return the name and the password.

        Returns:
            `name:password`.
        """
        return self._data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AuthenticationBasic) and (self.method_name, self._data) == (
            other.method_name,
            other._data,
        )

    def __hash__(self) -> int:
        return hash((self.method_name, self._data))


class AuthenticationTLS(Authentication):
    """Shows a certificate. Its common name is the client's role."""

    method_name = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        """Name the files.

        Args:
            certificate_path: The certificate, in PEM form.
            private_key_path: Its private key, in PEM form.
        """
        self.certificate_path = certificate_path
        self.private_key_path = private_key_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AuthenticationTLS) and (self.certificate_path, self.private_key_path) == (
            other.certificate_path,
            other.private_key_path,
        )

    def __hash__(self) -> int:
        return hash((self.certificate_path, self.private_key_path))


def check_authentication(value: object) -> None:
    """Raise InvalidConfiguration for what is no authentication of this package."""
    if value is None or isinstance(value, Authentication):
        return
    name = type(value).__name__
    raise InvalidConfiguration(
        f"authentication must be an object such as magnetar.AuthenticationToken, not {type(value).__module__}.{name}: "
        "the classes of the official package belong to its own client"
    )


def _json_of(what: str, text: str) -> dict[str, str]:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{what}: auth_params_string is no JSON: {error}") from None
    strings = {name: value for name, value in found.items() if isinstance(value, str)} if is_text_map(found) else {}
    if not is_text_map(found) or len(strings) < len(found):
        raise InvalidConfiguration(f"{what}: auth_params_string must be a JSON object of strings")
    return strings
