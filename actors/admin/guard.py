"""Which HTTP requests the admin takes: those of an operator's tool, not those that a web page makes a browser send.

The admin asks for no credentials, so it must not serve a browser that a foreign page controls. A page has three ways:

- *The page sends a write from its own origin.* The browser names that origin in `Origin`, or says `cross-site` in
  `Sec-Fetch-Site`. The admin refuses such a request (403). It allows a link to be followed: that is a GET, and a GET
  changes nothing.
- *The page sends a write for which the browser does not ask first*: a form, or text. So the body of a write must be
  declared as JSON (415). Before a browser sends JSON to another origin it asks by OPTIONS, which the admin refuses.
- *The page's owner lets a host name lead to the admin's address* (DNS rebinding). To the browser, page and admin are
  then one origin, but it still sends that name as `Host`. The admin serves only names that it knows (421). It serves
  every IP address: rebinding needs a name.

Tools such as curl and pulsar-admin send neither `Origin` nor `Sec-Fetch-Site`.
"""

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

ALLOWED_HOSTS_SETTING = "webServiceAllowedHosts"
READS = frozenset({"GET", "HEAD"})
OWN_SITE = frozenset({"", "none", "same-origin"})


class RequestGuard:
    """See the module. `own` are the names of the admin itself, `allowed` is the setting's list, separated by commas."""

    def __init__(self, own: Iterable[str], allowed: str) -> None:
        further = [name.strip().lower() for name in allowed.split(",") if name.strip()]
        self._any = "*" in further
        self._names = frozenset({"localhost", socket.gethostname().lower(), *(name.lower() for name in own), *further})

    def check(self, request: web.Request) -> None:
        """Raise HTTP 403, 415 or 421 for a request that is not to be served."""
        host = self._check_host(request)
        self._check_origin(request, host)
        if request.method not in READS and request.body_exists and not _is_json(request.content_type):
            raise web.HTTPUnsupportedMediaType(
                text=f"the body has the type {request.content_type}: send JSON with the header "
                "'Content-Type: application/json'"
            )

    def _check_host(self, request: web.Request) -> str:
        host = request.headers.get("Host", "").strip().lower()  # aiohttp refuses a second one
        if host and not self._any and not self._is_known(_name_of(host)):
            raise web.HTTPMisdirectedRequest(
                text=f"the admin does not answer under the name {_name_of(host)[:100]!r}: use its IP address or its "
                "own name, "
                f"or add the name to the setting {ALLOWED_HOSTS_SETTING}"
            )
        return host

    def _is_known(self, name: str) -> bool:
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _check_origin(self, request: web.Request, host: str) -> None:
        """Refuse pages of other origins and sites, except that a link may be followed."""
        for origin in request.headers.getall("Origin", []):
            if not host or _authority_of(origin) != host:
                raise web.HTTPForbidden(
                    text=f"a web page of {origin[:100]!r} may not use the admin, because it has another origin"
                )
        site = request.headers.get("Sec-Fetch-Site", "").strip().lower()
        link = request.method in READS and request.headers.get("Sec-Fetch-Mode", "").strip().lower() == "navigate"
        if site not in OWN_SITE and not link:
            raise web.HTTPForbidden(
                text=f"a web page of another site may not use the admin (Sec-Fetch-Site: {site[:40]})"
            )


def _is_json(content_type: str) -> bool:
    """JSON, or a kind of it: pulsar-admin sends `application/vnd.partitioned-topic-metadata+json`."""
    return content_type == "application/json" or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )


def _name_of(host: str) -> str:
    """A Host header without its port and without an IPv6 address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _authority_of(origin: str) -> str:
    """The `host:port` of an origin, empty for one that has none (`null`) or is none."""
    try:
        parts = urlsplit(origin.strip().lower())
    except ValueError:
        return ""
    return parts.netloc if parts.scheme in ("http", "https") else ""
