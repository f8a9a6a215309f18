"""One client that publishes keys to a topic of its own, has that compacted, and reads what is compacted.

Nobody subscribes to the topic: the compaction cursor alone keeps what is not compacted. The rest is trimmed. Brokers
end, topics move and bookies fail in the middle of compactions. In some runs the topic gets a threshold of its own while
no broker has it loaded. From its next load on everything is kept then, before the first compaction.

I1, for each key: a reader of the compacted topic sees the last value that was acknowledged before it began, or a later
one. It never sees an older one, misses no key, and sees no key that was deleted. One exception, as in Pulsar: a reader
that is in the compacted part while another compaction ends may miss that a key was deleted.
"""

import asyncio
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.compaction.topic_compaction import COMPACTION_CURSOR, CompactionState, TopicCompaction
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.message_id import Position
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned

from ..checkers.history import History
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

KEYS = 5
PENDING_MAX = 20
DELETED_SHARE = 0.15
KEPT_FROM_THE_LOAD = 15
THRESHOLD = 1 << 30
"""It is never reached within a run: compactions are asked for."""


class Compacting(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.sent: dict[str, list[bytes]] = {f"key-{number}": [] for number in range(KEYS)}
        """Of each key all values in order; an empty one deletes it."""
        self.acknowledged: dict[str, int] = dict.fromkeys(self.sent, 0)
        """Of each key how many of its values are acknowledged, up to the last such."""
        self._pending = 0
        self._switches = 0
        self._batched = random.random() < 0.6
        self._pace_s = random.choice((0.01, 0.05))
        self._has_threshold = random.random() < 0.5 and cluster.supervision is None
        if self._has_threshold:
            cluster.settings = replace(cluster.settings, ledger_entries_max=3)
        cluster.on_record.append(self._record_changed)

    def _record_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if key.startswith(metadata_keys.MANAGED_PREFIX) and self.topic in key and before is not None and after:
            old, new = (ManagedLedgerRecord.unpack(one.value).compacted for one in (before, after))
            if old != new:
                self._switches += 1
                self.history.counts["compactions"] += 1

    async def setup(self) -> None:
        self.connect()
        if self._has_threshold:
            await self._set_threshold_while_it_is_not_loaded()
            self.producer = await self.again(self._create)
            for number in range(KEPT_FROM_THE_LOAD):
                self._send(f"key-{number % KEYS}")
            while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
                await asyncio.sleep(0.05)
            await self.again(self._look)
            return
        self.producer = await self.again(self._create)
        while not self._kept():  # before its first compaction nothing keeps what is published
            await self._compact()
            await asyncio.sleep(0.2)

    async def _set_threshold_while_it_is_not_loaded(self) -> None:
        """No broker runs in between."""
        await self.again(partial(self.client.get_topic_partitions, self.topic))
        producer = await self.again(self._create)  # so the topic exists
        await producer.close()
        for node in self.cluster.brokers:
            self.cluster.stop(node)
        admin, topic = await new_admin(self), TopicName.parse(self.topic).full
        policy = partial(admin.call, "set_topic_policy", topic=topic, policy="compaction_threshold", value=THRESHOLD)
        await self.again(policy)
        await admin.close()
        for node in self.cluster.brokers:
            self.cluster.begin(node)
        self.history.counts["thresholds of topics that were not loaded"] += 1

    def _kept(self) -> bool:
        """Whether all partitions have a compaction cursor."""
        cursors = [key for key in self.cluster.records.by_key if key.startswith(metadata_keys.CURSORS_PREFIX)]
        ours = [key for key in cursors if self.topic in key and key.endswith(f"/{COMPACTION_CURSOR}")]
        return len(ours) >= self.cluster.settings.default_num_partitions

    async def _create(self) -> Any:
        return await self.client.create_producer(
            self.topic, batching_enabled=self._batched, batching_max_messages=4, max_pending_messages=500
        )

    async def start(self) -> None:
        self.begin(self._publish(), "publish keys")
        self.begin(self._have_it_compacted(), "compact")
        self.begin(self._look_now_and_then(), "read what is compacted")

    async def _publish(self) -> None:
        while not self.stopping:
            if self._pending < PENDING_MAX:
                self._send(self.random.choice(list(self.sent)))
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _send(self, key: str) -> None:
        values = self.sent[key]
        version = len(values) + 1
        value = b"" if self.random.random() < DELETED_SHARE else f"{key}:{version}".encode()
        values.append(value)
        self._pending += 1

        def answered(result: magnetar.Result, _: MessageId) -> None:
            self._pending -= 1
            if result == magnetar.Result.Ok:
                self.acknowledged[key] = max(self.acknowledged[key], version)
            else:
                self.history.counts[f"publishing a key failed: {result}"] += 1

        self.producer.send_async(value, answered, None, key)

    async def _have_it_compacted(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.random.random())
            await self._compact()

    async def _compact(self) -> None:
        for node in self.cluster.brokers:
            if node.ready and node.process is not None:
                for topic in list(node.service.topics.loaded.values()):
                    if self.topic in topic.name.full and topic.is_open:
                        if topic.features.of(TopicCompaction).state is not CompactionState.RUNNING:
                            await self.ask(node, _start(topic), "begin to compact")

    def _horizons(self) -> list[tuple[str, Position]]:
        """Where the compacted part ends, as brokers see it. They learn of a switch behind the metadata."""
        return [
            (node.name + topic.name.full, topic.ledger.compacted.horizon)
            for node in self.cluster.brokers
            if node.ready
            for topic in node.service.topics.loaded.values()
            if self.topic in topic.name.full and isinstance(topic, PersistentTopic)
        ]

    async def _look_now_and_then(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.random.random() * 3)
            try:
                await self._look()
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"reading what is compacted failed: {type(error).__name__}"] += 1

    async def _look(self) -> None:
        """Read the table, and hold it against what was acknowledged before."""
        floor, switches, horizons = dict(self.acknowledged), self._switches, self._horizons()
        table: dict[str, bytes] = {}
        reader = await self.client.create_reader(self.topic, MessageId.earliest, is_read_compacted=True)
        try:
            while await reader.has_message_available():
                message = await reader.read_next(10_000)
                table[message.partition_key()] = bytes(message.data())
        finally:
            await reader.close()
        self.history.counts["compacted tables read"] += 1
        for key, values in self.sent.items():
            allowed = [b"", *values][floor[key] :]
            if self._switches > switches or self._horizons() != horizons:  # see the module
                deleted = [version for version, value in enumerate(values) if not value]
                allowed += values[: deleted[-1]] if deleted else []
            if table.get(key, b"") not in allowed:
                seen = table.get(key, b"").decode() or "nothing"
                self.history.violated(
                    f"I1: a reader of the compacted {self.topic} sees {seen} of {key}, "
                    f"of which {floor[key]} values were acknowledged"
                )

    async def stop(self) -> None:
        """What is outstanding is answered; one more compaction, and one more look."""
        self.stopping = True
        for task in self.tasks:
            await task
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        await self._compact()
        await self.again(self._look)


async def _start(topic: Any) -> None:
    topic.features.of(TopicCompaction).start()
