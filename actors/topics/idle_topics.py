"""The topics of a broker that nobody uses: up to a bound of them stay loaded, the others rest.

A loaded topic takes about 20 KB of memory, whether it is used or not. One that rests takes less than one.

States of a topic that this broker owns, each where the dictionaries have it:

- *idle*: it was loaded, or its last client has left; in `_idle`. A client may have come since: then it leaves `_idle`
  with the next look, and comes back when that client has left.
- *going*: more than `brokerIdleTopicsLoadedMax` topics are idle, and it has been so longest; in `_going`. It was idle
  for `brokerTopicIdleSeconds` at least, and has nothing to do by itself (`may_rest`). When it is asked for meanwhile,
  or a bulk read has pinned ledgers of it, it is idle again. Else its counters are kept, and it closes as if it moved.
  Its ledger is closed, ledgers that nothing needs are deleted, its cursors are written. Its assignment stays.
- *resting*: it has no instance; in `resting`. It is loaded again when a client or a member asks for it, or when a
  change of policies may give it something to do. Then it is idle, with the counters that it had. What it rests under
  (`duties_of`) is stored with its chain. So its next owner need not load it, if the same policies hold there.

A topic that is idle and has something to do is looked at again after `brokerTopicIdleSeconds`.

Invariants:

- A topic rests only when it has neither clients nor entries under way, and no bulk read has pinned ledgers of it.
- A topic with something to do by itself (expiry, quotas, retention by time, its own deletion) does not rest.
- A broker loads each of its topics by itself, except those that rest under the policies that hold now.
- Nothing that is acknowledged or stored depends on this module. A crash while a topic goes to rest is a crash while it
  closes. An assignment that changes meanwhile finds a topic that is closing.
"""

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.errors import MagnetarError
from ...protocol.names import COMPACTION_CURSOR
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ..keeping.checks import Check
from ..policies.effective import EffectivePolicies
from .deduplication import DeduplicationState
from .persistent import PersistentTopic
from .subscription import counts_of, resume

if TYPE_CHECKING:
    from .loaded_topics import Topic

logger = logging.getLogger(__name__)

AT_A_TIME = 16
LOOKS_AT_ONCE = 64
PAUSE_S = 0.05
"""Between so many looks at idle topics, of which none may rest."""


class Resting(NamedTuple):
    """What is left of a topic that rests."""

    policies: EffectivePolicies
    figures: bytes


CloseTopic = Callable[[PersistentTopic, bytes], asyncio.Task[None] | None]
"""Closes a loaded topic, and stores the duties under which it rests. Returns the task that closes it, None if another
instance is loaded."""


class IdleTopics:
    """See the module. `loaded` are the broker's topics by full name."""

    def __init__(self, settings: Settings, loaded: "Mapping[str, Topic]", close: CloseTopic) -> None:
        self.resting: dict[str, dict[str, Resting]] = {}
        """By namespace and full name."""
        self._idle: OrderedDict[PersistentTopic, float] = OrderedDict()
        """Since when, longest first."""
        self._going: dict[PersistentTopic, bool] = {}
        """Whether the topic was asked for since it began to go."""
        self._loaded_max = settings.idle_topics_loaded_max
        self._idle_min_s = settings.topic_idle_s
        self._loaded = loaded
        self._close = close
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    # -- from topics -------------------------------------------------------------------------------------------------

    def is_loaded(self, topic: "Topic") -> None:
        """The topic was loaded. One that has rested goes on with the counters that it had."""
        if isinstance(topic, PersistentTopic):
            resting = self.forget(topic.name)
            if resting is not None and resting.figures:
                _resume(topic, resting.figures)
            self._left(topic)

    def client_left(self, name: TopicName) -> None:
        """A client has left: perhaps nobody uses the topic now."""
        topic = self._loaded.get(name.full)
        if isinstance(topic, PersistentTopic):
            self._left(topic)

    def asked_for(self, topic: "Topic") -> None:
        """Somebody is about to use the topic."""
        if isinstance(topic, PersistentTopic) and (topic in self._idle or topic in self._going):
            self._left(topic)

    def closes(self, topic: "Topic") -> None:
        """The topic closes, for whatever reason."""
        if isinstance(topic, PersistentTopic):
            self._idle.pop(topic, None)

    # -- from the broker ---------------------------------------------------------------------------------------------

    def rests(self, full_name: str) -> bool:
        """Whether the topic rests."""
        return bool(self.resting) and full_name in self.resting.get(TopicName.parse(full_name).namespace, {})

    def is_at_rest(self, name: TopicName, policies: EffectivePolicies) -> None:
        """The topic became this broker's, and its last owner left it at rest under these policies."""
        self.resting.setdefault(name.namespace, {})[name.full] = Resting(policies, b"")

    def forget(self, name: TopicName) -> Resting | None:
        """The topic rests no longer: it is loaded, or not this broker's. Returns what was left of it."""
        found = self.resting.get(name.namespace)
        if found is None:
            return None
        resting = found.pop(name.full, None)
        if not found:
            del self.resting[name.namespace]
        return resting

    def with_new_duties(
        self, scopes: Iterable[str], policies_of: Callable[[TopicName], EffectivePolicies]
    ) -> list[str]:
        """Policies have changed: the topics that rest, and may have something to do by themselves now."""
        found: list[str] = []
        for namespace in dict.fromkeys(_namespace_of(scope) for scope in scopes):
            rests = self.resting.get(namespace, {})
            for full_name, resting in rests.items():
                now = policies_of(TopicName.parse(full_name))
                if now is not resting.policies:
                    if _duties(now) != _duties(resting.policies):
                        found.append(full_name)
                    rests[full_name] = resting._replace(policies=now)
        return found

    async def close(self) -> None:
        """The broker stops: nothing goes to rest from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _left(self, topic: PersistentTopic) -> None:
        if topic in self._going:
            self._going[topic] = True
        else:
            self._idle[topic] = asyncio.get_running_loop().time()
            self._idle.move_to_end(topic)
            self._watch()

    def _watch(self, delay_s: float = 0.0) -> None:
        """Look when the topic that is idle longest may rest, if there are too many."""
        if self._timer is not None or self._tasks.closed or len(self._idle) <= self._loaded_max:
            return
        loop = asyncio.get_running_loop()
        due = next(iter(self._idle.values())) + self._idle_min_s
        self._timer = loop.call_at(max(due, loop.time() + delay_s), self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for _ in range(LOOKS_AT_ONCE):
            if len(self._going) >= AT_A_TIME:
                return  # the end of each of them looks again
            if len(self._idle) <= self._loaded_max or now - next(iter(self._idle.values())) < self._idle_min_s:
                break
            topic, _ = self._idle.popitem(last=False)
            if may_rest(topic):
                self._going[topic] = False
                self._tasks.spawn(self._rest(topic), f"rest {topic.name.full}")
            elif not topic.in_use:
                self._idle[topic] = now
        self._watch(PAUSE_S)

    async def _rest(self, topic: PersistentTopic) -> None:
        try:
            pinned = await topic.ledger.trimmer.is_pinned()
        except MagnetarError as error:
            logger.info("%s does not rest now: %s", topic.name.full, error)
            pinned = True
        was_asked_for = self._going.pop(topic)
        if pinned or was_asked_for or not may_rest(topic):
            self._left(topic)
        else:
            resting = Resting(topic.policies, _figures_of(topic))
            closing = self._close(topic, duties_of(topic.policies))  # in this step: its next load finds what is kept
            if closing is not None:
                self.resting.setdefault(topic.name.namespace, {})[topic.name.full] = resting
                self._going[topic] = False  # counts until it is closed
                try:
                    await asyncio.wait([closing])
                finally:
                    del self._going[topic]
        self._look_again()

    def _look_again(self) -> None:
        if self._timer is None and not self._tasks.closed:
            self._look()


def _duties(policies: EffectivePolicies) -> tuple[object, ...]:
    """The policies by which a topic does something by itself."""
    return (
        policies.message_ttl,
        policies.backlog_quota_map,
        policies.subscription_expiration_time_minutes,
        policies.inactive_topic_policies,
        policies.retention,
        policies.compaction_threshold,
        policies.deduplication_enabled,
    )


def duties_of(policies: EffectivePolicies) -> bytes:
    """The same for policies under which a topic does the same by itself. Never empty.

    Another release may write the same policies in another way. Then a topic is loaded that could have rested.
    """
    return hashlib.blake2b(repr(_duties(policies)).encode(), digest_size=8).digest()


def _namespace_of(scope: str) -> str:
    return TopicName.parse(scope).namespace if "://" in scope else scope


_STEADY = (DeduplicationState.OFF, DeduplicationState.ON)


def may_rest(topic: PersistentTopic) -> bool:
    """Whether nobody uses the topic, nothing is under way, and it has nothing to do by itself later."""
    return (
        topic.is_open
        and not topic.in_use
        and not topic.publishing.pending
        and not topic.has_tasks
        and all(one.durable and not one.closed for one in topic.subscriptions.values())
        and not _has_duties(topic)
    )


def _has_duties(topic: PersistentTopic) -> bool:
    keeping = topic.keeping
    if keeping.work(Check.SUBSCRIPTIONS) is not None or keeping.inactivity.may_end:
        return True
    if COMPACTION_CURSOR in topic.ledger.cursors or topic.policies.compaction_threshold:
        return True
    if topic.deduplication.state not in _STEADY or topic.ledger.trimmer.has_duties:
        return True
    has_backlog = any(one.backlog_entries for one in topic.subscriptions.values())
    return has_backlog and any(keeping.work(check) is not None for check in (Check.EXPIRY, Check.QUOTAS))


def _figures_of(topic: PersistentTopic) -> bytes:
    """The counters of the topic and of its subscriptions."""
    publishing = topic.publishing
    subscriptions = {name: counts_of(one) for (name, durable), one in topic.subscriptions.items() if durable}
    kept = [publishing.published.counts, publishing.has_chunks, topic.last_publish.at_ms, subscriptions]
    return json.dumps(kept, separators=(",", ":")).encode()  # a third of the memory of lists


def _resume(topic: PersistentTopic, figures: bytes) -> None:
    """The topic goes on counting where it was."""
    published, topic.publishing.has_chunks, topic.last_publish.at_ms, subscriptions = json.loads(figures)
    topic.publishing.published.resume(published)
    for name, counts in subscriptions.items():
        subscription = topic.subscriptions.get((name, True))
        if subscription is not None:
            resume(subscription, counts)
