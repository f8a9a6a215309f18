"""The checker of cursors' ledgers finds what it is there for."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.protocol.message_id import Position
from magnetar.storage.managed.cursor_record import CursorRecord
from magnetar.storage.metadata.memory import MemoryRecords
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.cursor_watch import CursorWatch
from simulation.checkers.history import History

TOPIC = "persistent://public/default/t"
FIRST: Position = (1, 0)


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


# -- cursors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "named", "violations"),
    [(3, 7, []), (3, 8, ["I1"]), (3, None, ["I1"]), (4, 8, [])],
)
def test_a_cursor_writes_to_the_ledger_of_its_record(epoch: int, named: int | None, violations: list[str]) -> None:
    history, records = History(), MemoryRecords()
    records.store("c", Versioned(CursorRecord(epoch, named, None).pack(), 0))
    home, writer = SimpleNamespace(epoch=3), SimpleNamespace(ledger_id=7)
    storage: Any = SimpleNamespace(_key="c", _home=home, ledger_writer=writer, name="s")
    CursorWatch(history, records).stored(storage)
    assert broken(history) == violations
