"""What the pool keeps of connections that have ended."""

import pytest

from magnetar.client.core import connection_pool
from magnetar.client.core.configuration import ClientConfiguration
from magnetar.client.core.connection import ClientConnection
from magnetar.client.core.connection_pool import ENDED_MAX, ConnectionPool
from magnetar.protocol.addresses import Address
from magnetar.protocol.pulsar_pb2 import FeatureFlags


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ConnectionPool:
    """A pool whose connections have no socket."""

    async def connect(
        configuration: ClientConfiguration,
        address: Address,
        proxied: Address | None,
        authentication: object,
        contexts: None,
    ) -> ClientConnection:
        connection = ClientConnection(configuration, address, proxied)
        connection.ready.set_result(FeatureFlags())
        return connection

    monkeypatch.setattr(connection_pool, "connect", connect)
    return ConnectionPool(ClientConfiguration())


def address(number: int) -> Address:
    return f"10.0.{number // 256}.{number % 256}", 6650


async def test_only_the_last_connections_that_ended_stay_known(pool: ConnectionPool) -> None:
    open_one = await pool.get(address(0))
    for number in range(1, 3 * ENDED_MAX):
        (await pool.get(address(number))).close()
        assert len(pool._connections) <= 1 + 1 + ENDED_MAX  # the open one, the newest, and those that ended before
    newest = 3 * ENDED_MAX - 1
    assert pool.rank(address(newest)) == pool.rank(address(newest - ENDED_MAX)) == 2  # it has ended: asked last
    assert pool.rank(address(newest - ENDED_MAX - 1)) == 1  # nothing is known of it any longer
    assert await pool.get(address(0)) is open_one and pool.rank(address(0)) == 0
    await pool.close()


async def test_an_address_that_is_connected_again_counts_as_new(pool: ConnectionPool) -> None:
    (await pool.get(address(0))).close()
    for number in range(1, ENDED_MAX):
        (await pool.get(address(number))).close()
    (await pool.get(address(0))).close()  # again, and so after all others
    for number in range(ENDED_MAX, 2 * ENDED_MAX - 1):
        (await pool.get(address(number))).close()
    await pool.get(address(2 * ENDED_MAX))
    assert pool.rank(address(0)) == 2 and pool.rank(address(ENDED_MAX - 1)) == 1
    await pool.close()
