"""Fixtures of the service tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from magnetar.client.aio.client import AsyncClient
from support.fakes.broker import FakeBroker
from support.servers import postgresql_server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[postgresql_server.PostgresqlServer]:
    """A running PostgreSQL server; the test is skipped, with the reason, where none can be had."""
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    server = postgresql_server.PostgresqlServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """A scripted broker."""
    started = await FakeBroker().start()
    yield started
    await started.stop()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    """A client of `broker`."""
    async with AsyncClient(broker.url, operation_timeout_seconds=3) as made:
        yield made
