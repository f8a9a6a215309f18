"""The checker of topics at rest finds its violations."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.history import History
from simulation.checkers.rest_watch import RestWatch, may_stay_unloaded

KEY = metadata_keys.managed_ledger("persistent/public/default/t")
OPEN, CLOSED = LedgerInfo(1, 0), LedgerInfo(1, 0, 5, 50, closed=True)


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


def topic(*, backlog: int = 0, consumers: int = 0, producers: bool = False, **policies: object) -> Any:
    none = {"subscription_expiration_time_minutes": 0, "compaction_threshold": 0, "message_ttl": 0}
    cursor = SimpleNamespace(backlog_entries=backlog)
    return SimpleNamespace(
        name=SimpleNamespace(full="t"),
        policies=SimpleNamespace(**{**none, **policies}),
        publishing=SimpleNamespace(in_use=producers),
        subscriptions={("s", True): SimpleNamespace(consumers=[object()] * consumers, cursor=cursor)},
    )


@pytest.mark.parametrize(
    ("going", "violations"),
    [
        (topic(), []),
        (topic(backlog=3), []),
        (topic(message_ttl=5), []),
        (topic(message_ttl=5, backlog=3), ["I18"]),
        (topic(consumers=1), ["I18"]),
        (topic(producers=True), ["I18"]),
        (topic(compaction_threshold=1), ["I18"]),
        (topic(subscription_expiration_time_minutes=1), ["I18"]),
    ],
)
def test_a_topic_rests_only_when_it_has_nothing_to_do(going: Any, violations: list[str]) -> None:
    history = History()
    RestWatch(history).goes_to_rest(going)
    assert broken(history) == violations


@pytest.mark.parametrize(
    ("before", "after", "violations"),
    [
        (ManagedLedgerRecord(1, (OPEN,)), ManagedLedgerRecord(1, (CLOSED,), rests=b"p"), []),
        (ManagedLedgerRecord(1, (OPEN,)), ManagedLedgerRecord(1, (OPEN,), rests=b"p"), ["I18"]),
        (ManagedLedgerRecord(1, (CLOSED,), rests=b"p"), ManagedLedgerRecord(2, (CLOSED,)), []),
        (ManagedLedgerRecord(1, (CLOSED,), rests=b"p"), ManagedLedgerRecord(2, (CLOSED,), rests=b"p"), ["I18"]),
    ],
)
def test_the_mark_goes_when_the_topic_is_opened(
    before: ManagedLedgerRecord, after: ManagedLedgerRecord, violations: list[str]
) -> None:
    history = History()
    RestWatch(history).metadata_changed(KEY, Versioned(before.pack(), 1), Versioned(after.pack(), 2))
    assert broken(history) == violations


def test_a_topic_stays_unloaded_only_under_the_policies_that_it_rested_under() -> None:
    assert may_stay_unloaded(b"p", b"", b"p") and may_stay_unloaded(b"", b"p", b"p")
    assert not may_stay_unloaded(b"", b"", b"p")
    assert not may_stay_unloaded(b"other", b"p", b"p")
    assert not may_stay_unloaded(b"", b"other", b"p")
