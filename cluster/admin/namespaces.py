"""The commands of `namespaces`, without those of single policies, and the commands of permissions.

Permissions count with `authorizationEnabled`.
"""

from .arguments import FORCE, NAMESPACE, TENANT, TOPIC, Argument, ArgumentPlace, choice, option
from .command import NAMESPACE_PATH, TOPIC_PATH, ArgumentValues, Command
from .deleting import OF_NAMESPACE, OF_NAMESPACE_BACKLOG, asking
from .session import AdminSession

_NAMESPACE_PATH, _TOPIC_PATH = f"{NAMESPACE_PATH}/permissions", f"{TOPIC_PATH}/permissions"
_ROLE = Argument("role", "The role.", ("-r", "--role"))
_ACTIONS = Argument(
    "actions",
    "produce, consume, functions, sources, sinks or packages.",
    ("-a", "--actions"),
    ArgumentPlace.BODY,
    many=True,
)
_ROLES = Argument("roles", "The roles.", ("-r", "--roles"), ArgumentPlace.BODY, many=True)
_SUBSCRIPTION = Argument("subscription_name", "The subscription.", ("-s", "--subscription"))
_LIST = "Show which roles may do what."
_GRANT = "Let a role take actions."
_REVOKE = "Let a role take no action."

NAMESPACE_PERMISSIONS = (
    Command("namespaces permissions", _LIST, f"GET {_NAMESPACE_PATH}", (NAMESPACE,)),
    Command("namespaces grant-permission", _GRANT, f"POST {_NAMESPACE_PATH}/{{role}}", (NAMESPACE, _ROLE, _ACTIONS)),
    Command("namespaces revoke-permission", _REVOKE, f"DELETE {_NAMESPACE_PATH}/{{role}}", (NAMESPACE, _ROLE)),
    Command(
        "namespaces subscription-permission",
        "Show which roles may use which subscription.",
        f"GET {_NAMESPACE_PATH}/subscription",
        (NAMESPACE,),
    ),
    Command(
        "namespaces grant-subscription-permission",
        "Let roles use a subscription.",
        f"POST {_NAMESPACE_PATH}/subscription/{{subscription_name}}",
        (NAMESPACE, _SUBSCRIPTION, _ROLES),
    ),
    Command(
        "namespaces revoke-subscription-permission",
        "Let a role not use a subscription.",
        f"DELETE {_NAMESPACE_PATH}/{{subscription_name}}/{{role}}",
        (NAMESPACE, _SUBSCRIPTION, _ROLE),
    ),
)
TOPIC_PERMISSIONS = (
    Command("topics permissions", _LIST, f"GET {_TOPIC_PATH}", (TOPIC,)),
    Command("topics grant-permission", _GRANT, f"POST {_TOPIC_PATH}/{{role}}", (TOPIC, _ROLE, _ACTIONS)),
    Command("topics revoke-permission", _REVOKE, f"DELETE {_TOPIC_PATH}/{{role}}", (TOPIC, _ROLE)),
)


_MODE = option(
    "mode",
    "-m --mode",
    "PERSISTENT, NON_PERSISTENT or ALL.",
    read=choice("PERSISTENT", "NON_PERSISTENT", "ALL"),
    default="ALL",
)

_REPLICATION_PATH = f"{NAMESPACE_PATH}/replication"
_CLEAR_PATH = f"{NAMESPACE_PATH}/clearBacklog"
_CLEAR_ONE_PATH = _CLEAR_PATH + "/{subscription_name}"
_UNASKED = option("force", "-f --force", "Do not ask.", ArgumentPlace.NOWHERE, switch=True)


def _clear(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """At the subscription that was given, or at all."""
    return command.ask(session, values, path=_CLEAR_ONE_PATH if "subscription_name" in values else "")


NAMESPACES = (
    Command("namespaces list", "List a tenant's namespaces.", "GET /admin/v2/namespaces/{tenant}", (TENANT,)),
    Command("namespaces topics", "List a namespace's topics.", f"GET {NAMESPACE_PATH}/topics", (NAMESPACE, _MODE)),
    Command("namespaces policies", "Show a namespace's policies.", f"GET {NAMESPACE_PATH}", (NAMESPACE,)),
    Command("namespaces create", "Create a namespace.", f"PUT {NAMESPACE_PATH}", (NAMESPACE,)),
    asking(
        Command("namespaces delete", "Delete a namespace.", f"DELETE {NAMESPACE_PATH}", (NAMESPACE, FORCE)),
        OF_NAMESPACE,
    ),
    Command("namespaces unload", "Move all topics elsewhere.", f"PUT {NAMESPACE_PATH}/unload", (NAMESPACE,)),
    Command("namespaces bundles", "Show its bundles.", f"GET {NAMESPACE_PATH}/bundles", (NAMESPACE,)),
    asking(
        Command(
            "namespaces clear-backlog",
            "Acknowledge all messages of all topics, at one subscription or at all.",
            f"POST {_CLEAR_PATH}",
            (NAMESPACE, option("subscription_name", "-s --sub", "Only at this one.", ArgumentPlace.PATH), _UNASKED),
            run=_clear,
            routes=(("POST", _CLEAR_PATH), ("POST", _CLEAR_ONE_PATH)),
        ),
        OF_NAMESPACE_BACKLOG,
        "cleared",
    ),
    asking(
        Command(
            "namespaces unsubscribe",
            "Delete a subscription of all topics.",
            f"POST {NAMESPACE_PATH}/unsubscribe/{{subscription_name}}",
            (NAMESPACE, Argument("subscription_name", "The subscription.", ("-s", "--sub"))),
        ),
        OF_NAMESPACE_BACKLOG,
    ),
    Command("namespaces get-clusters", "List its clusters.", f"GET {_REPLICATION_PATH}", (NAMESPACE,)),
    Command(
        "namespaces set-clusters",
        "Set the clusters that have a namespace.",
        f"POST {_REPLICATION_PATH}",
        (NAMESPACE, Argument("clusters", "The clusters.", ("-c", "--clusters"), ArgumentPlace.BODY, many=True)),
    ),
)
