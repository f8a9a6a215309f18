"""Commands of permissions of namespaces, topics and subscriptions. Brokers do not check them yet."""

from .arguments import NAMESPACE, TOPIC, Argument, ArgumentPlace
from .command import Command
from .paths import NAMESPACE_PATH, TOPIC_PATH

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
_LIST = "Show which roles may do what. Brokers do not check it yet."
_GRANT = "Let a role take actions. Brokers do not check it yet."
_REVOKE = "Let a role take no action."

NAMESPACE_PERMISSIONS = (
    Command("namespaces", "permissions", _LIST, "GET", _NAMESPACE_PATH, (NAMESPACE,)),
    Command(
        "namespaces", "grant-permission", _GRANT, "POST", _NAMESPACE_PATH + "/{role}", (NAMESPACE, _ROLE, _ACTIONS)
    ),
    Command("namespaces", "revoke-permission", _REVOKE, "DELETE", _NAMESPACE_PATH + "/{role}", (NAMESPACE, _ROLE)),
    Command(
        "namespaces",
        "subscription-permission",
        "Show which roles may use which subscription.",
        "GET",
        f"{_NAMESPACE_PATH}/subscription",
        (NAMESPACE,),
    ),
    Command(
        "namespaces",
        "grant-subscription-permission",
        "Let roles use a subscription. Brokers do not check it yet.",
        "POST",
        _NAMESPACE_PATH + "/subscription/{subscription_name}",
        (NAMESPACE, _SUBSCRIPTION, _ROLES),
    ),
    Command(
        "namespaces",
        "revoke-subscription-permission",
        "Let a role not use a subscription.",
        "DELETE",
        _NAMESPACE_PATH + "/{subscription_name}/{role}",
        (NAMESPACE, _SUBSCRIPTION, _ROLE),
    ),
)
TOPIC_PERMISSIONS = (
    Command("topics", "permissions", _LIST, "GET", _TOPIC_PATH, (TOPIC,)),
    Command("topics", "grant-permission", _GRANT, "POST", _TOPIC_PATH + "/{role}", (TOPIC, _ROLE, _ACTIONS)),
    Command("topics", "revoke-permission", _REVOKE, "DELETE", _TOPIC_PATH + "/{role}", (TOPIC, _ROLE)),
)
