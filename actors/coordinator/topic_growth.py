"""Growth of partitioned topics: new partitions have every subscription before a client can know them.

A subscription belongs to the whole topic when it is on partition 0, as in Pulsar: every client knows that partition.

States of one topic, and what is stored in each:

| state | its record | partitions 0 … n − 1 | partitions n … m − 1 |
| --- | --- | --- | --- |
| stable(n) | n partitions | there | nothing |
| growing(n → m) | n partitions, `growing` m | there | nothing, or their beginnings; nobody has a grant for them |
| stable(m) | m partitions, `grown` from n | there | there, with the subscriptions of partition 0 at *earliest* |

- stable(n) → growing(n → m): a compare-and-set of the topic's record (`TopicRegistry.begin_growth`). Clients and
  brokers go on with n partitions. Policies, properties and schema need no step: the whole topic has one record of each.
- growing(n → m) → stable(m): the subscriptions of partition 0 are listed. Partitions of the topic that lack some get
  them from their owners. Those to come get their beginnings (`storage.managed.beginning`). Then a compare-and-set of
  the topic's record ends the growth, and clients and brokers learn the new number (`TopicRegistry.end_growth`). There
  is no way back. A failing step is repeated, with back-off, as long as this coordinator is active.
- growing → gone: a deletion marks the record, and deletes the beginnings with all else.

A growth from n to n partitions (as in Pulsar, it is allowed) gives partitions what they lack.

Invariants:

1. When a client can learn of a partition, every subscription on partition 0 is on that partition, at its first entry.
2. A broker creates a subscription on partition 0 only after it is on all partitions that the client may not know. The
   cursor's record is written only while the topic's record has the version under which the broker heard of these
   (`prepare_subscription`). The begin and the end of a growth each make another version. So a subscription that is
   created while a topic grows is in the list. If it is not, its creation is refused, and tried again after the growth.
3. What is stored for a partition to come is stored only while the topic's record says that it grows. A deletion, and
   a topic that is created again, therefore get nothing of it.

`prepare_subscription` has a second duty. A client may have asked for the number of partitions before the end of a
growth, and subscribe after it. It learns of the new partitions a minute later, and its producers may use them at once.
So for a while after a growth a new subscription on partition 0 is first created on the new partitions. It begins there
at the place that the client asked for.

Crash points. Before the first compare-and-set: nothing was changed. Behind it: the next coordinator finds `growing`
(`start`), lists again and writes what is missing. Beginnings that are no longer wanted are deleted. Behind the last
compare-and-set: nothing is left to do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from ...protocol.errors import ConflictError, MagnetarError, NotAllowedError, ServiceUnitNotReady, TopicNotFound
from ...protocol.slots import TopicGrant
from ...protocol.topics import TopicName, topic_of_path
from ...runtime import retry
from ...runtime.backoff import Backoff, LimitedBackoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.managed.beginning import is_subscription, store_beginnings, subscription_properties
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import Versioned, list_pages
from ..members.contracts_broker import BrokerContract, Point
from ..members.contracts_coordinator import GROW_TIMEOUT_S, TopicGrowthContract
from ..members.peer_calls import MemberCalls
from .grants import Grants
from .placement import SlotPlacement
from .topic_registry import Growth, TopicRegistry

logger = logging.getLogger(__name__)

CALLS_AT_A_TIME = 16
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
PREPARE_LIMIT_S = 8.0
"""How long the creation of a subscription waits for the end of a growth, and for owners of the new partitions."""

Cursors = dict[str, dict[str, Versioned]]
"""The subscriptions that are stored of each partition, by its path."""


class _UnderWay(NamedTuple):
    ended: "asyncio.Future[None]"
    task: "asyncio.Task[None]"


class TopicGrowths(TopicGrowthContract):
    """See the module."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        placement: SlotPlacement,
        registry: TopicRegistry,
        broker_calls: MemberCalls[BrokerContract],
        grants: Grants,
    ) -> None:
        self.failures = 0
        """Tries that failed and were, or will be, repeated."""
        self._env = env
        self._store = store
        self._placement = placement
        self._registry = registry
        self._broker_calls = broker_calls
        self._grants = grants
        self._under_way: dict[str, _UnderWay] = {}
        self._tasks = Tasks()
        registry.on_growing = self._begin

    def start(self) -> None:
        """Go on with the growths that an earlier coordinator began."""
        for topic in self._registry.growing():
            self._begin(topic)

    async def close(self) -> None:
        """Stop; what has begun is finished by the next coordinator."""
        await self._tasks.close()

    @property
    def under_way(self) -> list[str]:
        """The topics that grow."""
        return list(self._under_way)

    async def grow_topic(self, *, topic: str, partitions: int) -> None:
        name = TopicName.parse(topic)
        try:
            async with asyncio.timeout(GROW_TIMEOUT_S):
                while (earlier := self._under_way.get(name.full)) is not None:
                    await asyncio.wait((earlier.ended,))
                await self._registry.begin_growth(name, partitions)
                if (growth := self._under_way.get(name.full)) is not None:
                    await asyncio.shield(growth.ended)
        except TimeoutError:
            raise ServiceUnitNotReady(
                f"the growth of {name.full} takes long: it goes on, and the call can be repeated"
            ) from None

    async def prepare_subscription(
        self, *, topic: str, subscription: str, position: Point, properties: dict[str, str]
    ) -> int | None:
        name = TopicName.parse(topic)
        if name.partition != 0:
            raise NotAllowedError(f"{topic} is not the first partition of a topic")
        whole = name.without_partition()
        try:
            async with asyncio.timeout(PREPARE_LIMIT_S):
                while True:
                    while (growth := self._under_way.get(whole.full)) is not None:
                        await asyncio.wait((growth.ended,))
                    facts = self._registry.facts(name)
                    if facts is None:
                        self._registry.members(whole)
                        raise TopicNotFound(f"{name.full} does not exist")
                    new = self._registry.new_partitions(whole)
                    await self._create_on(whole, {one: {subscription: properties} for one in new}, position)
                    if self._registry.facts(name) == facts:
                        return facts.version
        except TimeoutError:
            raise ServiceUnitNotReady(f"{whole.full} is growing: try again") from None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _begin(self, topic: TopicName) -> None:
        if topic.full not in self._under_way and not self._tasks.closed:
            ended = asyncio.get_running_loop().create_future()
            task = self._tasks.spawn(self._finish(topic, ended), f"grow {topic.full}")
            self._under_way[topic.full] = _UnderWay(ended, task)

    async def _finish(self, topic: TopicName, ended: "asyncio.Future[None]") -> None:
        """Carry a growth to its end, however often that has to be tried."""

        def failed(error: Exception, delay_s: float) -> None:
            if isinstance(error, MagnetarError):
                logger.warning("%s has not grown yet: %s", topic.full, error)
            else:
                logger.exception("the growth of %s failed and is tried again", topic.full)
            self.failures += 1

        try:
            await retry.forever(
                Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S),
                lambda: self._advance(topic),
                retriable=retry.every_error,
                on_retry=failed,
            )
        finally:
            del self._under_way[topic.full]
            if self._registry.find(topic) is None:
                ended.set_exception(TopicNotFound(f"{topic.full} does not exist"))
            elif self._tasks.closed:
                ended.set_exception(ServiceUnitNotReady("the coordinator is closing"))
            else:
                ended.set_result(None)
            ended.exception()  # perhaps no caller waits

    async def _advance(self, topic: TopicName) -> None:
        growth = self._registry.growth(topic)
        if growth is None:
            return  # an earlier try ended it, or the topic was deleted
        await self._carry_over(topic, growth)
        await self._registry.end_growth(topic, growth.target)
        logger.info("%s has %d partitions", topic.full, growth.target)
        if topic.persistent:
            await self._have_loaded([topic.partition_topic(one) for one in range(growth.partitions, growth.target)])

    async def _carry_over(self, topic: TopicName, growth: Growth) -> None:
        """Give all partitions, those to come included, the subscriptions of partition 0."""
        if not topic.persistent:
            return  # its subscriptions are not stored
        stored = await self._stored_cursors(topic)
        first = stored.get(topic.partition_topic(0).path, {})
        wanted = await self._properties(topic, {name: one for name, one in first.items() if is_subscription(one.value)})
        lacking: dict[int, Mapping[str, Mapping[str, str]]] = {}
        for index in range(1, growth.partitions):
            there = stored.get(topic.partition_topic(index).path, {})
            lacking[index] = {name: properties for name, properties in wanted.items() if name not in there}
        await self._create_on(topic, lacking, "earliest")
        coming = [topic.partition_topic(index).path for index in range(growth.partitions, growth.target)]
        now_ms = self._env.clock.now_ms()
        beginnings = {path: stored.get(path, {}) for path in coming}
        await store_beginnings(self._store, beginnings, wanted, growth.epoch, now_ms, growth.guard)

    async def _have_loaded(self, topics: Iterable[TopicName]) -> None:
        """Have the owners open new partitions: their checks (inactivity, expiry) begin with that. Without an answer
        their first clients do it."""
        shares: dict[str, list[TopicGrant]] = {}
        for name in topics:
            owner = self._placement.live_owner(name)
            if owner is not None and (grant := self._grants.make(name)) is not None:
                shares.setdefault(owner, []).append(grant)
        calls = (self._broker_calls.of(owner).take_topics(grants=grants) for owner, grants in shares.items())
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(error, MagnetarError):
                logger.info("new partitions are opened by their first clients: %s", error)

    async def _stored_cursors(self, topic: TopicName) -> Cursors:
        found: Cursors = {}
        prefix = metadata_keys.cursors_prefix(topic.path)[:-1] + "-partition-"
        async for records in list_pages(self._store, prefix):
            for key, record in records:
                path = key.removeprefix(metadata_keys.CURSORS_PREFIX).rpartition("/")[0]
                if topic_of_path(path).without_partition() == topic:
                    found.setdefault(path, {})[metadata_keys.subscription_of(key)] = record
        return found

    async def _properties(self, topic: TopicName, cursors: Mapping[str, Versioned]) -> dict[str, Mapping[str, str]]:
        """The properties of these subscriptions of partition 0. Its owner knows those that are in cursor ledgers.

        Raises ServiceUnitNotReady when it has to be asked and does not answer.
        """
        found = {name: subscription_properties(record.value) for name, record in cursors.items()}
        if None in found.values():
            first = topic.partition_topic(0)
            figures = await self._owner_of(first).internal_stats(topic=first.full)
            known = {one.name: one.properties for one in figures.cursors}
            # One that the owner no longer has was deleted since it was listed.
            found = {name: known.get(name) if one is None else one for name, one in found.items()}
        return {name: one for name, one in found.items() if one is not None}

    async def _create_on(
        self, topic: TopicName, wanted: Mapping[int, Mapping[str, Mapping[str, str]]], position: Point
    ) -> None:
        """Have the owners of partitions create subscriptions (name → properties) at a place."""
        permits = asyncio.Semaphore(CALLS_AT_A_TIME)

        async def create(name: TopicName, subscription: str, properties: Mapping[str, str]) -> None:
            async with permits:
                await self._patiently(lambda: self._create(name, subscription, properties, position))

        outcomes = await asyncio.gather(
            *(
                create(topic.partition_topic(index), subscription, properties)
                for index, subscriptions in wanted.items()
                for subscription, properties in subscriptions.items()
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _create(self, name: TopicName, subscription: str, properties: Mapping[str, str], position: Point) -> None:
        further = {"properties": dict(properties)} if properties else {}
        with contextlib.suppress(ConflictError):  # it exists
            await self._owner_of(name).create_subscription(
                topic=name.full, subscription=subscription, position=position, **further
            )

    async def _patiently(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """While a partition moves, its new owner is asked again."""
        await retry.limited(
            LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, PREPARE_LIMIT_S),
            attempt,
            retriable=lambda error: isinstance(error, ServiceUnitNotReady),
            on_retry=retry.silently,
        )

    def _owner_of(self, topic: TopicName) -> BrokerContract:
        owner = self._placement.live_owner(topic)
        if owner is None:
            raise ServiceUnitNotReady(f"{topic.full} has no live owner")
        return self._broker_calls.of(owner)
