"""The commands of `tenants`, `clusters`, `brokers` and `bookies`."""

from .arguments import FORCE, TENANT, Argument, ArgumentPlace, option, whole
from .command import ArgumentValues, Command
from .session import AdminSession

_ROLES = option("adminRoles", "-r --admin-roles", "Roles that administer the tenant.", ArgumentPlace.FIELD, many=True)
_CLUSTERS = option(
    "allowedClusters", "-c --allowed-clusters", "Clusters of the tenant.", ArgumentPlace.FIELD, many=True
)
_CLUSTER = Argument("cluster", "The cluster.")
_URLS = (
    option("serviceUrl", "--url", "The URL of its admin.", ArgumentPlace.FIELD),
    option("brokerServiceUrl", "--broker-url", "The URL of its brokers.", ArgumentPlace.FIELD),
)

_CLUSTER_PATH = "/admin/v2/clusters/{cluster}"
_CONFIGURATION_PATH = "/admin/v2/brokers/configuration"
_RACKS_PATH = "/admin/v2/bookies/racks-info"
_SETTING = Argument("setting", "The name of the setting.", ("-c", "--config"))
_VALUE = Argument("value", "Its value.", ("-v", "--value"))
_BROKERS_PATH = "/admin/v2/brokers"
_CLUSTER_BROKERS_PATH = "/admin/v2/brokers/{cluster}"


def _brokers(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """The brokers of the cluster that was given, or of the one that answers."""
    return command.ask(session, values, path=_CLUSTER_BROKERS_PATH if "cluster" in values else "")


TENANTS = (
    Command("tenants list", "List the tenants.", "GET /admin/v2/tenants"),
    Command("tenants get", "Show a tenant's roles and clusters.", "GET /admin/v2/tenants/{tenant}", (TENANT,)),
    Command("tenants create", "Create a tenant.", "PUT /admin/v2/tenants/{tenant}", (TENANT, _ROLES, _CLUSTERS)),
    Command("tenants update", "Change a tenant.", "POST /admin/v2/tenants/{tenant}", (TENANT, _ROLES, _CLUSTERS)),
    Command("tenants delete", "Delete a tenant.", "DELETE /admin/v2/tenants/{tenant}", (TENANT, FORCE)),
)
CLUSTERS = (
    Command("clusters list", "List the names of clusters.", "GET /admin/v2/clusters"),
    Command("clusters get", "Show a cluster's service URL.", f"GET {_CLUSTER_PATH}", (_CLUSTER,)),
    Command("clusters create", "Refused: there is one cluster.", f"PUT {_CLUSTER_PATH}", (_CLUSTER, *_URLS)),
    Command("clusters update", "Refused unless it is so.", f"POST {_CLUSTER_PATH}", (_CLUSTER, *_URLS)),
    Command("clusters get-peer-clusters", "List its peers.", f"GET {_CLUSTER_PATH}/peers", (_CLUSTER,)),
    Command(
        "clusters list-failure-domains",
        "Show a cluster's failure domains.",
        f"GET {_CLUSTER_PATH}/failureDomains",
        (_CLUSTER,),
    ),
)
_MEMBER = Argument("member", "The broker or bookie, such as broker-2.")
_DESIRED_PATH = "/admin/v2/desired-state"
_DRAINING_PATH = _DESIRED_PATH + "/draining/{member}"
DESIRED = (
    Command("clusters desired-state", "Show which brokers and bookies should run.", f"GET {_DESIRED_PATH}"),
    Command(
        "clusters scale",
        "Change how many brokers and bookies run.",
        f"POST {_DESIRED_PATH}",
        (
            option("brokers", "--brokers", "Brokers to run.", ArgumentPlace.FIELD, read=whole),
            option("bookies", "--bookies", "Bookies to run.", ArgumentPlace.FIELD, read=whole),
        ),
    ),
    Command("clusters drain", "Empty and end a broker or bookie.", f"PUT {_DRAINING_PATH}", (_MEMBER,)),
    Command("clusters undrain", "Have it stay after all.", f"DELETE {_DRAINING_PATH}", (_MEMBER,)),
)
BROKERS = (
    Command(
        "brokers list",
        "List the live brokers.",
        f"GET {_BROKERS_PATH}",
        (Argument("cluster", "The cluster; by default the one that is asked.", required=False),),
        run=_brokers,
        routes=(("GET", _BROKERS_PATH), ("GET", _CLUSTER_BROKERS_PATH)),
    ),
    Command("brokers healthcheck", "Say `ok` if the cluster can store messages.", "GET /admin/v2/brokers/health"),
    Command("brokers leader-broker", "Show where to manage the cluster.", "GET /admin/v2/brokers/leaderBroker"),
    Command("brokers version", "Show the version of the cluster's software.", "GET /admin/v2/brokers/version"),
    Command("brokers get-runtime-config", "Show all settings.", f"GET {_CONFIGURATION_PATH}/runtime"),
    Command("brokers list-dynamic-config", "List those that change at run time.", f"GET {_CONFIGURATION_PATH}"),
    Command("brokers get-all-dynamic-config", "Show what was changed.", f"GET {_CONFIGURATION_PATH}/values"),
    Command(
        "brokers update-dynamic-config",
        "Change a setting at run time.",
        f"POST {_CONFIGURATION_PATH}/{{setting}}/{{value}}",
        (_SETTING, _VALUE),
    ),
    Command(
        "brokers delete-dynamic-config",
        "Take such a change back.",
        f"DELETE {_CONFIGURATION_PATH}/{{setting}}",
        (_SETTING,),
    ),
)
BROKER_STATS = (
    Command(
        "broker-stats load-report",
        "Show what each broker's topics cost it.",
        "GET /admin/v2/broker-stats/load-report",
        (option("brokerId", "--broker", "Only this one, as `host:port`.", ArgumentPlace.QUERY),),
    ),
)
BOOKIES = (
    Command("bookies list-bookies", "List all bookies that ever joined.", "GET /admin/v2/bookies/all"),
    Command("bookies racks-placement", "Show the bookies of each rack.", f"GET {_RACKS_PATH}"),
    Command(
        "bookies get-bookie-rack",
        "Show the rack of a bookie.",
        f"GET {_RACKS_PATH}/{{bookie}}",
        (Argument("bookie", "The bookie.", ("-b", "--bookie")),),
    ),
)
