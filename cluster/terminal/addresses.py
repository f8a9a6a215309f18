"""Where a command finds its cluster: at the URL that it was given, or where the cluster of this machine runs.

Only the search for a running cluster needs Ray. A command that was given a URL never loads it.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol, TypedDict
from urllib.parse import urlsplit

import typer

from ...protocol.errors import AuthenticationError, ConnectError, InvalidUrl, MagnetarError
from ...runtime.environment import Environment
from ...runtime.tls_contexts import SYSTEM_TLS, ClientContexts, ClientTls
from .credentials import NO_CREDENTIAL, GivenCredential

if TYPE_CHECKING:
    from ...client.core.authentication import Authentication

ANSWER_TIMEOUT_MS = 5_000
ADMIN_URL_VARIABLE = "MAGNETAR_ADMIN_URL"
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "-u",
        "--service-url",
        "--url",
        envvar="MAGNETAR_SERVICE_URL",
        metavar="URL",
        help="Brokers to connect to, as pulsar://host:port,host:port. By default those of the running cluster.",
    ),
]
ListenerName = Annotated[
    str | None,
    typer.Option(
        "--listener-name",
        metavar="NAME",
        help="The listener whose addresses to use, one of the brokers' advertisedListeners.",
    ),
]


class ClientOptions(TypedDict):
    """The options of a client that the command line has."""

    authentication: "Authentication | None"
    listener_name: str | None
    tls_trust_certs_file_path: str | None
    tls_certificate_file_path: str | None
    tls_private_key_file_path: str | None
    tls_allow_insecure_connection: bool
    tls_validate_hostname: bool


class RunningCluster(Protocol):
    """What commands want to know of a cluster."""

    @property
    def service_url(self) -> str: ...

    admin_url: str


@dataclass(frozen=True)
class Finder:
    """Finds the running cluster. The command line puts one into the context of its commands."""

    find: Callable[[], RunningCluster]
    """Raises ClusterError when no cluster runs."""
    unkept: Callable[[str, str, ClientTls, Mapping[str, str]], str] | None = None
    """From an admin URL and a topic: what to tell somebody who has just published there, empty for nothing."""
    tls: ClientTls = SYSTEM_TLS
    """For brokers and admin that speak TLS."""
    credential: GivenCredential = NO_CREDENTIAL
    """For those that ask who calls."""


def service_url_of(context: typer.Context, given: str | None) -> str:
    """The service URL that a command uses. Raises ClusterError, InvalidUrl, ConnectError.

    Of one that was given, a broker must answer: a client would try again for half a minute without a word.
    """
    if not given:
        return context.ensure_object(Finder).find().service_url
    finder = context.ensure_object(Finder)
    asyncio.run(check_service_url(given, finder.tls, finder.credential.authentication(through_ray=False)))
    return given


def client_options(context: typer.Context, listener_name: str | None, given: str | None) -> ClientOptions:
    """The options of a client that a command connects by. `given` is the service URL that it was given."""
    finder = context.ensure_object(Finder)
    tls = finder.tls
    return {
        "authentication": finder.credential.authentication(through_ray=not given),
        "listener_name": listener_name,
        "tls_trust_certs_file_path": tls.trust or None,
        "tls_certificate_file_path": tls.certificate or None,
        "tls_private_key_file_path": tls.key or None,
        "tls_allow_insecure_connection": tls.insecure,
        "tls_validate_hostname": tls.host_name_checked,
    }


async def check_service_url(url: str, tls: ClientTls, authentication: "Authentication | None" = None) -> None:
    """Return when one of the brokers answers. Raises InvalidUrl, ConnectError, AuthenticationError."""
    from ...client.core.configuration import ClientConfiguration
    from ...client.core.connection import connect
    from ...client.core.service_url import parse_service_url

    configuration = ClientConfiguration(url, connection_timeout_ms=ANSWER_TIMEOUT_MS)
    environment = Environment.real(1)
    contexts = ClientContexts(environment, tls) if configuration.speaks_tls(url) else None
    reasons: list[str] = []
    try:
        for address in parse_service_url(url):
            try:
                (await connect(configuration, address, None, authentication, contexts)).close()
            except AuthenticationError:
                raise
            except MagnetarError as error:
                reasons.append(str(error))
            else:
                return
    finally:
        environment.close()
    raise ConnectError(f"no broker answers at {url}: {'; '.join(reasons)}. Check --service-url, and that brokers run")


def unkept_notice(context: typer.Context, given: str | None, topic: str) -> str:
    """That nothing keeps what was published to a topic. Empty if something does, or the admin's address is unknown."""
    finder = context.ensure_object(Finder)
    named = os.environ.get(ADMIN_URL_VARIABLE)
    url = named or ("" if given else finder.find().admin_url)
    if not url or finder.unkept is None:
        return ""
    return finder.unkept(url, topic, finder.tls, finder.credential.headers(through_ray=not named))


def admin_url_of(finder: Finder, given: str | None) -> str:
    """The URL of the admin HTTP, without a slash at its end. Raises InvalidUrl, ClusterError."""
    url = given or finder.find().admin_url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidUrl(f"{url!r} is not an admin URL: write http://host:port")
    return url.rstrip("/")
