"""The explorer in small: what it explores holds, its reductions lose nothing, it finds the mutants that it is for."""

import pytest

from magnetar.storage.ledger.recovery_state import FencingState
from simulation import explore
from simulation.explore import hunt
from simulation.explorer.plain import PlainExplorer
from simulation.explorer.reduced import Explorer
from simulation.explorer.report import Options
from simulation.mutants import catalog

SMALL = (
    Options(bookies=3, recoverers=2, entries=2, breaks=False, store_timeouts=False),
    Options(bookies=3, recoverers=2, entries=1, breaks=True, store_timeouts=True),
    Options(bookies=4, recoverers=2, entries=1, breaks=True, store_timeouts=True),
)

CALM = Options(bookies=3, recoverers=1, entries=1, breaks=False, store_timeouts=False)
COMPARED = (
    CALM,
    Options(bookies=3, recoverers=0, entries=1, breaks=True, store_timeouts=True),
    Options(bookies=3, recoverers=0, entries=2, breaks=True, store_timeouts=False),
)

BROKEN = {"#2614": "I3", "#2615": "out of order", "#1591": "I1"}


@pytest.mark.parametrize("options", SMALL, ids=str)
def test_no_interleaving_breaks_an_invariant(options):
    report = Explorer(options).run()
    assert report.complete, "\n".join([report.violation, *report.transcript])
    assert report.states > 100


@pytest.mark.parametrize("options", COMPARED, ids=str)
def test_reductions_change_no_outcome(options):
    plain, reduced = PlainExplorer(options).run(), Explorer(options).run()
    assert plain.complete
    assert reduced.complete
    assert reduced.outcomes == plain.outcomes
    assert reduced.states * 20 < plain.states


def test_reductions_lose_no_outcome_of_random_schedules():
    found = PlainExplorer(SMALL[-1]).wander(60, seed=1)
    assert len(found) > 5
    assert found <= Explorer(SMALL[-1]).run().outcomes


@pytest.mark.parametrize("name", catalog.EXPLORED)
def test_a_mutant_is_found(name):
    report = hunt(name)
    assert BROKEN[name] in report.violation
    assert report.transcript


def test_a_mutant_is_found_without_reductions_too():
    with catalog.active("#2614"):
        report = PlainExplorer(CALM).run()
    assert BROKEN["#2614"] in report.violation
    assert len(report.transcript) == report.depth


def test_a_search_is_the_same_every_time():
    first, second = (Explorer(SMALL[0]).run() for _ in range(2))
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)


@pytest.mark.parametrize("name", catalog.MUTANTS)
def test_a_mutant_goes_away_again(name):
    before = FencingState.start, FencingState._judge
    with catalog.active(name) as mutant:
        assert mutant.invariant
    assert (FencingState.start, FencingState._judge) == before


@pytest.mark.parametrize("argument", ["--help", "--nonsense"])
def test_help_and_an_unknown_argument_explore_nothing(argument, monkeypatch, capsys):
    monkeypatch.setattr(explore, "ProcessPoolExecutor", lambda *_: pytest.fail("it explores"))
    with pytest.raises(SystemExit) as end:
        explore.main([argument])
    assert end.value.code == (0 if argument == "--help" else 2)
