"""Which brokers and bookies the coordinator takes for members."""

import pytest

from magnetar.actors.desired.record import DesiredState
from magnetar.actors.members.coordinator_link import CoordinatorClient, LinkState
from magnetar.protocol.errors import StaleEpoch
from magnetar.storage.metadata import keys as metadata_keys
from support.servers.coordination import FAST, KEYS, coordination, eventually


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
