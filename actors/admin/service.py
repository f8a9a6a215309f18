"""The admin HTTP: Pulsar's REST paths for topics, namespaces, tenants, clusters and lookup, and `/metrics`.

It keeps no state. It sends every request to the coordinator, or to the broker that owns the topic, over the internal
RPC. So it runs beside them and never on a broker's loop. A topic that is being moved is asked for again for a while.

Answers are JSON as Pulsar's; an error is its HTTP status with `{"reason": …}`. A path of Pulsar's that is missing here
is answered with 501. So it differs from a topic that does not exist (404). Bodies are small and bounded, and so is the
number of requests under way. What a web page makes a browser send is refused (`admin.guard`). GET changes nothing.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from ...protocol.errors import (
    AlreadyClosed,
    AuthenticationError,
    AuthorizationError,
    BadVersion,
    CoordinatorUnavailable,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    KeyExists,
    MagnetarError,
    MetadataUnavailable,
    NoSuchKey,
    NotAllowedError,
    NotEnoughBookies,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
)
from ...protocol.names import ADMIN_ID, ROLE_ADMIN
from ...runtime.environment import Environment
from ...runtime.metrics import Metrics
from ...runtime.rpc.connection import Locate
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ..members.contracts_broker import BrokerContract
from ..members.coordinator_link import CoordinatorClient
from ..members.peer_calls import MemberCalls
from .broker_routes import BrokerRoutes
from .cluster_routes import ClusterRoutes
from .compaction_routes import CompactionRoutes
from .desired_routes import DesiredRoutes
from .guard import RequestGuard
from .inside_routes import InsideRoutes
from .message_routes import MessageRoutes
from .namespace_routes import NamespaceRoutes
from .openapi import OpenApiRoutes
from .paths import add_routes
from .permission_routes import PermissionRoutes
from .policy_routes import PolicyRoutes
from .property_routes import PropertyRoutes
from .quota_routes import QuotaRoutes
from .requests import Owners
from .routes import Route
from .schema_routes import SchemaRoutes
from .topic_routes import TopicRoutes

logger = logging.getLogger(__name__)

BODY_SIZE_MAX_BYTES = 64 << 10
REQUESTS_UNDER_WAY_MAX = 256

_STATUS_BY_ERROR: tuple[tuple[type[MagnetarError], int], ...] = (
    (TopicNotFound, 404),
    (SubscriptionNotFound, 404),
    (NoSuchKey, 404),
    (KeyExists, 409),
    (BadVersion, 409),
    (IncompatibleSchema, 409),
    (InvalidTopicName, 412),
    (InvalidConfiguration, 412),
    (NotAllowedError, 412),
    (AuthenticationError, 401),
    (AuthorizationError, 403),
    (TooManyLookupRequestException, 429),
    (Timeout, 504),
    (ServiceUnitNotReady, 503),
    (CoordinatorUnavailable, 503),
    (MetadataUnavailable, 503),
    (NotEnoughBookies, 503),
    (AlreadyClosed, 503),
)


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
        self._coordinator = CoordinatorClient(env, identity, keys, settings, locate_coordinator)
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
            NamespaceRoutes(settings, owners),
            PolicyRoutes(settings, owners),
            QuotaRoutes(settings, owners),
            SchemaRoutes(owners),
        ]
        declared = [route for group in groups for route in group.routes()]
        self.routes: Sequence[Route] = (*declared, *OpenApiRoutes(declared).routes())
        """Every path that is served."""
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where the HTTP server listens; the port is the real one once started."""
        return (self._host, self._port)

    async def start(self) -> None:
        """Connect to the coordinator, then listen. Raises CoordinatorUnavailable, HandshakeRefused, OSError."""
        try:
            await self._coordinator.start()
            application = web.Application(middlewares=[self._answer], client_max_size=BODY_SIZE_MAX_BYTES)
            add_routes(application, self.routes)
            self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=2.0)
            await self._runner.setup()
            site = web.TCPSite(self._runner, self._host, self._port)
            await site.start()
            if not self._port:
                self._port = self._runner.addresses[0][1]
            await self._coordinator.register(self._host, self._port, {"url": f"http://{self._host}:{self._port}"})
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and leave the cluster. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._brokers.close()
        await self._coordinator.close()

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
            status = _status_of(error)
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


def _status_of(error: MagnetarError) -> int:
    if error.details.get("exists"):
        return 409
    if error.details.get("reserved"):
        return 400
    if error.details.get("invalid"):
        return 422
    if error.details.get("in_use"):
        return 412
    return next((status for kind, status in _STATUS_BY_ERROR if isinstance(error, kind)), 500)


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
    return web.Response(status=status, text=json.dumps({"reason": reason}), content_type="application/json")
