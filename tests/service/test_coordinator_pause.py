"""A coordinator that stands still for longer than its members wait, over real sockets: when it goes on it finds their
connections closed, and must tell those that live from those that died.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata.cluster_identity import create_cluster
from support.servers.coordination import (
    CLUSTER,
    FAST,
    PREFIX,
    Coordination,
    CoordinatorThread,
    Member,
    assign_all,
    eventually,
)
from support.stores.memory_store import MemoryMetadataStore


class Scene(NamedTuple):
    """Brokers 1 and 2 with two partitions each, under a coordinator that was active long enough to judge."""

    cluster: Coordination
    coordinator: CoordinatorThread
    one: Member
    two: Member


@contextlib.asynccontextmanager
async def scene(settings: Settings = FAST) -> AsyncIterator[Scene]:
    env = Environment.real()
    store = MemoryMetadataStore()
    await create_cluster(store, CLUSTER, 0)
    cluster = Coordination(env, store, settings)
    coordinator = await cluster.start_coordinator_thread()
    try:
        one, two = await cluster.broker(1), await cluster.broker(2)
        await one.client.call("create_topic", topic=f"{PREFIX}t", partitions=4)
        await assign_all(cluster, "t", 4)
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 2)
        await eventually(lambda: not coordinator.service.office.membership.in_grace)
        yield Scene(cluster, coordinator, one, two)
    finally:
        await cluster.close_members()
        await asyncio.to_thread(coordinator.close)
        env.close()


async def test_brokers_that_gave_a_paused_coordinator_up_keep_sessions_and_topics() -> None:
    """Found by chaos, seed 7: every living broker lost its session when the coordinator went on."""
    async with scene() as (_, coordinator, one, two):
        before = dict(one.assignments)
        with coordinator.paused():
            await eventually(lambda: not one.client.connected and not two.client.connected)
        await eventually(lambda: one.client.connected and two.client.connected)
        await asyncio.sleep(2 * FAST.session_timeout_s)  # by then whoever had stayed away would have been ended
        assert one.lost == two.lost == 0
        assert [one.incarnation for one in coordinator.service.office.membership.of_role("broker")] == ["1", "1"]
        assert one.assignments == two.assignments == before


async def test_a_broker_that_died_during_the_pause_fails_over_within_one_time_out() -> None:
    async with scene() as (_, coordinator, one, two):
        with coordinator.paused():
            await eventually(lambda: not two.client.connected)
            await one.close()
        awake = time.monotonic()
        await eventually(lambda: len(two.owned()) == 4)
        assert 0.9 * FAST.session_timeout_s < time.monotonic() - awake < FAST.session_timeout_s + 2
        assert two.lost == 0


async def test_a_new_incarnation_frees_at_once_what_a_detached_one_owned() -> None:
    # What happens at once is much faster than this, also on a busy machine.
    slow = dataclasses.replace(FAST, session_timeout_s=4.0)
    async with scene(slow) as (cluster, coordinator, one, two):
        with coordinator.paused():
            await eventually(lambda: not two.client.connected)
            await one.close()
        awake = time.monotonic()
        again = await cluster.broker(1, "2")
        await eventually(lambda: len(again.owned()) + len(two.owned()) == 4)
        assert time.monotonic() - awake < slow.session_timeout_s
        assert two.lost == 0


async def test_a_close_that_comes_some_time_after_the_pause_counts_at_once_again() -> None:
    async with scene() as (_, coordinator, one, two):
        with coordinator.paused():
            await eventually(lambda: not one.client.connected and not two.client.connected)
        await eventually(lambda: one.client.connected and two.client.connected)
        await asyncio.sleep(FAST.heartbeat_interval_s * 2)
        closed = time.monotonic()
        await one.close()
        await eventually(lambda: len(two.owned()) == 4)
        assert time.monotonic() - closed < FAST.session_timeout_s
