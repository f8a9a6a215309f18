"""Deleting topics, over real sockets: what is told to whom, what may interrupt it, and that nothing comes back.

The brokers only take notes; `Member.load` stores what a broker stores when it opens a topic.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence

import pytest

from magnetar.actors.coordinator import topic_deletions
from magnetar.actors.members.coordinator_link import LinkState
from magnetar.protocol.errors import (
    ConditionFailed,
    CoordinatorUnavailable,
    NotAllowedError,
    OutcomeUnknown,
    ServiceUnitNotReady,
    TopicNotFound,
)
from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName
from magnetar.runtime.rpc.finder import ServerFinder
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore
from magnetar.storage.metadata.store import Guard, Write, WriteResult
from support.servers.coordination import (
    FAST,
    PREFIX,
    SLOTS,
    Coordination,
    Member,
    assign_all,
    coordination,
    create,
    eventually,
)

TOPIC = PREFIX + "t"
RECORD = metadata_keys.topic("persistent/public/default/t")
PATIENT = dataclasses.replace(FAST, session_timeout_s=8.0)
"""A coordinator that waits longer for brokers than these tests take."""
PARTS = (metadata_keys.TOPICS_PREFIX, metadata_keys.ASSIGNMENTS_PREFIX, metadata_keys.MANAGED_PREFIX)


async def parts(cluster: Coordination) -> list[str]:
    """The keys of everything that is stored of topics."""
    return [key for prefix in PARTS for key, _ in await cluster.store.list(prefix)]


async def loaded_topic(cluster: Coordination, broker: Member) -> None:
    """A topic that its owner has opened."""
    await broker.client.call("assign", topic=TOPIC)
    await eventually(lambda: TOPIC in broker.assignments)
    await broker.load(TOPIC)


async def test_owners_without_clients_close_first_and_one_with_a_client_refuses_all() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 3)
        before = dict(one.assignments)
        one.rpc.unload_error = NotAllowedError("in use")
        with pytest.raises(NotAllowedError):
            await one.client.call("delete_topic", topic=TOPIC)
        assert await one.client.call("partitions", topic=TOPIC) == 4
        assert not one.rpc.deleted + two.rpc.deleted
        # Those that were closed are given back.
        released = two.rpc.released
        assert released
        await eventually(lambda: sorted(grant.topic for grant in two.rpc.given_back) == sorted(released))
        assert before == one.assignments
        one.rpc.unload_error = None
        await one.client.call("delete_topic", topic=TOPIC)
        with pytest.raises(TopicNotFound):
            await one.client.call("partitions", topic=TOPIC)
        await eventually(lambda: not one.assignments and not two.assignments)
        assert await parts(cluster) == []
        with pytest.raises(TopicNotFound):
            await one.client.call("delete_topic", topic=TOPIC)
        await create(cluster, "t", 1)
        await assign_all(cluster, "t", 1)


async def test_an_owner_that_cannot_be_reached_is_given_its_topics_back_later() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 3)
        one.rpc.unload_error = NotAllowedError("in use")
        two.rpc.take_failures = 3
        with pytest.raises(NotAllowedError):
            await one.client.call("delete_topic", topic=TOPIC)
        await eventually(lambda: two.rpc.given_back)
        assert sorted(grant.topic for grant in two.rpc.given_back) == sorted(two.rpc.released)
        assert not two.rpc.take_failures


async def test_a_topic_under_deletion_is_not_loaded_looked_up_or_created() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 3)
        await assign_all(cluster, "t", 3)
        first = f"{TOPIC}-partition-0"
        await eventually(lambda: len(one.assignments) == 3)
        known = dict(one.assignments)
        for topic in known:
            await one.load(topic)
        one.rpc.delete_gate = asyncio.Event()
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC, force=True))
        await eventually(lambda: one.rpc.deleted)
        # By now no owner can open any of it, however long the deletion takes and whatever it remembers.
        await cluster.store.delete(metadata_keys.managed_ledger("persistent/public/default/t-partition-0"), None)
        with pytest.raises(ConditionFailed):
            await one.load(first)
        for refused in (
            one.client.call("assign", topic=first),
            one.client.call("partitions", topic=TOPIC),
            one.client.call("partitions", topic=TOPIC, create=True),
            one.client.call("create_topic", topic=TOPIC, partitions=3),
            one.client.call("grow_topic", topic=TOPIC, partitions=4),
            one.client.call("unload", topic=TOPIC),
        ):
            with pytest.raises(ServiceUnitNotReady):
                await refused
        one.rpc.delete_gate.set()
        await deletion
        assert await parts(cluster) == []
        await create(cluster, "t", 3)
        await assign_all(cluster, "t", 3)
        one.grants.clear()
        await one.load(first)


async def test_brokers_forget_that_a_topic_exists_when_its_deletion_begins() -> None:
    """Else a client that is sent away hears that it exists, and its PRODUCER creates it when it is gone."""
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t")
        await eventually(lambda: one.owned() or two.owned())
        owner = one if one.owned() else two
        await owner.load(TOPIC)
        owner.rpc.delete_gate = asyncio.Event()
        for member in (one, two):
            member.client.known_topics.know(TOPIC, 0)
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC))
        await eventually(lambda: owner.rpc.deleted)
        await eventually(lambda: all(member.client.known_topics.get(TOPIC) is None for member in (one, two)))
        owner.rpc.delete_gate.set()
        await deletion


async def test_who_asks_for_a_topic_while_it_is_deleted_does_not_bring_it_back() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await loaded_topic(cluster, one)
        registry = cluster.coordinator.office.registry
        delete, refused = registry.delete, []

        async def delete_while_somebody_asks(topic: object) -> None:
            with pytest.raises(ServiceUnitNotReady):
                await one.client.call("assign", topic=TOPIC)
            slot = slot_of(TopicName.parse(TOPIC), SLOTS)
            assert (await one.client.call("slot_topics", slots=[slot]))["grants"] == []
            refused.append(TOPIC)
            await delete(topic)  # type: ignore[arg-type]

        registry.delete = delete_while_somebody_asks  # type: ignore[method-assign]
        await one.client.call("delete_topic", topic=TOPIC)
        assert refused and await parts(cluster) == []


async def test_of_two_who_delete_a_topic_the_second_one_waits() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await loaded_topic(cluster, one)
        one.rpc.delete_gate = asyncio.Event()
        first = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC))
        await eventually(lambda: len(one.rpc.deleted) == 1)
        second = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC))
        await one.client.call("status")  # the second one has been begun, and has asked no broker
        one.rpc.delete_gate.set()
        await first
        with pytest.raises(TopicNotFound):
            await second
        assert len(one.rpc.deleted) == 1


async def test_who_waits_too_long_is_told_and_the_deletion_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletions, "DELETE_TIMEOUT_S", 0.3)
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await loaded_topic(cluster, one)
        one.rpc.delete_gate = asyncio.Event()
        with pytest.raises(ServiceUnitNotReady, match="goes on"):
            await one.client.call("delete_topic", topic=TOPIC)
        one.rpc.delete_gate.set()
        await eventually(lambda: not cluster.coordinator.office.deletions.under_way)
        assert await parts(cluster) == []


async def test_a_failing_step_is_repeated_under_a_greater_epoch() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await loaded_topic(cluster, one)
        one.rpc.delete_error = ServiceUnitNotReady("two bookies are away")
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC))
        await eventually(lambda: len(one.rpc.deleted) == 2)
        one.rpc.delete_error = None
        await deletion
        epochs = [epoch for _, epoch in one.rpc.deleted]
        assert epochs == sorted(set(epochs)) and await parts(cluster) == []
        assert cluster.coordinator.office.deletions.failures == len(epochs) - 1


@pytest.mark.parametrize("step", range(12))
async def test_the_next_coordinator_finishes_a_deletion_that_ended_at_any_write(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator falls silent at its n-th write of the deletion: before it, or after it (odd)."""
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 2)
        await assign_all(cluster, "t", 2)
        for topic in (f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"):
            owner = one if topic in one.owned() else two
            await eventually(lambda owner=owner, topic=topic: topic in owner.assignments)
            await owner.load(topic)
        write_many, office = EpochMetadataStore.write_many, cluster.coordinator.office.store
        seen = 0

        async def write(
            self: EpochMetadataStore, writes: Sequence[Write], guard: Guard | None = None
        ) -> list[WriteResult]:
            nonlocal seen
            if self is office:
                seen += 1
                if seen > step // 2 + 1 or (seen == step // 2 + 1 and not step % 2):
                    raise OutcomeUnknown("this coordinator is dead")
            return await write_many(self, writes, guard)

        monkeypatch.setattr(EpochMetadataStore, "write_many", write)
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC, force=True))
        await asyncio.wait([deletion], timeout=0.15)
        await cluster.coordinator.close()
        await asyncio.gather(deletion, return_exceptions=True)
        await cluster.start_coordinator()
        for member in (one, two):
            await eventually(lambda member=member: member.client.connected)
        await eventually(lambda: not cluster.coordinator.office.deletions.under_way)
        if await parts(cluster):  # it ended before the mark: then nothing was deleted at all
            assert step == 0 and await one.client.call("partitions", topic=TOPIC) == 2
            assert len(await parts(cluster)) == 3
        else:
            with pytest.raises(TopicNotFound):
                await one.client.call("partitions", topic=TOPIC)


async def test_a_topic_that_was_moved_alone_lies_in_its_slot_when_it_is_created_again() -> None:
    async with coordination() as cluster:
        one, _ = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t")
        home = one.assignments[TOPIC].broker
        await one.client.call("unload", topic=TOPIC)
        await eventually(lambda: one.assignments[TOPIC].broker != home)
        alone = one.assignments[TOPIC].epoch
        await one.client.call("delete_topic", topic=TOPIC)
        assert not cluster.coordinator.office.placement.table.rows().exceptions
        await create(cluster, "t")
        found = await one.client.call("assign", topic=TOPIC)
        assert found["broker"] == home and found["epoch"] > alone


# -- owners that have not come back to a new coordinator ---------------------------------------------------------------


@contextlib.asynccontextmanager
async def one_is_late(
    settings: Settings = PATIENT,
) -> AsyncIterator[tuple[Coordination, Member, Member, asyncio.Event]]:
    """A topic whose partitions two brokers have opened, then another coordinator, which the second broker does not find
    before the event."""
    async with coordination(settings) as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 2)
        await assign_all(cluster, "t", 2)
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 1)
        for member in (one, two):
            await member.load(member.owned()[0])
        found = asyncio.Event()

        async def locate() -> tuple[str, int]:
            if not found.is_set():
                raise CoordinatorUnavailable("this broker is cut off")
            return await cluster.locate()

        two.client._finder = ServerFinder(locate, two.client._finder._open)
        await cluster.coordinator.close()
        await cluster.start_coordinator()
        await eventually(lambda: one.client.state is LinkState.REGISTERED)
        yield cluster, one, two, found


async def test_clients_of_an_owner_that_is_on_its_way_keep_the_topic() -> None:
    async with one_is_late() as (cluster, one, two, found):
        two.rpc.unload_error = NotAllowedError("in use")
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC, timeout_s=30))
        await asyncio.wait([deletion], timeout=0.2)
        found.set()
        with pytest.raises(NotAllowedError):
            await deletion
        assert len(await parts(cluster)) == 3 and not one.rpc.deleted + two.rpc.deleted


@pytest.mark.parametrize("force", [False, True])
async def test_an_owner_that_is_on_its_way_deletes_its_own(force: bool) -> None:
    """Another broker would leave it with the topic open."""
    async with one_is_late() as (cluster, one, two, found):
        own = two.owned()
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC, force=force, timeout_s=30))
        await asyncio.wait([deletion], timeout=0.2)
        found.set()
        await deletion
        assert [topic for topic, _ in two.rpc.deleted] == own
        assert await parts(cluster) == []


async def test_an_owner_on_its_way_closes_a_topic_that_was_moved_alone_meanwhile() -> None:
    """When the exception has ended the stored slots name this owner again: nobody else would tell it of the move."""
    async with one_is_late() as (cluster, one, two, found):
        own = two.owned()[0]
        await one.client.call("unload", topic=own, destination=one.node_id)
        deletion = asyncio.create_task(one.client.call("delete_topic", topic=TOPIC, force=True, timeout_s=30))
        await eventually(lambda: own in [topic for topic, _ in one.rpc.deleted])
        await asyncio.wait([deletion], timeout=0.2)
        assert not deletion.done() and not two.rpc.released
        found.set()
        await deletion
        assert two.rpc.released == [own]
        assert await parts(cluster) == []


async def test_an_owner_that_does_not_come_loses_the_topic_before_it_is_deleted() -> None:
    async with one_is_late(FAST) as (cluster, one, two, _):
        own = two.owned()[0]
        await one.client.call("delete_topic", topic=TOPIC, timeout_s=30)
        owner = cluster.coordinator.office.placement.table.entry_of(TopicName.parse(own)).owner
        assert owner is not None and owner.broker == one.node_id
        assert len(one.rpc.deleted) == 2 and await parts(cluster) == []


async def test_a_topic_that_nobody_has_owned_needs_no_broker_to_be_deleted() -> None:
    async with coordination() as cluster:
        await create(cluster, "t", 2)
        await cluster.coordinator.office.deletions.delete_topic(topic=TOPIC)
        assert await parts(cluster) == []


# -- topics that nobody uses -------------------------------------------------------------------------------------------


async def test_an_inactive_topic_is_deleted_and_none_of_its_partitions_is_closed_in_vain() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 5)
        await assign_all(cluster, "t", 5)
        await eventually(lambda: sorted([len(one.owned()), len(two.owned())]) == [2, 3])
        for topic in one.owned() + two.owned():
            if not topic.endswith("4"):  # nobody has ever used the fifth
                await (one if topic in one.owned() else two).load(topic)
        last = next(topic for topic in two.owned() if not topic.endswith("4"))
        two.rpc.used[last] = None
        with pytest.raises(NotAllowedError):
            await one.client.call("delete_inactive_topic", topic=f"{TOPIC}-partition-0")
        assert not one.rpc.released + two.rpc.released
        two.rpc.used.clear()
        await one.client.call("delete_inactive_topic", topic=f"{TOPIC}-partition-0")
        assert await parts(cluster) == []


async def test_a_topic_that_becomes_used_after_the_first_question_is_kept() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 2)
        await assign_all(cluster, "t", 2)
        await eventually(lambda: len(one.owned()) == 2)
        for topic in one.owned():
            await one.load(topic)
        answer = one.rpc.is_inactive

        async def used_a_moment_later(*, topic: str) -> bool:
            try:
                return await answer(topic=topic)
            finally:
                one.rpc.used[f"{TOPIC}-partition-1"] = None

        one.rpc.is_inactive = used_a_moment_later  # type: ignore[method-assign]
        one.rpc.used.clear()
        with pytest.raises(NotAllowedError):
            await one.client.call("delete_inactive_topic", topic=f"{TOPIC}-partition-0")
        assert len(await parts(cluster)) == 3 and not one.rpc.deleted


async def test_a_topic_whose_owner_is_gone_is_not_taken_for_inactive() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await loaded_topic(cluster, one)
        office = cluster.coordinator.office
        office.deletions._owner_of = lambda topic: None  # type: ignore[method-assign]
        with pytest.raises(ServiceUnitNotReady):
            await one.client.call("delete_inactive_topic", topic=TOPIC)
        assert len(await parts(cluster)) == 2


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("order", ["delete_topic", "forced", "delete_inactive_topic"])
async def test_what_roles_were_allowed_at_a_topic_goes_with_it(order: str, partitions: int) -> None:
    async with coordination() as cluster:
        broker = await cluster.broker(1)
        for name in ("t", "stays"):
            await create(cluster, name, partitions)
        granted = [TOPIC, PREFIX + "stays", *(f"{TOPIC}-partition-{index}" for index in range(partitions))]
        grants = {
            "namespace_auth": {"other": ["consume"]},
            "destination_auth": {topic: {"old": ["produce"]} for topic in granted},
        }
        namespace = {"namespace": "public/default"}
        await broker.client.call("set_policy", **namespace, policy="auth_policies", value=grants)
        if order == "forced":
            await broker.client.call("delete_topic", topic=TOPIC, force=True)
        else:
            await broker.client.call(order, topic=TOPIC)
        kept = {**grants, "destination_auth": {PREFIX + "stays": {"old": ["produce"]}}}
        assert (await broker.client.call("namespace", **namespace))[2] == {"auth_policies": kept}
        await broker.client.call("delete_topic", topic=PREFIX + "stays", force=True)
        assert (await broker.client.call("namespace", **namespace))[2] == {
            "auth_policies": {"namespace_auth": {"other": ["consume"]}}
        }


async def test_a_forced_deletion_of_a_namespace_is_not_kept_by_grants_of_topics() -> None:
    async with coordination() as cluster:
        broker = await cluster.broker(1)
        await create(cluster, "t", 0)
        namespace = {"namespace": "public/default"}
        grants = {"destination_auth": {TOPIC: {"old": ["produce"]}}}
        await broker.client.call("set_policy", **namespace, policy="auth_policies", value=grants)
        await broker.client.call("delete_namespace", **namespace, force=True)
        await broker.client.call("create_namespace", **namespace)
        assert not (await broker.client.call("namespace", **namespace))[2]
