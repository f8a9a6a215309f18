"""What the events in the life of a topic with two subscriptions cost, however many other topics there are."""

import pytest

from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from support.fakes.bookies import Adds, FakeCluster
from support.stores.counting_store import CountingStore, Operations

NAME = "persistent/public/default/t"
SUBSCRIPTIONS = ("one", "two")

COSTS = {
    "first load": (1, 1, 1),
    "first message": (0, 3, 3),  # the ledger's id, the ledger, the chain
    "nine more messages": (0, 0, 0),
    "two subscriptions": (0, 2, 2),
    "first acknowledgement of both": (0, 6, 6),  # for each the ledger's id, the ledger, the cursor
    "more acknowledgements": (0, 0, 0),
    # The ledger is claimed and closed, then the chain. The same holds for the ledger of each cursor, which is deleted
    # behind the change of the cursor.
    "load after a crash": (5, 11, 11),
    "close of what was only loaded": (0, 0, 0),
    # The cursor and its ledger go in one transaction.
    "deletion of a third subscription, with a ledger": (0, 1, 2),
    "load after a clean close": (3, 3, 3),
    "rest": (0, 2, 2),  # the ledger is closed, and the chain says that the topic rests
    "deletion": (7, 4, 6),
}
"""Questions, transactions and records of each event. A change that costs more has to say so here."""


class Life:
    """A topic, and the counts of its events."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.store = CountingStore(cluster.metadata.records)
        self.ledgers = Ledgers(cluster.env, self.store, cluster.client, cluster.settings)
        self.others = sorted(cluster.metadata.records.by_key)
        """Keys of records that must stay."""
        self.counts: dict[str, Operations] = {}

    def note(self, event: str) -> None:
        self.counts[event] = self.store.take()

    async def open(self, event: str, epoch: int) -> ManagedLedger:
        cluster = self.cluster
        managed = await ManagedLedger.open(cluster.env, self.ledgers, self.store, NAME, epoch, cluster.settings)
        self.note(event)
        return managed

    async def run(self) -> dict[str, Operations]:
        managed = await self.open("first load", 1)
        adds = Adds()
        managed.append(b"x", adds.callback)
        await adds.wait(1)
        self.note("first message")
        for number in range(9):
            managed.append(b"%d" % number, adds.callback)
        await adds.wait(10)
        self.note("nine more messages")
        cursors = [await managed.open_cursor(name, "earliest") for name in SUBSCRIPTIONS]
        self.note("two subscriptions")
        for cursor in cursors:
            cursor.acknowledge(adds.positions[1:3])
            await cursor.flush()
        self.note("first acknowledgement of both")
        for cursor in cursors:
            cursor.acknowledge(adds.positions[4:6])
            await cursor.flush()
        self.note("more acknowledgements")
        third = await managed.open_cursor("three", "earliest")
        third.acknowledge(adds.positions[1:3])
        await third.flush()
        self.store.take()
        await managed.delete_cursor("three")
        self.note("deletion of a third subscription, with a ledger")
        managed = await self.open("load after a crash", 2)
        await managed.close()
        self.note("close of what was only loaded")
        managed = await self.open("load after a clean close", 3)
        managed.append(b"y", adds.callback)
        await adds.wait(11)
        self.store.take()
        await managed.close(at_rest=b"policies")
        self.note("rest")
        await delete_managed_ledger(self.cluster.env, self.ledgers, self.store, NAME, 4)
        self.note("deletion")
        assert sorted(self.cluster.metadata.records.by_key) == ["counters/ledger", *self.others]
        return self.counts


@pytest.mark.parametrize("others", [0, 1_000, 10_000])
async def test_operations_of_each_event(others: int) -> None:
    cluster = FakeCluster(3)
    for number in range(others):
        for key in (metadata_keys.managed_ledger(f"{NAME}{number}"), metadata_keys.ledger(10**6 + number)):
            await cluster.metadata.put(key, b"", None)
        await cluster.metadata.put(metadata_keys.cursor(f"{NAME}{number}", "one"), b"", None)
    counts = await Life(cluster).run()
    await cluster.close()
    assert {event: tuple(count) for event, count in counts.items()} == COSTS
