"""A broker's copy of the policies of all namespaces, and the news of changes for the topics that it has loaded.

The coordinator keeps the policies in the records of namespaces. A record has a version, which grows with every change
and never comes back, not even when a namespace is deleted and created again. The coordinator stores a change first,
then sends the namespace's policies with their version to every registered broker. A broker that registers, or comes
back after its connection ended, gets a *listing*: all namespaces that have policies, in pages.

`TRANSITIONS` has the states. In UNKNOWN and LISTING no topic is loaded: `known` lets loads wait. So no topic takes a
message before the broker knows whether it must be encrypted. In KNOWN and RELISTING the copy counts. It may be old by
as long as the connection was away: a broker without its coordinator goes on with what it knows.

Invariants:

- Within a session, and as long as a namespace exists, what is held for it never goes back to an older version, in
  whatever order a listing and changes arrive.
- A namespace that a whole listing does not name, and of which no change came since the listing began, has no policies.
- At the end of a listing, and from then on as long as the connection lasts, the copy is the coordinator's.
- A loaded topic has the policies that are held for its namespace. `effective` is read in the step in which a topic
  becomes loaded. `changed` is called in the step in which the copy changes.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from ...protocol.errors import InvalidConfiguration, ProtocolError
from ...runtime.settings.declarations import Settings
from ...runtime.transitions import check_transition
from .effective import EffectivePolicies
from .record import check_values

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
    effective: EffectivePolicies


class PolicyWatch:
    """See the module. `changed` is called with what holds now, by namespace, for those where it is not what it was."""

    def __init__(self, settings: Settings, changed: Callable[[Mapping[str, EffectivePolicies]], None]) -> None:
        self.state = WatchState.UNKNOWN
        self._settings = settings
        self._changed = changed
        self._default = EffectivePolicies.resolve(settings)
        self._held: dict[str, _Held] = {}
        self._unlisted: dict[str, None] = {}
        """Namespaces of which neither the listing nor a change has said anything since the listing began."""
        self._known = asyncio.Event()

    # -- for topics ----------------------------------------------------------------------------------------------

    async def known(self) -> None:
        """Wait for the first listing of this session."""
        await self._known.wait()

    def effective(self, namespace: str) -> EffectivePolicies:
        """What holds for the topics of a namespace, as far as is known."""
        held = self._held.get(namespace)
        return held.effective if held is not None else self._default

    # -- from the coordinator ------------------------------------------------------------------------------------

    def begin_session(self) -> None:
        """The broker begins a session. Loads wait for its first listing, which replaces whatever is held until then."""
        self._become(WatchState.UNKNOWN)
        self._known.clear()
        self._held = {namespace: held._replace(version=NO_VERSION) for namespace, held in self._held.items()}

    def listing_began(self) -> None:
        """The broker is about to ask for everything. What is said from now on is at least as new as this moment."""
        again = self.state in (WatchState.KNOWN, WatchState.RELISTING)
        self._become(WatchState.RELISTING if again else WatchState.LISTING)
        self._unlisted = dict.fromkeys(self._held)

    def take(self, rows: Iterable[tuple[str, int, object]]) -> None:
        """A page of the listing, or a change: namespaces, the versions of their records, and their policies; None for a
        namespace that was deleted. Raises ProtocolError, and takes nothing, when one of them is malformed."""
        found = [self._resolved(*row) for row in rows]
        changed: dict[str, EffectivePolicies] = {}
        for namespace, version, effective in found:
            self._unlisted.pop(namespace, None)
            held = self._held.get(namespace)
            if held is not None and held.version >= version:
                continue
            before = self.effective(namespace)
            if effective is None:
                self._held.pop(namespace, None)
            else:
                self._held[namespace] = _Held(version, effective)
            if self.effective(namespace) != before:
                changed[namespace] = self.effective(namespace)
        self._tell(changed)

    def listing_ended(self) -> None:
        """The listing is complete."""
        self._become(WatchState.KNOWN)
        gone, self._unlisted = self._unlisted, {}
        changed: dict[str, EffectivePolicies] = {}
        for namespace in gone:
            if self._held.pop(namespace).effective != self._default:
                changed[namespace] = self._default
        self._tell(changed)
        self._known.set()

    # -- inside --------------------------------------------------------------------------------------------------

    def _resolved(self, namespace: str, version: int, policies: object) -> tuple[str, int, EffectivePolicies | None]:
        if policies is None:
            return namespace, version, None
        try:
            return namespace, version, EffectivePolicies.resolve(self._settings, check_values(policies))
        except InvalidConfiguration as error:
            raise ProtocolError(f"the policies of {namespace} are malformed: {error}") from error

    def _tell(self, changed: Mapping[str, EffectivePolicies]) -> None:
        if changed:
            self._changed(changed)

    def _become(self, state: WatchState) -> None:
        check_transition(TRANSITIONS, "the watch of policies", self.state, state)
        self.state = state
