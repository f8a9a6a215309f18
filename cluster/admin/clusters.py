"""The commands of `tenants`, `clusters`, `brokers` and `bookies`."""

from .arguments import FORCE, TENANT, Argument, ArgumentPlace, option
from .command import ArgumentValues, Command
from .session import AdminSession

_ROLES = option("adminRoles", "-r --admin-roles", "Roles that administer the tenant.", ArgumentPlace.FIELD, many=True)
_CLUSTERS = option(
    "allowedClusters", "-c --allowed-clusters", "Clusters of the tenant.", ArgumentPlace.FIELD, many=True
)
_CLUSTER = Argument("cluster", "The cluster.")

_BROKERS_PATH = "/admin/v2/brokers"
_CLUSTER_BROKERS_PATH = "/admin/v2/brokers/{cluster}"


def _brokers(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """The brokers of the cluster that was given, or of the one that answers."""
    return command.ask(session, values, path=_CLUSTER_BROKERS_PATH if "cluster" in values else "")


TENANTS = (
    Command("tenants", "list", "List the tenants.", "GET", "/admin/v2/tenants"),
    Command("tenants", "get", "Show a tenant's roles and clusters.", "GET", "/admin/v2/tenants/{tenant}", (TENANT,)),
    Command("tenants", "create", "Create a tenant.", "PUT", "/admin/v2/tenants/{tenant}", (TENANT, _ROLES, _CLUSTERS)),
    Command("tenants", "update", "Change a tenant.", "POST", "/admin/v2/tenants/{tenant}", (TENANT, _ROLES, _CLUSTERS)),
    Command("tenants", "delete", "Delete a tenant.", "DELETE", "/admin/v2/tenants/{tenant}", (TENANT, FORCE)),
)
CLUSTERS = (
    Command("clusters", "list", "List the names of clusters.", "GET", "/admin/v2/clusters"),
    Command("clusters", "get", "Show a cluster's service URL.", "GET", "/admin/v2/clusters/{cluster}", (_CLUSTER,)),
)
BROKERS = (
    Command(
        "brokers",
        "list",
        "List the live brokers.",
        "GET",
        _BROKERS_PATH,
        (Argument("cluster", "The cluster; by default the one that is asked.", required=False),),
        run=_brokers,
        routes=(("GET", _BROKERS_PATH), ("GET", _CLUSTER_BROKERS_PATH)),
    ),
    Command("brokers", "healthcheck", "Say `ok` if the cluster can store messages.", "GET", "/admin/v2/brokers/health"),
)
BOOKIES = (Command("bookies", "list-bookies", "List all bookies that ever joined.", "GET", "/admin/v2/bookies/all"),)
