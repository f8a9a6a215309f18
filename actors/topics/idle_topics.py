"""The topics of a broker that nobody uses: up to a bound of them stay loaded, the others rest.

A loaded topic takes about 20 KB of memory, whether it is used or not. One that rests takes less than one.

What happens to a topic that is *loaded* (`owned_topic`):

- It is *idle* when it was loaded, or when its last client has left; in `_idle`. A client may have come since: then it
  leaves `_idle` with the next look, and comes back when that client has left.
- It is *going* when more than `brokerIdleTopicsLoadedMax` topics are idle, and it has been so longest. It was idle for
  `brokerTopicIdleSeconds` at least, and has nothing to do by itself (`may_rest`). When it is asked for meanwhile, or a
  bulk read has pinned ledgers of it, it is idle again. Else its counters are kept, and it closes as if it moved. Its
  ledger is closed, ledgers that nothing needs are deleted, its cursors are written. Its assignment stays.
- Then it is *resting*. It is loaded again when a client or a member asks for it, or when a change of policies may give
  it something to do. Then it is idle, with the counters that it had. What it rests under (`duties_of`) is stored with
  its chain. So its next owner need not load it, if the same policies hold there.

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
from collections.abc import Callable, Iterable

from ...protocol.errors import MagnetarError
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ..keeping.checks import Check
from ..policies.effective import EffectivePolicies
from .feature import FeatureKinds, duties
from .owned_topic import Kept, OwnedTopic, TopicTable
from .persistent import PersistentTopic
from .subscription import counts_of, resume

logger = logging.getLogger(__name__)

AT_A_TIME = 16
LOOKS_AT_ONCE = 64
PAUSE_S = 0.05
"""Between so many looks at idle topics, of which none may rest."""

GoToRest = Callable[[OwnedTopic, bytes], asyncio.Task[None]]
"""Closes the instance of a loaded topic, which then rests, and stores the duties under which it does so. Returns the
task that closes it."""


class IdleTopics:
    """See the module. `table` has the broker's topics."""

    def __init__(self, settings: Settings, table: TopicTable, go_to_rest: GoToRest, features: FeatureKinds) -> None:
        self._idle: dict[OwnedTopic, None] = {}
        """Longest first."""
        self._going = 0
        self._loaded_max = settings.idle_topics_loaded_max
        self._idle_min_s = settings.topic_idle_s
        self._table = table
        self._go_to_rest = go_to_rest
        self._features = features
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    # -- from topics -------------------------------------------------------------------------------------------------

    def is_loaded(self, topic: OwnedTopic) -> None:
        """The topic was loaded. One that has rested goes on with the counters that it had."""
        kept, instance = topic.kept, topic.instance
        if isinstance(instance, PersistentTopic):
            self._table.keep(topic, None)
            if kept is not None and kept.figures:
                _resume(instance, kept.figures)
            self._left(topic)

    def client_left(self, name: TopicName) -> None:
        """A client has left: perhaps nobody uses the topic now."""
        topic = self._table.find(name.full)
        if topic is not None and isinstance(topic.instance, PersistentTopic):
            self._left(topic)

    def asked_for(self, topic: OwnedTopic) -> None:
        """Somebody is about to use the topic, which is loaded."""
        if topic in self._idle or topic.going is topic.instance:
            self._left(topic)

    def closes(self, topic: OwnedTopic) -> None:
        """The instance closes, for whatever reason."""
        self._idle.pop(topic, None)

    # -- from the broker ---------------------------------------------------------------------------------------------

    def with_new_duties(
        self, scopes: Iterable[str], policies_of: Callable[[TopicName], EffectivePolicies]
    ) -> list[OwnedTopic]:
        """Policies have changed: the topics that rest, and may have something to do by themselves now."""
        found: list[OwnedTopic] = []
        for namespace in dict.fromkeys(_namespace_of(scope) for scope in scopes):
            for topic in self._table.kept.get(namespace, {}).values():
                now, kept = policies_of(TopicName.parse(topic.full_name)), topic.kept
                if kept is not None and now is not kept.policies:
                    if _duties(now, self._features) != _duties(kept.policies, self._features):
                        found.append(topic)
                    topic.kept = kept._replace(policies=now)
        return found

    async def close(self) -> None:
        """The broker stops: nothing goes to rest from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _left(self, topic: OwnedTopic) -> None:
        if topic.going is not None and topic.going is topic.instance:
            topic.asked_for = True
        else:
            topic.idle_since_s = asyncio.get_running_loop().time()
            self._idle.pop(topic, None)
            self._idle[topic] = None
            self._watch()

    def _watch(self, delay_s: float = 0.0) -> None:
        """Look when the topic that is idle longest may rest, if there are too many."""
        if self._timer is not None or self._tasks.closed or len(self._idle) <= self._loaded_max:
            return
        loop = asyncio.get_running_loop()
        due = next(iter(self._idle)).idle_since_s + self._idle_min_s
        self._timer = loop.call_at(max(due, loop.time() + delay_s), self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for _ in range(LOOKS_AT_ONCE):
            if self._going >= AT_A_TIME:
                return  # the end of each of them looks again
            if len(self._idle) <= self._loaded_max or now - next(iter(self._idle)).idle_since_s < self._idle_min_s:
                break
            topic = next(iter(self._idle))
            del self._idle[topic]
            instance = topic.instance
            if not isinstance(instance, PersistentTopic):
                continue
            if may_rest(instance):
                topic.going, topic.asked_for = instance, False
                self._going += 1
                self._tasks.spawn(self._rest(topic, instance), f"rest {topic}")
            elif not instance.in_use:
                topic.idle_since_s = now
                self._idle[topic] = None
        self._watch(PAUSE_S)

    async def _rest(self, topic: OwnedTopic, instance: PersistentTopic) -> None:
        try:
            try:
                pinned = await instance.ledger.trimmer.is_pinned()
            except MagnetarError as error:
                logger.info("%s does not rest now: %s", topic, error)
                pinned = True
            if topic.instance is not instance:
                return  # it has closed
            topic.going = None
            if pinned or topic.asked_for or not may_rest(instance):
                self._left(topic)
            else:
                # In one step: its next load finds what is kept.
                self._table.keep(topic, Kept(instance.policies, _figures_of(instance)))
                closing = self._go_to_rest(topic, duties_of(instance.policies, self._features))
                await asyncio.wait([closing])
        finally:
            self._going -= 1
            self._look_again()

    def _look_again(self) -> None:
        if self._timer is None and not self._tasks.closed:
            self._look()


def _duties(policies: EffectivePolicies, features: FeatureKinds) -> tuple[object, ...]:
    """The policies by which a topic does something by itself."""
    return (
        policies.message_ttl,
        policies.backlog_quota_map,
        policies.subscription_expiration_time_minutes,
        policies.inactive_topic_policies,
        policies.retention,
        *duties(features, policies),
    )


def duties_of(policies: EffectivePolicies, features: FeatureKinds) -> bytes:
    """The same for policies under which a topic does the same by itself. Never empty.

    Another release may write the same policies in another way. Then a topic is loaded that could have rested.
    """
    return hashlib.blake2b(repr(_duties(policies, features)).encode(), digest_size=8).digest()


def _namespace_of(scope: str) -> str:
    return TopicName.parse(scope).namespace if "://" in scope else scope


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
    if any(feature.has_duties for feature in topic.features) or topic.ledger.trimmer.has_duties:
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
