"""All commands, and the routes of the admin that have none."""

from ...protocol.names import READ_CREDENTIALS_PATH
from .clusters import BOOKIES, BROKER_STATS, BROKERS, CLUSTERS, DESIRED, TENANTS
from .command import Command
from .namespaces import NAMESPACE_PERMISSIONS, NAMESPACES, TOPIC_PERMISSIONS
from .policies import policy_commands
from .schemas import SCHEMAS
from .subscriptions import SUBSCRIPTIONS
from .topics import NAMESPACE_PROPERTIES, TOPIC_PROPERTIES, TOPICS

COMMANDS: tuple[Command, ...] = (
    *TENANTS,
    *NAMESPACES,
    *NAMESPACE_PROPERTIES,
    *NAMESPACE_PERMISSIONS,
    *TOPICS,
    *TOPIC_PROPERTIES,
    *TOPIC_PERMISSIONS,
    *SUBSCRIPTIONS,
    *policy_commands(),
    *SCHEMAS,
    *BROKERS,
    *BROKER_STATS,
    *BOOKIES,
    *CLUSTERS,
    *DESIRED,
)

WITHOUT_COMMAND = {
    ("GET", "/metrics"): "it is for Prometheus",
    ("GET", "/admin/v2/brokers/ready"): "it is for load balancers",
    ("GET", "/admin/v2/openapi.json"): "it is for programs",
    ("GET", READ_CREDENTIALS_PATH): "it is for programs that read in bulk",
}
"""Why a route has no command."""


def of_noun(noun: str) -> list[Command]:
    return [command for command in COMMANDS if command.noun == noun]
