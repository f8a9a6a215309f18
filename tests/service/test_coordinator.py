"""The coordinator over real sockets: failover, zombies, restarts, two coordinators, a thousand topics."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import pytest
import uvloop

from magnetar.actors.coordinator.membership import Session
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.members.coordinator_link import CoordinatorClient, LinkState
from magnetar.protocol.errors import (
    ClusterError,
    CoordinatorUnavailable,
    HandshakeRefused,
    MetadataUnavailable,
    OutcomeUnknown,
    ServiceUnitNotReady,
    StaleEpoch,
)
from magnetar.protocol.slots import PAGES, page_of, slot_of
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import Identity
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.certain_writes import put_certain
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.slot_rows import decode_page
from magnetar.storage.metadata.sql import SqlMetadataStore
from magnetar.storage.metadata.store import Guard, Write, list_all
from support.servers import postgresql_server
from support.servers.coordination import (
    CLUSTER,
    FAST,
    KEYS,
    PREFIX,
    SLOTS,
    assign_all,
    coordination,
    create,
    eventually,
)
from support.stores.memory_store import MemoryMetadataStore, MemoryRecords

SLOT = slot_of(TopicName.parse(f"{PREFIX}t-partition-0"), SLOTS)

# -- ownership -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("23.1", "23.2")
async def test_partitions_are_spread_and_everybody_hears_of_it() -> None:
    async with coordination() as cluster:
        brokers = [await cluster.broker(number) for number in (1, 2, 3)]
        await create(cluster, "t", 5)
        assert sorted((await assign_all(cluster, "t", 5)).values()) == [1, 2, 2]
        for broker in brokers:
            await eventually(lambda broker=broker: len(broker.assignments) == 5)
        assert sorted(len(broker.owned()) for broker in brokers) == [1, 2, 2]
        first = await brokers[0].client.call("assign", topic=f"{PREFIX}t-partition-0")
        assert first["url"] == f"pulsar://{first['broker']}:6650"
        assert first["epoch"] > brokers[1].assignments[f"{PREFIX}t-partition-0"].epoch


@pytest.mark.promise("29.6")
async def test_a_broker_whose_socket_closes_loses_its_topics_at_once() -> None:
    slow = dataclasses.replace(FAST, session_timeout_s=30.0)  # so that only the socket can tell in time
    async with coordination(slow) as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 10)
        await assign_all(cluster, "t", 10)
        before = {topic: value.epoch for topic, value in two.assignments.items()}
        started = time.monotonic()
        await one.client.close()
        await eventually(lambda: len(two.owned()) == 10)
        assert time.monotonic() - started < 10
        assert list(two.client.brokers) == ["broker-2"]
        moved = [topic for topic, value in two.assignments.items() if value.epoch > before[topic]]
        assert len(moved) == 5


async def test_a_write_in_doubt_is_not_waited_for_once_the_session_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        asked: list[str] = []

        async def answer_lost(self: object, writes: object, guard: object = None) -> list[object]:
            asked.append("write")
            raise OutcomeUnknown("the answer was lost")

        monkeypatch.setattr(MemoryMetadataStore, "write_many", answer_lost)
        write = asyncio.create_task(put_certain(cluster.env, one.client.metadata, "managed/x", b"1", None))
        await eventually(lambda: asked)
        # Declared over while it is away, as after a pause: it learns of it when it comes back.
        monkeypatch.setattr(cluster.coordinator.office.membership, "register", _refuse)
        connection = one.client._connection
        assert connection is not None
        connection.close()
        await eventually(lambda: one.lost == 1 and one.client.state is LinkState.ENDED)
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(write, 5)  # settling alone would go on for 30 s


def _refuse(session: object) -> None:
    raise StaleEpoch("this incarnation is over")


async def test_a_silent_broker_loses_its_topics_and_cannot_come_back_as_it_was() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 4)
        await one.stop()
        await eventually(lambda: len(two.owned()) == 4, 3)
        # The zombie wakes up: its writes are refused, its registration too, and it learns that it is over.
        with pytest.raises((StaleEpoch, OutcomeUnknown, MetadataUnavailable)):
            await one.client.metadata.put("managed/x", b"zombie", None)
        zombie = CoordinatorClient(cluster.env, one.client.identity, KEYS, FAST, cluster.locate)
        lost: list[int] = []
        zombie.on_session_lost.append(lambda: lost.append(1))
        await zombie.start(5)
        with pytest.raises(StaleEpoch):
            await zombie.metadata.put("managed/x", b"zombie", None)
        with pytest.raises(StaleEpoch):
            await zombie.register("127.0.0.1", 1, {})
        await zombie.close()
        assert await cluster.store.get("managed/x") is None
        again = await cluster.broker(1, "2")
        await eventually(lambda: again.owned())  # evened out again


async def test_an_error_that_nobody_expected_does_not_end_the_judging_of_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 4)
        coordinator = cluster.coordinator
        tick, plan = coordinator.office.membership.tick, [RuntimeError("a bug"), KeyError("another one")]

        def fail_first(now: float) -> list[Session]:
            if plan:
                raise plan.pop()
            return tick(now)

        monkeypatch.setattr(coordinator.office.membership, "tick", fail_first)
        await one.stop()
        await eventually(lambda: len(two.owned()) == 4, 5)
        assert not plan and (await coordinator.status())["unexpected_errors"] == 2


async def test_an_error_that_nobody_expected_does_not_end_the_placing_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with coordination() as cluster:
        table = cluster.coordinator.office.placement.table
        place, plan = table.place, [RuntimeError("a bug"), KeyError("another one")]

        def fail_first(*arguments: Any) -> dict[int, str]:
            if plan:
                raise plan.pop()
            return place(*arguments)

        monkeypatch.setattr(table, "place", fail_first)
        one = await cluster.broker(1)
        assert (await one.client.call("assign", topic=PREFIX + "t"))["broker"] == "broker-1"
        assert not plan and (await cluster.coordinator.status())["unexpected_errors"] == 2


async def test_of_many_who_ask_for_evenness_one_moves_topics_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 8)
        await assign_all(cluster, "t", 8)
        coordinator, at_once, most = cluster.coordinator, 0, 0
        rebalancer = coordinator.office.rebalancer
        move = rebalancer.move

        async def count(moves: Mapping[int, str | None]) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await move(moves)
            at_once -= 1

        monkeypatch.setattr(rebalancer, "move", count)
        two = await cluster.broker(2)
        await asyncio.gather(*(rebalancer.rebalance() for _ in range(5)))
        assert most == 1
        await eventually(lambda: cluster.coordinator.office.placement.table.counts()["broker-1"] == SLOTS // 2)
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 4)


async def test_a_client_learns_of_its_lost_session_by_itself() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        session = cluster.coordinator.office.membership.find("broker", "broker-1")
        assert session is not None
        cluster.coordinator._require_active().sessions.end(session, "the test says so")
        await eventually(lambda: one.lost == 1)


async def test_a_new_incarnation_frees_the_topics_of_the_old_one_at_once() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 3)
        await assign_all(cluster, "t", 3)
        again = await cluster.broker(1, "2")
        await eventually(lambda: len(again.owned()) == 3)
        await eventually(lambda: one.lost == 1)


async def test_no_broker_is_said_at_once_and_topics_wait_for_one() -> None:
    async with coordination() as cluster:
        admin = await cluster.join("admin", "admin")
        await create(cluster, "t")
        with pytest.raises(ServiceUnitNotReady):
            await admin.client.call("assign", topic=PREFIX + "t")
        one = await cluster.broker(1)
        await admin.client.call("assign", topic=PREFIX + "t")
        await one.client.close()
        await eventually(lambda: not admin.client.brokers)
        two = await cluster.broker(2)
        await eventually(lambda: two.owned() == [PREFIX + "t"])


async def test_a_joining_broker_gets_its_share_in_order() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 6)
        await assign_all(cluster, "t", 6)
        two = await cluster.broker(2)
        counts = cluster.coordinator.office.placement.table.counts
        await eventually(lambda: counts() == {"broker-1": SLOTS // 2, "broker-2": SLOTS // 2})
        # The members learn of it later than the table: until then the first broker believes that it owns all topics.
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 3)
        moved = {slot_of(TopicName.parse(topic), SLOTS) for topic in two.owned()}
        assert sorted(one.rpc.released_slots) == sorted(moved)


async def test_unload_moves_or_renews() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t")
        first = await one.client.call("assign", topic=PREFIX + "t")
        await one.client.call("unload", topic=PREFIX + "t")
        await eventually(lambda: one.assignments[PREFIX + "t"].epoch > first["epoch"])
        assert one.rpc.released == [PREFIX + "t"]
        two = await cluster.broker(2)
        await one.client.call("unload", topic=PREFIX + "t")
        await eventually(lambda: two.owned() == [PREFIX + "t"])
        await one.client.call("unload", topic=PREFIX + "t", destination="broker-1")
        await eventually(lambda: one.owned() == [PREFIX + "t"])


# -- the coordinator's own failures ----------------------------------------------------------------------------------


async def test_after_a_restart_nothing_moves_while_brokers_come_back() -> None:
    async with coordination(dataclasses.replace(FAST, session_timeout_s=2.0)) as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 8)
        await assign_all(cluster, "t", 8)
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 4)
        before = {topic: value.epoch for topic, value in one.assignments.items()}
        await two.stop()  # still holds its socket, and does not come back
        epoch = cluster.coordinator.office.epoch
        await cluster.coordinator.close()
        assert len(one.owned()) == 4  # they go on meanwhile
        started = time.monotonic()
        await cluster.start_coordinator()
        assert cluster.coordinator.office.epoch == epoch + 1
        await eventually(lambda: one.client.epoch == epoch + 1 and one.client.connected)
        await asyncio.sleep(0.3)
        assert {topic: value.epoch for topic, value in one.assignments.items()} == before
        await eventually(lambda: len(one.owned()) == 8)
        assert time.monotonic() - started > 1.0, "half of a session"
        assert one.lost == 0


async def test_after_a_restart_a_new_incarnation_does_not_have_to_wait() -> None:
    slow = dataclasses.replace(FAST, session_timeout_s=30.0)
    async with coordination(slow) as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 4)
        await cluster.coordinator.close()
        await one.close()
        await cluster.start_coordinator()
        again = await cluster.broker(1, "2")
        await eventually(lambda: len(again.owned()) + len(two.owned()) == 4)


async def test_a_pause_of_the_coordinator_is_not_held_against_brokers() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        await assign_all(cluster, "t", 4)
        await asyncio.sleep(0.3)
        time.sleep(2 * FAST.session_timeout_s)  # noqa: ASYNC251 (the whole process, clients included, stands still)
        await asyncio.sleep(0.5)
        assert len(one.owned()) == len(two.owned()) == 2
        assert one.lost == two.lost == 0


async def test_a_replaced_coordinator_with_nothing_to_write_lets_go_of_its_members() -> None:
    """Found by the simulator, seed 1102: bookies went on reporting to it, and the new one did not know of them."""
    async with coordination() as cluster:
        old = cluster.coordinator
        broker = await cluster.broker(1)
        new = await cluster.start_coordinator()
        await asyncio.wait_for(old.wait_ended(), 5 * FAST.session_timeout_s + 2)
        await eventually(lambda: new.office.membership.find("broker", broker.node_id) is not None)
        await old.close()


async def test_of_two_coordinators_only_the_newer_can_write() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 2)
        old = cluster.coordinator
        new = await cluster.start_coordinator()
        try:
            with pytest.raises(MetadataUnavailable):
                await old.office.registry.create_topic(topic=PREFIX + "zombie")
            await asyncio.wait_for(old.wait_ended(), 1)
            assert await cluster.store.get(metadata_keys.topic("persistent/public/default/zombie")) is None
            await eventually(lambda: one.client.epoch == new.office.epoch and one.client.connected)
            await assign_all(cluster, "t", 2)
            assert one.lost == 0
        finally:
            await old.close()


async def test_a_coordinator_that_slept_cannot_write_to_postgresql(
    postgresql: postgresql_server.PostgresqlServer,
) -> None:
    env = Environment.real()
    first = await SqlMetadataStore.open(env, postgresql.url, create=True)
    for key, _ in await list_all(first, ""):
        await first.delete(key, None)
    second = await SqlMetadataStore.open(env, postgresql.url)
    async with coordination(store=first) as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t", 2)
        await assign_all(cluster, "t", 2)
        old = cluster.coordinator
        page = metadata_keys.slot_page(page_of(SLOT, SLOTS))
        before = await second.get(page)
        await cluster.start_coordinator(second)
        # The old one wakes up with a broker that it believes to be dead: nothing of what it decides is stored.
        session = old.office.membership.find("broker", "broker-1")
        assert session is not None
        old._require_active().sessions.end(session, "the test says so")
        old.office.placement.force({SLOT: None})
        replacement = Session("broker", "broker-9", "1", "127.0.0.1", 1, {}, session.connection)
        old.office.membership.register(replacement)
        old.office.placement.broker_joined()
        await asyncio.wait_for(old.wait_ended(), 5)
        assert await second.get(page) == before
        await eventually(lambda: one.client.connected and len(one.owned()) == 2)
        await old.close()
    await second.close()
    await first.close()
    env.close()


def test_a_client_leaves_a_coordinator_with_a_lower_epoch() -> None:
    """On uvloop, as in a cluster: asyncio's own loop forgets a connection that comes while its server closes
    (python/cpython#109564), and this client connects again and again."""

    async def leave() -> None:
        async with coordination() as cluster:
            one = await cluster.broker(1)
            one.client.epoch += 5
            one.client._connection.close()  # type: ignore[union-attr]
            await asyncio.sleep(0.3)
            assert not one.client.connected and one.client.state is LinkState.CONNECTING
            for _ in range(6):
                await cluster.coordinator.close()
                await cluster.start_coordinator()
            await eventually(lambda: one.client.connected and one.client.state is LinkState.REGISTERED)

    uvloop.run(leave())


async def test_it_starts_only_on_its_own_clusters_store() -> None:
    env = Environment.real()
    store = MemoryMetadataStore()
    for prepared in (None, "another"):
        if prepared:
            await create_cluster(store, prepared, 0)
        with pytest.raises(ClusterError):
            await CoordinatorService(env, store, CLUSTER, KEYS, FAST, "127.0.0.1", 0, "").start()
    assert await store.get(metadata_keys.CLUSTER) is not None
    env.close()


async def test_strangers_are_refused() -> None:
    async with coordination() as cluster:
        for identity, keys in (
            (Identity(CLUSTER, "broker", "b", "1"), RootKeys(b"wrong")),
            (Identity("other", "broker", "b", "1"), KEYS),
        ):
            client = CoordinatorClient(cluster.env, identity, keys, FAST, cluster.locate)
            with pytest.raises(HandshakeRefused):
                await client.start(5)
            await client.close()
        nowhere = CoordinatorClient(cluster.env, identity, KEYS, FAST, _nowhere)
        with pytest.raises(CoordinatorUnavailable):
            await nowhere.start(0.2)
        await nowhere.close()


async def _nowhere() -> tuple[str, int]:
    raise CoordinatorUnavailable("nobody")


class FlakyStore(MemoryMetadataStore):
    """Loses answers, and is away at times."""

    def __init__(self, records: MemoryRecords) -> None:
        super().__init__(records)
        self.plan: list[str] = []

    async def write_many(self, writes, guard: Guard | None = None):
        what = self.plan.pop(0) if self.plan and writes[0].key.startswith("slots/") else ""
        if what == "away":
            raise MetadataUnavailable("away")
        results = await super().write_many(writes, guard)
        if what == "lost":
            raise OutcomeUnknown("the answer was lost")
        return results


async def test_lost_answers_and_absence_of_the_store_only_delay() -> None:
    store = FlakyStore(MemoryRecords())
    async with coordination(store=store) as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 4)
        store.plan = ["lost", "away", "lost"]
        assert sum((await assign_all(cluster, "t", 4)).values()) == 4
        store.plan = ["away", "lost", "away"]
        await one.client.close()
        await eventually(lambda: len(two.owned()) == 4)
        for topic, value in two.assignments.items():
            slot = slot_of(TopicName.parse(topic), SLOTS)
            record = await store.get(metadata_keys.slot_page(page_of(slot, SLOTS)))
            assert record is not None and decode_page(record.value).entries[slot].epoch == value.epoch


@pytest.mark.parametrize("plan", [["away"], ["lost"], ["away", "lost"], ["lost", "away"]])
async def test_a_move_is_made_once_however_the_store_behaves(plan: list[str]) -> None:
    store = FlakyStore(MemoryRecords())
    async with coordination(store=store) as cluster:
        one = await cluster.broker(1)
        await create(cluster, "t")
        first = await one.client.call("assign", topic=PREFIX + "t")
        two = await cluster.broker(2)
        store.plan = list(plan)
        await one.client.call("unload", topic=PREFIX + "t")
        await eventually(lambda: two.owned() == [PREFIX + "t"] and not one.owned())
        assert two.assignments[PREFIX + "t"].epoch > first["epoch"]
        assert one.rpc.released == [PREFIX + "t"] and not two.rpc.released


async def test_a_record_that_somebody_else_changed_is_read_again() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "t", 2)
        await assign_all(cluster, "t", 2)
        for number in range(PAGES):
            key = metadata_keys.slot_page(number)
            record = await cluster.store.get(key)
            assert record is not None
            await cluster.store.write_many([Write(key, record.value, record.version)])
        await one.client.close()
        await eventually(lambda: len(two.owned()) == 2)


async def test_a_flood_of_questions_holds_up_neither_heartbeats_nor_metadata() -> None:
    slow = dataclasses.replace(FAST, session_timeout_s=0.8)
    async with coordination(slow) as cluster:
        one = await cluster.broker(1)
        topics = [f"{PREFIX}flood-{index}" for index in range(1500)]
        held = cluster.coordinator.office.placement
        slots = range(SLOTS)
        held.hold(slots)  # as while they are being moved: nobody is answered
        asking = [asyncio.create_task(one.client.call("assign", topic=topic)) for topic in topics]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(2):
            await one.client.metadata.put("managed/x", b"", None)
        await asyncio.sleep(1.2)
        assert one.lost == 0 and one.client.connected
        held.unhold(slots)
        answers = await asyncio.gather(*asking)
        assert len(answers) == 1500
        assert cluster.coordinator.office.membership.find("broker", "broker-1") is not None
