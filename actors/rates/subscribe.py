"""How often the same consumer may subscribe: the policy `subscribe_rate`.

As in Pulsar, a consumer is the same if topic, address of its host, name and id are. A client that connects again and
again, because its consumer fails each time, is held back that way. Another name or id counts by itself.

A consumer has a token bucket from its first subscribe on. Each subscribe takes a whole token. The number of buckets of
one broker is bounded. Beyond that the broker forgets the bucket that was not used for the longest time.
"""

from typing import NamedTuple

from ...protocol.errors import NotAllowedError
from ...runtime.rate_limit import TokenBucket
from ..policies.rates import SubscribeRate

CONSUMERS_MAX = 10_000
"""Consumers of one broker whose subscribes are remembered."""


class SubscribingConsumer(NamedTuple):
    """Who subscribes."""

    topic: str
    host: str
    name: str
    consumer_id: int


class SubscribeRates:
    """See the module. One for each broker."""

    def __init__(self, consumers_max: int = CONSUMERS_MAX) -> None:
        self._consumers_max = consumers_max
        self._buckets: dict[SubscribingConsumer, tuple[SubscribeRate, TokenBucket]] = {}

    def check(self, rate: SubscribeRate, consumer: SubscribingConsumer, now_s: float) -> None:
        """Count a subscribe. Raises NotAllowedError, and counts nothing, where the rate does not allow it."""
        found = self._buckets.pop(consumer, None)
        if found is None or found[0] != rate:
            found = (rate, TokenBucket(rate.per_consumer, rate.period_s, now_s))
        self._buckets[consumer] = found
        if len(self._buckets) > self._consumers_max:
            del self._buckets[next(iter(self._buckets))]
        bucket = found[1]
        if bucket.level(now_s) < 1:
            raise NotAllowedError(
                f"consumer {consumer.name} subscribes to {consumer.topic} more than {rate.per_consumer} times in "
                f"{rate.period_s} s: wait, or raise the subscribe rate"
            )
        bucket.take(1)
