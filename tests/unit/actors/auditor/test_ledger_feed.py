"""What bookies are told of ledgers that changed: complete, or they hear that it is not."""

import pytest

from magnetar.actors.auditor import ledger_feed
from magnetar.actors.auditor.ledger_feed import LedgerFeed
from magnetar.actors.bookie.collecting import Collecting
from magnetar.actors.members.contracts_coordinator import LedgerChanges
from magnetar.protocol.errors import ProtocolError
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Write


def deleted(*ledger_ids: int) -> list[Write]:
    return [Write(metadata_keys.ledger(ledger_id), None, 1) for ledger_id in ledger_ids]


class Coordinator:
    def __init__(self, feed: LedgerFeed) -> None:
        self.feed = feed

    async def renew_ledger(self, *, ledger: int, version: int) -> int:
        raise AssertionError("nothing is renewed here")

    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        return self.feed.changes(epoch, since)


class OlderCoordinator(Coordinator):
    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        raise ProtocolError("no such method")


def test_changes_and_deletions_are_told_once_and_creations_are_not() -> None:
    feed = LedgerFeed(3)
    feed.written([*deleted(7), Write(metadata_keys.ledger(8), b"x", None), Write(metadata_keys.ledger(9), b"x", 4)])
    feed.written([Write("managed/t", b"x", 1), Write("ledgers/nonsense", b"x", 1), *deleted(7)])
    assert feed.changes(3, 0) == LedgerChanges(3, 3, 3, [7, 9], complete=True)
    assert feed.changes(3, 3) == LedgerChanges(3, 3, 3, [], complete=True)


@pytest.mark.parametrize(("epoch", "since"), [(2, 0), (3, 5), (3, -1)])
def test_what_another_coordinator_knew_or_the_future_is_not_complete(epoch: int, since: int) -> None:
    feed = LedgerFeed(3)
    feed.written(deleted(1, 2))
    assert feed.changes(epoch, since) == LedgerChanges(3, 2, 2, [], complete=False)


def test_what_is_forgotten_is_said_to_be_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_feed, "CHANGES_MAX", 4)
    feed = LedgerFeed(3)
    feed.written(deleted(1, 2, 3, 4, 5))
    assert not feed.changes(3, 0).complete and feed.changes(3, 3).ledgers == [4, 5]


async def test_a_bookie_compares_all_first_and_then_asks_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_feed, "CHANGES_PER_ANSWER", 2)
    coordinator, collecting = Coordinator(LedgerFeed(3)), Collecting()
    coordinator.feed.written(deleted(1))
    assert await collecting.changed(coordinator) is None
    collecting.succeeded(None)
    assert await collecting.changed(coordinator) == []
    coordinator.feed.written(deleted(2, 3, 4, 5, 6))
    assert await collecting.changed(coordinator) == [2, 3, 4, 5, 6]
    assert await collecting.changed(coordinator) == [2, 3, 4, 5, 6], "the collection failed"
    collecting.succeeded([2, 3, 4, 5, 6])
    assert await collecting.changed(coordinator) == []
    coordinator.feed = LedgerFeed(4)
    coordinator.feed.written(deleted(7))
    assert await collecting.changed(coordinator) is None, "another coordinator does not know what was before it"
    collecting.succeeded(None)
    coordinator.feed.written(deleted(8))
    assert await collecting.changed(coordinator) == [8]


async def test_a_coordinator_without_the_feed_makes_bookies_compare_all() -> None:
    collecting = Collecting()
    assert await collecting.changed(OlderCoordinator(LedgerFeed(1))) is None
    collecting.succeeded(None)
    assert await collecting.changed(OlderCoordinator(LedgerFeed(1))) is None
