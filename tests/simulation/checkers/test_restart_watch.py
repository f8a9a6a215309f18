"""The checker of rolling restarts finds its violations."""

import pytest

from magnetar.storage.managed.cursor_storage import CursorKind, CursorRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Versioned
from simulation.checkers import restart_watch
from simulation.checkers.history import History
from simulation.checkers.restart_watch import RestartWatch
from simulation.world.metadata import WatchedRecords

BOOKIES = ("bookie-1", "bookie-2", "bookie-3")


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


@pytest.mark.parametrize(
    ("first", "second", "same", "found"),
    [
        ("bookie-1", "bookie-2", True, ["I17"]),
        ("bookie-1", "bookie-2", False, ["I17"]),
        ("bookie-1", "broker-1", True, ["I17"]),
        ("bookie-1", "broker-1", False, []),
        ("bookie-1", "bookie-1", False, []),  # the next coordinator restarts it again
    ],
)
def test_one_process_is_away_at_a_time(first: str, second: str, same: bool, found: list[str]) -> None:
    history = History()
    watch = RestartWatch(history, WatchedRecords())
    watch.closes(first, "a coordinator", [], [])
    watch.closes(second, "a coordinator" if same else "the next one", [], [])
    assert broken(history) == found
    watch.is_back(first)
    watch.is_back(second)
    watch.closes("bookie-3", "a coordinator", [], [])
    assert broken(history) == found


def test_a_process_that_is_lost_is_not_waited_for() -> None:
    history = History()
    watch = RestartWatch(history, WatchedRecords())
    watch.closes("bookie-1", "a coordinator", [], [])
    watch.waits_for(["bookie-2", "broker-1"])
    watch.closes("bookie-2", "a coordinator", [], [])
    assert broken(history) == []


def test_without_faults_everything_else_serves_and_a_broker_owns_no_topics() -> None:
    history = History()
    watch = RestartWatch(history, WatchedRecords())
    watch.closes("broker-1", "a coordinator", ["bookie-1"], ["t"])
    watch.is_back("broker-1")
    assert broken(history) == []
    watch.calm = True
    watch.closes("broker-1", "a coordinator", ["bookie-1"], ["t"])
    assert broken(history) == ["I17", "I17"]


@pytest.mark.parametrize(
    ("closed", "acknowledged", "seconds", "held", "named", "found"),
    [
        (True, 1, 3.0, {"bookie-2": [0, 1], "bookie-3": [0, 1]}, True, []),
        (True, 1, 3.0, {"bookie-2": [0, 1], "bookie-3": [0]}, True, ["I17"]),
        (True, 1, 0.5, {"bookie-2": [0, 1], "bookie-3": [0]}, True, []),  # it is on its way
        (True, 1, 3.0, {"bookie-2": [0, 1]}, True, []),  # nobody knows what bookie-3 holds
        (False, 1, 3.0, {"bookie-2": [0, 1], "bookie-3": [0]}, True, ["I17"]),
        (True, 1, 3.0, {"bookie-2": [0, 1], "bookie-3": [0]}, False, []),  # nobody reads it
        (False, 1, 3.0, {"bookie-2": [0, 1], "bookie-3": [0]}, False, []),
        (False, 0, 3.0, {"bookie-2": [0, 1], "bookie-3": [0]}, True, []),  # entry 1 was not acknowledged
    ],
)
def test_a_bookie_is_away_only_while_all_others_have_its_entries(
    monkeypatch: pytest.MonkeyPatch,
    closed: bool,
    acknowledged: int,
    seconds: float,
    held: dict[str, list[int]],
    named: bool,
    found: list[str],
) -> None:
    class Store:
        limbo = failed = False

        def __init__(self, entries: list[int]) -> None:
            self.entries = entries

    monkeypatch.setattr(restart_watch, "durable_entries", lambda store, metadata, last: dict.fromkeys(store.entries))
    history, records = History(), WatchedRecords()
    state = LedgerState.CLOSED if closed else LedgerState.OPEN
    metadata = LedgerMetadata(7, 3, 3, 2, (Fragment(0, BOOKIES),), state=state, last_entry=1 if closed else -1)
    records.store(metadata_keys.ledger(7), Versioned(metadata.pack(), 0))
    if named:
        cursor = CursorRecord(1, 7, None, CursorKind.SUBSCRIPTION)
        records.store(metadata_keys.cursor("public/default/persistent/t", "s"), Versioned(cursor.pack(), 0))
    history.entry_acknowledged(7, acknowledged)
    watch = RestartWatch(history, records)
    for entry_id in (0, 1):
        watch.takes(7, entry_id, 10.0)
    stores = {bookie: Store(entries) for bookie, entries in held.items()}
    watch.copies("bookie-1", stores, (), 10.0 + seconds)  # type: ignore[arg-type]
    assert broken(history) == []
    watch.calm = True
    watch.copies("bookie-1", stores, (), 10.0 + seconds)  # type: ignore[arg-type]
    assert broken(history) == found
