"""What bookies are told of ledgers that changed: complete, or they hear that it is not."""

import pytest

from magnetar.actors.auditor import index
from magnetar.actors.auditor.index import LedgerFeed
from magnetar.actors.bookie import service as collecting_module
from magnetar.actors.bookie.service import Collecting
from magnetar.actors.members.contracts_coordinator import LedgerChanges, UnnamedLedgers
from magnetar.protocol.errors import ProtocolError
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Write

HELD = (12, 2, 5, 7, 9)


def deleted(*ledger_ids: int) -> list[Write]:
    return [Write(metadata_keys.ledger(ledger_id), None, 1) for ledger_id in ledger_ids]


class Coordinator:
    def __init__(self, feed: LedgerFeed) -> None:
        self.feed = feed
        self.ready = False
        self.epoch: int | None = None
        """Of the auditor that answers; None: that of the feed."""
        self.unnamed: tuple[int, ...] = ()
        self.asked: list[int] = []

    async def renew_ledger(self, *, ledger: int, version: int) -> int:
        raise AssertionError("nothing is renewed here")

    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        return await self.feed.ledger_changes(epoch=epoch, since=since)

    async def unnamed_ledgers(self, *, ledgers: list[int]) -> UnnamedLedgers:
        self.asked += ledgers
        found = [one for one in ledgers if one in self.unnamed]
        return UnnamedLedgers(self.feed.epoch if self.epoch is None else self.epoch, self.ready, found)


class OlderCoordinator(Coordinator):
    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        raise ProtocolError("no such method")


async def test_changes_and_deletions_are_told_once_and_creations_are_not() -> None:
    feed = LedgerFeed(3)
    feed.written([*deleted(7), Write(metadata_keys.ledger(8), b"x", None), Write(metadata_keys.ledger(9), b"x", 4)])
    feed.written([Write("managed/t", b"x", 1), Write("ledgers/nonsense", b"x", 1), *deleted(7)])
    assert await feed.ledger_changes(epoch=3, since=0) == LedgerChanges(3, 3, 3, [7, 9], complete=True)
    assert await feed.ledger_changes(epoch=3, since=3) == LedgerChanges(3, 3, 3, [], complete=True)


@pytest.mark.parametrize(("epoch", "since"), [(2, 0), (3, 5), (3, -1)])
async def test_what_another_coordinator_knew_or_the_future_is_not_complete(epoch: int, since: int) -> None:
    feed = LedgerFeed(3)
    feed.written(deleted(1, 2))
    assert await feed.ledger_changes(epoch=epoch, since=since) == LedgerChanges(3, 2, 2, [], complete=False)


async def test_what_is_forgotten_is_said_to_be_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CHANGES_MAX", 4)
    feed = LedgerFeed(3)
    feed.written(deleted(1, 2, 3, 4, 5))
    assert not (await feed.ledger_changes(epoch=3, since=0)).complete
    assert (await feed.ledger_changes(epoch=3, since=3)).ledgers == [4, 5]


async def changed(collecting: Collecting, coordinator: Coordinator) -> list[int] | None:
    return await collecting.changed(coordinator, HELD)


async def test_a_bookie_compares_all_first_and_then_asks_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CHANGES_PER_ANSWER", 2)
    coordinator, collecting = Coordinator(LedgerFeed(3)), Collecting()
    coordinator.feed.written(deleted(1))
    assert await changed(collecting, coordinator) is None
    collecting.succeeded(None)
    assert await changed(collecting, coordinator) == []
    coordinator.feed.written(deleted(2, 3, 4, 5, 6))
    assert await changed(collecting, coordinator) == [2, 3, 4, 5, 6]
    assert await changed(collecting, coordinator) == [2, 3, 4, 5, 6], "the collection failed"
    collecting.succeeded([2, 3, 4, 5, 6])
    assert await changed(collecting, coordinator) == []


async def following(coordinator: Coordinator) -> Collecting:
    """A bookie that knows what this coordinator's feed said."""
    collecting = Collecting()
    assert await changed(collecting, coordinator) is None
    collecting.succeeded(None)
    return collecting


async def test_a_bookie_left_behind_asks_for_what_the_auditor_does_not_place_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collecting_module, "LEDGERS_PER_QUESTION", 2)
    coordinator = Coordinator(LedgerFeed(3))
    collecting = await following(coordinator)
    coordinator.feed = LedgerFeed(4)
    coordinator.feed.written(deleted(7))
    assert await changed(collecting, coordinator) == [], "the auditor has not walked yet"
    collecting.succeeded([])
    coordinator.ready, coordinator.unnamed = True, (5, 12)
    for _ in range(2):  # the first collection fails
        coordinator.asked = []
        assert await changed(collecting, coordinator) == [5, 12, 7], "also what changed before it was asked"
        assert coordinator.asked == [2, 5, 7, 9, 12]
    collecting.succeeded([5, 12, 7])
    coordinator.feed.written(deleted(8))
    assert await changed(collecting, coordinator) == [8]


async def test_a_bookie_compares_all_when_another_coordinator_forgot_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CHANGES_MAX", 4)
    coordinator = Coordinator(LedgerFeed(3))
    collecting = await following(coordinator)
    coordinator.feed, coordinator.ready = LedgerFeed(4), True
    coordinator.feed.written(deleted(1, 2, 3, 4, 5))
    assert await changed(collecting, coordinator) is None
    collecting.succeeded(None)
    assert await changed(collecting, coordinator) == []


async def test_a_bookie_waits_when_the_coordinator_changes_between_its_questions() -> None:
    coordinator = Coordinator(LedgerFeed(3))
    collecting = await following(coordinator)
    coordinator.feed, coordinator.ready, coordinator.epoch = LedgerFeed(4), True, 5
    assert await changed(collecting, coordinator) == []
    collecting.succeeded([])
    coordinator.feed, coordinator.epoch, coordinator.unnamed = LedgerFeed(5), None, (2,)
    assert await changed(collecting, coordinator) == [2]


async def test_a_bookie_compares_all_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(LedgerFeed(3))
    collecting = await following(coordinator)
    monkeypatch.setattr(collecting, "_full_at", 0.0)
    assert await changed(collecting, coordinator) is None


async def test_a_coordinator_without_the_feed_makes_bookies_compare_all() -> None:
    collecting = Collecting()
    assert await changed(collecting, OlderCoordinator(LedgerFeed(1))) is None
    collecting.succeeded(None)
    assert await changed(collecting, OlderCoordinator(LedgerFeed(1))) is None
