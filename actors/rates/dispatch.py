"""How fast a topic, and each of its subscriptions, gives messages to consumers.

A subscription reads no more than its own limit and that of the topic allow at the time. When one of them allows
nothing, the loop of the subscription ends, and a timer starts it again. What was read is sent, even if it turns out to
be more than was allowed: it is owed. As in Pulsar, each message of a batch counts.

A rate that is relative to the publish rate is that much more than what the topic is taking.
"""

import asyncio

from ...runtime.meter import Meter
from ...runtime.rate_limit import RateLimit
from ..dispatch.consumer import Delivery
from ..policies.effective import EffectivePolicies
from ..policies.rates import DispatchRate


class DispatchLimit:
    """What may be sent under one rate."""

    def __init__(self, rate: DispatchRate, published: Meter) -> None:
        self._published = published if rate.relative else None
        self._loop = asyncio.get_running_loop()
        self._limit = RateLimit(rate.messages, rate.size_bytes, max(rate.period_s, 1), self._loop.time())

    def wait_s(self) -> float:
        """In how many seconds something may be sent; 0 for now."""
        now_s = self._loop.time()
        return self._limit.wait_s(now_s, self._more(now_s))

    def allowance(self) -> tuple[float, float]:
        """How many messages and bytes may be sent now."""
        now_s = self._loop.time()
        return self._limit.allowance(now_s, self._more(now_s))

    def sent(self, deliveries: list[Delivery]) -> None:
        """These were sent."""
        for delivery in deliveries:
            self._limit.take(delivery.messages, sum([len(entry[1]) for entry in delivery.entries]))

    def _more(self, now_s: float) -> tuple[float, float]:
        if self._published is None:
            return 0.0, 0.0
        return self._published.message_rate(now_s), self._published.byte_rate(now_s)


class DispatchRates:
    """The limits of one topic."""

    def __init__(self, policies: EffectivePolicies, published: Meter) -> None:
        self._published = published
        self._topic_rate = policies.topic_dispatch_rate
        self._subscription_rate = policies.subscription_dispatch_rate
        self._topic = self._limit_of(self._topic_rate)

    def use(self, policies: EffectivePolicies) -> bool:
        """These hold from now on. Returns whether subscriptions need new limits."""
        topic, subscription = policies.topic_dispatch_rate, policies.subscription_dispatch_rate
        if (topic, subscription) == (self._topic_rate, self._subscription_rate):
            return False
        if topic != self._topic_rate:
            self._topic_rate = topic
            self._topic = self._limit_of(topic)
        self._subscription_rate = subscription
        return True

    def limits(self) -> tuple[DispatchLimit, ...]:
        """The limits of one more subscription: that of the topic, which all share, and its own."""
        both = (self._topic, self._limit_of(self._subscription_rate))
        return tuple(limit for limit in both if limit is not None)

    def _limit_of(self, rate: DispatchRate) -> DispatchLimit | None:
        return DispatchLimit(rate, self._published) if rate.is_limit else None
