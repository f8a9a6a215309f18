"""The metadata is restored from a backup that is older than the ledgers, as `docs/operations/metadata.md` says:
everything is stopped, the records are replaced, everything is started.

The backup is taken at a random moment of the run, the restore comes at its end, when all else was compared. What was
published in between may be gone from its topics, unless its ledger is in the backup. A backup from before the loss of a
disk that an operator accepted is of no use, and is not restored.

In half of the runs the backup is taken at the end, while a ledger of the topic `moving` is open. Then two bookies of
its ensemble are away, one after the other, while messages are published. So the record in the backup names bookies that
do not hold what is acknowledged last.

In some of the others a source with deduplication publishes before and behind the backup. After the restore it sends
everything again, as one does that begins again at a checkpoint.

What has to hold:

- I5: each number of that source that has a receipt again can be read, also where the receipt calls it a duplicate.
- I1: what was acknowledged stands in its topic, if its ledger and the topic's chain with it are in the backup, it was
  not deleted since, and the fragment that holds it did not move: its ledger was OPEN or IN_RECOVERY in the backup, or
  it has the record that it had then. A topic that cannot be opened is counted and not
  judged.

- I2: no ledger id is given out that a bookie had heard of before the restore, and no topic delivers the message of
  another one.
- I9: no bookie tombstones a ledger that existed when the records were replaced, unless it was deleted since.
- I8: a new topic takes messages and gives them back.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_ids import counter_of, mark_restored
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.store import Versioned
from support.stores.memory_store import MemoryMetadataStore

from ..checkers.history import History, Place, place_of, show
from ..checkers.policies_agree import policies_agree
from ..world.cluster import SimCluster
from ..world.metadata import LATE_MAX_S
from .admin import new_admin
from .reading import read_log
from .restoring_ledgers import survives_restore
from .workload import Workload

logger = logging.getLogger("magnetar.simulation")

NEW_TOPIC = "after-the-restore"
MOVING_TOPIC = "moving"
MESSAGES = 3
NUMBERED_TOPIC = "numbered-again"
NUMBERS = 24
NUMBERS_BEFORE = 6
"""So many of them are published before the backup."""
FLUSHED_S = 3.0
"""A cursor is written by then."""
SPARE_AGAIN_S = 6.0
"""So long after its start a bookie has been tried again by everybody (`RECONNECT_MAX_S`)."""
PUBLISH_LIMIT_S = 20.0
MOVING_LIMIT_S = 240.0
OLD_TOPIC_LIMIT_S = 20.0
"""An old topic may be unreadable, when a ledger of the backup was deleted since: it is not waited for long."""
COUNTER = metadata_keys.counter(metadata_keys.LEDGER_COUNTER)


class Restoring(Workload):
    """See the module. `topics` are those of publishers called `publisher-<last character of the topic>…`.

    With `sends_again` a source does that in any case.
    """

    def __init__(
        self,
        cluster: SimCluster,
        history: History,
        random: Random,
        name: str,
        topics: list[str],
        *,
        sends_again: bool = False,
    ) -> None:
        super().__init__(cluster, history, random, name)
        self.protected: dict[int, None] = {}
        """Ledgers that no bookie may delete."""
        self._topics = list(topics)
        self._moves = random.random() < 0.5 and not sends_again
        self._sends_again = sends_again or (not self._moves and random.random() < 0.6)
        if self._sends_again:
            cluster.settings = replace(
                cluster.settings,
                deduplication_entries_interval=2,
                ledger_entries_max=3,
                cursor_ledger_entries_max=50_000,
            )
        self._owed: dict[bytes, Place] = {}
        """What was acknowledged and has to be there after the restore."""
        self._acknowledged: dict[bytes, Place] = {}
        """By this one."""
        self._backup: tuple[dict[str, Versioned], int] | None = None
        self._ids_end = 0
        """Above all ids that a bookie had heard of. An id that none had can be given out again: nothing was stored."""

    def back_up_within(self, limit_s: float) -> None:
        """Take the backup at some moment from now on."""
        asyncio.get_running_loop().call_later(self.random.random() * limit_s, self._back_up)

    def _back_up(self) -> None:
        records = self.cluster.records
        if metadata_keys.COORDINATOR_EPOCH in records.by_key:
            self._backup = dict(records.by_key), records.floor

    # -- a ledger that moves ---------------------------------------------------------------------------------------

    async def _publish_while_bookies_change(self) -> None:
        """Take the backup while a ledger is open, and publish more to it while bookies of its ensemble are away."""
        self.connect()
        self._topics.append(MOVING_TOPIC)
        consumer = await self.again(
            partial(self.client.subscribe, MOVING_TOPIC, "keeper", initial_position=magnetar.InitialPosition.Earliest)
        )
        await consumer.close()
        producer = await self.again(partial(self.client.create_producer, MOVING_TOPIC))
        ledger_id = await self._publish(producer)
        while ledger_id < 0:  # it was sent again, and called a duplicate
            ledger_id = await self._publish(producer)
        self._back_up()
        cluster = self.cluster
        record = cluster.records.by_key[metadata_keys.ledger(ledger_id)]
        ensemble = LedgerMetadata.unpack(record.value).last_fragment.bookies
        first, *others = [node for node in cluster.bookies if node.name in ensemble]
        if len([node for node in cluster.bookies if not node.gone]) > len(ensemble):
            self.history.counts["ledgers moved after the backup"] += 1
            cluster.stop(first)
            await self._try_to_publish(producer)
            cluster.begin(first)
            await cluster.until(lambda: first.ready, 60.0, f"I8: {first.name} does not start")
            await asyncio.sleep(SPARE_AGAIN_S)
            for node in others[: cluster.settings.ensemble_size - cluster.settings.ack_quorum + 1]:
                cluster.stop(node)
                await self._try_to_publish(producer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PUBLISH_LIMIT_S):
                await self.client.close()

    # -- a source that sends again ------------------------------------------------------------------------------------

    async def _publish_numbers(self) -> None:
        """Take the backup amid the numbers. What deduplication knows is newer in its cursor's ledger."""
        self.connect()
        consumer = await self.again(partial(self.client.subscribe, NUMBERED_TOPIC, "keeper"))
        await consumer.close()
        admin, topic = await new_admin(self), TopicName.parse(NUMBERED_TOPIC).full
        policy = partial(admin.call, "set_topic_policy", topic=topic, policy="deduplication_enabled", value=True)
        await self.again(policy)
        await admin.close()
        while not policies_agree(self.cluster):  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        await self._send_numbers(0, NUMBERS_BEFORE)
        await asyncio.sleep(FLUSHED_S)
        self._back_up()
        await self._send_numbers(NUMBERS_BEFORE, NUMBERS)
        await asyncio.sleep(FLUSHED_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PUBLISH_LIMIT_S):
                await self.client.close()

    async def _send_numbers(self, first: int, end: int) -> None:
        create = partial(self.client.create_producer, NUMBERED_TOPIC, producer_name="numbers", batching_enabled=False)
        producer = await self.again(create)
        for number in range(first, end):
            send = partial(producer.send, b"number:%d" % number, partition_key="one", sequence_id=number)
            await self.again(send)
        await producer.close()

    async def _send_numbers_again(self) -> None:
        try:
            async with asyncio.timeout(2 * OLD_TOPIC_LIMIT_S):
                await self._send_numbers(0, NUMBERS)
                found = dict.fromkeys(await self._read(NUMBERED_TOPIC))
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"numbers after a restore: {type(error).__name__}"] += 1
            return
        self.history.counts["sources sent again after a restore"] += 1
        if missing := [number for number in range(NUMBERS) if b"number:%d" % number not in found]:
            self.history.violated(
                f"I5: {missing} of {NUMBERED_TOPIC} have receipts behind a restore, and are not there"
            )

    async def _try_to_publish(self, producer: Any) -> None:
        """Too few bookies may be left to acknowledge it: then there is nothing to look for, either."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PUBLISH_LIMIT_S):
                await self._publish(producer)

    async def _publish(self, producer: Any) -> int:
        """A message more; returns its ledger."""
        payload = f"publisher-{MOVING_TOPIC[-1]}:{len(self._acknowledged)}".encode()
        message_id = await self.again(partial(producer.send, payload, partition_key="one"))
        partition = message_id.partition()
        topic = f"{producer.topic()}-partition-{partition}" if partition >= 0 else producer.topic()
        self._acknowledged[payload] = place_of(topic, message_id)
        return place_of(topic, message_id)[1]

    def _is_owed(self, place: Place) -> bool:
        """See I1 in the module; asked while the records are still the newer ones."""
        assert self._backup is not None
        topic, ledger_id, entry_id, _ = place
        if ledger_id < 0:
            return False  # the answer to a duplicate does not say where the message is
        key = metadata_keys.ledger(ledger_id)
        before, now = self._backup[0].get(key), self.cluster.records.by_key.get(key)
        chain = self._backup[0].get(metadata_keys.managed_ledger(TopicName.parse(topic).path))
        if before is None or now is None or chain is None:
            return False
        if ledger_id not in [info.ledger_id for info in ManagedLedgerRecord.unpack(chain.value).ledgers]:
            return False
        return survives_restore(LedgerMetadata.unpack(before.value), LedgerMetadata.unpack(now.value), entry_id)

    # -- the restore -------------------------------------------------------------------------------------------------

    def _ids_known(self) -> int:
        stores = [node.service.store for node in self.cluster.bookies if node.ready]
        return max((store.entries.ledgers_end for store in stores), default=0)

    async def restore(self) -> None:
        """Stop, replace, start, and look. Raises AssertionError."""
        self._ids_end = self._ids_known()
        if self._moves:
            await self.run(self._publish_while_bookies_change, MOVING_LIMIT_S)
        elif self._sends_again:
            await self.run(self._publish_numbers, MOVING_LIMIT_S)
        if self._backup is None:
            return
        cluster, records = self.cluster, self.cluster.records
        by_key, records_floor = self._backup
        cookies = [key for key in records.keys if key.startswith(metadata_keys.BOOKIES_PREFIX)]
        if any(records.by_key[key] != by_key.get(key) for key in cookies):
            # A bookie began again on another disk since, and would be refused with the record of the lost one.
            self.history.counts["restores left out"] += 1
            return
        self._ids_end = max(self._ids_end, self._ids_known())
        for node in cluster.nodes:
            cluster.stop(node)
        for process in cluster.zombies:
            process.kill()
        await asyncio.sleep(LATE_MAX_S)  # what broken connections have left with the database is carried out before
        before = self._ledgers()
        records.watcher = self._changed
        records.floor = records_floor
        counter = counter_of(by_key.get(COUNTER))
        self.protected.update(dict.fromkeys(before))
        acknowledged = {**self.history.acknowledged, **self._acknowledged}
        self._owed = {payload: place for payload, place in acknowledged.items() if self._is_owed(place)}
        records.by_key, records.keys = dict(by_key), sorted(by_key)
        await mark_restored(self.process.env, MemoryMetadataStore(records))
        self.history.metadata_restored()
        self.history.counts["restores"] += 1
        logger.info("the metadata is restored: next ledger %d, bookies know up to %d", counter, self._ids_end)
        for node in cluster.nodes:
            cluster.begin(node)
        here = [node for node in cluster.nodes if not node.gone]
        await cluster.until(lambda: all(node.ready for node in here), 60.0, "I8: a node does not start after a restore")
        self.connect()
        await self.run(self._use_a_new_topic)
        if self._sends_again:
            await self.run(self._send_numbers_again, 2 * OLD_TOPIC_LIMIT_S + 10)
        await self.run(self._look_at_old_topics, 2 * OLD_TOPIC_LIMIT_S * max(len(self._topics), 1) + 10)

    def _ledgers(self) -> list[int]:
        prefix = metadata_keys.LEDGERS_PREFIX
        return [metadata_keys.ledger_id_of(key) for key in self.cluster.records.keys if key.startswith(prefix)]

    def _changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if not key.startswith(metadata_keys.LEDGERS_PREFIX):
            return
        ledger_id = metadata_keys.ledger_id_of(key)
        if after is None:
            self.protected.pop(ledger_id, None)
        elif before is None and ledger_id < self._ids_end:
            self.history.violated(
                f"I2: ledger id {ledger_id} is given out again, bookies know all below {self._ids_end}"
            )

    async def _use_a_new_topic(self) -> None:
        sent = [f"{NEW_TOPIC}:{number}".encode() for number in range(MESSAGES)]
        # A topic without a durable subscription is trimmed when it is loaded.
        consumer = await self.again(partial(self.client.subscribe, NEW_TOPIC, "keeper"))
        await consumer.close()
        producer = await self.again(partial(self.client.create_producer, NEW_TOPIC))
        for payload in sent:
            await self.again(partial(producer.send, payload))
        found = await self._read(NEW_TOPIC)
        if missing := [payload for payload in sent if payload not in found]:
            self.history.violated(f"I1: {missing} of {NEW_TOPIC} are lost")
        for payload in found:
            if not payload.startswith(NEW_TOPIC.encode()):
                self.history.violated(f"I2: {NEW_TOPIC} delivers {show(payload)}")

    async def _look_at_old_topics(self) -> None:
        for topic in self._topics:
            try:
                async with asyncio.timeout(OLD_TOPIC_LIMIT_S):
                    found = dict.fromkeys(await self._read(topic))
                for payload in found:
                    publisher = payload.lstrip(b".").decode()
                    if not publisher.startswith(f"publisher-{topic[-1]}"):
                        self.history.violated(f"I2: {topic} delivers {show(payload)}")
                for payload, place in self._owed.items():
                    if TopicName.parse(place[0]).without_partition().local_name == topic:
                        self.history.counts["looked for after a restore"] += 1
                        if payload not in found:
                            self.history.violated(f"I1: {show(payload)}, acknowledged at {place}, is lost in a restore")
                self.history.counts["old topics read after a restore"] += 1
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"old topic after a restore: {type(error).__name__}"] += 1

    async def _read(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        for partition in await self.again(partial(self.client.get_topic_partitions, topic)):
            log: Any = await self.again(partial(read_log, self.client, partition))
            found += [message.payload for message in log]
        return found
