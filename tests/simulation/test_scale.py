"""What events cost does not grow with the number of topics and ledgers, except in proportion to what changed."""

import sys
from types import SimpleNamespace

import pytest

from simulation import scale
from simulation.scaling import ledgers
from simulation.scaling.counting import Costs
from simulation.scaling.ledgers import COPIES, DELETED, DELETIONS_PER_TRANSACTION

MEMBERS = 20
TOPICS = 2000
SLOTS = 256
"""So few that every slot holds topics in both runs."""

NOTHING = Costs()
OF_ALL_TOPICS = (
    "coordinator starts",
    "coordinator restarts",
    "search for ledgers without a name, after the start",
    "search for ledgers without a name, after the restart",
    "walk of the auditor, after the start",
    "walk of the auditor, after the restart",
)
OF_ONE_BOOKIE = (
    "collection of a bookie that started",
    "that bookie comes back",
    "a bookie dies: its ledgers get other bookies",
    "collection of a bookie after that repair",
    "a bookie is lost, and there is no spare",
    "a spare joins: those ledgers get it",
)
OF_WHAT_CHANGED = (
    "auditor round, nothing changed",
    "collection of a bookie, nothing changed",
    "a bookie goes away, not yet lost",
    "auditor round, a bookie is lost, and no spare",
    "the dead bookie comes back",
    "1,000 ledgers are deleted",
    "auditor round after that",
    "collection of a bookie after that",
    "collection of a bookie after that restart",
)
QUESTIONS_OF_A_BOOKIE = 2 * 500
"""Messages by which all bookies are asked about the ledgers of one: they come in groups."""


async def test_costs_of_events_of_brokers_do_not_depend_on_the_number_of_topics() -> None:
    few = await scale.measure(MEMBERS, TOPICS, 0, SLOTS)
    many = await scale.measure(MEMBERS, 2 * TOPICS, 0, SLOTS)
    assert few.keys() == many.keys()
    for what, one in few.items():
        other = many[what]
        assert (one.transactions, one.records, one.messages) == (other.transactions, other.records, other.messages)
    assert many["one broker dies"].transactions == 1


@pytest.mark.parametrize("topics", [5 * TOPICS, 50 * TOPICS])
def test_the_death_of_a_broker_keeps_the_target_and_the_program_says_so(
    topics: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second number is the target's: 100,000 partitions on 100 brokers."""
    monkeypatch.setattr(sys, "argv", ["scale.py", "--brokers", "100", "--topics", str(topics)])
    monkeypatch.setattr(ledgers, "measure", _nothing)
    assert scale.main() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("met: one broker dies, ") and "(target: 5 s at most)" in last
    assert "(target: 10 at most)" in last


async def _nothing(bookies: int, topics: int) -> None:
    """The table of bookies has no part in the verdict."""


@pytest.mark.parametrize(
    ("costs", "met"),
    [
        ({"cpu_ms": 5000.0, "messages": 10_000.0, "claimed": 1000.0}, True),
        ({"cpu_ms": 5001.0, "messages": 10.0, "claimed": 1000.0}, False),
        ({"cpu_ms": 1.0, "messages": 10_001.0, "claimed": 1000.0}, False),
        ({"cpu_ms": 1.0, "messages": 99.0, "claimed": 0.0}, False),
    ],
)
def test_the_verdict_is_that_both_figures_are_within_the_target(costs: dict[str, float], met: bool) -> None:
    found = scale.verdict(SimpleNamespace(**costs))
    assert found.met is met and found.text.startswith("met: " if met else "MISSED: ")


def test_the_program_ends_with_status_1_when_the_target_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale.py", "--brokers", "100", "--topics", "100", "--slots", "256"])
    monkeypatch.setattr(ledgers, "measure", _nothing)
    assert scale.main() == 1, "99 brokers are told of the slots of one topic"
    assert capsys.readouterr().out.splitlines()[-1].startswith("MISSED: ")


async def test_costs_of_events_of_bookies_are_those_of_the_ledgers_that_changed() -> None:
    few = await ledgers.measure(MEMBERS, TOPICS)
    many = await ledgers.measure(MEMBERS, 2 * TOPICS)
    assert few.keys() == many.keys() == {*OF_ALL_TOPICS, *OF_ONE_BOOKIE, *OF_WHAT_CHANGED}
    for what in OF_WHAT_CHANGED[:5]:
        assert few[what]._replace(messages=0, size_bytes=0) == NOTHING
        assert few[what]._replace(size_bytes=0) == many[what]._replace(size_bytes=0)
    of_a_bookie = DELETED * COPIES / MEMBERS
    for costs in (few, many):
        assert costs["1,000 ledgers are deleted"].transactions == DELETED / DELETIONS_PER_TRANSACTION
        assert costs["auditor round after that"].read == DELETED
        assert 0.7 * of_a_bookie < costs["collection of a bookie after that"].read < 1.3 * of_a_bookie
        assert costs["collection of a bookie after that restart"].read == 0
        death = costs["a bookie dies: its ledgers get other bookies"]
        assert death.transactions == death.written and death.read == 2 * death.written
        assert 2 * death.written <= death.messages <= 2 * death.written + QUESTIONS_OF_A_BOOKIE
        assert costs["that bookie comes back"].read == death.written
        lost, helped = costs["a bookie is lost, and there is no spare"], costs["a spare joins: those ledgers get it"]
        assert lost.written == lost.transactions == 0 and lost.messages <= QUESTIONS_OF_A_BOOKIE
        assert costs["auditor round, a bookie is lost, and no spare"] == NOTHING
        assert helped.written == helped.transactions == lost.read and helped.read == 2 * lost.read
        assert 2 * helped.written <= helped.messages <= 2 * helped.written + QUESTIONS_OF_A_BOOKIE
    for what in (*OF_ALL_TOPICS, *OF_ONE_BOOKIE):
        assert many[what].read <= 2.5 * few[what].read + DELETED
    for what in OF_ONE_BOOKIE:
        assert many[what].read < TOPICS, "its own ledgers, not all"
