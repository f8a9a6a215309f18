"""A managed ledger over real bookies: real sockets, real disks, real group commit; only the coordinator is absent."""

import pytest

from magnetar.actors.bookie.service import BookieService
from magnetar.protocol.errors import LedgerFenced, StaleEpoch
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import Identity
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.ledger.bookie_client import BookieClient
from magnetar.storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack
from support.fakes.bookies import Adds, until
from support.stores.memory_store import MemoryMetadataStore

CLUSTER, KEYS, NAME = "cluster-1", RootKeys(b"s" * 32), "persistent/public/default/t"


class NoCoordinator:
    """The metadata without a coordinator process."""

    def __init__(self, metadata):
        self.metadata = metadata
        self.report = {}
        self.on_session_lost = []

    async def start(self):
        return None

    async def register(self, host, port, data):
        return None

    async def close(self):
        return None


async def nowhere():
    raise AssertionError("these tests have no coordinator")


class Cluster:
    """Bookies on directories below one, and brokers' storage sides."""

    def __init__(self, directory, settings):
        self.directory = directory
        self.settings = settings
        self.env = Environment.real()
        self.metadata = MemoryMetadataStore()
        self.bookies: dict[str, BookieService] = {}
        self.listed = BookieDirectory()
        self.clients: list[BookieClient] = []

    async def start(self, count=3):
        await self.metadata.put(metadata_keys.CLUSTER, pack({"id": CLUSTER, "created_ms": 1}), None)
        for number in range(1, count + 1):
            await self.start_bookie(f"bookie-{number}")

    async def start_bookie(self, name):
        service = BookieService(
            self.env,
            str(self.directory / name),
            name,
            CLUSTER,
            KEYS,
            self.settings,
            "127.0.0.1",
            0,
            nowhere,
            coordinator=NoCoordinator(self.metadata),
        )
        await service.start()
        self.bookies[name] = service
        self.list_bookies()

    async def stop_bookie(self, name):
        await self.bookies.pop(name).close()
        self.list_bookies()

    def list_bookies(self):
        self.listed.update(BookieInfo(name, *service.address) for name, service in sorted(self.bookies.items()))

    def ledgers(self, node="broker-1"):
        identity = Identity(CLUSTER, "broker", node, self.env.random.hex(8))
        client = BookieClient(self.env, identity, KEYS, self.settings, self.listed)
        self.clients.append(client)
        return Ledgers(self.env, self.metadata, client, self.settings)

    async def open(self, epoch, node="broker-1"):
        return await ManagedLedger.open(self.env, self.ledgers(node), self.metadata, NAME, epoch, self.settings)

    async def close(self):
        for client in self.clients:
            await client.close()
        for service in self.bookies.values():
            await service.close()
        self.env.close()


@pytest.fixture
async def cluster(tmp_path):
    cluster = Cluster(
        tmp_path,
        Settings(segment_size_bytes=2 << 20, ledger_entries_max=800, ledger_rollover_min_minutes=0, cache_size_mb=1),
    )
    await cluster.start()
    yield cluster
    await cluster.close()


def body(number):
    return b"%08d" % number + bytes(200)


async def append(managed, first, count):
    adds = Adds()
    for number in range(first, first + count):
        managed.append(body(number), adds.callback)
    await adds.wait(count, 20)
    assert not adds.errors, adds.errors[0]
    assert adds.positions == sorted(adds.positions)
    return adds.positions


async def read_all(managed):
    found, first = [], (-1, -1)
    while batch := await managed.read(first, 100, 1 << 20):
        found += batch
        first = (batch[-1][0][0], batch[-1][0][1] + 1)
    return found


async def test_a_topic_survives_a_bookie_lost_a_takeover_and_a_restart_of_everything(cluster):
    first = await cluster.open(1)
    cursor = await first.open_cursor("s", "earliest")
    positions = await append(first, 0, 2000)
    await cluster.stop_bookie("bookie-2")
    positions += await append(first, 2000, 1000)
    cursor.acknowledge(positions[:1500] + positions[2000:2500:5])
    await cursor.flush()

    second = await cluster.open(2, "broker-2")
    zombie = Adds()
    try:
        first.append(b"zombie", zombie.callback)
        await zombie.wait(1)
        assert isinstance(zombie.outcomes[0], LedgerFenced | StaleEpoch)
    except (LedgerFenced, StaleEpoch):
        assert not zombie.outcomes
    await cluster.start_bookie("bookie-2")
    positions += await append(second, 3000, 500)
    found = await read_all(second)
    assert found == [(position, body(number)) for number, position in enumerate(positions)][-len(found) :]
    assert found[0][0] <= positions[1500]
    assert second.cursors["s"].mark_delete_position == positions[1499]
    await second.close()

    for name in list(cluster.bookies):
        await cluster.stop_bookie(name)
    for number in (1, 2, 3):
        await cluster.start_bookie(f"bookie-{number}")
    third = await cluster.open(3, "broker-3")
    found = await read_all(third)
    kept = {position for position, _ in found}
    assert set(positions[1500:]) <= kept
    assert found == [(position, body(number)) for number, position in enumerate(positions) if position in kept]
    cursor = third.cursors["s"]
    assert [one for one in positions[1500:] if cursor.is_acknowledged(one)] == positions[2000:2500:5]
    await third.close()


async def test_a_topic_is_trimmed_and_its_entries_are_collected(cluster):
    managed = await cluster.open(1)
    cursor = await managed.open_cursor("s", "earliest")
    await append(managed, 0, 3000)
    await until(lambda: len(managed.ledger_infos) >= 2)
    cursor.acknowledge_cumulative(managed.last_confirmed)
    before = [info.ledger_id for info in managed.ledger_infos]
    gone = await managed.trim()
    assert gone and gone == before[: len(gone)]
    positions = await append(managed, 3000, 10)
    assert cursor.backlog_entries == 10
    assert (await managed.read(cursor.first_unacknowledged, 100, 1 << 20))[0] == (positions[0], body(3000))
    await managed.close()
