"""The admin's paths of clusters, brokers, tenants and namespaces, its health check and its metrics."""

from collections.abc import Sequence

from aiohttp import web

from ...protocol.addresses import joined_urls
from ...protocol.cluster_status import ClusterView, DesiredView, MemberStatus
from ...protocol.errors import CoordinatorUnavailable, InvalidConfiguration, KeyExists, NoSuchKey, ServiceUnitNotReady
from ...protocol.lenient_values import as_text, as_whole
from ...protocol.names import READ_CREDENTIALS_PATH, ROLE_BOOKIE, ROLE_BROKER
from ...protocol.plain_values import is_list, is_text_map
from ...protocol.topics import NON_PERSISTENT, PERSISTENT
from ...runtime.metrics import Metrics
from ...runtime.rpc.keys import Keys
from ...runtime.settings.declarations import Settings
from ..members.topic_lookup import pages
from ..security.authorization import KNOWN, NAMESPACE_ADMIN, NAMESPACE_USER, OPEN, SUPER_USER, TENANT_ADMIN
from .policy_routes import policies_in, properties_in, shown
from .requests import Owners, flag, json_answer, json_body, namespace_of, no_content
from .routes import (
    FLAG,
    FORCE,
    NAMESPACE_ROUTE,
    NATURAL,
    PLAIN,
    TEXT,
    TEXTS,
    Parameter,
    Route,
    ValueSchema,
    delete,
    get,
    post,
    put,
)
from .shapes import list_of, map_of, object_of, with_optional

GAUGES = {
    "magnetar_coordinator_up": "Whether the coordinator answers.",
    "magnetar_coordinator_epoch": "Epoch of the active coordinator.",
    "magnetar_topics": "Topics. A partitioned topic counts once.",
    "magnetar_assignments": "Partitions and plain topics that a broker owns.",
    "magnetar_brokers": "Live brokers.",
    "magnetar_bookies": "Live bookies.",
    "magnetar_members_silent_seconds": "Seconds since the last heartbeat of the live member that is silent longest.",
    "magnetar_bookies_writable": "Live bookies that take new entries.",
    "magnetar_bookies_registered": "Bookies that have a cookie, alive or not.",
    "magnetar_brokers_load": "Load of all brokers in their last reports, in entries per second. 16 KiB count as one.",
    "magnetar_brokers_load_skew": "Load of the busiest broker divided by the mean of all that report; 0 without load.",
    "magnetar_auditor_incomplete_ledgers": "Ledgers that lack copies: under-replicated ones.",
    "magnetar_auditor_crowded_ledgers": "Ledgers with two copies of an entry on one machine, which lack none.",
    "magnetar_auditor_incomplete_bytes": "Length of the closed ledgers that lack copies, in bytes.",
    "magnetar_auditor_ledgers_to_check": "Ledgers that the auditor has to look at, because something changed.",
    "magnetar_bookies_damaged_entries": "Damaged entries that are not repaired yet.",
    "magnetar_bookies_scrub_progress": "Progress of the slowest scrub, from 0 to 1; 1 between passes.",
}
COUNTERS = {
    "magnetar_load_balancer_moves": ("Topics that moved for their load since the coordinator started.", ""),
    "magnetar_auditor_copied_bytes": ("Bytes that repairs copied since the coordinator started.", ""),
    "magnetar_bookies_repaired_entries": ("Damaged entries that were repaired over the life of a disk.", "bookie"),
    "magnetar_bookies_scrubbed_bytes": ("Bytes that scrubs have read over the life of a disk.", "bookie"),
}
"""With their further label. A sum over live bookies would fall when one of them ends, and rates would be wrong."""

DOMAIN_OF_MODE = {"PERSISTENT": PERSISTENT, "NON_PERSISTENT": NON_PERSISTENT}
"""ALL has both."""

MODE = Parameter("mode", {"type": "string", "enum": [*DOMAIN_OF_MODE, "ALL"]}, "Which topics are listed.")
_URLS_TLS = {"serviceUrlTls": TEXT, "brokerServiceUrlTls": TEXT}
CLUSTER_SHAPE = with_optional(
    object_of(
        serviceUrl=TEXT,
        brokerServiceUrl=TEXT,
        brokerClientTlsEnabled=FLAG,
        brokerClientTlsEnabledWithKeyStore=FLAG,
        tlsAllowInsecureConnection=FLAG,
    ),
    **_URLS_TLS,
)
CLUSTER_BODY: ValueSchema = {
    "type": "object",
    "properties": {"serviceUrl": TEXT, "brokerServiceUrl": TEXT, **_URLS_TLS},
}
NOT_BROKERS = {
    "internal-configuration": "no client uses the metadata store of this cluster, so there is no address to tell",
    "backlog-quota-check": "brokers check quotas every backlogQuotaCheckIntervalInSeconds, and not on request",
}
"""Words that Pulsar has in the place of a cluster's name, and why nothing is here."""
TENANT = {"adminRoles": TEXTS, "allowedClusters": TEXTS}
TENANT_BODY: ValueSchema = {"type": "object", "properties": TENANT}


class ClusterRoutes:
    """See the module. There is one cluster, called as the settings say."""

    def __init__(self, settings: Settings, owners: Owners, metrics: Metrics) -> None:
        self._cluster = settings.cluster_name
        self._settings = settings
        self._coordinator = owners.coordinator
        self._ask = owners.coordinator.ask
        self._owners = owners
        self._metrics = metrics
        self._gauges = {name: metrics.gauge(name, description) for name, description in GAUGES.items()}
        self._counters = {name: metrics.copied_counter(name, *more) for name, more in COUNTERS.items()}

    def routes(self) -> list[Route]:
        tenant = "/admin/v2/tenants/{tenant}"
        namespace = NAMESPACE_ROUTE
        return [
            get(KNOWN, "/admin/v2/clusters", self.clusters, TEXTS),
            get(SUPER_USER, "/admin/v2/clusters/{cluster}", self.cluster, CLUSTER_SHAPE),
            put(SUPER_USER, "/admin/v2/clusters/{cluster}", self.create_cluster, CLUSTER_BODY),
            post(SUPER_USER, "/admin/v2/clusters/{cluster}", self.change_cluster, CLUSTER_BODY),
            get(SUPER_USER, "/admin/v2/clusters/{cluster}/peers", self.peers, TEXTS, may_be_empty=True),
            get(SUPER_USER, "/admin/v2/clusters/{cluster}/failureDomains", self.failure_domains, {"type": "object"}),
            get(SUPER_USER, "/admin/v2/brokers", self.brokers, TEXTS),
            get(SUPER_USER, "/admin/v2/brokers/health", self.health, TEXT, content_type=PLAIN),
            get(OPEN, "/admin/v2/brokers/ready", self.ready, TEXT, content_type=PLAIN),
            get(SUPER_USER, "/admin/v2/brokers/{cluster}", self.brokers, TEXTS),
            get(
                SUPER_USER, "/admin/v2/bookies/all", self.bookies, object_of(bookies=list_of(object_of(bookieId=TEXT)))
            ),
            get(SUPER_USER, "/admin/v2/tenants", self.tenants, TEXTS),
            get(TENANT_ADMIN, tenant, self.tenant, object_of(**TENANT)),
            put(SUPER_USER, tenant, self.create_tenant, TENANT_BODY, optional_body=True),
            post(SUPER_USER, tenant, self.change_tenant, TENANT_BODY, optional_body=True),
            delete(SUPER_USER, tenant, self.delete_tenant, query=(FORCE,)),
            get(TENANT_ADMIN, "/admin/v2/namespaces/{tenant}", self.namespaces, TEXTS),
            get(NAMESPACE_ADMIN, namespace, self.namespace, {"type": "object"}),
            put(TENANT_ADMIN, namespace, self.create_namespace, {"type": "object"}, optional_body=True),
            delete(TENANT_ADMIN, namespace, self.delete_namespace, query=(FORCE,)),
            get(NAMESPACE_USER, namespace + "/topics", self.topics, TEXTS, query=(MODE,)),
            get(
                KNOWN if self._settings.authenticate_metrics_endpoint else OPEN,
                "/metrics",
                self.metrics,
                TEXT,
                content_type=PLAIN,
            ),
        ]

    # -- clusters and brokers ------------------------------------------------------------------------------------

    async def clusters(self, request: web.Request) -> web.Response:
        """List the names of clusters: this one."""
        return json_answer([self._cluster])

    async def cluster(self, request: web.Request) -> web.Response:
        """Return the service URLs of the cluster: that of this admin, and that of the brokers."""
        self._check_cluster(request)
        return json_answer(self._cluster_data(request))

    async def create_cluster(self, request: web.Request) -> web.Response:
        """Refuse to create a cluster: this one exists (409), and there is no other (412)."""
        if request.match_info["cluster"] == self._cluster:
            raise KeyExists(f"Cluster {self._cluster} already exists")
        raise InvalidConfiguration(f"there is one cluster, {self._cluster}: replication to others does not exist yet")

    async def change_cluster(self, request: web.Request) -> web.Response:
        """Take a body that says what `GET` shows, in part or whole. Other values are refused (412).

        The addresses of the cluster are those of its brokers, and of the admin that is asked.
        """
        self._check_cluster(request)
        body = await json_body(request)
        if not is_text_map(body):
            raise web.HTTPBadRequest(text="the body must be an object with serviceUrl and brokerServiceUrl")
        own = self._cluster_data(request)
        for name, value in body.items():
            if value and str(value).rstrip("/") != str(own.get(name)):
                raise InvalidConfiguration(
                    f"{name[:100]} of the cluster is not set here: addresses come from the settings advertisedAddress "
                    "and advertisedListeners"
                )
        return no_content()

    def _cluster_data(self, request: web.Request) -> dict[str, object]:
        own, secure = f"{request.scheme}://{request.host}", request.scheme == "https"
        urls = [url for url in self._broker_urls() if url.startswith("pulsar://")]
        urls_tls = [url for broker in self._coordinator.brokers.values() if (url := broker.data.get("url_tls"))]
        with_tls = {"serviceUrlTls": own if secure else "", "brokerServiceUrlTls": joined_urls(urls_tls)}
        return {
            **{name: url for name, url in with_tls.items() if url},
            "serviceUrl": "" if secure else own,
            "brokerServiceUrl": joined_urls(urls),
            "brokerClientTlsEnabled": False,
            "brokerClientTlsEnabledWithKeyStore": False,
            "tlsAllowInsecureConnection": False,
        }

    async def peers(self, request: web.Request) -> web.Response:
        """List the peers of the cluster. There are none, so the body is empty."""
        self._check_cluster(request)
        return web.Response()

    async def failure_domains(self, request: web.Request) -> web.Response:
        """Return the failure domains of the cluster: none."""
        self._check_cluster(request)
        return json_answer({})

    async def brokers(self, request: web.Request) -> web.Response:
        """List `host:port` of every live broker."""
        if (reason := NOT_BROKERS.get(request.match_info.get("cluster", ""))) is not None:
            raise web.HTTPNotImplemented(text=reason)
        self._check_cluster(request)
        return json_answer([url.partition("://")[2] for url in self._broker_urls()])

    async def health(self, request: web.Request) -> web.Response:
        """Answer `ok` when the coordinator lives, and a broker can store a message and read it again; else status 503.

        `brokerId`, as `host:port`, says which broker. With `systemTopicEnabled=false` nothing is stored: a broker and
        an ack quorum of writable bookies have to live.
        """
        status = await self._ask.status()
        brokers = [member for member in status["members"] if member["role"] == ROLE_BROKER]
        writable = _writable(status)
        if not brokers:
            raise ServiceUnitNotReady("no broker is alive")
        if writable < self._settings.ack_quorum:
            raise ServiceUnitNotReady(
                f"{writable} bookies are writable, but {self._settings.ack_quorum} are needed: start bookies, or free "
                "disk space"
            )
        if self._settings.system_topic_enabled:
            await self._check_broker(request.query.get("brokerId"))
        return web.Response(text="ok")

    async def ready(self, request: web.Request) -> web.Response:
        """Answer `ok` when the coordinator and a broker live; else status 503. Nothing is stored."""
        status = await self._ask.status()
        if all(member["role"] != ROLE_BROKER for member in status["members"]):
            raise ServiceUnitNotReady("no broker is alive")
        return web.Response(text="ok")

    async def _check_broker(self, address: str | None) -> None:
        """Have a broker store and read something, any one if none is named. Raises NoSuchKey for an unknown one."""
        if address is None:
            await self._owners.ask_any(lambda broker: broker.check_health())
            return
        found = [one.id for one in self._coordinator.brokers.values() if one.url.partition("://")[2] == address]
        if not found:
            raise NoSuchKey(f"there is no live broker {address[:200]}: GET /admin/v2/brokers lists them")
        await self._owners.of(found[0]).check_health()

    async def bookies(self, request: web.Request) -> web.Response:
        """List all bookies that have ever joined the cluster, alive or not."""
        return json_answer({"bookies": [{"bookieId": one} for one in await self._ask.registered_bookies()]})

    def _broker_urls(self) -> list[str]:
        return [broker.url for broker in self._coordinator.brokers.values()]

    def _check_cluster(self, request: web.Request) -> None:
        cluster = request.match_info.get("cluster", self._cluster)
        if cluster != self._cluster:
            raise NoSuchKey(f"the cluster {cluster} does not exist: this cluster is named {self._cluster}")

    # -- tenants -------------------------------------------------------------------------------------------------

    async def tenants(self, request: web.Request) -> web.Response:
        """List the tenants."""
        return json_answer(await self._ask.tenants())

    async def tenant(self, request: web.Request) -> web.Response:
        """Return the admin roles and allowed clusters of a tenant."""
        record = await self._ask.tenant(tenant=request.match_info["tenant"])
        return json_answer(
            {
                "adminRoles": record.get("adminRoles", []),
                "allowedClusters": record.get("allowedClusters", [self._cluster]),
            }
        )

    async def create_tenant(self, request: web.Request) -> web.Response:
        """Create a tenant. Body: `adminRoles` and `allowedClusters`, both optional."""
        await self._ask.put_tenant(
            tenant=request.match_info["tenant"], record=await self._tenant_body(request), create=True
        )
        return no_content()

    async def change_tenant(self, request: web.Request) -> web.Response:
        """Change a tenant. Body: `adminRoles` and `allowedClusters`, both optional."""
        record = await self._tenant_body(request)
        await self._ask.put_tenant(tenant=request.match_info["tenant"], record=record, create=False)
        return no_content()

    async def delete_tenant(self, request: web.Request) -> web.Response:
        """Delete a tenant that has no namespaces; with `force=true` also its namespaces, if the settings allow that."""
        force = flag(request, "force")
        if force and not self._settings.force_delete_tenant_allowed:
            raise web.HTTPMethodNotAllowed(
                "DELETE",
                [],
                text="Broker doesn't allow forced deletion of tenants: set forceDeleteTenantAllowed=true",
            )
        await self._ask.delete_tenant(tenant=request.match_info["tenant"], force=force)
        return no_content()

    async def _tenant_body(self, request: web.Request) -> dict[str, object]:
        body = await json_body(request)
        if body is None:
            return {}
        if not is_text_map(body):
            raise web.HTTPBadRequest(text="the body must be an object with adminRoles and allowedClusters")
        record: dict[str, object] = {}
        for name in ("adminRoles", "allowedClusters"):
            if body.get(name) is not None:
                found = body[name]
                value = [as_text(item) for item in found] if is_list(found) else found
                if not is_list(value) or not all(isinstance(item, str) for item in value):
                    raise web.HTTPBadRequest(text=f"{name} must be a list of names")
                record[name] = value
        if record.get("allowedClusters", [self._cluster]) != [self._cluster]:
            raise InvalidConfiguration(f"allowedClusters must name this cluster, and no other: {self._cluster}")
        return record

    # -- namespaces ----------------------------------------------------------------------------------------------

    async def namespaces(self, request: web.Request) -> web.Response:
        """List the namespaces of a tenant."""
        return json_answer(await self._ask.namespaces(tenant=request.match_info["tenant"]))

    async def namespace(self, request: web.Request) -> web.Response:
        """Return the policies of a namespace."""
        found = (await self._ask.namespace(namespace=namespace_of(request))).policies or {}
        properties = await self._ask.namespace_properties(namespace=namespace_of(request))
        return json_answer(shown(found, properties, self._cluster))

    async def create_namespace(self, request: web.Request) -> web.Response:
        """Create a namespace. Body: its policies by name, optional; see `GET` of the namespace."""
        body = await json_body(request)
        policies, properties = policies_in(body, self._cluster), properties_in(body)
        await self._ask.create_namespace(namespace=namespace_of(request), policies=policies, properties=properties)
        return no_content()

    async def delete_namespace(self, request: web.Request) -> web.Response:
        """Delete a namespace that has no topics; with `force=true` also its topics, if the settings allow that."""
        if not flag(request, "force"):
            await self._ask.delete_namespace(namespace=namespace_of(request))
            return no_content()
        if not self._settings.force_delete_namespace_allowed:
            raise web.HTTPMethodNotAllowed(
                "DELETE",
                [],
                text="Broker doesn't allow forced deletion of namespaces: set forceDeleteNamespaceAllowed=true",
            )
        await self._ask.delete_namespace(namespace=namespace_of(request), force=True)
        return no_content()

    async def topics(self, request: web.Request) -> web.Response:
        """List the full names of the namespace's topics. `mode` is PERSISTENT, NON_PERSISTENT or ALL.

        System topics are in the list with `includeSystemTopic=true` only.
        """
        await self._ask.namespace(namespace=namespace_of(request))
        domain = DOMAIN_OF_MODE.get(request.query.get("mode", "PERSISTENT").upper())
        found = pages(self._ask, namespace_of(request), domain, system=flag(request, "includeSystemTopic"))
        return json_answer([name async for names in found for name in names])

    # -- metrics -------------------------------------------------------------------------------------------------

    async def metrics(self, request: web.Request) -> web.Response:
        """Return all metrics in Prometheus' text format."""
        try:
            status: ClusterView | None = await self._ask.status()
        except CoordinatorUnavailable:
            status = None
        self._gauges["magnetar_coordinator_up"].set(status is not None)
        if status is not None:
            members = status["members"]
            values = {
                "magnetar_coordinator_epoch": status["coordinator"]["epoch"],
                "magnetar_topics": status["topics"],
                "magnetar_assignments": status["assignments"],
                "magnetar_brokers": sum(member["role"] == ROLE_BROKER for member in members),
                "magnetar_bookies": sum(member["role"] == ROLE_BOOKIE for member in members),
                "magnetar_members_silent_seconds": max((member["silent_s"] for member in members), default=0.0),
                "magnetar_bookies_writable": _writable(status),
                "magnetar_bookies_registered": len(status["registered_bookies"]),
                "magnetar_auditor_incomplete_ledgers": status["auditor"]["incomplete"],
                "magnetar_auditor_crowded_ledgers": status["auditor"]["crowded"],
                "magnetar_auditor_incomplete_bytes": status["auditor"]["bytes_to_go"],
                "magnetar_auditor_ledgers_to_check": status["auditor"]["to_check"],
                **_loads(members),
                **_scrub(members),
            }
            for name, value in values.items():
                self._gauges[name].set(value)
            self._counters["magnetar_load_balancer_moves"].set(status.get("load_moves", 0))
            self._counters["magnetar_auditor_copied_bytes"].set(status["auditor"]["copied_bytes_total"])
            scrubs = {one["id"]: one["report"].get("scrub", {}) for one in members if one["role"] == ROLE_BOOKIE}
            for name, field in (("repaired_entries", "repaired"), ("scrubbed_bytes", "scrubbed_bytes")):
                counts = {bookie: scrub.get(field, 0) for bookie, scrub in scrubs.items()}
                self._counters[f"magnetar_bookies_{name}"].set(counts)
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _loads(members: Sequence[MemberStatus]) -> dict[str, float]:
    loads = [member["load"] for member in members if "load" in member]
    total = sum(loads)
    return {
        "magnetar_brokers_load": total,
        "magnetar_brokers_load_skew": max(loads) * len(loads) / total if total else 0.0,
    }


def _scrub(members: Sequence[MemberStatus]) -> dict[str, float]:
    reports = [member["report"].get("scrub", {}) for member in members if member["role"] == ROLE_BOOKIE]
    return {
        "magnetar_bookies_damaged_entries": sum(report.get("damaged", 0) for report in reports),
        "magnetar_bookies_scrub_progress": min((report.get("pass_share", 1.0) for report in reports), default=1.0),
    }


def _writable(status: ClusterView) -> int:
    return sum(
        bool(member["report"].get("writable", member["data"].get("writable", True)))
        for member in status["members"]
        if member["role"] == ROLE_BOOKIE
    )


READING_SHAPE = object_of(clusterId=TEXT, coordinator=object_of(host=TEXT, port=NATURAL), keys=map_of(TEXT))


class ReadingRoutes:
    """What a process outside of Ray needs to read topics in bulk, straight from the bookies."""

    def __init__(self, owners: Owners, keys: Keys) -> None:
        self._ask = owners.coordinator.ask
        self._keys = keys.reader().calling_keys

    def routes(self) -> list[Route]:
        return [get(SUPER_USER, READ_CREDENTIALS_PATH, self.read_credentials, READING_SHAPE)]

    async def read_credentials(self, request: web.Request) -> web.Response:
        """Return where the coordinator listens, and the keys of a bulk reader in hexadecimal.

        They let their holder read every topic, as a consumer can, and change nothing.
        """
        status = await self._ask.status()
        coordinator = status["coordinator"]
        answer = json_answer(
            {
                "clusterId": status["cluster_id"],
                "coordinator": {"host": coordinator["host"], "port": coordinator["port"]},
                "keys": {role: key.hex() for role, key in self._keys.items()},
            }
        )
        answer.headers["Cache-Control"] = "no-store"
        return answer


DESIRED = "/admin/v2/desired-state"
DESIRED_SHAPE = object_of(
    brokers=TEXTS,
    bookies=TEXTS,
    draining=map_of(object_of(left={"type": "integer"}, most={"type": "integer"})),
    leaving=TEXTS,
    left_over=map_of({"type": "string"}),
)
NUMBERS: ValueSchema = {"type": "object", "properties": {"brokers": NATURAL, "bookies": NATURAL}}


class DesiredRoutes:
    """The admin's paths about which brokers and bookies should run, and which of them are being drained."""

    def __init__(self, owners: Owners) -> None:
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        draining = DESIRED + "/draining/{member}"
        return [
            get(SUPER_USER, DESIRED, self.desired, DESIRED_SHAPE),
            post(SUPER_USER, DESIRED, self.scale, NUMBERS, answer=DESIRED_SHAPE),
            put(SUPER_USER, draining, self.drain, answer=DESIRED_SHAPE),
            delete(SUPER_USER, draining, self.undrain, answer=DESIRED_SHAPE),
        ]

    async def desired(self, request: web.Request) -> web.Response:
        """Return which brokers and bookies should run, and what those that drain still have."""
        return _shown(await self._ask.desired_state())

    async def scale(self, request: web.Request) -> web.Response:
        """Change how many brokers and bookies run. With fewer, those with the highest numbers drain."""
        body = await json_body(request)
        if not is_text_map(body) or not body or set(body) - {"brokers", "bookies"}:
            raise web.HTTPBadRequest(text="the body must be an object with brokers, bookies, or both")
        return _shown(await self._ask.scale(brokers=_number(body, "brokers"), bookies=_number(body, "bookies")))

    async def drain(self, request: web.Request) -> web.Response:
        """Have a broker or bookie give up what it has, and end."""
        return _shown(await self._ask.drain(member=request.match_info["member"]))

    async def undrain(self, request: web.Request) -> web.Response:
        """Have a broker or bookie that drains stay after all."""
        return _shown(await self._ask.undrain(member=request.match_info["member"]))


def _shown(view: DesiredView) -> web.Response:
    return json_answer(dict(view))


def _number(body: dict[str, object], name: str) -> int | None:
    value = as_whole(body.get(name))
    if value is not None and type(value) is not int:
        raise web.HTTPBadRequest(text=f"{name} must be a whole number")
    return value
