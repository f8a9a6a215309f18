"""When a topic counts as inactive, so that its broker may have it deleted.

A topic is in use while it has a producer, or while a subscription needs it. Under `delete_when_no_subscriptions` each
subscription does. Under `delete_when_subscriptions_caught_up` those with a backlog do. The cursor of a compaction
counts as a subscription. A bulk read that is planned, and a pin, are a use of that moment.

A topic is inactive when it has not been in use for the policy's time, has no client, and stores nothing that its
retention covers. The time begins again when a broker loads the topic. So a move makes it longer, never shorter.

`check` is asked twice: when the broker looks for inactive topics, and in the step in which it closes the topic on the
coordinator's order. So a client that came in between keeps the topic.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from ...runtime.gone import GONE
from ..policies.effective import EffectivePolicies
from ..policies.inactive_topics import InactiveTopicDeleteMode


class UsedTopic(Protocol):
    """What is asked about a topic."""

    policies: EffectivePolicies

    @property
    def is_open(self) -> bool: ...
    @property
    def in_use(self) -> bool: ...
    @property
    def has_messages(self) -> bool: ...
    @property
    def has_producers(self) -> bool: ...


class Inactivity:
    """See the module. `is_needed(mode)` says whether subscriptions need the topic."""

    def __init__(self, topic: UsedTopic, is_needed: Callable[[InactiveTopicDeleteMode], bool]) -> None:
        self._topic = topic
        self._is_needed = is_needed
        self._loop = asyncio.get_running_loop()
        self._used_s = self._loop.time()
        self.on_left: Callable[[], None] | None = None
        """Called when a client has left, or a subscription was deleted."""

    @property
    def may_end(self) -> bool:
        """Whether the topic will be inactive, if nobody uses it."""
        policy = self._topic.policies.inactive_topic_policies
        return policy.delete and policy.mode is not None and not self._is_needed(policy.mode)

    def left(self) -> None:
        """A client has left, or a subscription was deleted."""
        self.used()
        if self.on_left is not None:
            self.on_left()

    def used(self) -> None:
        """The topic is, or was until now, in use."""
        self._used_s = self._loop.time()

    def let_go(self) -> None:
        """The topic is closed."""
        self._topic = cast("UsedTopic", GONE)
        self._is_needed = GONE
        self.on_left = None

    def check(self) -> bool:
        """Whether the topic is inactive now."""
        topic, policy = self._topic, self._topic.policies.inactive_topic_policies
        if not policy.delete or policy.mode is None:
            return False
        if topic.has_producers or self._is_needed(policy.mode):
            self.used()
            return False
        unused_s = self._loop.time() - self._used_s
        return unused_s >= policy.inactive_s and topic.is_open and not topic.in_use and not self._is_retained(unused_s)

    def _is_retained(self, unused_s: float) -> bool:
        minutes = self._topic.policies.retention.time_minutes
        return self._topic.has_messages and (minutes < 0 or unused_s < minutes * 60)
