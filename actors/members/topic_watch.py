"""A broker's copy of the persistent topics of those namespaces that its clients watch.

A namespace is watched while somebody has joined it. Nothing is asked and nothing is pushed for any other. The broker
tells the coordinator `watch_topics`; from then on the coordinator sends each creation, growth and deletion in the
namespace, with a number that grows. The answer is a listing in pages, each with the number up to which it is complete.

`TRANSITIONS` has the states of one namespace. In LISTING the copy is that of before. What is pushed meanwhile is kept,
and applied to the pages that are older. Then the copy and the listing are compared, and those who joined are told the
difference. So what happened while the connection was away, or while there was no coordinator, is not lost. It does not
matter in which order pushes and pages are seen: a push counts if its number is greater than that of its page.

Invariants:

- In KNOWN, and while the connection lasts, the copy is the coordinator's list as of the last push.
- Those who joined are told every difference between two states of the copy, once and in order.
- A listing that began before a registration is not taken: pushes may be missing in it. A registration ends it.

Cost: a listing for each registration and namespace, then one entry for each change.
"""

import asyncio
import enum
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ...protocol.errors import MagnetarError
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from .contracts_coordinator import TopicChange

if TYPE_CHECKING:
    from .coordinator_link import CoordinatorClient
    from .matched_topics import MatchedTopics

logger = logging.getLogger(__name__)

RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
PUSHED_MAX = 10_000
"""Changes that wait for the end of a listing. With more of them the listing begins again."""


class NamespaceState(enum.Enum):
    """See `TRANSITIONS`."""

    LISTING = enum.auto()
    KNOWN = enum.auto()


TRANSITIONS: Mapping[NamespaceState, Collection[NamespaceState]] = {
    NamespaceState.LISTING: (
        NamespaceState.LISTING,  # the broker registered again in the middle, or too many changes wait
        NamespaceState.KNOWN,  # the listing is complete
    ),
    NamespaceState.KNOWN: (
        NamespaceState.LISTING,  # the broker registered again: pushes may be missing
    ),
}


class WatchedNamespace:
    """One namespace. `topics` has the full names of its persistent topics, with their partitions (0: plain)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = NamespaceState.LISTING
        self.known = False
        """Whether there was a complete listing, so that `topics` is right or was right lately."""
        self.topics: dict[str, int] = {}
        self.listeners: dict[MatchedTopics, None] = {}
        self.lister: asyncio.Task[None] | None = None
        self._pushed: list[tuple[int, TopicChange]] = []
        self._ends: list[str] = []
        self._numbers: list[int] = []

    def begin_listing(self) -> None:
        """Pushes may be missing from now on, until a listing is complete."""
        self._become(NamespaceState.LISTING)
        self._pushed.clear()

    def take(self, number: int, changes: Sequence[TopicChange]) -> bool:
        """A push. In LISTING it waits for its page. Returns whether the listing has to begin again."""
        if self.state is NamespaceState.KNOWN:
            self._apply([change for change in changes if number > self._number_at(change.topic)])
            return False
        self._pushed += [(number, change) for change in changes]
        return len(self._pushed) > PUSHED_MAX

    def listed(self, pages: Sequence[tuple[str, int]], topics: dict[str, int]) -> None:
        """The listing is complete. `pages` are the last name and the number of each page."""
        self._ends = [end for end, _ in pages[:-1]]
        self._numbers = [number for _, number in pages]
        pushed, self._pushed = self._pushed, []
        for number, change in pushed:
            if number > self._number_at(change.topic):
                _set(topics, change)
        before, self.topics = self.topics, topics
        self._become(NamespaceState.KNOWN)
        gone = {topic: count for topic, count in before.items() if topics.get(topic) != count}
        new = {topic: count for topic, count in topics.items() if before.get(topic) != count}
        if not self.known:
            self.known = True
            for listener in list(self.listeners):
                listener.listed()
        elif gone or new:
            self._tell(gone, new)

    def _number_at(self, topic: str) -> int:
        """The number up to which the page is complete in which the topic is, or would be."""
        return self._numbers[bisect_left(self._ends, topic)]

    def _apply(self, changes: Sequence[TopicChange]) -> None:
        for change in changes:
            had = self.topics.get(change.topic)
            if had == change.partitions:
                continue
            _set(self.topics, change)
            before = {} if had is None else {change.topic: had}
            after = {} if change.partitions is None else {change.topic: change.partitions}
            self._tell(before, after)

    def _tell(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        for listener in list(self.listeners):
            listener.changed(before, after)

    def _become(self, state: NamespaceState) -> None:
        check_transition(TRANSITIONS, f"the watch of {self.name}", self.state, state)
        self.state = state


class TopicWatch:
    """See the module. `coordinator` gives the present session's link, and raises while there is no session."""

    def __init__(self, env: Environment, coordinator: "Callable[[], CoordinatorClient]") -> None:
        self.namespaces: dict[str, WatchedNamespace] = {}
        self._env = env
        self._coordinator = coordinator
        self._tasks = Tasks()

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.close()

    def join(self, namespace: str, listener: "MatchedTopics") -> WatchedNamespace:
        """Tell `listener` of the changes in a namespace from now on."""
        watched = self.namespaces.get(namespace)
        if watched is None:
            watched = self.namespaces[namespace] = WatchedNamespace(namespace)
            self._list(watched)
        watched.listeners[listener] = None
        return watched

    def leave(self, namespace: str, listener: "MatchedTopics") -> None:
        """Tell `listener` nothing more. With the last one the broker stops watching the namespace."""
        watched = self.namespaces.get(namespace)
        if watched is None:
            return
        watched.listeners.pop(listener, None)
        if not watched.listeners:
            del self.namespaces[namespace]
            if watched.lister is not None:
                watched.lister.cancel()
            if not self._tasks.closed:
                self._tasks.spawn(self._unwatch(namespace), f"unwatch {namespace}"[:200])

    # -- from the coordinator ------------------------------------------------------------------------------------

    def registered(self) -> None:
        """The broker has registered. The coordinator pushes nothing over this connection yet: list again."""
        for watched in self.namespaces.values():
            self._list(watched)

    def take(self, namespace: str, number: int, changes: Sequence[TopicChange]) -> None:
        """A push of the coordinator. One for a namespace that is watched no longer was under way."""
        watched = self.namespaces.get(namespace)
        if watched is not None and watched.take(number, changes):
            self._list(watched)

    # -- inside --------------------------------------------------------------------------------------------------

    def _list(self, watched: WatchedNamespace) -> None:
        """List the namespace from the beginning."""
        if watched.lister is not None:
            watched.lister.cancel()
        if not self._tasks.closed:
            watched.begin_listing()
            watched.lister = self._tasks.spawn(self._list_until_done(watched), f"list {watched.name}"[:200])

    async def _list_until_done(self, watched: WatchedNamespace) -> None:
        def failed(error: Exception, delay_s: float) -> None:
            if isinstance(error, MagnetarError):
                logger.info("the topics of %s are listed again in %.1f s: %s", watched.name, delay_s, error)
            else:
                logger.exception("listing the topics of %s failed and is tried again", watched.name)

        await retry.forever(
            Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S),
            lambda: self._list_once(watched),
            retriable=retry.every_error,
            on_retry=failed,
        )

    async def _list_once(self, watched: WatchedNamespace) -> None:
        ask = self._coordinator().ask
        pages: list[tuple[str, int]] = []
        topics: dict[str, int] = {}
        after = ""
        more = True
        while more:
            page = await ask.watch_topics(namespace=watched.name, after=after)
            topics.update(page.items)
            more = page.more and bool(page.items)
            after = page.items[-1].topic if page.items else after
            pages.append((after, page.number))
        watched.listed(pages, topics)

    async def _unwatch(self, namespace: str) -> None:
        """Nothing is lost when this fails: pushes of a namespace that nobody watches have no effect."""
        if namespace in self.namespaces:
            return
        try:
            await self._coordinator().ask.unwatch_topics(namespace=namespace)
        except MagnetarError as error:
            logger.info("the coordinator could not be told that %s is watched no longer: %s", namespace, error)


def _set(topics: dict[str, int], change: TopicChange) -> None:
    if change.partitions is None:
        topics.pop(change.topic, None)
    else:
        topics[change.topic] = change.partitions
