"""The commands of `namespaces`, without those of single policies."""

from .arguments import FORCE, NAMESPACE, TENANT, choice, option
from .command import Command
from .paths import NAMESPACE_PATH

_MODE = option(
    "mode",
    "-m --mode",
    "PERSISTENT, NON_PERSISTENT or ALL.",
    read=choice("PERSISTENT", "NON_PERSISTENT", "ALL"),
    default="ALL",
)

NAMESPACES = (
    Command("namespaces", "list", "List a tenant's namespaces.", "GET", "/admin/v2/namespaces/{tenant}", (TENANT,)),
    Command(
        "namespaces", "topics", "List a namespace's topics.", "GET", f"{NAMESPACE_PATH}/topics", (NAMESPACE, _MODE)
    ),
    Command("namespaces", "policies", "Show a namespace's policies.", "GET", NAMESPACE_PATH, (NAMESPACE,)),
    Command("namespaces", "create", "Create a namespace.", "PUT", NAMESPACE_PATH, (NAMESPACE,)),
    Command("namespaces", "delete", "Delete a namespace.", "DELETE", NAMESPACE_PATH, (NAMESPACE, FORCE)),
)
