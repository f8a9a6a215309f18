"""Held messages in ledgers, over scripted bookies: what is stored, read back, skipped, given up and removed."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from magnetar.actors.delays import buckets as buckets_module
from magnetar.actors.delays import buckets as store_module
from magnetar.protocol.commands import ack
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.errors import NotEnoughBookies, StaleEpoch
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import SystemClock
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all
from support.clients.wire_peer import WirePeer, entry
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until

SHARED, KEY_SHARED = CommandSubscribe.Shared, CommandSubscribe.Key_Shared
PATH = "persistent/public/default/t"
HOUR_MS = 3_600_000
SETTINGS: dict[str, Any] = {
    "delayed_delivery_min_index_count_per_bucket": 10,
    "delayed_delivery_max_indexes_per_segment": 4,
    "delayed_delivery_tick_ms": 1,
    "cursor_flush_interval_s": 0.02,
}


class World:
    """Brokers that own the topic one after the other, over the same bookies, and a clock that the test sets on."""

    def __init__(self, cluster: FakeCluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self.offset_ms = 0
        self.reads: list[tuple[int, int]] = []
        self._stack = stack
        self._epoch = 0
        self._sent = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms

    def cpu_s(self) -> float:
        return time.process_time()

    async def broker(self, **changes: Any) -> BrokerFront:
        """The next owner. The one before is not told."""
        self._epoch += 1
        settings = {**SETTINGS, **changes}
        front = await self._stack.enter_async_context(broker_front(self.cluster, epoch=self._epoch, **settings))
        return front

    async def subscribed(self, front: BrokerFront, kind: int = SHARED, permits: int = 1000) -> WirePeer:
        peer = await front.peer()
        self._stack.push_async_callback(peer.close)
        await peer.subscribe(TOPIC, "s", subType=kind, initialPosition=CommandSubscribe.Earliest)
        peer.flow(permits)
        return peer

    async def publish(self, front: BrokerFront, delays_ms: Sequence[int]) -> None:
        """One message for each, with its number as its content; 0 for no delay."""
        peer = await front.peer()
        await peer.producer(TOPIC, 9)
        now_ms, first = self.now_ms(), self._sent
        for delay_ms in delays_ms:
            fields = {"deliver_at_time": now_ms + delay_ms} if delay_ms else {}
            body = entry(b"%d" % self._sent, sequence_id=self._sent, partition_key=f"k{self._sent % 7}", **fields)
            peer.send_entry(body, self._sent, producer_id=9)
            self._sent += 1
        if self._sent > first:
            await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=self._sent - 1)
        await peer.close()

    def jump(self, front: BrokerFront, to_ms: int) -> None:
        """So much later, the broker looks at its clock."""
        self.offset_ms += to_ms
        gate(front)._look()

    async def named(self) -> tuple[int, ...]:
        """The buckets in the cursor's record."""
        found = await self.cluster.metadata.get(metadata_keys.cursor(PATH, "s"))
        return () if found is None else CursorRecord.unpack(found.value).beside

    async def ledgers(self) -> set[int]:
        found = await list_all(self.cluster.metadata, metadata_keys.LEDGERS_PREFIX)
        return {metadata_keys.ledger_id_of(key) for key, _ in found}


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(store_module, "READ_LIMIT_S", 0.05)
    monkeypatch.setattr(store_module, "RETRY_INITIAL_S", 0.01)
    cluster = FakeCluster(3)
    async with AsyncExitStack() as stack:
        made = World(cluster, stack)
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: made.now_ms())
        yield made
    await cluster.close()


def subscription(front: BrokerFront) -> Any:
    return front.topic.subscriptions["s", True]


def gate(front: BrokerFront) -> Any:
    return subscription(front).dispatcher.gate


def buckets(front: BrokerFront) -> Any:
    return gate(front)._spill


def count_reads(front: BrokerFront) -> list[tuple[int, int]]:
    """Entries of the topic that are read for dispatch from now on, which grows."""
    seen: list[tuple[int, int]] = []
    read = front.topic.ledger.read

    async def noting(*args: Any, **options: Any) -> Any:
        found = await read(*args, **options)
        seen.extend(position for position, _ in found)
        return found

    front.topic.ledger.read = noting
    return seen


async def stored(front: BrokerFront, count: int) -> None:
    """Wait until so many entries are in buckets only."""
    await until(lambda: buckets(front).count == count and not buckets(front)._sealing)


@pytest.mark.promise("28.7")
async def test_held_messages_beyond_the_minimum_leave_memory_and_come_in_their_time(world: World) -> None:
    front = await world.broker()
    peer = await world.subscribed(front)
    await world.publish(front, [HOUR_MS + 1000 * (40 - number) for number in range(40)])
    await stored(front, 40)
    assert len(gate(front)._entries) == 0 and gate(front).held == 40
    names = await world.named()
    assert names and set(names) <= await world.ledgers()
    for step in range(1, 41):
        world.jump(front, HOUR_MS + 1000 - world.offset_ms if step == 1 else 1000)
        _, _ = (await peer.messages(1))[0]
        await peer.settle()
        assert not peer.received
    await until(lambda: not buckets(front)._drained)
    assert await world.named() == () and not set(names) & await world.ledgers()


@pytest.mark.promise("28.7")
async def test_the_next_broker_reads_no_held_message_of_a_bucket_again(world: World) -> None:
    first = await world.broker()
    await world.subscribed(first)
    await world.publish(first, [HOUR_MS] * 30)
    await stored(first, 30)
    await world.publish(first, [HOUR_MS] * 3 + [0])
    second = await world.broker()
    await second.topics.get(TopicName.parse(TOPIC))
    seen = count_reads(second)
    peer = await world.subscribed(second)
    assert await peer.messages(1) == [(33, 0)]
    assert [entry_id for _, entry_id in seen] == [30, 31, 32, 33]
    assert gate(second).held == 33
    world.jump(second, HOUR_MS)
    assert sorted(await peer.messages(33)) == [(number, 0) for number in range(33)]
    await peer.settle()
    assert not peer.received
    with pytest.raises(StaleEpoch):
        await first.topic.ledger.cursors["s"].side.add([b"x"], lambda: True)


async def test_acknowledged_messages_between_held_ones_are_skipped_too(world: World) -> None:
    first = await world.broker()
    peer = await world.subscribed(first)
    await world.publish(first, [0, HOUR_MS] * 6)
    ids = [number for number, _ in await peer.messages(6)]
    peer.write(ack(1, [(1, number) for number in ids if number != 4]))
    await peer.settle()
    await world.publish(first, [HOUR_MS] * 14)
    await stored(first, 20)
    second = await world.broker()
    await second.topics.get(TopicName.parse(TOPIC))
    seen = count_reads(second)
    peer = await world.subscribed(second)
    assert await peer.messages(1) == [(4, 0)]
    assert [entry_id for _, entry_id in seen] == [4]
    world.jump(second, HOUR_MS)
    assert sorted(await peer.messages(20)) == [(number, 0) for number in [1, 3, 5, 7, 9, *range(11, 26)]]


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_a_bucket_that_cannot_be_read_at_the_start_is_read_from_the_topic(world: World, damage: str) -> None:
    first = await world.broker()
    await world.subscribed(first)
    await world.publish(first, [HOUR_MS] * 20)
    await stored(first, 20)
    bad, *_ = await world.named()
    await damaged(world, bad, damage)
    second = await world.broker()
    peer = await world.subscribed(second)
    await until(lambda: gate(second).held == 20)
    world.jump(second, HOUR_MS)
    assert sorted(await peer.messages(20)) == [(number, 0) for number in range(20)]
    assert bad not in await world.named()


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_a_bucket_that_cannot_be_read_later_makes_consumers_come_back(world: World, damage: str) -> None:
    front = await world.broker()
    peer = await world.subscribed(front)
    await world.publish(front, [HOUR_MS] * 20)
    await stored(front, 20)
    for one in await world.named():
        await damaged(world, one, damage)
    world.jump(front, HOUR_MS)
    await peer.expect(BaseCommand.CLOSE_CONSUMER)
    peer = await world.subscribed(front)
    assert sorted(await peer.messages(20)) == [(number, 0) for number in range(20)]
    assert await world.named() == ()


async def damaged(world: World, ledger_id: int, how: str) -> None:
    if how == "missing":
        await world.cluster.ledgers.delete(ledger_id)
        return
    for bookie in world.cluster.bookies.values():
        for entry_id in bookie.ledgers[ledger_id].entries:
            bookie.flip_bit(ledger_id, entry_id)


async def test_acknowledging_all_held_messages_removes_their_bucket(world: World) -> None:
    front = await world.broker()
    peer = await world.subscribed(front)
    await world.publish(front, [HOUR_MS] * 20)
    await stored(front, 20)
    names = await world.named()
    peer.write(ack(1, [(1, number) for number in range(19)]))
    await peer.settle()
    gate(front)._look()
    assert gate(front).held == 20
    peer.write(ack(1, [(1, 19)]))
    await peer.settle()
    gate(front)._look()
    assert gate(front).held == 0
    await until(lambda: not buckets(front)._drained)
    assert await world.named() == () and not set(names) & await world.ledgers()


async def test_an_acknowledged_message_of_a_bucket_never_comes(world: World) -> None:
    front = await world.broker()
    peer = await world.subscribed(front)
    await world.publish(front, [HOUR_MS] * 20)
    await stored(front, 20)
    peer.write(ack(1, [(1, 3), (1, 11)]))
    await peer.settle()
    world.jump(front, HOUR_MS)
    rest = [(number, 0) for number in range(20) if number not in (3, 11)]
    assert sorted(await peer.messages(18)) == rest
    await peer.settle()
    assert not peer.received


async def test_a_seek_removes_the_buckets_and_all_comes_again(world: World) -> None:
    front = await world.broker()
    peer = await world.subscribed(front)
    await world.publish(front, [0] + [HOUR_MS] * 20)
    await peer.messages(1)
    peer.write(ack(1, [(1, 0)]))
    await stored(front, 20)
    names = await world.named()
    await subscription(front).seek(position=(1, 0))
    assert await world.named() == () and not set(names) & await world.ledgers()
    await peer.expect(BaseCommand.CLOSE_CONSUMER)
    peer = await world.subscribed(front)
    assert await peer.messages(1) == [(0, 0)]
    world.jump(front, HOUR_MS)
    assert sorted(await peer.messages(20)) == [(number, 0) for number in range(1, 21)]


async def test_deleting_the_subscription_deletes_the_ledgers_of_its_buckets(world: World) -> None:
    front = await world.broker()
    await world.subscribed(front)
    await world.publish(front, [HOUR_MS] * 20)
    await stored(front, 20)
    names = await world.named()
    assert names
    await front.topic.delete_subscription("s", force=True)
    assert not set(names) & await world.ledgers()


async def test_another_subscription_type_reads_the_messages_again(world: World) -> None:
    first = await world.broker()
    peer = await world.subscribed(first)
    await world.publish(first, [HOUR_MS] * 20)
    await stored(first, 20)
    names = await world.named()
    await peer.close()
    await until(lambda: subscription(first).dispatcher is None)
    peer = await world.subscribed(first, KEY_SHARED)
    await stored(first, 20)
    assert not set(names) & set(await world.named())
    second = await world.broker()
    await second.topics.get(TopicName.parse(TOPIC))
    seen = count_reads(second)
    peer = await world.subscribed(second, KEY_SHARED)
    await until(lambda: gate(second).held == 20)
    assert seen == []
    world.jump(second, HOUR_MS)
    assert sorted(await peer.messages(20)) == [(number, 0) for number in range(20)]


async def test_without_bookies_held_messages_stay_in_memory_until_there_are_some(world: World) -> None:
    front = await world.broker()
    peer = await world.subscribed(front)
    side = front.topic.ledger.cursors["s"].side
    add = side.add

    async def refused(*_: Any) -> Any:
        raise NotEnoughBookies("none")

    side.add = refused
    await world.publish(front, [HOUR_MS] * 20)
    await until(lambda: buckets(front)._seal_after_s > 0)
    assert gate(front).held == 20 and buckets(front).count == 0
    side.add = add
    buckets(front)._seal_after_s = 0.0
    await world.publish(front, [HOUR_MS] * 10)
    await stored(front, 30)
    world.jump(front, HOUR_MS)
    assert sorted(await peer.messages(30)) == [(number, 0) for number in range(30)]


async def test_messages_that_are_due_soon_are_not_stored(world: World) -> None:
    front = await world.broker()
    await world.subscribed(front)
    await world.publish(front, [buckets_module.SOON_MS - 5000] * 35)
    await until(lambda: gate(front).held == 35)
    assert not buckets(front)._sealing and await world.named() == ()
    await world.publish(front, [buckets_module.SOON_MS - 5000] * 15)
    await until(lambda: buckets(front).count > 0)


@pytest.mark.promise("28.7")
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_each_message_comes_in_its_time_and_none_is_lost(world: World, seed: int) -> None:
    chance = Random(seed)
    kind = chance.choice([SHARED, KEY_SHARED])
    front = await world.broker()
    peer = await world.subscribed(front, kind)
    due_ms: dict[int, int] = {}
    acknowledged: set[int] = set()
    here: dict[int, tuple[int, int]] = {}

    async def take() -> None:
        await peer.settle()
        while any(frame.command.HasField("message") for frame in peer.received):
            frame = await peer.expect(BaseCommand.MESSAGE)
            number, position = int(bytes(parse_entry(frame.entry)[1])), frame.command.message.message_id
            assert number not in here, "it came twice to one consumer"
            assert due_ms[number] <= world.now_ms() + 1 and number not in acknowledged
            here[number] = (position.ledgerId, position.entryId)

    for _ in range(chance.randrange(6, 14)):
        step = chance.random()
        if step < 0.45:
            delays = [
                chance.choice([0, 0, HOUR_MS, chance.randrange(3 * HOUR_MS)]) for _ in range(chance.randrange(40))
            ]
            due_ms.update({len(due_ms) + number: world.now_ms() + delay for number, delay in enumerate(delays)})
            await world.publish(front, delays)
        elif step < 0.65:
            world.jump(front, chance.randrange(HOUR_MS))
        elif step < 0.8:
            await take()
            chosen = [one for one in here if one not in acknowledged and chance.random() < 0.7]
            peer.write(ack(1, [here[one] for one in chosen]))
            await peer.settle()
            acknowledged.update(chosen)
            await front.topic.ledger.cursors["s"].flush()
        elif step < 0.9:
            await take()
            await peer.close()
            await until(lambda: subscription(front).dispatcher is None)  # noqa: B023
            peer, here = await world.subscribed(front, kind), {}
        else:
            await take()
            front = await world.broker()
            peer, here = await world.subscribed(front, kind), {}
    for _ in range(4):
        world.jump(front, HOUR_MS)
        await take()
    async with asyncio.timeout(10):
        while {*here, *acknowledged} != {*due_ms}:
            await take()
            await asyncio.sleep(0.001)
