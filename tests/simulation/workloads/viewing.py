"""Table views of a topic with keys, and readers that read to its end, where the end is never delivered: `Viewing`.

A client keeps the last value of each key in table views: some that it makes and closes, and one that it keeps. Among
the values are entries of another producer that no application is given: chunks whose messages never become complete,
and chunks that were stored again. In the end there are also messages that cannot be decrypted, which the reader
discards. In some runs the topic is compacted now and then.

- I1: a table view has the last value of each key that was acknowledged before it was made, or a later one. In the end
  it has the last value of each key, and so has a reader that asks whether there is more until there is none.
- I8: both come to the end, whatever the last entries are.

As in Pulsar, a view that is made, or comes back, while a compaction ends may miss that a key was deleted.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.compaction.topic_compaction import COMPACTION_CURSOR, CompactionState, TopicCompaction
from magnetar.client.core.message_id import MessageId
from magnetar.client.producing.outbox import Batch
from magnetar.client.producing.partition_producer import EntryEncoder
from magnetar.protocol.entries import build_entry, parse_entry
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.pulsar_pb2 import EncryptionKeys

from ..checkers.history import History
from ..world.cluster import Node, SimCluster
from .workload import Workload

KEYS = 4
PENDING_MAX = 20
DELETED_SHARE = 0.15
HALVES = 2
ENCRYPTED = b"encrypted"
LOOK_MAX_S = 2.0
WAIT_MS = 20_000
VIEW_LIMIT_S = 20.0


class PartEncoder(EntryEncoder):
    """Makes entries that no application is given: `<uuid> <number>` is a chunk, `ENCRYPTED` has no key to open it."""

    def __init__(self, encoder: EntryEncoder) -> None:
        super().__init__(encoder._compression)
        self.__dict__.update(encoder.__dict__)

    def encode(self, batch: Batch, now_ms: int) -> list[bytes]:
        """As in EntryEncoder."""
        (entry,) = super().encode(batch, now_ms)
        metadata, payload = parse_entry(entry)
        if batch.payloads[0] == ENCRYPTED:
            metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
        else:
            uuid, number = batch.payloads[0].decode().split()
            metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = uuid, int(number), HALVES
            metadata.total_chunk_msg_size = HALVES * len(payload)
        return [build_entry(metadata.SerializeToString(), payload)]


class Viewing(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._batched = random.random() < 0.5
        self._queue_size = random.choice((1, 10, 1000))
        self._pace_s = random.choice((0.05, 0.2))
        self._compacts = random.random() < 0.5
        self._sent: dict[str, list[bytes]] = {f"key-{number}": [] for number in range(KEYS)}
        """Of each key all values in order; an empty one deletes it."""
        self._acknowledged: dict[str, int] = dict.fromkeys(self._sent, 0)
        """Of each key how many of its values are acknowledged, up to the last such."""
        self._pending = 0
        self._parts = 0
        self._compactions = 0
        self._quiet = False
        """Whether no compaction runs, nor will."""
        self._view: Any = None
        """The one that is kept."""

    async def setup(self) -> None:
        self.connect()
        await self.again(partial(self.keep_ledgers, self.topic))
        self._producer = await self.again(partial(self._create, batching_enabled=self._batched))
        self._part_producer = await self.again(self._create)
        for one in self._part_producer._producer.producers:
            one._encoder = PartEncoder(one._encoder)
        self._view = await self.again(partial(self.client.create_table_view, self.topic))

    async def _create(self, *, batching_enabled: bool = False) -> Any:
        return await self.client.create_producer(
            self.topic, send_timeout_millis=0, batching_enabled=batching_enabled, batching_max_messages=4
        )

    async def start(self) -> None:
        self.begin(self._publish(), "publish keys to view")
        self.begin(self._look_now_and_then(), "make views")
        if self._compacts:
            self.begin(self._compact_now_and_then(), "compact what is viewed")

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            if self._pending < PENDING_MAX:
                self._send(self.random.choice([*self._sent]))
            if self.random.random() < 0.1:
                self._send_parts()
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _send(self, key: str) -> None:
        values = self._sent[key]
        version = len(values) + 1
        values.append(b"" if self.random.random() < DELETED_SHARE else f"{key}:{version}".encode())
        self._pending += 1

        def answered(result: magnetar.Result, _: MessageId) -> None:
            self._pending -= 1
            if result != magnetar.Result.Ok:
                self.history.violated(f"I8: value {version} of {key} was refused permanently: {result}")
            self._acknowledged[key] = max(self._acknowledged[key], version)

        self._producer.send_async(values[-1], answered, None, key)

    def _send_parts(self) -> None:
        """An incomplete message; a chunk that comes twice, at the place of its message or behind it."""
        self._parts += 1
        for number in self.random.choice(((0,), (1,), (0, 0), (0, 1, 1), (0, 0, 1))):
            self._send_part(b"%s-%d %d" % (self.name.encode(), self._parts, number))

    def _send_part(self, content: bytes) -> None:
        self._pending += 1

        def answered(result: magnetar.Result, _: MessageId) -> None:
            self._pending -= 1
            self.history.counts["entries that are not delivered"] += result == magnetar.Result.Ok

        self._part_producer.send_async(content, answered)

    # -- compaction --------------------------------------------------------------------------------------------------

    async def _compact_now_and_then(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.random.random() * LOOK_MAX_S)
            for node, topic in self._loaded():
                if topic.is_open and topic.features.of(TopicCompaction).state is not CompactionState.RUNNING:
                    self._compactions += 1
                    await self.ask(node, _start(topic), "begin to compact")

    def _is_compacted(self) -> bool:
        """Whether it was, or may be at any time, by this workload or by a threshold of another one."""
        name = f"/{self.topic}"
        return any(key.endswith(COMPACTION_CURSOR) and name in key for key in self.cluster.records.by_key)

    def _compaction_runs(self) -> bool:
        return any(topic.features.of(TopicCompaction).state is CompactionState.RUNNING for _, topic in self._loaded())

    def _loaded(self) -> list[tuple[Node, Any]]:
        return [
            (node, topic)
            for node in self.cluster.brokers
            if node.ready
            for topic in node.service.topics.loaded.values()
            if self.topic in topic.name.full
        ]

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _look_now_and_then(self) -> None:
        looks = (self._look_at_a_view, self._look_at_a_view, self._look_with_a_reader)
        while not self.stopping:
            await asyncio.sleep(self.random.random() * LOOK_MAX_S)
            try:
                await self.random.choice(looks)()
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"viewing failed: {type(error).__name__}"] += 1

    async def _look_at_a_view(self) -> None:
        floor = dict(self._acknowledged)
        view = await self.client.create_table_view(self.topic)
        table = _table_of(view)
        await view.close()
        self._check(table, floor, "a table view")

    async def _look_with_a_reader(self) -> None:
        floor, table = dict(self._acknowledged), dict[str, bytes]()
        reader = await self.client.create_reader(
            self.topic,
            MessageId.earliest,
            receiver_queue_size=self._queue_size,
            crypto_failure_action=magnetar.ConsumerCryptoFailureAction.DISCARD,
        )
        try:
            while await reader.has_message_available():
                message = await reader.read_next(WAIT_MS)
                table[message.partition_key()] = bytes(message.data())
        finally:
            await reader.close()
        self._check(table, floor, "a reader")

    def _check(self, table: dict[str, bytes], floor: dict[str, int], what: str) -> None:
        self.history.counts[f"looks by {what}"] += 1
        may_miss_deletions = not self._quiet and self._is_compacted()
        for key, values in self._sent.items():
            allowed = [b"", *values][floor[key] :]
            if may_miss_deletions:
                allowed += _deleted_of(values)
            if table.get(key, b"") not in allowed:
                seen = table.get(key, b"").decode() or "nothing"
                self.history.violated(
                    f"I1: {what} of {self.topic} has {seen} for {key}, of which {floor[key]} values were acknowledged"
                )

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Views are made, and readers come to the end, where the last entries are not delivered."""
        self.stopping = True
        for task in self.tasks:
            await task
        self._send_part(b"%s-last 0" % self.name.encode())
        await self._all_answered()
        while self._compaction_runs():  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        # A topic that is compacted by its threshold may be compacted at any time.
        self._quiet = self._compactions > 0 or not self._is_compacted()
        await self.again(self._look_at_a_view)
        end = self.cluster.loop.now + VIEW_LIMIT_S
        while self._outdated() and self.cluster.loop.now < end:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        if wrong := self._outdated():
            self.history.violated(f"I1: a table view of {self.topic} that was there all the time has {wrong}")
        await self._view.close()
        self._send_part(ENCRYPTED)
        await self._all_answered()
        await self.again(self._look_with_a_reader)

    async def _all_answered(self) -> None:
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)

    def _outdated(self) -> dict[str, bytes]:
        """What the view that is kept has for keys that have another last value."""
        table, wrong = _table_of(self._view), dict[str, bytes]()
        may_miss_deletions = self._is_compacted()
        for key, values in self._sent.items():
            allowed = [values[-1] if values else b""]
            if may_miss_deletions:
                allowed += _deleted_of(values)
            if table.get(key, b"") not in allowed:
                wrong[key] = table.get(key, b"")
        return wrong


def _deleted_of(values: list[bytes]) -> list[bytes]:
    """Those of a key's values that were there before it was deleted for the last time."""
    deleted = [version for version, value in enumerate(values) if not value]
    return values[: deleted[-1]] if deleted else []


def _table_of(view: Any) -> dict[str, bytes]:
    table: dict[str, bytes] = {}
    view.for_each(lambda key, value: table.update({key: bytes(value)}))
    return table


async def _start(topic: Any) -> None:
    topic.features.of(TopicCompaction).start()
