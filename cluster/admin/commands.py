"""All commands, and the routes of the admin that have none."""

from .clusters import BOOKIES, BROKERS, CLUSTERS, TENANTS
from .command import Command
from .namespaces import NAMESPACES
from .policies import policy_commands
from .schemas import SCHEMAS
from .subscriptions import SUBSCRIPTIONS
from .topics import TOPICS

COMMANDS: tuple[Command, ...] = (
    *TENANTS,
    *NAMESPACES,
    *TOPICS,
    *SUBSCRIPTIONS,
    *policy_commands(),
    *SCHEMAS,
    *BROKERS,
    *BOOKIES,
    *CLUSTERS,
)

WITHOUT_COMMAND = {
    ("GET", "/metrics"): "it is for Prometheus",
    ("GET", "/admin/v2/openapi.json"): "it is for programs",
}
"""Why a route has no command."""


def of_noun(noun: str) -> list[Command]:
    """The commands of a noun."""
    return [command for command in COMMANDS if command.noun == noun]
