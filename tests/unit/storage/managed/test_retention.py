"""Retention: ledgers that every cursor has passed stay as long as time or size of the retention says so."""

from dataclasses import replace

import pytest

from magnetar.storage.managed import trimming
from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.trimming import NO_RETENTION, Needs, Retention, trimmable
from support.fakes.bookies import FakeCluster, until
from support.stores.managed_ledger_kit import append, bodies, open_

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=1.0, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.02
)

INFOS = [LedgerInfo(number, 0, 5, 100, True, number * 1000) for number in (1, 2, 3)] + [LedgerInfo(4, 0, 5, 100)]
FOR_EVER = Retention(-1, -1)


@pytest.mark.promise("26.2")
@pytest.mark.parametrize(
    ("retention", "now_ms", "gone", "next_in_ms"),
    [
        (NO_RETENTION, 9000, [1, 2, 3], None),
        (FOR_EVER, 1 << 50, [], None),
        (Retention(5000, -1), 6000, [], 1),
        (Retention(5000, -1), 6001, [1], 1000),
        (Retention(5000, -1), 8001, [1, 2, 3], None),
        (Retention(-1, 301), 9000, [], None),
        (Retention(-1, 300), 9000, [1], None),
        (Retention(-1, 150), 9000, [1, 2], None),
        (Retention(5000, 300), 3000, [1], 4001),
        (Retention(5000, 300), 7001, [1, 2], 1000),
    ],
)
def test_a_ledger_goes_when_its_time_is_over_or_the_rest_is_large_enough(
    retention: Retention, now_ms: int, gone: list[int], next_in_ms: int | None
) -> None:
    assert trimmable(INFOS, Needs([], set(), 4, retention, now_ms)) == (gone, next_in_ms)


@pytest.mark.promise("28.8")
def test_a_covered_ledger_keeps_all_behind_it() -> None:
    late = [replace(INFOS[0], closed_ms=9000), *INFOS[1:]]
    assert trimmable(late, Needs([], set(), 4, Retention(5000, -1), 10_000)).gone == []


def test_a_ledger_that_a_cursor_needs_outlasts_its_retention() -> None:
    assert trimmable(INFOS, Needs([(1, 4)], set(), 4, Retention(5000, -1), 1 << 50)) == ([1], None)


def test_units_are_those_of_the_policy() -> None:
    assert Retention.of(2, 3) == (120_000, 3 << 20)
    assert Retention.of(-1, -1) == (-1, -1) and Retention.of(0, 0) == NO_RETENTION


async def three_ledgers(cluster: FakeCluster) -> ManagedLedger:
    """A topic without subscription that keeps two closed ledgers, and an open one."""
    managed = await open_(cluster)
    managed.trimmer.use_retention(FOR_EVER)
    await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(10, 10))
    await until(lambda: len(managed.ledger_infos) == 3)
    await append(managed, bodies(1, 20))
    await until(lambda: managed.ledger_infos[1].closed)
    return managed


async def test_a_topic_without_subscription_keeps_what_retention_covers(cluster: FakeCluster) -> None:
    managed = await three_ledgers(cluster)
    assert await managed.trim() == []
    assert len(await managed.read(managed.first_position, 10, 1 << 20)) == 10
    cursor = await managed.open_cursor("late", "earliest")
    assert cursor.backlog_entries == 21
    await managed.close()


async def test_less_retention_trims_by_itself_and_more_of_it_keeps(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "CHANGE_SPREAD_S", 0.0)
    managed = await three_ledgers(cluster)
    _, second, third = (info.ledger_id for info in managed.ledger_infos)
    managed.trimmer.use_retention(Retention(-1, managed.size_bytes - managed.ledger_infos[0].size_bytes))
    await until(lambda: [info.ledger_id for info in managed.ledger_infos] == [second, third])
    managed.trimmer.use_retention(FOR_EVER)
    assert await managed.trim() == []
    managed.trimmer.use_retention(NO_RETENTION)
    await until(lambda: [info.ledger_id for info in managed.ledger_infos] == [third])
    await managed.close()


@pytest.mark.promise("26.2")
async def test_a_ledger_goes_by_itself_when_its_time_is_over(cluster: FakeCluster) -> None:
    managed = await three_ledgers(cluster)
    managed.trimmer.use_retention(Retention(150, -1))
    await until(lambda: len(managed.ledger_infos) == 1)
    await managed.close()


async def test_the_topic_of_an_assignment_trims_nothing_before_it_knows_its_retention(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "OPEN_SPREAD_S", 0.0)
    managed = await three_ledgers(cluster)
    managed.trimmer.opened(None)
    assert await managed.trim() == []
    managed.trimmer.use_retention(NO_RETENTION)
    await until(lambda: len(managed.ledger_infos) == 1)
    await managed.close()
