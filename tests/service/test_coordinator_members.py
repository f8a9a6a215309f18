"""Which brokers and bookies the coordinator takes for members."""

import asyncio
import time
from pathlib import Path

import pytest

from magnetar.actors.desired.record import DesiredState
from magnetar.actors.members.coordinator_link import CoordinatorClient, LinkState
from magnetar.protocol.errors import StaleEpoch
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.sql import SqlMetadataStore, sqlite_url
from support.servers.coordination import FAST, KEYS, PREFIX, coordination, create, eventually


async def test_a_broker_that_should_not_run_is_refused_or_loses_its_session() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        desired = cluster.coordinator.office.desired
        await cluster.coordinator.office.store.put(metadata_keys.DESIRED_STATE, DesiredState.of(2, 0).pack(), None)
        await desired.start()
        stray = CoordinatorClient(
            cluster.env, one.client.identity._replace(node_id="broker-3"), KEYS, FAST, cluster.locate
        )
        with pytest.raises(StaleEpoch, match="broker-3 should not run"):
            await stray.start(5)
        await stray.close()
        two = await cluster.broker(2)
        await desired.drain("broker-1")
        assert await desired.forget("broker-1")
        await eventually(lambda: one.lost == 1 and one.client.state is LinkState.ENDED)
        assert list(two.client.brokers) == ["broker-2"]


async def test_a_thousand_topics_move_at_once(tmp_path: Path) -> None:
    env = Environment.real()
    store = await SqlMetadataStore.open(env, sqlite_url(str(tmp_path / "metadata.sqlite")), create=True)
    async with coordination(store=store) as cluster:
        brokers = [await cluster.broker(number) for number in (1, 2, 3)]
        await create(cluster, "t", 2)
        topics = [f"{PREFIX}many-{index}" for index in range(1000)]
        started = time.monotonic()
        await asyncio.gather(*(brokers[0].client.call("assign", topic=topic) for topic in topics))
        print(f"1,000 topics created and assigned in {time.monotonic() - started:.2f} s")
        assert min(len(one.owned()) for one in brokers) > 250
        before = len(brokers[0].owned())
        started = time.monotonic()
        await brokers[0].client.close()
        await eventually(lambda: len(brokers[1].owned()) + len(brokers[2].owned()) == 1002, 10)
        took_s = time.monotonic() - started
        print(f"1,000 topics moved in {took_s:.2f} s")
        assert took_s < 20  # 0.2 s on an idle machine; the suite may share it with anything
        assert min(len(brokers[1].owned()), len(brokers[2].owned())) > 333 + before // 3 - 100
    await store.close()
    env.close()
