"""The explorer's nodes do what the production coroutines do: both take the same events, on random schedules."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.storage.ledger.recovery import LedgerRecovery
from magnetar.storage.ledger.writer import LedgerWriter
from simulation.explorer.nodes import CLIENTS, LATE_ANSWER, LOST
from simulation.explorer.plain import PlainExplorer
from simulation.explorer.recoverer import CLOSING, DONE, FAILED, WRITING
from simulation.explorer.report import Options
from simulation.explorer.shadow import Shadow
from simulation.explorer.shadow_recoverer import RecovererShadow
from simulation.explorer.shadow_writer import WriterShadow
from simulation.explorer.system import State

WHOLE = Options(bookies=4, recoverers=2, entries=2, breaks=True, store_timeouts=True)
SCHEDULES = 150
RARE = "cas times out", "close", LOST, LATE_ANSWER


async def walk(explorer: PlainExplorer, shadow: Shadow, chance: random.Random, seen: Counter[Any]) -> None:
    """One schedule to its end. Some are calm, in some much fails; in some the others are quick, in some slow."""
    failures, nearness = chance.choice((0.0, 0.1, 0.3, 0.6)), chance.choice((0.0, 0.5, 0.9, 0.98))
    state = explorer.initial()
    while True:
        ways: dict[Any, list[State]] = {}
        for (label,), after in explorer.successors(state):
            if not (label[1] == LATE_ANSWER and label[0] in ("writer", "recoverer 1")):  # they measure time
                ways.setdefault(label, []).append(after)
        calm = [label for label in ways if label[1] not in RARE]
        labels = calm if calm and chance.random() >= failures else list(ways)
        if not labels:
            return
        near = [label for label in labels if label[0] == CLIENTS[shadow.client] or label[1] == "serves"]
        labels = near if near and chance.random() < nearness else labels
        label = (CLIENTS[0], "begin change", -1) if shadow.ahead else chance.choice(labels)
        state = await shadow.follow(label, state, ways[label])
        seen[explorer.values[state[1]][0]] += 1
        if label[0] == "writer":
            seen[label[1]] += 1


async def walks(make: Callable[[PlainExplorer], Shadow], schedules: int) -> Counter[Any]:
    """Several schedules with a shadow each; what occurred, and how often."""
    explorer, seen = PlainExplorer(WHOLE), Counter[Any]()
    for seed in range(schedules):
        shadow = make(explorer)
        try:
            await walk(explorer, shadow, random.Random(seed), seen)
        finally:
            await shadow.stop()
    return seen


@pytest.mark.parametrize(
    ("make", "reached"),
    [
        (WriterShadow, ["begin change", "cas answered", "cas times out", "late cas arrives", "close", LOST]),
        (RecovererShadow, [WRITING, CLOSING, DONE, FAILED]),
    ],
)
async def test_a_coroutine_and_its_node_do_the_same(make, reached):
    seen = await walks(make, SCHEDULES)
    assert all(seen[what] >= 5 for what in reached), seen


async def no_change(*_: Any) -> None:
    """An ensemble change that finds no spare."""


async def no_claim(recovery: Any, record: Any) -> Any:
    """A recoverer that goes on without having claimed the ledger."""
    return record


@pytest.mark.parametrize(
    ("make", "owner", "name", "other"),
    [
        (WriterShadow, LedgerWriter, "_store_change", no_change),
        (RecovererShadow, LedgerRecovery, "_claim", no_claim),
    ],
)
async def test_a_coroutine_that_does_otherwise_is_noticed(make, owner, name, other, monkeypatch):
    monkeypatch.setattr(owner, name, other)
    with pytest.raises(AssertionError, match="the node"):
        await walks(make, SCHEDULES)
