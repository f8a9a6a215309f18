"""A topic with a policy of what it keeps, a publisher, and consumers that are too slow for it: `Keeping`.

A run has one of these policies, as a policy of the topic: a time to live, a backlog quota that evicts by size or by
age, one that holds producers, or a retention. `KeepWatch` sees what brokers give up (I7, I9). In some runs a part of
the messages has publish times of wrong clocks: an hour behind, of 1970, or of next year. The clients see:

- I7: what has its receipt and was not passed over is given to each subscription.
- I8: in the end messages can be published again, whatever a quota said meanwhile.
- I8: where messages expire, all of a subscription without consumers have expired soon after the last one came. So
  they have where the entries that other subscriptions stand at cannot be read (`_expires_beside_others`).
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import magnetar
from magnetar.client.core.message_id import MessageId
from magnetar.client.producing.outbox import Batch
from magnetar.protocol.errors import EntryUnknown, Timeout
from magnetar.protocol.message_id import Position
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.managed_ledger import ManagedLedger

from ..checkers.history import History, show
from ..checkers.keep_watch import KeepWatch, Kept
from ..checkers.policies_agree import policies_agree
from ..world.cluster import SimCluster
from ..world.process import EPOCH_MS
from .admin import new_admin
from .workload import Workload

MESSAGE_BYTES = 500
QUOTA_MESSAGES = 20
PENDING_MAX = 20
RETENTION_MINUTES = 2
LOOKS_MAX = 100
LOOK_MS = 500
FORGOTTEN = "forgotten"
CHECKS_EVERY_S = 0.5
KINDS = ("ttl", "evict", "age", "hold", "retention")
EXPIRED_LIMIT_S = 30.0
"""Clocks of nodes differ, brokers look now and then, and may load the topic first."""
BEHIND = "standing behind"
"""It comes behind the others when a topic has messages expire."""
LATE_TTL_S = 12
STAYS_S = 10.0
"""So long after a message its ledger is still open: a broker that loads the topic then has to read when that came."""
LATE_LIMIT_S = 6.0
HOUR_MS = 3_600_000
WRONG_CLOCKS_MS = (-HOUR_MS, -HOUR_MS, -EPOCH_MS, 365 * 24 * HOUR_MS)


class Keeping(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        kind = random.choice(KINDS)
        self.may_crash = kind in ("evict", "retention") and random.random() < 0.5
        self._policy, self._value, kept = _policy(kind, random.choice((1, 3)))
        cluster.settings = replace(
            cluster.settings,
            message_expiry_check_interval_minutes=CHECKS_EVERY_S / 60,
            backlog_quota_check_interval_s=CHECKS_EVERY_S,
            ledger_entries_max=random.choice((3, 10)),
        )
        self._watch = KeepWatch(history, topic, kept, lambda: EPOCH_MS + int(cluster.loop.now * 1000))
        cluster.on_record.append(self._watch.metadata_changed)
        self._subscriptions = {f"{name}-{number}": random.choice((0.02, 0.3, 1.5)) for number in range(2)}
        """And how long each takes for a message, at most."""
        self._pace_s = random.choice((0.05, 0.2))
        self._wrong_share = random.choice((0.0, 0.2, 0.5))
        """Of messages whose producers' clocks are wrong."""
        self._expires = kept.ttl_s > 0
        self._unreadable: Position | None = None
        """No bookie says whether it has this entry of the first partition."""
        self._consumers: dict[str, Any] = {}
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._stored: dict[bytes, tuple[str, tuple[int, int]]] = {}
        """Messages with a receipt, and where they are."""
        self._given: dict[str, dict[bytes, None]] = {one: {} for one in self._subscriptions}

    def watch(self, stack: ExitStack) -> None:
        self._watch.install(stack)
        read = ManagedLedger.read

        async def reading(ledger: ManagedLedger, first: Position, *others: Any, **named: Any) -> Any:
            if first == self._unreadable and ledger.name == TopicName.parse(self._partitions[0]).path:
                raise EntryUnknown(f"no bookie says whether it has {first} of {ledger.name}")
            return await read(ledger, first, *others, **named)

        stack.enter_context(patch.object(ManagedLedger, "read", reading))

    # -- beginning ---------------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        self.connect()
        self._partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        for subscription in self._subscriptions:
            self._consumers[subscription] = await self.again(partial(self._subscribe, subscription))
            for topic in self._partitions:
                self._watch.subscribed(TopicName.parse(topic).path, subscription)
        if self._expires:
            forgotten = await self.again(partial(self._subscribe, FORGOTTEN))
            await forgotten.close()
            for topic in self._partitions:
                self._watch.subscribed(TopicName.parse(topic).path, FORGOTTEN)
        await self._set_policy(self._value)
        self._producer = await self.again(self._create)

    async def _set_policy(self, value: object) -> None:
        """From here on all brokers that could trim know it."""
        admin = await new_admin(self)
        topic = TopicName.parse(self.topic).full
        await self.again(partial(admin.call, "set_topic_policy", topic=topic, policy=self._policy, value=value))
        await admin.close()
        while not policies_agree(self.cluster):  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)

    async def _subscribe(self, subscription: str) -> Any:
        return await self.client.subscribe(
            self.topic,
            subscription,
            magnetar.ConsumerType.Shared,
            initial_position=magnetar.InitialPosition.Earliest,
            receiver_queue_size=2,
        )

    async def _create(self) -> Any:
        producer = await self.client.create_producer(self.topic, send_timeout_millis=0, batching_enabled=False)
        for one in producer._producer.producers:
            one._encoder.encode = partial(self._encode, one._encoder.encode)
        return producer

    def _encode(self, encode: Callable[[Batch, int], list[bytes]], batch: Batch, now_ms: int) -> list[bytes]:
        """A message gets its publish time here: some by a clock that is wrong."""
        if self.random.random() < self._wrong_share:
            now_ms += self.random.choice(WRONG_CLOCKS_MS)
            self.history.counts["publish times of wrong clocks"] += 1
        return encode(batch, now_ms)

    async def start(self) -> None:
        self.begin(self._publish(), "publish what is kept")
        for subscription, slowness_s in self._subscriptions.items():
            self.begin(self._consume(subscription, slowness_s), "consume slowly")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    # -- publishing and consuming ------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            if len(self._pending) < PENDING_MAX:
                self._send()
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _send(self) -> None:
        payload = f"{self.name}:{self._number:06d}".encode().rjust(MESSAGE_BYTES, b".")
        self._number += 1
        pending = self._pending
        pending[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if result == magnetar.Result.Ok:
                partition = TopicName.parse(self._partitions[max(message_id.partition(), 0)]).path
                if message_id.ledger_id() >= 0:  # else it was stored with a receipt that was lost
                    self._stored[payload] = (partition, (message_id.ledger_id(), message_id.entry_id()))
            elif pending is self._pending:  # else of a process that was killed
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")

        self._producer.send_async(payload, answered)

    async def _consume(self, subscription: str, slowness_s: float) -> None:
        while not self.stopping:
            await self._take(subscription)
            await asyncio.sleep(self.random.random() * 2 * slowness_s)

    async def _take(self, subscription: str) -> bool:
        consumer = self._consumers[subscription]
        try:
            message = await consumer.receive(LOOK_MS)
        except Timeout:
            return False
        self._given[subscription][bytes(message.data())] = None
        await consumer.acknowledge(message)
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Each subscription is given everything that it was not made to pass over; then there is room again."""
        self.stopping = True
        for task in self.tasks:
            await task
        self._send()
        looks = 0
        while (self._pending or any(map(self._owed, self._subscriptions))) and looks < LOOKS_MAX:
            for subscription in self._subscriptions:
                for _ in range(max(len(self._owed(subscription)), bool(self._pending))):
                    looks += not await self._take(subscription)
        if self._pending:
            raise AssertionError(f"I8: {len(self._pending)} messages to {self.topic} have no receipt")
        for subscription in self._subscriptions:
            if owed := self._owed(subscription):
                places = [self._stored[payload] for payload in owed[:3]]
                self.history.violated(f"I7: {subscription} of {self.topic} is never given {places}")
            await self._consumers[subscription].close()
        if self._expires:
            await self.cluster.until(
                partial(self._all_expired, FORGOTTEN, self._partitions),
                EXPIRED_LIMIT_S,
                f"I8: not all of {FORGOTTEN} expires",
            )
        if self._policy == "message_ttl":
            await self._expires_beside_others()

    async def _expires_beside_others(self) -> None:
        """All other subscriptions stand at an entry that cannot be read, and `BEHIND` at one that can.

        The topic is loaded again, so its broker has to read the entries to learn when they came.
        """
        partition = self._partitions[0]
        await self._set_policy(LATE_TTL_S)
        producer = await self.again(partial(self.client.create_producer, partition, send_timeout_millis=0))
        unreadable = await producer.send(b"cannot be read")
        behind = await self.again(
            partial(self.client.subscribe, partition, BEHIND, initial_position=magnetar.InitialPosition.Latest)
        )
        await behind.close()
        self._watch.subscribed(TopicName.parse(partition).path, BEHIND, at_end=True)
        sent_at = self.cluster.loop.now
        await producer.send(b"can be read")
        self._unreadable = unreadable.position
        await asyncio.sleep(STAYS_S)
        await self.again(partial(self._unload, TopicName.parse(partition).full))
        left_s = sent_at + LATE_TTL_S + LATE_LIMIT_S - self.cluster.loop.now
        await self.cluster.until(
            partial(self._all_expired, BEHIND, [partition]), left_s, f"I8: {BEHIND} waits for others to expire"
        )
        self.history.counts["expired beside others"] += 1
        self._unreadable = None
        await producer.close()

    async def _unload(self, topic: str) -> None:
        admin = await new_admin(self)
        try:
            await admin.ask.unload(topic=topic)
        finally:
            await admin.close()

    def _all_expired(self, subscription: str, partitions: list[str]) -> bool:
        """Whether a subscription that nobody uses has no backlog in these partitions."""
        loaded = [topic for node in self.cluster.brokers if node.ready for topic in node.service.topics.loaded.values()]
        ours = {topic.name.full: topic for topic in loaded if topic.name.full in partitions and topic.is_open}
        return len(ours) == len(partitions) and not any(
            topic.subscriptions[subscription, True].backlog_entries for topic in ours.values()
        )

    def _owed(self, subscription: str) -> list[bytes]:
        given = self._given[subscription]
        return [
            payload
            for payload, (partition, position) in self._stored.items()
            if payload not in given and not self._watch.was_passed_over(partition, subscription, position)
        ]


def _policy(kind: str, age_s: int) -> tuple[str, object, Kept]:
    """The policy of a kind: its name, its value, and what it lets the topic give up."""
    quota_bytes = QUOTA_MESSAGES * MESSAGE_BYTES
    if kind == "ttl":
        return "message_ttl", age_s, Kept(ttl_s=age_s)
    if kind == "retention":
        value = {"retentionTimeInMinutes": RETENTION_MINUTES, "retentionSizeInMB": -1}
        return "retention", value, Kept(retention_s=RETENTION_MINUTES * 60)
    if kind == "age":
        return "backlog_quota_map", {"message_age": _quota(0, age_s, evicts=True)}, Kept(ttl_s=age_s)
    quota = _quota(quota_bytes, 0, evicts=kind == "evict")
    return "backlog_quota_map", {"destination_storage": quota}, Kept(quota_bytes=quota_bytes, evicts=kind == "evict")


def _quota(size_bytes: int, time_s: int, *, evicts: bool) -> dict[str, object]:
    policy = "consumer_backlog_eviction" if evicts else "producer_request_hold"
    return {"limitSize": size_bytes, "limitTime": time_s, "policy": policy}
