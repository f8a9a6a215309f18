"""A topic's own record, which the coordinator keeps, and the owners that open and delete the topic under it."""

from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Guard, MetadataStore, pack

from ..fakes.bookies import FakeCluster

NAME = "persistent/public/default/t"
TOPIC = metadata_keys.topic(NAME)


async def create_topic(cluster: FakeCluster) -> Guard:
    return Guard(TOPIC, await cluster.metadata.put(TOPIC, pack({"partitions": 0}), None))


async def named_topic(cluster: FakeCluster) -> Guard:
    """What the coordinator names to the next owner."""
    found = await cluster.metadata.get(TOPIC)
    assert found is not None
    return Guard(TOPIC, found.version)


async def mark_topic(cluster: FakeCluster, guard: Guard) -> Guard:
    """The coordinator begins a deletion."""
    return Guard(TOPIC, await cluster.metadata.put(TOPIC, pack({"partitions": 0, "deleting": True}), guard.version))


async def open_topic(
    cluster: FakeCluster,
    epoch: int,
    guard: Guard,
    *,
    metadata: MetadataStore | None = None,
    ledgers: Ledgers | None = None,
) -> ManagedLedger:
    """As a broker opens it that was granted `epoch`, and `guard` with it."""
    return await ManagedLedger.open(
        cluster.env,
        ledgers or cluster.new_ledgers(),
        metadata or cluster.metadata,
        NAME,
        epoch,
        cluster.settings,
        needs=guard,
    )


async def delete_data(cluster: FakeCluster, epoch: int) -> None:
    """What the owner does in a deletion that has this epoch."""
    await delete_managed_ledger(cluster.env, cluster.new_ledgers(), cluster.metadata, NAME, epoch)


async def delete_topic(cluster: FakeCluster, epoch: int, guard: Guard) -> None:
    """The whole deletion: the mark, what is stored, the record."""
    marked = await mark_topic(cluster, guard)
    await delete_data(cluster, epoch)
    await cluster.metadata.delete(TOPIC, marked.version)
