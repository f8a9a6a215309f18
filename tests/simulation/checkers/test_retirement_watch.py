"""The checker of retired members finds its violations."""

import pytest

from magnetar.actors.desired.record import DesiredState
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.history import History
from simulation.checkers.retirement_watch import RetirementWatch
from simulation.world.metadata import WatchedRecords

NAMED, OTHERS = ("bookie-1", "bookie-2", "bookie-4"), ("bookie-1", "bookie-2", "bookie-3")


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


@pytest.mark.parametrize(
    ("bookies", "last_entry", "taken", "violations"),
    [
        (NAMED, 0, True, ["I9"]),
        (NAMED, -1, False, []),  # it ended before it took anything
        (NAMED, None, False, []),  # a writer that has not heard yet
        (NAMED, None, True, ["I9"]),
        (OTHERS, 0, True, []),  # nothing is known of bookies that do not run
    ],
)
def test_a_bookie_is_retired_when_no_ledger_needs_it(
    bookies: tuple[str, ...], last_entry: int | None, taken: bool, violations: list[str]
) -> None:
    history, records = History(), WatchedRecords()
    state = LedgerState.OPEN if last_entry is None else LedgerState.CLOSED
    metadata = LedgerMetadata(
        7, 3, 3, 2, (Fragment(0, bookies),), state=state, last_entry=-1 if last_entry is None else last_entry
    )
    records.store(metadata_keys.ledger(7), Versioned(metadata.pack(), 0))
    watch = RetirementWatch(history, records)
    if taken:
        watch.takes(7, "bookie-4")
    watch.retired("bookie-4", False, {}, ())
    assert broken(history) == violations


def test_a_process_has_ended_before_its_member_is_retired_or_erased() -> None:
    history = History()
    watch = RetirementWatch(history, WatchedRecords())
    watch.retired("broker-2", False, {}, ())
    watch.erased("bookie-4", False, DesiredState.of(2, 3))
    assert broken(history) == []
    watch.retired("broker-2", True, {}, ())
    watch.erased("bookie-4", True, DesiredState.of(2, 3))
    watch.erased("bookie-3", False, DesiredState.of(2, 3))
    assert broken(history) == ["I9", "I9", "I9"]
