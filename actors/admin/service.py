"""The admin HTTP: Pulsar's REST paths for topics, namespaces, tenants, clusters and lookup, and `/metrics`.

It keeps no state. It sends every request to the coordinator, or to the broker that owns the topic, over the internal
RPC. So it runs beside them and never on a broker's loop. A topic that is being moved is asked for again for a while.

Answers are JSON as Pulsar's; an error is its HTTP status with `{"reason": …}`. A path of Pulsar's that is missing here
is answered with 501. So it differs from a topic that does not exist (404). Bodies are small and bounded, and so is the
number of requests under way. What a web page makes a browser send is refused (see below). GET changes nothing.

Parts of a path are told apart before any of them is decoded, so that `%2F` and braces belong to a name. How a parameter
is decoded is said in `protocol.path_encoding`. A slash at the end of a path has no meaning, as in Pulsar.
"""

import asyncio
import ipaddress
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import unquote, urlsplit

from aiohttp import web
from aiohttp.web_urldispatcher import MatchInfoError, UrlMappingMatchInfo

from ...protocol.errors import (
    AuthenticationError,
    MagnetarError,
    TopicNotFound,
)
from ...protocol.names import ADMIN_ID, ROLE_ADMIN
from ...protocol.path_encoding import encoding_of
from ...protocol.topic_figures import StorageFigures
from ...runtime.environment import Environment
from ...runtime.metrics import Metrics
from ...runtime.rpc.connection import Locate
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...runtime.tls_contexts import ServerContexts
from ...runtime.tls_listener import TlsListener
from ..members.contracts_broker import BrokerContract
from ..members.coordinator_link import CoordinatorClient
from ..members.feeds import NO_FEEDS, Feeds
from ..members.peer_calls import MemberCalls
from ..policies.effective import EffectivePolicies
from ..policies.watch import PolicyWatch
from ..security.audit import AuditLog
from ..security.authentication import ClientAuthentication
from ..security.authorization import CONSUME, TOPIC_ADMIN, TOPIC_USER, Authorization
from .access import READS, Access
from .broker_routes import BrokerRoutes
from .cluster_routes import ClusterRoutes, DesiredRoutes, ReadingRoutes
from .message_routes import MessageRoutes
from .namespace_routes import NamespaceRoutes
from .openapi import OpenApiRoutes
from .policy_routes import PermissionRoutes, PolicyRoutes, QuotaRoutes
from .property_routes import PropertyRoutes
from .requests import MESSAGE_ID, Owners, json_answer, json_body, no_content, position_of, topic_of
from .routes import TOPIC_ROUTE, WHOLE, Route, RouteHandler, get, post, put
from .schema_routes import SchemaRoutes
from .shapes import NAME, example_of, shape_of
from .topic_figures import partitioned_storage_json, storage_info_json, storage_json
from .topic_routes import CompactionRoutes, TopicRoutes

logger = logging.getLogger(__name__)

_PARAMETER = re.compile(r"\{(\w+)(?::([^}]+))?\}")


class _PathPart:
    """A part of a declared path: a word, or a parameter, which may be one of some words."""

    def __init__(self, text: str) -> None:
        found = _PARAMETER.fullmatch(text)
        self.parameter = found[1] if found else ""
        self._words = frozenset((found[2] or "").split("|") if found else [text])
        self._is_free = found is not None and found[2] is None
        self.encoding = encoding_of(self.parameter)

    def takes(self, sent: str) -> bool:
        """Whether a part of a request's path, as it was sent, can be this one."""
        return bool(sent) if self._is_free else sent in self._words or unquote(sent) in self._words


class PathResource(web.DynamicResource):
    """The methods of one declared path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._parts = [_PathPart(text) for text in path.removeprefix("/").split("/")]

    async def resolve(self, request: web.Request) -> tuple[UrlMappingMatchInfo | None, set[str]]:
        """The handler and the decoded parameters, or a refusal (400) of one that cannot be decoded."""
        sent = request.rel_url.raw_path.removeprefix("/").removesuffix("/").split("/")
        if len(sent) != len(self._parts):
            return None, set()
        if not all(part.takes(text) for part, text in zip(self._parts, sent, strict=True)):
            return None, set()
        route = self._routes.get(request.method)
        if route is None:
            return None, self._allowed_methods
        try:
            found = {
                part.parameter: part.encoding.decode(text)
                for part, text in zip(self._parts, sent, strict=True)
                if part.parameter
            }
        except ValueError as error:
            return MatchInfoError(web.HTTPBadRequest(text=f"the path cannot be decoded: {error}")), set()
        return UrlMappingMatchInfo(found, route), self._allowed_methods


def add_routes(application: web.Application, routes: Iterable[Route], guarded: Callable[[Route], RouteHandler]) -> None:
    """Have an application serve the routes through `guarded`. GET takes HEAD, too."""
    resources: dict[str, PathResource] = {}
    for route in routes:
        resource = resources.get(route.path)
        if resource is None:
            resource = resources[route.path] = PathResource(route.path)
            application.router.register_resource(resource)
        handler = guarded(route)
        resource.add_route(route.method, handler)
        if route.method == "GET":
            resource.add_route("HEAD", handler)


ALLOWED_HOSTS_SETTING = "webServiceAllowedHosts"
OWN_SITE = frozenset({"", "none", "same-origin"})


class RequestGuard:
    """Which HTTP requests the admin takes: those of an operator's tool, not those that a web page makes a browser send.

    The admin may ask for no credentials, so it must not serve a browser that a foreign page controls. A page has three
    ways:

    - *The page sends a write from its own origin.* The browser names that origin in `Origin`, or says `cross-site` in
      `Sec-Fetch-Site`. The admin refuses such a request (403). It allows a link to be followed: that is a GET, and a
      GET changes nothing.
    - *The page sends a write for which the browser does not ask first*: a form, or text. So the body of a write must be
      declared as JSON (415). Before a browser sends JSON to another origin it asks by OPTIONS, which the admin refuses.
    - *The page's owner lets a host name lead to the admin's address* (DNS rebinding). To the browser, page and admin
      are then one origin, but it still sends that name as `Host`. The admin serves only names that it knows (421). It
      serves every IP address: rebinding needs a name.

    Tools such as curl and pulsar-admin send neither `Origin` nor `Sec-Fetch-Site`.

    `own` are the names of the admin itself, `allowed` is the setting's list, separated by commas.
    """

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


_STORAGE: StorageFigures = example_of(StorageFigures)
_INFO = storage_info_json(_STORAGE)
INFO = shape_of({**_INFO, "partitions": {NAME: _INFO}})


class InsideRoutes:
    """The admin's paths that show how topics are stored: ledgers, cursors, and the bytes behind a message."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        topic = TOPIC_ROUTE
        partitioned = shape_of(partitioned_storage_json({NAME: _STORAGE}))
        return [
            get(TOPIC_USER, topic + "/internalStats", self.internal_stats, shape_of(storage_json(_STORAGE))),
            get(TOPIC_USER, topic + "/internal-info", self.internal_info, INFO),
            get(TOPIC_USER, topic + "/partitioned-internalStats", self.partitioned_internal_stats, partitioned),
            put(CONSUME, topic + "/backlogSize", self.backlog_size, MESSAGE_ID, answer=WHOLE),
            post(TOPIC_ADMIN, topic + "/createMissedPartitions", self.create_missed_partitions),
        ]

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Return ledgers and cursors of a topic."""
        return json_answer(storage_json(await self._owners.ask_plain(topic_of(request), _storage)))

    async def internal_info(self, request: web.Request) -> web.Response:
        """Return what is stored of a topic, or of its partitions: ledgers, and how far the cursors are."""
        topic = topic_of(request)
        figures = await self._owners.ask_members(topic, _storage)
        shown = {name: storage_info_json(storage) for name, storage in figures.items()}
        return json_answer(shown[topic.full] if topic.full in shown else {"partitions": shown})

    async def partitioned_internal_stats(self, request: web.Request) -> web.Response:
        """Return ledgers and cursors of each partition of a topic."""
        topic = topic_of(request)
        if not await self._owners.partitions(topic):
            raise TopicNotFound(f"{topic.full} is not a partitioned topic")
        return json_answer(partitioned_storage_json(await self._owners.ask_members(topic, _storage)))

    async def backlog_size(self, request: web.Request) -> web.Response:
        """Return how many bytes a topic stores behind a message. Body: its id."""
        topic = topic_of(request)
        place = position_of(await json_body(request), "earliest")
        if isinstance(place, str):
            place = [-1, -1] if place == "earliest" else [(1 << 63) - 1, 0]
        ledger, entry = place
        if await self._owners.partitions(topic):
            raise web.HTTPMethodNotAllowed("PUT", [], text=f"{topic.full} has partitions: ask for one of them")
        size = await self._owners.ask(
            topic.full, lambda broker, name: broker.bytes_after(topic=name, ledger=ledger, entry=entry)
        )
        return json_answer(size)

    async def create_missed_partitions(self, request: web.Request) -> web.Response:
        """Store the partitions that nobody has opened yet. As in Pulsar, they get no subscriptions by this."""
        topic = topic_of(request)
        if topic.partition >= 0:
            raise web.HTTPPreconditionFailed(text=f"{topic.full} is a partition: name the whole topic")
        if not await self._owners.partitions(topic):
            raise TopicNotFound(f"{topic.full} is not a partitioned topic")
        if topic.persistent:
            await self._owners.ask_members(topic, _storage)
        return no_content()


async def _storage(broker: BrokerContract, topic: str) -> StorageFigures:
    return await broker.internal_stats(topic=topic)


NO_HTTPS = b"""HTTP/1.1 400 Bad Request\r
Content-Type: application/json\r
Connection: close\r
\r
{"reason": "this port speaks TLS only: use https://"}"""


class NoHttps(asyncio.Protocol):
    """A client that does not speak TLS, on a port that does. It is told as soon as it has asked for something."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(NO_HTTPS)
        self._transport.close()


BACKLOG = 128
"""Connections that wait to be accepted, of the port for TLS; as many as aiohttp has."""
BODY_SIZE_MAX_BYTES = 64 << 10
REQUESTS_UNDER_WAY_MAX = 256


class AdminService:
    """See the module. `host` and `port` are those of the HTTP server; port 0 takes any free one.

    `advertised_host` is what others are told to call, by default the same host.
    """

    def __init__(
        self,
        env: Environment,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        host: str,
        port: int,
        locate_coordinator: Locate,
        advertised_host: str | None = None,
    ) -> None:
        self._host = host
        self._guard = RequestGuard((host, advertised_host or host), settings.web_service_allowed_hosts)
        self._port = port
        identity = Identity(cluster_id, ROLE_ADMIN, ADMIN_ID, env.random.hex(8))
        self._watch = PolicyWatch(settings, _nothing_follows)
        """The permissions of all namespaces and tenants."""
        self._watch.begin_session()
        self._authentication = ClientAuthentication(env, settings, keys.client_key)
        audit = AuditLog(env, settings, ADMIN_ID)
        self._access = Access(self._authentication, Authorization.of_settings(settings, self._watch), audit)
        feeds = Feeds(policies=self._watch) if settings.authorization_enabled else NO_FEEDS
        self._coordinator = CoordinatorClient(env, identity, keys, settings, locate_coordinator, feeds)
        self._brokers = MemberCalls(env, identity, keys, self._find_broker, BrokerContract)
        self._metrics = Metrics("admin", ADMIN_ID)
        self._requests = self._metrics.counter("magnetar_admin_requests", "Requests answered.")
        self._failures = self._metrics.counter(
            "magnetar_admin_failures", "Requests answered with a status of 500 or above."
        )
        self._under_way = 0
        owners = Owners(env, self._coordinator, self._brokers, settings)
        groups = [
            TopicRoutes(owners),
            InsideRoutes(owners),
            MessageRoutes(owners),
            PropertyRoutes(owners),
            PermissionRoutes(owners),
            CompactionRoutes(owners),
            ClusterRoutes(settings, owners, self._metrics),
            BrokerRoutes(settings, owners),
            DesiredRoutes(owners),
            ReadingRoutes(owners, keys),
            NamespaceRoutes(settings, owners),
            PolicyRoutes(settings, owners),
            QuotaRoutes(settings, owners),
            SchemaRoutes(owners),
        ]
        declared = [route for group in groups for route in group.routes()]
        self.routes: Sequence[Route] = (*declared, *OpenApiRoutes(declared).routes())
        """Every path that is served."""
        self._env = env
        self._settings = settings
        self._runner: web.AppRunner | None = None
        self._secure: TlsListener | None = None
        self._tasks = Tasks()

    @property
    def address(self) -> tuple[str, int]:
        """Where the HTTP server listens; the port is the real one once started."""
        return (self._host, self._port)

    async def start(self) -> None:
        """Connect to the coordinator, then listen.

        Raises CoordinatorUnavailable, HandshakeRefused, OSError, and SettingError for files that are no use.
        """
        try:
            await self._authentication.start()
            await self._coordinator.start()
            application = web.Application(middlewares=[self._answer], client_max_size=BODY_SIZE_MAX_BYTES)
            add_routes(application, self.routes, self._access.guarded)
            self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=2.0)
            await self._runner.setup()
            if not self._settings.admin_tls_only:
                site = web.TCPSite(self._runner, self._host, self._port)
                await site.start()
                self._port = self._port or self._runner.addresses[0][1]
            if self._settings.admin_tls_only or self._settings.admin_port_tls:
                await self._listen_with_tls(self._runner)
            scheme = "https" if self._settings.admin_tls_only else "http"
            await self._coordinator.register(self._host, self._port, {"url": f"{scheme}://{self._host}:{self._port}"})
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and leave the cluster. May be called twice."""
        await self._tasks.close()
        secure, self._secure = self._secure, None
        if secure is not None:
            secure.close()
            await secure.wait_closed()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._brokers.close()
        await self._coordinator.close()

    async def _listen_with_tls(self, runner: web.AppRunner) -> None:
        """Serve the same with TLS, on the port for it, or on the only one. Raises SettingError, OSError."""
        contexts = ServerContexts(self._env, self._settings.server_tls())
        await contexts.open()
        self._tasks.spawn(contexts.run(), "refresh-certificates")
        assert runner.server is not None
        self._secure = TlsListener(contexts, runner.server, NoHttps)
        port = self._port if self._settings.admin_tls_only else self._settings.admin_port_tls
        await self._secure.open(self._host, port, backlog=BACKLOG)
        if self._settings.admin_tls_only:
            self._port = self._secure.port

    def _find_broker(self, broker_id: str) -> tuple[str, str, int] | None:
        broker = self._coordinator.brokers.get(broker_id)
        address = broker.rpc_address if broker is not None else None
        return (broker.incarnation, *address) if broker is not None and address is not None else None

    @web.middleware
    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuses what no tool sends, bounds the requests under way and turns errors into answers."""
        self._requests.inc()
        if self._under_way >= REQUESTS_UNDER_WAY_MAX:
            return _refusal(429, "too many requests are in flight: try again later")
        self._under_way += 1
        try:
            self._guard.check(request)
            return await handler(request)
        except web.HTTPException as error:
            if request.match_info.http_exception is error and not isinstance(error, web.HTTPBadRequest):
                return _absent(request, error)
            return _refusal(error.status, error.text or error.reason)
        except MagnetarError as error:
            status = error.http_status
            if status >= 500:
                self._failures.inc()
                logger.info("%s %s answers %d: %s", request.method, request.path, status, error)
            return _refusal(status, str(error))
        except Exception as error:
            self._failures.inc()
            logger.exception("%s %s failed", request.method, request.path)
            return _refusal(500, f"{type(error).__name__}: {error}")
        finally:
            self._under_way -= 1


def _nothing_follows(changed: Mapping[str, EffectivePolicies]) -> None:
    """The admin has no topics; each request asks for what holds then."""


def _absent(request: web.Request, error: web.HTTPException) -> web.Response:
    """There is no such path, or it takes other methods. A tool must not take that for a topic that does not exist."""
    what = f"{request.method} {request.path[:200]}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        methods = ", ".join(sorted(error.allowed_methods))
        answer = _refusal(405, f"{what} does not exist: this path takes {methods}")
        answer.headers["Allow"] = methods
        return answer
    if request.path.startswith(("/admin/", "/lookup/")):
        return _refusal(501, f"{what} is not supported: this part of Pulsar's admin API is missing")
    return _refusal(404, f"{what} does not exist")


def _refusal(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer, Basic"} if status == AuthenticationError.http_status else None
    return web.Response(
        status=status, text=json.dumps({"reason": reason}), content_type="application/json", headers=headers
    )
