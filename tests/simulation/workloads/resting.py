"""Topics that rest between their uses, and that move, and get other policies, while they rest: `Resting`.

Clients come to a topic, publish and consume for a moment, and leave. Some messages are delayed: they are due while the
topic rests. An operator moves slots and single topics, and changes what a topic has to do by itself.

- I18: what rests has nothing to do, and everything else is loaded by its owner (`RestWatch`, which every cluster has).
- I18: the coordinator may end while a topic moves, and the next one knows nothing of the move.
- I8, I18: in the end messages expire although nobody asks for their topic, which was at rest when it moved.
- I7: what has its receipt is given to the subscription when a consumer comes to a topic at rest.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.coordinator.office import Office
from magnetar.actors.coordinator.owner_methods import PlacementMethods
from magnetar.protocol.errors import MagnetarError, Timeout
from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName

from ..checkers.history import History, show
from ..checkers.policies_agree import policies_agree
from ..checkers.rest_watch import topics_are_loaded
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

TOPICS = 3
KEEPER = "keeper"
MESSAGES_MAX = 4
DELAYED_SHARE = 0.3
DELAY_MAX_S = 4.0
PAUSE_MAX_S = 1.5
"""Between two uses of a topic."""
OPERATOR_PAUSE_MAX_S = 0.6
APART_MAX_S = 0.1
"""Between a move and a change of policies that meet."""
SEND_TIMEOUT_MS = 5000
LOOK_MS = 300
LOOKS_MAX = 60
FAR_TTL_S = 86_400
"""Gives a topic something to do by itself, which never comes in a run."""
TTL_S = 1
CHECKS_EVERY_S = 0.5
CLOCKS_APART_S = 4.0
"""The clocks of two nodes of a run differ by less."""
LOADED_LIMIT_S = 30.0
DEPOSED_SHARE = 0.5
OUTAGE_SHARE = 0.5
OUTAGE_MIN_S = 1.0


class Resting(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        super().__init__(cluster, history, random, name)
        cluster.settings = replace(
            cluster.settings,
            allow_auto_topic_creation_type="non-partitioned",
            default_num_partitions=1,
            idle_topics_loaded_max=0,
            topic_idle_s=random.choice((0.02, 0.1, 0.5)),
            message_expiry_check_interval_minutes=CHECKS_EVERY_S / 60,
        )
        self._topics = [f"{name}-{number}" for number in range(TOPICS)]
        self._policy_share = random.choice((0.0, 0.3, 0.6))
        """Of what the operator does; the rest are moves."""
        self._number = 0
        self._owed: dict[str, dict[bytes, None]] = {topic: {} for topic in self._topics}
        """Messages with a receipt that were not acknowledged."""
        self._done: dict[bytes, None] = {}

    async def setup(self) -> None:
        self.connect()
        for topic in self._topics:
            consumer = await self.again(partial(self._subscribe, topic))
            await consumer.close()

    async def start(self) -> None:
        for topic in self._topics:
            self.begin(self._use_now_and_then(topic), f"use {topic}")
        self.begin(self._operate(), "operate")

    # -- clients -----------------------------------------------------------------------------------------------------

    async def _subscribe(self, topic: str) -> Any:
        return await self.client.subscribe(
            topic, KEEPER, magnetar.ConsumerType.Shared, initial_position=magnetar.InitialPosition.Earliest
        )

    async def _use_now_and_then(self, topic: str) -> None:
        while not self.stopping:
            await asyncio.sleep(self.random.random() * PAUSE_MAX_S)
            if self.random.random() < 0.7:
                await self._publish(topic)
            if self.random.random() < 0.5:
                await self._consume(topic)

    async def _publish(self, topic: str) -> None:
        create = partial(self.client.create_producer, topic, send_timeout_millis=SEND_TIMEOUT_MS)
        producer = await self.again(create)
        for _ in range(self.random.randint(1, MESSAGES_MAX)):
            await self._send(topic, producer)
        await producer.close()

    async def _send(self, topic: str, producer: Any, *, owed: bool = True) -> None:
        payload = f"{topic}:{self._number:06d}".encode()
        self._number += 1
        is_delayed = owed and self.random.random() < DELAYED_SHARE
        delay = timedelta(seconds=self.random.random() * DELAY_MAX_S) if is_delayed else None
        try:
            await producer.send(payload, deliver_after=delay)
        except (MagnetarError, magnetar.PulsarException) as error:
            self.history.counts[f"resting: not sent: {type(error).__name__}"] += 1
        else:
            if owed and payload not in self._done:
                self._owed[topic][payload] = None

    async def _consume(self, topic: str) -> None:
        consumer = await self.again(partial(self._subscribe, topic))
        while await self._take(topic, consumer) and not self.stopping:
            pass
        await consumer.close()

    async def _take(self, topic: str, consumer: Any) -> bool:
        try:
            message = await consumer.receive(LOOK_MS)
        except Timeout:
            return False
        payload = bytes(message.data())
        self._done[payload] = None
        self._owed[topic].pop(payload, None)
        await consumer.acknowledge(message)
        return True

    # -- the operator ------------------------------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Move topics, most of which rest, and change policies: sometimes both at the same moment."""
        while not self.stopping:
            await asyncio.sleep(self.random.random() * OPERATOR_PAUSE_MAX_S)
            topic = self.random.choice(self._topics)
            if self.random.random() >= self._policy_share:
                await self._move(topic)
            elif self.random.random() < 0.5:
                await self._set_ttl(topic, self.random.choice((0, FAR_TTL_S)))
            else:
                await self._move_and(topic, partial(self._set_ttl, topic, self.random.choice((0, FAR_TTL_S))))

    async def _move_and(self, topic: str, then: Callable[[], Awaitable[None]]) -> None:
        moving = asyncio.get_running_loop().create_task(self._move(topic))
        await asyncio.sleep(self.random.random() * APART_MAX_S)
        await then()
        await moving

    async def _move(self, topic: str) -> None:
        node = self.cluster.coordinator
        if not (node.ready and node.running):
            return
        office: Office = node.service.office
        name = TopicName.parse(topic)
        destination = self.random.choice([node.name for node in self.cluster.brokers])
        if self.random.random() < 0.7:
            slot = slot_of(name, office.contents.slots)
            order = office.rebalancer.move({slot: destination})
        else:
            order = PlacementMethods(office).unload(topic=name.full, destination=destination)
        moved, _ = await self.ask(node, order, "move what rests")
        self.history.counts["topics at rest moved"] += moved

    async def _set_ttl(self, topic: str, ttl_s: int) -> None:
        node = self.cluster.coordinator
        if node.ready and node.running:
            full = TopicName.parse(topic).full
            policies = node.service.office.topic_policies
            order = policies.set_topic_policy(topic=full, policy="message_ttl", value=ttl_s)
            await self.ask(node, order, "set the time to live")

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Everything that is owed is given. Then what is left expires while nobody asks for the topic."""
        self.stopping = True
        for task in self.tasks:
            await task
        for topic in self._topics:
            await self._is_given_all(topic)
        topic = self.random.choice(self._topics)
        await self._ttl_for_certain(topic, 0)
        await self._publish_one(topic)
        await asyncio.sleep(2 * self.cluster.settings.topic_idle_s + self.random.random())  # it may rest now
        await self._move_and(topic, partial(self._set_ttl, topic, FAR_TTL_S))
        await self._ttl_for_certain(topic, FAR_TTL_S)
        await self._is_loaded()
        if self.random.random() < DEPOSED_SHARE:
            await self._depose_amid_a_move(topic)
            await self._is_loaded()
        if self.random.random() < OUTAGE_SHARE:
            await self._publish_one(topic)  # its ledger stays open, because the topic does not rest
            await self._outage(topic)
            await self._is_loaded()
        await self._ttl_for_certain(topic, TTL_S)
        await self._expires(topic)

    async def _publish_one(self, topic: str) -> None:
        """A message that is to expire."""
        producer = await self.again(partial(self.client.create_producer, topic, send_timeout_millis=SEND_TIMEOUT_MS))
        await self._send(topic, producer, owed=False)
        await producer.close()

    async def _is_given_all(self, topic: str) -> None:
        consumer = await self.again(partial(self._subscribe, topic))
        looks = 0
        while self._owed[topic] and looks < LOOKS_MAX:
            looks += not await self._take(topic, consumer)
        await consumer.close()
        if owed := list(self._owed[topic])[:5]:
            lost = ", ".join(map(show, owed))
            self.history.violated(f"I7: {lost} of {topic}, which have receipts, are not delivered")

    async def _is_loaded(self) -> None:
        await self.cluster.until(
            partial(topics_are_loaded, self.cluster), LOADED_LIMIT_S, "I18: a topic with something to do is not loaded"
        )

    async def _depose_amid_a_move(self, topic: str) -> None:
        """The coordinator ends while a topic moves: perhaps when the owner has released it, and nothing is stored."""
        moving = asyncio.get_running_loop().create_task(self._move(topic))
        await asyncio.sleep(self.random.random() ** 2 * APART_MAX_S)
        self.cluster.stop(self.cluster.coordinator)
        self.cluster.begin(self.cluster.coordinator)
        await moving

    async def _outage(self, topic: str) -> None:
        """The bookies are away for a moment, and the owner of the topic ends: the next one cannot load it at first."""
        full = TopicName.parse(topic).full
        bookies = [node for node in self.cluster.bookies if node.ready and node.running]
        owners = [node for node in self.cluster.brokers if node.ready and node.service.topics.owns(full)]
        for node in (*bookies, *owners):
            self.cluster.stop(node)
        for node in owners:
            self.cluster.begin(node)
        await asyncio.sleep(OUTAGE_MIN_S + self.random.random())
        for node in bookies:
            self.cluster.begin(node)

    async def _ttl_for_certain(self, topic: str, ttl_s: int) -> None:
        """From here on all brokers know it."""
        admin = await new_admin(self)
        topic = TopicName.parse(topic).full
        await self.again(partial(admin.call, "set_topic_policy", topic=topic, policy="message_ttl", value=ttl_s))
        await admin.close()
        while not policies_agree(self.cluster):  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)

    async def _expires(self, topic: str) -> None:
        """Nothing is asked of the topic, and its messages expire in time. A consumer that comes then gets none."""
        await asyncio.sleep(TTL_S + 4 * CHECKS_EVERY_S + CLOCKS_APART_S)
        consumer = await self.again(partial(self._subscribe, topic))
        if await self._take(topic, consumer):
            self.history.violated(f"I18: {topic} was at rest, and its messages have not expired by themselves")
        await consumer.close()
