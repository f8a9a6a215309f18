"""The steps of a growth, over real sockets: crashes at any write, deletions on the way, what is stored when.

The brokers only take notes; `Member.load` stores what a broker stores when it opens a topic.
"""

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.actors.coordinator import topic_growth
from magnetar.protocol.errors import (
    ConditionFailed,
    InvalidConfiguration,
    OutcomeUnknown,
    ServiceUnitNotReady,
    TopicNotFound,
)
from magnetar.protocol.message_id import EARLIEST_POSITION
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.chain import LedgerChain
from magnetar.storage.managed.cursor_state import CursorState
from magnetar.storage.managed.cursor_storage import CursorKind, CursorRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore
from magnetar.storage.metadata.store import Guard, Write, WriteResult, list_all, unpack
from support.servers.coordination import PREFIX, Coordination, coordination, create, eventually

TOPIC = PREFIX + "t"
NAME = TopicName.parse(TOPIC)
RECORD = metadata_keys.topic(NAME.path)


async def subscribe(
    cluster: Coordination, partition: int, *names: str, kind: CursorKind = CursorKind.SUBSCRIPTION
) -> None:
    """Store what a broker stores of new subscriptions."""
    path = NAME.partition_topic(partition).path
    for name in names:
        state = CursorState(LedgerChain([]), EARLIEST_POSITION, {"of": name}).pack()
        await cluster.store.put(metadata_keys.cursor(path, name), CursorRecord(0, None, state, kind).pack(), None)


async def subscriptions(cluster: Coordination, partition: int) -> dict[str, CursorRecord]:
    found = await list_all(cluster.store, metadata_keys.cursors_prefix(NAME.partition_topic(partition).path))
    return {metadata_keys.subscription_of(key): CursorRecord.unpack(record.value) for key, record in found}


async def opened(cluster: Coordination, partition: int) -> bool:
    """Whether a chain record is stored."""
    return await cluster.store.get(metadata_keys.managed_ledger(NAME.partition_topic(partition).path)) is not None


@pytest.mark.promise("23.13")
async def test_new_partitions_begin_with_the_subscriptions_of_the_first_one() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 2)
        await subscribe(cluster, 0, "a", "b/ü")
        await subscribe(cluster, 0, "__compaction", kind=CursorKind.COMPACTION)
        await subscribe(cluster, 1, "a", "b/ü", "only of the second")
        await one.client.call("grow_topic", topic=TOPIC, partitions=4)
        for partition in (2, 3):
            found = await subscriptions(cluster, partition)
            assert sorted(found) == ["a", "b/ü"] and await opened(cluster, partition)
            assert all(unpack(record.state or b"")["props"] == {"of": name} for name, record in found.items())
        assert not await opened(cluster, 1)
        await eventually(lambda: len(one.rpc.given_back) == 2)  # it opens them, so that their checks begin
        with pytest.raises(InvalidConfiguration):
            await one.client.call("grow_topic", topic=TOPIC, partitions=3)


@pytest.mark.promise("23.13")
@pytest.mark.parametrize("step", range(8))
async def test_the_next_coordinator_finishes_a_growth_that_ended_at_any_write(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator falls silent at its n-th write of the growth: before it, or after it (odd). Then one
    subscription is deleted, another one created."""
    monkeypatch.setattr(topic_growth, "RETRY_INITIAL_S", 0.01)
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 2)
        await subscribe(cluster, 0, "a", "b")
        await subscribe(cluster, 1, "a", "b", "c")
        write_many, office = EpochMetadataStore.write_many, cluster.coordinator.office.store
        seen, silent = 0, asyncio.Event()

        async def write(
            self: EpochMetadataStore, writes: Sequence[Write], guard: Guard | None = None
        ) -> list[WriteResult]:
            nonlocal seen
            if self is office:
                seen += 1
                late = seen > step // 2 + 1 or (seen == step // 2 + 1 and not step % 2)
                if late or seen == step // 2 + 1:
                    silent.set()
                if late:
                    raise OutcomeUnknown("this coordinator is dead")
            return await write_many(self, writes, guard)

        monkeypatch.setattr(EpochMetadataStore, "write_many", write)
        growth = asyncio.create_task(one.client.call("grow_topic", topic=TOPIC, partitions=4))
        await asyncio.wait((growth, asyncio.ensure_future(silent.wait())), return_when=asyncio.FIRST_COMPLETED)
        await cluster.coordinator.close()
        await asyncio.gather(growth, return_exceptions=True)
        record = await cluster.store.get(RECORD)
        assert record is not None
        begun, before = unpack(record.value).get("growing") == 4, unpack(record.value)["partitions"]
        for partition in (0, 1):
            await cluster.store.delete(metadata_keys.cursor(NAME.partition_topic(partition).path, "b"), None)
        await subscribe(cluster, 0, "c")
        await cluster.start_coordinator()
        await eventually(lambda: one.client.connected)
        await eventually(lambda: not cluster.coordinator.office.growths.under_way)
        after = await one.client.call("partitions", topic=TOPIC)
        assert after == (4 if begun else before)
        for partition in range(2, 4):
            found = sorted(await subscriptions(cluster, partition))
            assert found == (["a", "c"] if begun else ["a", "b"] if before == 4 else [])


async def test_a_topic_is_deleted_in_the_middle_of_its_growth_with_all_that_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_growth, "RETRY_INITIAL_S", 0.01)
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 1)
        await subscribe(cluster, 0, "a")
        registry, reached = cluster.coordinator.office.registry, asyncio.Event()

        async def never(topic: TopicName, target: int) -> None:
            reached.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(registry, "end_growth", never)
        growth = asyncio.create_task(one.client.call("grow_topic", topic=TOPIC, partitions=3))
        await reached.wait()
        assert await opened(cluster, 1) and await opened(cluster, 2)
        assert await one.client.call("partitions", topic=TOPIC) == 1
        for partition in (1, 2):
            with pytest.raises(TopicNotFound):
                await one.client.call("assign", topic=NAME.partition_name(partition))
        await cluster.coordinator.close()
        await asyncio.gather(growth, return_exceptions=True)
        monkeypatch.setattr(type(registry), "end_growth", never)
        await cluster.start_coordinator()
        await eventually(lambda: one.client.connected)
        await one.client.call("delete_topic", topic=TOPIC, force=True)
        assert {topic for topic, _ in one.rpc.deleted} >= {NAME.partition_name(1), NAME.partition_name(2)}
        assert not await opened(cluster, 1) and await cluster.store.get(RECORD) is None
        with pytest.raises(TopicNotFound):
            await one.client.call("partitions", topic=TOPIC)


async def test_a_growth_that_takes_long_goes_on_and_a_second_one_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription whose properties only the owner of the first partition knows, and that does not answer."""
    monkeypatch.setattr(topic_growth, "GROW_TIMEOUT_S", 0.2)
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 1)
        key = metadata_keys.cursor(NAME.partition_topic(0).path, "a")
        version = await cluster.store.put(key, CursorRecord(0, 7, None).pack(), None)
        for partitions in (3, 5):
            with pytest.raises(ServiceUnitNotReady, match="goes on"):
                await one.client.call("grow_topic", topic=TOPIC, partitions=partitions)
        assert await one.client.call("partitions", topic=TOPIC) == 1
        state = CursorState(LedgerChain([]), EARLIEST_POSITION).pack()
        await cluster.store.put(key, CursorRecord(0, None, state).pack(), version)
        await eventually(lambda: not cluster.coordinator.office.growths.under_way)
        assert await one.client.call("partitions", topic=TOPIC) == 3
        assert sorted(await subscriptions(cluster, 2)) == ["a"]


async def test_a_subscription_of_the_first_partition_is_created_only_as_the_topic_is_known() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 2)
        first = NAME.partition_name(0)

        async def prepare() -> int:
            return await one.client.call(
                "prepare_subscription", topic=first, subscription="s", position="latest", properties={}
            )

        key = metadata_keys.cursor(NAME.partition_topic(0).path, "s")
        value = CursorRecord(0, None, CursorState(LedgerChain([]), EARLIEST_POSITION).pack()).pack()
        version = await prepare()
        await one.client.call("change_topic_properties", topic=TOPIC, put={"a": "b"})
        needs = Guard(RECORD, version)
        (refused,) = await one.client.metadata.write_many([Write(key, value, None, None, needs)])
        assert isinstance(refused, ConditionFailed) and refused.details["needs"] == RECORD
        (stored,) = await one.client.metadata.write_many(
            [Write(key, value, None, None, Guard(RECORD, await prepare()))]
        )
        assert isinstance(stored, int)
