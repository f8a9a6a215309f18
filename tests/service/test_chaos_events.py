"""Chaos counts faults by the words of the services' logs: real services must write these words."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.events import count_events
from magnetar.protocol.names import ROLE_BROKER
from magnetar.runtime.logs import LineFormatter
from support.servers.coordination import coordination, eventually


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """A directory to which this process writes its log as a process of a cluster does."""
    handler = logging.FileHandler(tmp_path / "worker-1.err")
    handler.setFormatter(LineFormatter())
    services = logging.getLogger("magnetar")
    before = services.level
    services.setLevel(logging.INFO)
    services.addHandler(handler)
    yield tmp_path
    services.removeHandler(handler)
    services.setLevel(before)
    handler.close()


async def test_a_broker_that_is_replaced_counts_as_a_failover(logs: Path) -> None:
    async with coordination() as cluster:
        await cluster.broker(1)
        first = await cluster.broker(2)
        await first.client.close()
        membership = cluster.coordinator.office.membership
        await eventually(lambda: membership.find(ROLE_BROKER, "broker-2") is None)
        await cluster.broker(2, "2")
    counts = await asyncio.to_thread(count_events, [logs])
    assert counts["failovers"] == 1
    assert counts["sessions of brokers lost"] >= 1
    assert counts["sessions of bookies lost"] == 0
