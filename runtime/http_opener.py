"""Requests to a cluster's admin with the standard library: without proxies, and with the given files of TLS."""

import ssl
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from ..protocol.errors import ConnectError, TlsError
from .tls_contexts import BadTlsFiles, ClientTls, client_context
from .tls_failures import explain


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would take the caller's credential along, to whatever host it names."""

    def redirect_request(
        self, req: urllib.request.Request, fp: object, code: int, msg: str, headers: object, newurl: str
    ) -> None:
        """The answer counts as an error with its own status."""


def direct_opener(url: str, tls: ClientTls) -> urllib.request.OpenerDirector:
    """What opens this URL and others of its scheme. Raises TlsError for files that cannot be used."""
    # The addresses of a cluster are its own: a proxy of the environment does not know them.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), NoRedirects()]
    if url.startswith("https:"):
        try:
            handlers.append(urllib.request.HTTPSHandler(context=client_context(tls)))
        except BadTlsFiles as error:
            raise TlsError(f"{url} cannot be asked: {error}") from None
    return urllib.request.build_opener(*handlers)


def failure(what: str, url: str, error: Exception) -> ConnectError:
    """Why a request that got no answer failed. `what` is what was asked, at this URL."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLError):
        return TlsError(f"{what} cannot be asked: {explain(reason, urlsplit(url).hostname or '')}")
    return ConnectError(f"{what} does not answer: {reason}")
