"""The policy `auth_policies`: which roles may use a namespace, its topics, and its subscriptions.

They count with `authorizationEnabled`; see `actors.security.authorization`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .kinds import FieldRecord, FreeMapOf, TextSet, WordSet, part

GRANTS_MAX = 5_000
"""Of one namespace. All of them travel to each broker."""


class AuthAction(Enum):
    """What a role may be allowed to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


ROLES: FreeMapOf[frozenset[AuthAction]] = FreeMapOf(WordSet(AuthAction))


@dataclass(frozen=True)
class AuthPolicies(FieldRecord):
    """Actions by role, actions by topic and role, and roles by subscription."""

    namespace: Mapping[str, frozenset[AuthAction]] | None = part("namespace_auth", ROLES, None)
    topics: Mapping[str, Mapping[str, frozenset[AuthAction]]] | None = part("destination_auth", FreeMapOf(ROLES), None)
    subscriptions: Mapping[str, frozenset[str]] | None = part("subscription_auth_roles", FreeMapOf(TextSet()), None)

    def fault(self) -> str:
        grants = len(self.namespace or {}) + sum(len(roles) for roles in (self.topics or {}).values())
        grants += sum(len(roles) for roles in (self.subscriptions or {}).values())
        return f"a namespace has {GRANTS_MAX} grants at most" if grants > GRANTS_MAX else ""
