"""Consumers that acknowledge nothing, on a topic whose messages expire, are evicted, or are skipped: `Withholding`.

A run has two subscriptions of different types. Their consumers take what comes. They ask for some of it again, and
leave now and then. An operator skips messages, skips all, and has messages expire. A consumer of a Shared or Key_Shared
subscription gets nothing more when it holds as many messages as the policy says.

- I7: what was passed over goes out to nobody (`PassedWatch`), and no dispatcher holds anything of it
  (`validate_services`).
- I7: in the end the operator skips all while the consumers hold what they may. Whatever comes then is given to each
  subscription, although others join that Key_Shared keys move to.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.broker import backlog
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import Timeout
from magnetar.protocol.topics import TopicName

from ..checkers.history import History, show
from ..checkers.passed_watch import PassedWatch
from ..checkers.policies_agree import policies_agree
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

CHECKS_EVERY_S = 0.5
MESSAGE_BYTES = 200
QUOTA_MESSAGES = 10
KEYS = 4
PENDING_MAX = 20
HELD_MAX = 5
"""So many messages a consumer holds at most, where the type has such a bound."""
LAST = 4
"""So many messages are sent when all was skipped: one consumer may hold them."""
LOOK_MS = 300
GIVEN_LIMIT_S = 20.0
AGAIN_SHARE = 0.1
LEAVING_SHARE = 0.03
TYPES = (
    magnetar.ConsumerType.Shared,
    magnetar.ConsumerType.Shared,
    magnetar.ConsumerType.KeyShared,
    magnetar.ConsumerType.KeyShared,
    magnetar.ConsumerType.Failover,
    magnetar.ConsumerType.Exclusive,
)
KINDS: dict[str, tuple[str, object]] = {
    "ttl": ("message_ttl", 1),
    "evict": (
        "backlog_quota_map",
        {
            "destination_storage": {
                "limitSize": QUOTA_MESSAGES * MESSAGE_BYTES,
                "limitTime": 0,
                "policy": "consumer_backlog_eviction",
            }
        },
    ),
}


class Withholding(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        cluster.settings = replace(
            cluster.settings,
            message_expiry_check_interval_minutes=CHECKS_EVERY_S / 60,
            backlog_quota_check_interval_s=CHECKS_EVERY_S,
        )
        self._gives_up = KINDS.get(random.choice(("ttl", "evict", "skip")))
        self._skips_within_s = 3.0 if self._gives_up else 0.6
        self._types = dict(zip((f"{name}-0", f"{name}-1"), random.sample(TYPES, 2), strict=True))
        self._queue_size = random.choice((1, 5, 1000))
        self._bound = random.choice(("consumer", "subscription"))
        self._watch = PassedWatch(history, topic)
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._given: dict[str, dict[bytes, None]] = {one: {} for one in self._types}
        self._ended = False
        self._admin: CoordinatorClient

    def watch(self, stack: ExitStack) -> None:
        self._watch.install(stack)

    # -- beginning ---------------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        self.connect()
        self._admin = await new_admin(self)
        self._partition = (await self.again(partial(self.client.get_topic_partitions, self.topic)))[0]
        for subscription, kind in self._types.items():
            alone = kind is magnetar.ConsumerType.Exclusive
            for _ in range(1 if alone else 2):
                await self._join(subscription)
        await self._set(f"max_unacked_messages_per_{self._bound}", HELD_MAX)
        if self._gives_up is not None:
            await self._set(*self._gives_up)
        self._producer = await self.again(self._create)

    async def _set(self, policy: str, value: object) -> None:
        topic = TopicName.parse(self.topic).full
        await self.again(partial(self._admin.call, "set_topic_policy", topic=topic, policy=policy, value=value))

    async def _create(self) -> Any:
        return await self.client.create_producer(self._partition, send_timeout_millis=0, batching_enabled=False)

    async def _join(self, subscription: str) -> None:
        consumer = await self.again(partial(self._subscribe, subscription))
        self.begin(self._consume(subscription, consumer), "consume and hold")

    async def _subscribe(self, subscription: str) -> Any:
        return await self.client.subscribe(
            self._partition,
            subscription,
            self._types[subscription],
            initial_position=magnetar.InitialPosition.Earliest,
            receiver_queue_size=self._queue_size,
            negative_ack_redelivery_delay_ms=300,
        )

    async def start(self) -> None:
        self.begin(self._publish(), "publish what is held")
        self.begin(self._skip_now_and_then(), "skip")

    # -- publishing and consuming ------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, 3)):
                if len(self._pending) < PENDING_MAX:
                    self._send()
            await asyncio.sleep(self.random.random() * 0.5)

    def _send(self) -> bytes:
        payload = f"{self.name}:{self._number:06d}".encode().rjust(MESSAGE_BYTES, b".")
        key = f"key-{self._number % KEYS}"
        self._number += 1
        self._pending[payload] = None

        def answered(result: magnetar.Result, _: MessageId) -> None:
            self._pending.pop(payload, None)
            if result != magnetar.Result.Ok:
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")

        self._producer.send_async(payload, answered, None, key)
        return payload

    async def _consume(self, subscription: str, consumer: Any) -> None:
        given, many = self._given[subscription], self._types[subscription] in TYPES[:4]
        while not self._ended:
            try:
                message = await consumer.receive(LOOK_MS)
            except Timeout:
                continue
            given[bytes(message.data())] = None
            if self.stopping:
                continue
            if many and self.random.random() < AGAIN_SHARE:
                await consumer.negative_acknowledge(message)
            if self.random.random() < LEAVING_SHARE:
                await consumer.close()
                consumer = await self.again(partial(self._subscribe, subscription))
        await consumer.close()

    # -- an operator -------------------------------------------------------------------------------------------------

    async def _skip_now_and_then(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.random.random() * self._skips_within_s)
            subscription = self.random.choice([*self._types])
            order = self.random.choice((_skip_all, partial(_skip, entries=self.random.randint(1, 8)), _expire))
            await self._have_owner(partial(order, subscription=subscription))

    async def _have_owner(self, order: Any) -> bool:
        """Have the owner of the topic do something. Returns whether it did."""
        for node in self.cluster.brokers:
            topic = node.service.topics.loaded.get(self._partition) if node.ready else None
            if isinstance(topic, PersistentTopic) and topic.is_open:
                coroutine: Coroutine[Any, Any, None] = order(topic)
                done, _ = await self.ask(node, coroutine, "skip")
                self.history.counts["skipped for an operator"] += done
                return done
        return False

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """All is skipped while consumers hold what they may, and each subscription goes on."""
        self.stopping = True
        if self._gives_up is not None:
            await self._set(self._gives_up[0], None)
        while self._pending or not policies_agree(self.cluster):  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        for _ in range(2 * HELD_MAX):
            self._send()
        for subscription, kind in self._types.items():
            if kind is not magnetar.ConsumerType.Exclusive:
                await self._join(subscription)
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # consumers are given what they may hold
        for subscription in self._types:
            while not await self._skipped_all(subscription):  # noqa: ASYNC110  # virtual time costs nothing
                await asyncio.sleep(0.1)
        last = [self._send() for _ in range(LAST)]
        end = self.cluster.loop.now + GIVEN_LIMIT_S
        while self._missing(last) and self.cluster.loop.now < end:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        for subscription, payload in self._missing(last):
            kind = self._types[subscription].name
            self.history.violated(
                f"I7: {subscription}, which is {kind}, is never given {show(payload)}: it was skipped to"
            )
        self._ended = True
        for task in self.tasks:
            await task

    async def _skipped_all(self, subscription: str) -> bool:
        return await self._have_owner(partial(_skip_all, subscription=subscription))

    def _missing(self, payloads: list[bytes]) -> list[tuple[str, bytes]]:
        return [
            (subscription, payload)
            for subscription, given in self._given.items()
            for payload in payloads
            if payload not in given
        ]

    async def close(self) -> None:
        await self._admin.close()
        await super().close()


async def _skip_all(topic: PersistentTopic, subscription: str) -> None:
    await topic.subscriptions[subscription, True].acknowledge_all_to(topic.ledger.last_confirmed)


async def _skip(topic: PersistentTopic, subscription: str, entries: int) -> None:
    await backlog.skip(topic, topic.subscriptions[subscription, True], entries)


async def _expire(topic: PersistentTopic, subscription: str) -> None:
    await topic.keeping.expire_each([topic.subscriptions[subscription, True]], 1)
