"""Opening a topic's managed ledger over scripted bookies, appending to it, reading it."""

from magnetar.storage.managed.managed_ledger import ManagedLedger

from ..fakes.bookies import Adds

NAME = "persistent/public/default/t"


async def open_(cluster, epoch=1, ledgers=None, name=NAME, keep=False):
    """`keep`: with a durable cursor at the beginning, so that nothing is trimmed."""
    managed = await ManagedLedger.open(
        cluster.env, ledgers or cluster.ledgers, cluster.metadata, name, epoch, cluster.settings
    )
    if keep:
        await managed.open_cursor("keep", "earliest")
    return managed


async def append(managed, bodies):
    adds = Adds()
    for body in bodies:
        managed.append(body, adds.callback)
    await adds.wait(len(bodies))
    return adds


async def read_all(managed, first=(-1, -1)):
    found = []
    while batch := await managed.read(first, 1000, 1 << 20):
        found += batch
        first = (batch[-1][0][0], batch[-1][0][1] + 1)
    return found


def bodies(count, start=0):
    return [b"body %d" % number for number in range(start, start + count)]
