"""How many metadata operations a topic costs: when it is created, loaded, loaded after a crash, and deleted.

Each is a call to the coordinator and a part of a transaction there; a failover makes a thousand of them at once.
"""

from collections import Counter
from typing import Any

from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from support.fakes.bookies import Adds, FakeCluster
from support.stores.owned_topic import NAME, TOPIC, create_topic, named_topic, open_topic

CALLS = ("get", "get_many", "list", "put", "delete", "write_many", "allocate")


class Counted:
    """A metadata store that counts the calls of whoever holds it."""

    def __init__(self, store: Any) -> None:
        self.calls: Counter[str] = Counter()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in CALLS:
            self.calls[name] += 1
        return getattr(self._store, name)

    def take(self) -> int:
        """Calls since the last time."""
        calls, self.calls = self.calls.total(), Counter()
        return calls


class Broker:
    """The storage side of one broker, whose metadata operations are counted."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.metadata = Counted(cluster.metadata)
        self.cluster = cluster
        self.ledgers = cluster.new_ledgers()
        self.ledgers.records._store = self.metadata  # type: ignore[assignment]

    async def open(self, epoch: int) -> ManagedLedger:
        if await self.cluster.metadata.get(TOPIC) is None:
            await create_topic(self.cluster)
        guard = await named_topic(self.cluster)
        return await open_topic(
            self.cluster,
            epoch,
            guard,
            metadata=self.metadata,  # type: ignore[arg-type]
            ledgers=self.ledgers,
        )

    async def fill(self, managed: ManagedLedger) -> None:
        """An open ledger with entries, and a cursor whose place lies in a ledger of its own."""
        cursor = await managed.open_cursor("s", "earliest")
        adds = Adds()
        for _ in range(3):
            managed.append(b"x", adds.callback)
        await adds.wait(3)
        cursor.acknowledge([adds.positions[1]])
        await cursor.flush()


async def test_creating_a_topic_costs_two_operations(cluster: FakeCluster) -> None:
    broker = Broker(cluster)
    managed = await broker.open(1)
    assert broker.metadata.take() == 2  # what there is; the chain's record
    await managed.close()
    assert broker.metadata.take() == 0


async def test_loading_a_topic_that_was_closed_costs_five_operations(cluster: FakeCluster) -> None:
    first, second = Broker(cluster), Broker(cluster)
    managed = await first.open(1)
    await first.fill(managed)
    await managed.close()
    managed = await second.open(2)
    assert second.metadata.take() == 5  # the record, its ledgers, the claim, its cursors, and each cursor taken over
    await managed.close()


async def test_loading_a_topic_after_a_crash_costs_eleven_operations(cluster: FakeCluster) -> None:
    first, second = Broker(cluster), Broker(cluster)
    dead = await first.open(1)
    await first.fill(dead)
    managed = await second.open(2)
    # Besides the five: two for each of two ledgers that are recovered; the cursor's is read, and deleted.
    assert second.metadata.take() == 11
    await managed.close()


async def test_deleting_what_a_topic_stores_costs_ten_operations(cluster: FakeCluster) -> None:
    first, second = Broker(cluster), Broker(cluster)
    managed = await first.open(1)
    await first.fill(managed)
    await managed.close()
    await delete_managed_ledger(cluster.env, second.ledgers, second.metadata, NAME, 2)  # type: ignore[arg-type]
    assert second.metadata.take() == 10
