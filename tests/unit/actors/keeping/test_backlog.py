"""What is measured of a backlog, and the place from which it is small enough."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.keeping.topic_keeping import Backlog, measure, place_with_bytes_behind
from magnetar.storage.managed.chain import LedgerInfo

INFOS = [LedgerInfo(3, 0, 10, 1000, True), LedgerInfo(5, 0, 0, 0, True), LedgerInfo(7, 0, 10, 500)]


def cursor(entries: int, size_bytes: int, first: tuple[int, int]) -> Any:
    return SimpleNamespace(backlog_entries=entries, backlog_bytes=size_bytes, first_unacknowledged=first)


def test_the_slowest_subscription_counts() -> None:
    assert measure([cursor(2, 20, (7, 8)), cursor(9, 90, (7, 1))]) == Backlog(90, (7, 1))


def test_subscriptions_that_acknowledged_everything_have_no_backlog() -> None:
    assert measure([]) == measure([cursor(0, 50, (7, 9))]) == Backlog(0, None)


@pytest.mark.parametrize(
    ("size_bytes", "place"),
    [(2000, None), (1500, None), (1499, (3, 1)), (700, (3, 8)), (500, (3, 10)), (499, (7, 1)), (0, (7, 10))],
)
def test_the_newest_entries_are_kept_up_to_a_size(size_bytes: int, place: tuple[int, int] | None) -> None:
    assert place_with_bytes_behind(INFOS, size_bytes) == place
