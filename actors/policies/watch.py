"""A member's copy of the policies of all namespaces and topics, and the news of changes for a broker's loaded topics.

Below, a *scope* is a namespace (`tenant/namespace`) or a topic by its full name, without partition. What holds for a
topic follows from the settings, its namespace and the topic itself, the narrowest level last. Both levels are held,
listed and told in the same way; `of` puts them together. With `topicLevelPoliciesEnabled=false` topics are left out.
A tenant is a scope, too: `tenants` has its admins.

The coordinator keeps the policies in a record for each scope. A record has a version, which grows with every change and
never comes back, not even when a scope is deleted and created again. The coordinator stores a change first, then sends
the policies of the scope with their version to every registered broker. A broker that registers, or comes back after
its connection ended, gets a *listing*: all scopes that have policies, in pages. Topics without policies cost nothing.

`TRANSITIONS` has the states. In UNKNOWN and LISTING no topic is loaded: `known` lets loads wait. So no topic takes a
message before the broker knows whether it must be encrypted. In KNOWN and RELISTING the copy counts. It may be old by
as long as the connection was away: a broker without its coordinator goes on with what it knows.

Invariants:

- Within a session, and as long as a scope exists, what is held for it never goes back to an older version, in
  whatever order a listing and changes arrive.
- A scope that is deleted during a listing does not come back with an older page.
- A scope that a whole listing does not name, and of which no change came since the listing began, has no policies.
- At the end of a listing, and from then on as long as the connection lasts, the copy is the coordinator's.
- A loaded topic has what is held for its namespace and itself. `of` is read in the step in which a topic
  becomes loaded. `changed` is called in the step in which the copy changes.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from ...protocol.errors import InvalidTopicName
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ...runtime.transitions import check_transition
from .effective import EffectivePolicies, not_understood
from .policy import PolicyValues
from .record import check_values
from .tenant_admins import TenantAdmins, admins_of

logger = logging.getLogger(__name__)

NO_VERSION = -1
"""Older than every version of a record."""


class WatchState(enum.Enum):
    """See `TRANSITIONS`."""

    UNKNOWN = enum.auto()
    LISTING = enum.auto()
    KNOWN = enum.auto()
    RELISTING = enum.auto()


TRANSITIONS: Mapping[WatchState, Collection[WatchState]] = {
    WatchState.UNKNOWN: (
        WatchState.UNKNOWN,  # a session that never got a listing ends, and the next begins
        WatchState.LISTING,  # the first registration of a session
    ),
    WatchState.LISTING: (
        WatchState.LISTING,  # the connection ended in the middle; the next one lists again
        WatchState.KNOWN,  # the listing is complete
        WatchState.UNKNOWN,  # the session was lost
    ),
    WatchState.KNOWN: (
        WatchState.RELISTING,  # the connection ended, and the broker registers over the next one
        WatchState.UNKNOWN,  # the session was lost, and all topics are closed
    ),
    WatchState.RELISTING: (
        WatchState.RELISTING,  # as in LISTING
        WatchState.KNOWN,
        WatchState.UNKNOWN,
    ),
}


class _Held(NamedTuple):
    version: int
    values: PolicyValues
    effective: EffectivePolicies


class PolicyWatch:
    """See the module. `changed` is called with what holds now, by scope, for those where it is not what it was."""

    def __init__(
        self,
        settings: Settings,
        changed: Callable[[Mapping[str, EffectivePolicies]], None],
    ) -> None:
        self.state = WatchState.UNKNOWN
        self.tenants = TenantAdmins()
        self.on_permissions: Callable[[], None] = lambda: None
        """Called behind `changed` when namespaces or tenants may have other permissions. Set by the broker, whose
        connections are made after its topics."""
        self._settings = settings
        self._changed = changed
        self._default = EffectivePolicies.resolve(settings)
        self._held: dict[str, _Held] = {}
        self._unlisted: dict[str, None] = {}
        """Scopes of which neither the listing nor a change has said anything since the listing began."""
        self._deleted: dict[str, int] = {}
        """Scopes that were deleted since the listing began, and the version by then. A page may be older than that."""
        self._topics: dict[str, dict[str, None]] = {}
        """Topics that have policies of their own, by namespace."""
        self._known = asyncio.Event()
        self._permissions_differ = False
        """Whether something was granted or revoked that `on_permissions` was not called for."""

    # -- for topics ----------------------------------------------------------------------------------------------

    async def known(self) -> None:
        """Wait for the first listing of this session."""
        await self._known.wait()

    @property
    def is_known(self) -> bool:
        """Whether what is held counts."""
        return self.state in (WatchState.KNOWN, WatchState.RELISTING)

    def of_namespace(self, namespace: str) -> EffectivePolicies:
        """What holds for the topics of a namespace that have no policies of their own, as far as is known.

        Ask `of` about a topic: it may have policies of its own.
        """
        held = self._held.get(namespace)
        return held.effective if held is not None else self._default

    def of(self, topic: TopicName) -> EffectivePolicies:
        """What holds for a topic or partition, as far as is known."""
        namespace = topic.namespace
        if namespace in self._topics:
            held = self._held.get(topic.partitioned_name)
            if held is not None:
                return held.effective
        return self.of_namespace(namespace)

    # -- from the coordinator ------------------------------------------------------------------------------------

    def begin_session(self) -> None:
        """The broker begins a session. Loads wait for its first listing, which replaces whatever is held until then."""
        self._become(WatchState.UNKNOWN)
        self._known.clear()
        self._held = {scope: held._replace(version=NO_VERSION) for scope, held in self._held.items()}
        self.tenants.begin_session()

    def listing_began(self) -> None:
        """The broker is about to ask for everything. What is said from now on is at least as new as this moment."""
        again = self.state in (WatchState.KNOWN, WatchState.RELISTING)
        self._become(WatchState.RELISTING if again else WatchState.LISTING)
        self._unlisted = dict.fromkeys(self._held)
        self._deleted = {}
        self.tenants.listing_began()

    def take(self, rows: Iterable[tuple[str, int, object]]) -> None:
        """A page of the listing, or a change: scopes, the versions of their records, and their policies; None for a
        scope that was deleted. Raises ProtocolError, and takes nothing, when one of them is malformed.

        What a newer coordinator knows and this broker does not is ignored, with a warning: scopes, policies, values.
        """
        rows = list(rows)
        admins = [(scope, version, admins_of(values)) for scope, version, values in rows if _is_tenant(scope)]
        found = [
            (scope, namespace, version, _checked(scope, policies))
            for scope, version, policies in rows
            if not _is_tenant(scope) and (namespace := _namespace_of(scope))
        ]
        if not self._settings.topic_level_policies_enabled:
            found = [row for row in found if row[0] == row[1]]
        changed: dict[str, EffectivePolicies] = {}
        for scope, namespace, version, values in found:
            self._unlisted.pop(scope, None)
            if values is None and self.state is not WatchState.KNOWN:
                self._deleted[scope] = max(version, self._deleted.get(scope, NO_VERSION))
            held = self._held.get(scope)
            if held.version < version if held is not None else self._deleted.get(scope, NO_VERSION) <= version:
                self._put(scope, namespace, version, values, changed)
        self._tell(changed, sum([self.tenants.take(*row) for row in admins]) > 0)

    def listing_ended(self) -> None:
        """The listing is complete."""
        self._become(WatchState.KNOWN)
        gone, self._unlisted, self._deleted = self._unlisted, {}, {}
        changed: dict[str, EffectivePolicies] = {}
        for scope in gone:
            self._put(scope, _namespace_of(scope), NO_VERSION, None, changed)
        self._tell(changed, self.tenants.listing_ended())
        self._known.set()

    # -- inside --------------------------------------------------------------------------------------------------

    def _put(
        self,
        scope: str,
        namespace: str,
        version: int,
        values: PolicyValues | None,
        changed: dict[str, EffectivePolicies],
    ) -> None:
        """Hold these values for a scope, or none, and note for which scopes other policies hold now."""
        is_topic = scope != namespace
        wide = self._held.get(namespace) if is_topic else None
        fallback = wide.effective if wide is not None else self._default
        before = self._held[scope].effective if scope in self._held else fallback
        if values is None:
            self._held.pop(scope, None)
            now = fallback
        else:
            levels = [wide.values, values] if wide is not None else [values]
            now = EffectivePolicies.resolve(self._settings, *levels)
            self._held[scope] = _Held(version, values, now)
        if is_topic:
            self._enlist(scope, namespace, held=values is not None)
        if now == before:
            return
        self._permissions_differ |= now.auth_policies != before.auth_policies
        changed[scope] = now
        for topic in self._topics.get(namespace, ()) if not is_topic else ():
            held = self._held[topic]
            both = EffectivePolicies.resolve(self._settings, values or {}, held.values)
            if both != held.effective:
                self._held[topic] = held._replace(effective=both)
                changed[topic] = both

    def _enlist(self, topic: str, namespace: str, *, held: bool) -> None:
        if held:
            self._topics.setdefault(namespace, {})[topic] = None
        elif namespace in self._topics:
            self._topics[namespace].pop(topic, None)
            if not self._topics[namespace]:
                del self._topics[namespace]

    def _tell(self, changed: Mapping[str, EffectivePolicies], admins: bool) -> None:
        if changed:
            self._changed(changed)
        differ, self._permissions_differ = self._permissions_differ, False
        if admins or differ:
            self.on_permissions()

    def _become(self, state: WatchState) -> None:
        check_transition(TRANSITIONS, "the watch of policies", self.state, state)
        self.state = state


def _is_tenant(scope: str) -> bool:
    return "/" not in scope


def _namespace_of(scope: str) -> str:
    """The namespace of a scope; "" for a topic of a kind that is not known here."""
    if "://" not in scope:
        return scope
    try:
        return TopicName.parse(scope).namespace
    except InvalidTopicName as error:
        logger.warning("this release ignores the policies of %s, which is no topic to it: %s", scope[:100], error)
        return ""


def _checked(scope: str, policies: object) -> PolicyValues | None:
    if policies is None:
        return None
    values = check_values(policies)
    ignored = not_understood(values)
    if ignored:
        names = ", ".join(name[:100] for name in ignored)
        logger.warning("this release ignores policies of %s that it does not understand: %s", scope, names)
    return values
