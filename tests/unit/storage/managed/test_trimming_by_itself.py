"""What is trimmed although nobody asks for it: after a load, when a pin ends, and after a trim that failed."""

from typing import Any

import pytest

from magnetar.protocol.errors import MetadataUnavailable
from magnetar.storage.managed import trimming
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack, unpack
from support.fakes.bookies import FakeCluster, until
from support.stores.managed_ledger_kit import NAME, append, bodies, open_

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=1.0, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.02
)


async def two_ledgers(cluster: FakeCluster) -> ManagedLedger:
    """A topic with a closed ledger, of which nothing is acknowledged, and an open one."""
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(2, 10))
    return managed


def is_stored(cluster: FakeCluster, ledger_id: int) -> bool:
    return metadata_keys.ledger(ledger_id) in cluster.metadata.records.by_key


async def test_a_closed_ledger_that_all_acknowledged_goes_after_the_next_load(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "OPEN_SPREAD_S", 0.0)
    managed = await two_ledgers(cluster)
    old = managed.ledger_infos[0].ledger_id
    managed.cursors["s"].acknowledge_cumulative(managed.last_confirmed)
    await managed.close()
    assert is_stored(cluster, old)
    managed = await open_(cluster, epoch=2)
    await until(lambda: not is_stored(cluster, old))
    await managed.close()


async def test_a_ledger_goes_when_the_pin_that_held_it_ends(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "PIN_LOOK_MIN_S", 0.01)
    managed = await two_ledgers(cluster)
    old = managed.ledger_infos[0].ledger_id
    await managed.pin([old], ttl_s=0.3)
    managed.cursors["s"].acknowledge_cumulative(managed.last_confirmed)
    assert await managed.trim() == [] and is_stored(cluster, old)
    await until(lambda: not is_stored(cluster, old))
    await managed.close()


async def test_a_pin_that_is_written_again_lasts_by_the_owners_clock_alone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who prolongs a pin may live in another year."""
    managed = await two_ledgers(cluster)
    old = managed.ledger_infos[0].ledger_id
    pin = await managed.pin([old], ttl_s=0.2)
    key = metadata_keys.pin(NAME, pin)
    record = await cluster.metadata.get(key)
    assert record is not None and unpack(record.value) == {"ledgers": [old], "ttl_ms": 200}
    await cluster.metadata.put(key, pack({"ledgers": [old], "ttl_ms": 60_000}), record.version)
    managed.cursors["s"].acknowledge_cumulative(managed.last_confirmed)
    assert await managed.trim() == []
    # The next owner begins to count when it sees the pin.
    monkeypatch.setattr(type(cluster.env.clock), "now_ms", lambda clock: 1 << 50)
    await managed.close()
    managed = await open_(cluster, epoch=2)
    assert await managed.trim() == [] and is_stored(cluster, old)
    await managed.close()


@pytest.mark.parametrize("fails", ["write_many", "delete"])
async def test_a_trim_that_failed_is_repeated_by_itself(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(trimming, "RETRY_INITIAL_S", 0.02)
    managed = await two_ledgers(cluster)
    old = managed.ledger_infos[0].ledger_id
    managed.cursors["s"].acknowledge_cumulative(managed.last_confirmed)
    await managed.cursors["s"].flush()
    real, failures = getattr(cluster.metadata, fails), 0

    async def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise MetadataUnavailable("the coordinator is away")
        return await real(*arguments, **options)

    monkeypatch.setattr(cluster.metadata, fails, fail)
    if fails == "write_many":  # the chain's record cannot be written
        with pytest.raises(MetadataUnavailable):
            await managed.trim()
    else:  # it can, and the ledger's record not be deleted
        assert await managed.trim() == [old]
    await until(lambda: not is_stored(cluster, old))
    assert failures == 2 and not managed._owned.record.deleting
    await managed.close()


async def test_a_topic_with_nothing_to_trim_has_no_timer(cluster: FakeCluster) -> None:
    managed = await two_ledgers(cluster)
    await managed.close()
    managed = await open_(cluster, epoch=2)
    assert managed.trimmer._timer._timer is None
    await managed.trim()
    assert managed.trimmer._timer._timer is None
    await managed.close()
