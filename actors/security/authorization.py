"""What a role may do, by the permissions of tenants, namespaces, topics and subscriptions.

A command of a client, or a path of the admin, declares a `Need`. These are the rules, as in Pulsar's
`PulsarAuthorizationProvider`:

1. A role of `superUserRoles` may do everything. An admin of a tenant may do everything below that tenant.
2. Else the role needs one of the actions of the need, granted at the namespace or at the topic. A partition has the
   grants of its topic. A need without actions is met by an admin only.
3. A subscription that is granted to some roles is closed to others, whatever else they may.
4. Where a proxy acts for a client, both roles need the permission.

A decision takes what is known at that moment, and never waits. The coordinator keeps the copy of all permissions up to
date (`policies.watch`). Before a process has that copy, it decides nothing.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol, cast

from ...protocol.errors import AuthorizationError, ServiceUnitNotReady
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ...runtime.settings.security import words
from ..policies.permissions import AuthAction, AuthPolicies
from ..policies.watch import PolicyWatch
from .credentials import Principal
from .providers import load_class

logger = logging.getLogger(__name__)

WILDCARD = "*"
PULSARS = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
"""The class of Pulsar that decides so."""
RoleGrants = Mapping[str, frozenset[AuthAction]]
"""Actions by role."""


class Level(Enum):
    """What a need is about."""

    OPEN = "nothing: anybody may, without a credential, too"
    KNOWN = "nothing: all who are authenticated may"
    SUPER_USER = "the cluster"
    TENANT = "a tenant"
    NAMESPACE = "a namespace"
    TOPIC = "a topic"


class Need(NamedTuple):
    """What a command or a path needs. Any of the actions is enough; without actions only an admin may."""

    level: Level
    actions: frozenset[AuthAction] = frozenset()


_PRODUCE, _CONSUME = frozenset({AuthAction.PRODUCE}), frozenset({AuthAction.CONSUME})
OPEN = Need(Level.OPEN)
KNOWN = Need(Level.KNOWN)
SUPER_USER = Need(Level.SUPER_USER)
TENANT_ADMIN = Need(Level.TENANT)
NAMESPACE_ADMIN = Need(Level.NAMESPACE)
NAMESPACE_USER = Need(Level.NAMESPACE, _PRODUCE | _CONSUME)
NAMESPACE_CONSUME = Need(Level.NAMESPACE, _CONSUME)
TOPIC_ADMIN = Need(Level.TOPIC)
TOPIC_USER = Need(Level.TOPIC, _PRODUCE | _CONSUME)
PRODUCE = Need(Level.TOPIC, _PRODUCE)
CONSUME = Need(Level.TOPIC, _CONSUME)


class Scope(NamedTuple):
    """Of what a need is: as much of it as the need's level says."""

    tenant: str = ""
    namespace: str = ""
    """`tenant/namespace`."""
    topic: TopicName | None = None
    subscription: str = ""

    @classmethod
    def of_topic(cls, topic: TopicName, subscription: str = "") -> "Scope":
        """A topic or partition, and perhaps a subscription of it."""
        return cls(topic.tenant, topic.namespace, topic, subscription)

    @classmethod
    def of_namespace(cls, namespace: str) -> "Scope":
        """A namespace, `tenant/namespace`."""
        return cls(namespace.partition("/")[0], namespace)

    def __str__(self) -> str:
        place = self.topic.full if self.topic is not None else self.namespace or self.tenant or "the cluster"
        return f"the subscription {self.subscription} of {place}" if self.subscription else place


class AuthorizationProvider(Protocol):
    """Decides about one role. A class of your own is made with the settings and the granted policies.

    It answers at once, from what it knows: the broker serves nothing else meanwhile.
    """

    def permits(self, role: str, need: Need, scope: Scope) -> bool:
        """Whether a role may do what needs this. Levels OPEN and KNOWN are never asked for."""
        ...


MakeAuthorization = Callable[[Settings, PolicyWatch], AuthorizationProvider]


class RolePermissions:
    """The provider that the module describes."""

    def __init__(self, settings: Settings, granted: PolicyWatch) -> None:
        self._granted = granted
        self._super_users = words(settings.super_user_roles)
        self._wildcards = settings.authorization_allow_wildcards_matching

    def permits(self, role: str, need: Need, scope: Scope) -> bool:
        """See `AuthorizationProvider`."""
        if role in self._super_users:
            return True
        if need.level is Level.SUPER_USER:
            return False
        if role in self._granted.tenants.of(scope.tenant):
            return True
        if not need.actions or not scope.namespace:
            return False
        policies = self._granted.of_namespace(scope.namespace).auth_policies
        if not self._may_use(role, scope.subscription, policies):
            return False
        grants = [policies.namespace or {}]
        if scope.topic is not None:
            grants.append((policies.topics or {}).get(scope.topic.without_partition().full, {}))
            grants.append((policies.topics or {}).get(scope.topic.full, {}))
        return any(self._grants(role, need.actions, one) for one in grants)

    def _may_use(self, role: str, subscription: str, policies: AuthPolicies) -> bool:
        """Whether a subscription is not closed to the role."""
        if not subscription or policies.subscriptions is None:
            return True
        allowed = policies.subscriptions.get(subscription)
        return not allowed or role in allowed

    def _grants(self, role: str, actions: Iterable[AuthAction], grants: RoleGrants) -> bool:
        wanted = frozenset(actions)
        if wanted & grants.get(role, frozenset()):
            return True
        if not self._wildcards:
            return False
        return any(wanted & found for pattern, found in grants.items() if matches(pattern, role))


def matches(pattern: str, role: str) -> bool:
    """Whether a granted role with `*` at its beginning or its end stands for a role, as in Pulsar."""
    if pattern.startswith(WILDCARD):
        return role.endswith(pattern[1:])
    return pattern.endswith(WILDCARD) and role.startswith(pattern[:-1])


class Authorization:
    """Decides about principals. Without `authorizationEnabled` all who are authenticated may do everything."""

    def __init__(self, settings: Settings, granted: PolicyWatch, provider: AuthorizationProvider) -> None:
        self.enabled = settings.authorization_enabled
        self._granted = granted
        self._provider = provider

    @classmethod
    def of_settings(cls, settings: Settings, granted: PolicyWatch) -> "Authorization":
        """With the provider that `authorizationProvider` names. Raises SettingError."""
        name = settings.authorization_provider
        make = RolePermissions if name in ("", PULSARS) else load_class("authorizationProvider", name)
        return cls(settings, granted, cast("MakeAuthorization", make)(settings, granted))

    def permits(self, principal: Principal, need: Need, scope: Scope) -> bool:
        """Whether somebody may do what needs this."""
        if not self.enabled or need.level in (Level.OPEN, Level.KNOWN):
            return True
        roles = [role for role in principal if role]
        try:
            return bool(roles) and all(self._provider.permits(role, need, scope) for role in roles)
        except Exception:  # of a class of the operator: nobody gets in by its defect
            logger.exception("the authorization provider failed, so %s may not %s %s", principal, said(need), scope)
            return False

    def check(self, principal: Principal, need: Need, scope: Scope) -> None:
        """Raise AuthorizationError unless somebody may, ServiceUnitNotReady while no permissions are known."""
        if self.enabled and not self._granted.is_known:
            raise ServiceUnitNotReady("this process does not know the permissions yet: try again")
        if not self.permits(principal, need, scope):
            how = SUPER if need.level is Level.SUPER_USER else HOW
            raise AuthorizationError(f"{principal} may not {said(need)} {scope}: {how}")


HOW = "an admin of the tenant grants it (`magnetar admin … grant-permission`)"
SUPER = "only roles of superUserRoles may"


def said(need: Need) -> str:
    """What a need is for, in words."""
    if not need.actions:
        return "administer"
    return " or ".join(sorted((action.value for action in need.actions), reverse=True)) + " at"
