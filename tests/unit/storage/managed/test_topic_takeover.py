"""A topic that changes hands again and again, with trouble at its bookies: what was acknowledged stays, in order; and a
topic that is deleted stays so, whatever an owner does that slept through it.
"""

import asyncio
import contextlib

import pytest

from magnetar.actors.auditor.orphans import RECORD_KINDS
from magnetar.protocol.errors import ConditionFailed, LedgerFenced, MagnetarError, MetadataUnavailable, StaleEpoch
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all
from support.fakes.bookies import Adds, FakeCluster
from support.stores.owned_topic import (
    NAME,
    TOPIC,
    create_topic,
    delete_data,
    delete_topic,
    mark_topic,
    named_topic,
    open_topic,
)

pytestmark = pytest.mark.cluster_settings(cursor_flush_interval_s=0.02)


async def records(cluster):
    """The keys of everything that is stored of the topic but its own record."""
    prefixes = [kind.prefix for kind in RECORD_KINDS if kind.names_ledgers]
    return [key for prefix in prefixes for key, _ in await list_all(cluster.metadata, prefix)]


async def test_a_topic_is_not_opened_under_an_epoch_that_another_owner_has_superseded(cluster):
    guard = await create_topic(cluster)
    await (await open_topic(cluster, 2, guard)).close()
    before = await records(cluster)
    with pytest.raises(StaleEpoch):
        await open_topic(cluster, 1, guard)
    assert await records(cluster) == before


async def test_a_zombie_in_the_middle_of_opening_does_not_bring_a_deleted_topic_back(cluster, monkeypatch):
    guard = await create_topic(cluster)
    get_many = cluster.metadata.get_many
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(keys):
        found = await get_many(keys)
        if TOPIC in keys and not looked.is_set():
            looked.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(cluster.metadata, "get_many", slow)
    zombie = asyncio.create_task(open_topic(cluster, 1, guard))
    await looked.wait()
    await (await open_topic(cluster, 2, guard)).close()
    await delete_topic(cluster, 3, guard)
    go_on.set()
    with pytest.raises(ConditionFailed):
        await zombie
    assert await records(cluster) == []


@pytest.mark.parametrize("deed", ["cursor", "pin", "plan"])
async def test_a_zombie_creates_nothing_beside_the_record_of_a_deleted_topic(cluster, deed):
    guard = await create_topic(cluster)
    zombie = await open_filled(cluster, 1, guard)
    fenced = []
    zombie.on_fenced.append(fenced.append)
    await (await open_topic(cluster, 2, guard)).close()
    await delete_topic(cluster, 3, guard)
    with pytest.raises(StaleEpoch):
        if deed == "cursor":
            await zombie.open_cursor("s", "earliest")
        elif deed == "pin":
            await zombie.pin([zombie.last_confirmed[0]], 60.0)
        else:
            await zombie.plan((-1, -1))
    assert await records(cluster) == []
    assert len(fenced) == 1 and "s" not in zombie.cursors
    with contextlib.suppress(MagnetarError):
        await zombie.close()


@pytest.mark.parametrize("slept_before", ["list", "write_many", "delete"])
async def test_a_deletion_that_sleeps_through_another_one_takes_nothing_of_the_new_topic(
    cluster, monkeypatch, slept_before
):
    guard = await create_topic(cluster)
    first = await open_filled(cluster, 1, guard)
    await first.open_cursor("s", "earliest")
    await first.close()
    marked = await mark_topic(cluster, guard)
    sleeps, go_on, real = asyncio.Event(), asyncio.Event(), getattr(cluster.metadata, slept_before)

    async def sleep_once(*arguments, **options):
        if not sleeps.is_set() and asyncio.current_task() is zombie:
            sleeps.set()
            await go_on.wait()
        return await real(*arguments, **options)

    monkeypatch.setattr(cluster.metadata, slept_before, sleep_once)
    zombie = asyncio.create_task(delete_data(cluster, 2))
    await sleeps.wait()
    await delete_data(cluster, 3)
    assert await records(cluster) == []
    await cluster.metadata.delete(TOPIC, marked.version)
    again = await open_topic(cluster, 4, await create_topic(cluster))
    await again.open_cursor("s", "earliest")
    await again.pin([], 60.0)
    before = await records(cluster)
    go_on.set()
    with contextlib.suppress(StaleEpoch):
        await zombie
    assert await records(cluster) == before and len(before) == 3
    await again.close()


async def test_a_deletion_is_begun_again_wherever_it_ended(cluster, monkeypatch):
    """It fails at its n-th change, for every n, and the next one finishes it; a ledger of it may be missing."""
    change, left = cluster.metadata.write_many, 0
    for changes in range(20):
        managed = await open_topic(cluster, 100 * changes + 1, await create_topic(cluster))
        await managed.open_cursor("s", "earliest")
        adds = Adds()
        managed.append(b"one", adds.callback)
        await adds.wait(1)
        managed.cursors["s"].acknowledge_cumulative(managed.last_confirmed)
        await managed.cursors["s"].flush()
        await managed.pin([managed.last_confirmed[0]], 60.0)
        marked = await mark_topic(cluster, await named_topic(cluster))
        left = changes

        async def fail(*arguments):
            nonlocal left
            if left == 0:
                raise MetadataUnavailable("the coordinator is away")
            left -= 1
            return await change(*arguments)

        monkeypatch.setattr(cluster.metadata, "write_many", fail)
        finished = True
        try:
            await delete_data(cluster, 100 * changes + 2)
        except MetadataUnavailable:
            finished = False
        monkeypatch.setattr(cluster.metadata, "write_many", change)
        await delete_data(cluster, 100 * changes + 3)
        assert await records(cluster) == []
        await cluster.metadata.delete(TOPIC, marked.version)
        ledgers = [key for key, _ in await list_all(cluster.metadata, metadata_keys.LEDGERS_PREFIX)]
        assert not ledgers or not finished, "only what a crash leaves is left to the collector of orphans"
        for key in ledgers:
            await cluster.metadata.delete(key, None)
        with contextlib.suppress(MagnetarError):
            await managed.close()
        if finished:
            return
    raise AssertionError("it never finishes")


async def open_filled(cluster, epoch, guard):
    managed = await open_topic(cluster, epoch, guard)
    adds = Adds()
    managed.append(b"one", adds.callback)
    await adds.wait(1)
    assert not adds.errors
    return managed


class Owner:
    """One broker's hold on the topic: publishes numbers one after the other, notes what was acknowledged."""

    def __init__(self, cluster, epoch):
        self.cluster, self.epoch = cluster, epoch
        self.adds = Adds()
        self.managed = None

    async def open(self):
        self.managed = await ManagedLedger.open(
            self.cluster.env,
            self.cluster.new_ledgers(),
            self.cluster.metadata,
            NAME,
            self.epoch,
            self.cluster.settings,
        )
        return self

    def publish(self, number):
        with contextlib.suppress(LedgerFenced, StaleEpoch):
            self.managed.append(b"%d" % number, self._callback(number))

    def _callback(self, number):
        def done(position, error):
            self.adds.callback((number, position) if error is None else None, error)

        return done

    @property
    def acknowledged(self):
        return [outcome for outcome in self.adds.outcomes if isinstance(outcome, tuple)]


@pytest.mark.parametrize("seed", range(5))
async def test_takeovers_in_mid_stream(seed):
    cluster = FakeCluster(
        3 + seed % 2,
        seed=seed,
        add_entry_timeout_s=2.0,
        read_entry_timeout_s=2.0,
        ledger_entries_max=7,
        ledger_rollover_min_minutes=0,
        cursor_flush_interval_s=0.01,
    )
    random = cluster.env.random
    for bookie in cluster.bookies.values():
        bookie.delay_s = random.uniform(0.0, 0.002)
    owners = [await Owner(cluster, 1).open()]
    await owners[0].managed.open_cursor("s", "earliest")
    number = 0
    for turn in range(4):
        current, zombies = owners[-1], owners[:-1]
        victim = cluster.bookies[random.choice(sorted(cluster.bookies))]
        for step in range(25):
            current.publish(number)
            number += 1
            for zombie in zombies:
                zombie.publish(-number)
            if step == 10 and turn % 2 == 0:
                victim.crash()
            if random.randrange(2):
                await asyncio.sleep(random.uniform(0.0, 0.002))
        following = asyncio.create_task(Owner(cluster, turn + 2).open())
        for _ in range(random.randrange(20)):
            current.publish(number)
            number += 1
            await asyncio.sleep(0)
        owners.append(await following)
        victim.restart()
        await asyncio.sleep(0.06)
    last = owners[-1]
    last.publish(number)
    await last.adds.wait(1)
    found, first = [], (-1, -1)
    while batch := await last.managed.read(first, 10, 1 << 20):
        found += batch
        first = (batch[-1][0][0], batch[-1][0][1] + 1)
    stored = {position: int(body) for position, body in found}
    everything = [pair for owner in owners for pair in owner.acknowledged]
    assert len(everything) > 50
    for what, position in everything:
        assert stored[position] == what, "acknowledged means readable, at that place"
    assert len({position for _, position in everything}) == len(everything), "no place was acknowledged twice"
    assert not [what for what, _ in everything if what < 0], "no zombie was ever acknowledged"
    in_log = [what for what in stored.values() if what >= 0]
    assert in_log == sorted(in_log), "the order of publishing is the order of the log"
    for owner in owners:
        with contextlib.suppress(MagnetarError):
            await owner.managed.close()
    await cluster.close()
