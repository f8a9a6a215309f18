"""Who calls the admin, and whether he may: each declared path is served through `Access.guarded`.

A caller shows `Authorization: Bearer` with a token, `Authorization: Basic` with a name and a password, or a certificate
of TLS, as with Pulsar. `X-Pulsar-Auth-Method-Name` names the method where a provider of the operator has another one. A
proxy names its caller's role in `X-Original-Principal`. Without a credential a caller has the anonymous role, if there
is one.

The paths' parameters say of what a path needs a permission. A path that needs nothing is served before anybody asks
who calls.
"""

from collections.abc import Mapping

from aiohttp import web

from ...protocol.errors import AuthenticationError, AuthorizationError
from ...protocol.names import METHOD_HEADER
from ..security.audit import AuditLog
from ..security.authentication import NONE, ClientAuthentication, Proof
from ..security.authorization import Authorization, Level, Scope
from ..security.credentials import NOBODY, Peer, Principal
from ..security.passwords import basic_header
from .requests import topic_of
from .routes import Route, RouteHandler

ORIGINAL_HEADER = "X-Original-Principal"
AUTHORIZATION_HEADER = "Authorization"
READS = frozenset({"GET", "HEAD"})
SUBSCRIPTIONS = ("subscription", "subscription_name")
"""The parameters that name a subscription."""


class Access:
    """See the module."""

    def __init__(self, authentication: ClientAuthentication, authorization: Authorization, audit: AuditLog) -> None:
        self._authentication = authentication
        self._authorization = authorization
        self._audit = audit

    def guarded(self, route: Route) -> RouteHandler:
        """What serves a path after it is decided that the caller may.

        It raises AuthenticationError (401), AuthorizationError (403), InvalidTopicName.
        """

        async def decide(request: web.Request) -> web.StreamResponse:
            principal = NOBODY
            try:
                if route.need.level is not Level.OPEN:
                    principal = await self.principal(request)
                    if self._authorization.enabled:
                        self._authorization.check(principal, route.need, scope_of(request))
            except (AuthenticationError, AuthorizationError) as error:
                self._tell(principal, request, str(error))
                raise
            if request.method not in READS:
                self._tell(principal, request)
            return await route.handler(request)

        return decide

    def _tell(self, principal: Principal, request: web.Request, refused: str = "") -> None:
        self._audit.tell(principal, _address(request), request.method, request.rel_url.raw_path, refused)

    async def principal(self, request: web.Request) -> Principal:
        """In whose name a request comes. Raises AuthenticationError, AuthorizationError."""
        authentication = self._authentication
        if not authentication.enabled:
            return NOBODY
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        peer = Peer(_address(request), certificate, lambda: transport is None or transport.is_closing())
        found = await authentication.verify(proof_of(request.headers, has_certificate=bool(certificate)), peer)
        return authentication.principal(found.role, request.headers.get(ORIGINAL_HEADER, ""))


def _address(request: web.Request) -> str:
    return f"/{request.remote or 'unknown'}"


def proof_of(headers: Mapping[str, str], *, has_certificate: bool) -> Proof:
    """What a request shows. Raises AuthenticationError for a malformed header."""
    kind, _, value = headers.get(AUTHORIZATION_HEADER, "").strip().partition(" ")
    named = headers.get(METHOD_HEADER, "")
    if kind.lower() == "bearer":
        return Proof(named or "token", value.strip().encode())
    if kind.lower() == "basic":
        return Proof(named or "basic", basic_header(value.strip()))
    if kind and not named:
        raise AuthenticationError(f"the header Authorization has the scheme {kind[:40]!r}: use Bearer or Basic")
    if named or has_certificate:
        return Proof(named or "tls", value.strip().encode())
    return Proof(NONE, b"")


def scope_of(request: web.Request) -> Scope:
    """Of what the path needs a permission. Raises InvalidTopicName."""
    found = request.match_info
    subscription = next((found[name] for name in SUBSCRIPTIONS if name in found), "")
    if "topic" in found:
        return Scope.of_topic(topic_of(request), subscription)
    tenant, namespace = found.get("tenant", ""), found.get("namespace", "")
    return Scope(tenant, f"{tenant}/{namespace}" if namespace else "", None, subscription)
