"""I7: no subscription expires too early. Stands beside the brokers, and watches the subscriptions of one topic.

A subscription may expire when it has had no consumer for the time of the policy, by the clocks of its brokers. An owner
that crashed could not store since when its subscriptions were idle. So the time then begins when the next owner loads
the topic.
"""

from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.dispatch.dispatcher import Dispatcher
from magnetar.actors.topics.subscription import Subscription
from magnetar.protocol.topics import topic_of_path

from ..world.loop import SimLoop
from .history import History
from .keep_watch import CLOCKS_APART_MS
from .store_watch import is_dead, who

Key = tuple[str, str]
"""A partition's path, and a subscription of it."""


class Use(NamedTuple):
    """At a broker, a subscription got its first consumer (`attached`), or lost its last one."""

    attached: bool
    at_s: float


class UseWatch:
    """See the module. `topic` is the full name, without a partition.

    After `expires_s` without a consumer a subscription of it may expire.
    """

    def __init__(self, history: History, loop: SimLoop, topic: str, expires_s: float) -> None:
        self.expired: dict[Key, int] = {}
        """How often each has expired."""
        self._history = history
        self._loop = loop
        self._topic = topic
        self._expires_s = expires_s
        self._uses: dict[Key, Use] = {}
        self._made: dict[Subscription, float] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        initialize, use, remove = Subscription.__init__, Subscription.use_dispatcher, Subscription.remove

        def initializing(subscription: Subscription, *others: Any, **named: Any) -> None:
            initialize(subscription, *others, **named)
            if topic_of_path(subscription.host.ledger.name).partitioned_name == self._topic:
                self._made[subscription] = self._loop.now

        def using(subscription: Subscription, dispatcher: Dispatcher | None) -> None:
            use(subscription, dispatcher)
            if subscription in self._made and not is_dead():
                self.used(_key(subscription), attached=dispatcher is not None)

        async def removing(
            subscription: Subscription, consumer: AttachedConsumer | None, *, force: bool = False
        ) -> None:
            begun_s = self._loop.now
            await remove(subscription, consumer, force=force)
            if subscription in self._made and consumer is None and not is_dead():
                self.expires(_key(subscription), self._made[subscription], begun_s)

        stack.enter_context(patch.object(Subscription, "__init__", initializing))
        stack.enter_context(patch.object(Subscription, "use_dispatcher", using))
        stack.enter_context(patch.object(Subscription, "remove", removing))

    def used(self, key: Key, *, attached: bool) -> None:
        """A subscription has its first consumer, or has none any longer."""
        self._uses[key] = Use(attached, self._loop.now)

    def expires(self, key: Key, loaded_s: float, begun_s: float) -> None:
        """An owner that loaded the topic at `loaded_s` decided at `begun_s` that the subscription expires."""
        self.expired[key] = self.expired.get(key, 0) + 1
        self._history.counts["subscriptions expired"] += 1
        used = self._uses.pop(key, None)
        since_s = loaded_s
        if used is not None and not used.attached:
            since_s = used.at_s
        elif used is not None and used.at_s >= loaded_s:
            since_s = begun_s
        idle_s = begun_s - since_s
        if idle_s < self._expires_s - CLOCKS_APART_MS / 1000:
            self._history.violated(f"I7: {who()} lets {key} expire, which has had no consumer for {idle_s:.1f} s only")


def _key(subscription: Subscription) -> Key:
    return subscription.host.ledger.name, subscription.name
