"""The explorer in small: reduced configurations hold, and the mutants that it is for are found in them."""

import pytest

from magnetar.storage.ledger_recovery_state import FencingState
from simulation import mutants
from simulation.explore import hunt
from simulation.explorer import Explorer, Options

SMALL = (
    Options(bookies=3, recoverers=1, entries=1, crashes_max=1, timeouts=0),
    Options(bookies=3, recoverers=2, entries=1, crashes_max=0, timeouts=0),
    Options(bookies=4, recoverers=1, entries=1, crashes_max=1, timeouts=0),
)

BROKEN = {"#2614": "I3", "#2615": "out of order", "#1591": "I1"}


@pytest.mark.parametrize("options", SMALL, ids=str)
def test_no_interleaving_breaks_an_invariant(options):
    report = Explorer(options).run()
    assert report.complete, "\n".join([report.violation, *report.transcript])
    assert report.states > 1000


@pytest.mark.parametrize("name", mutants.EXPLORED)
def test_a_mutant_is_found(name):
    report = hunt(name)
    assert BROKEN[name] in report.violation
    assert report.transcript


def test_a_search_is_the_same_every_time():
    first, second = (Explorer(SMALL[0]).run() for _ in range(2))
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_mutant_goes_away_again(name):
    before = FencingState.start, FencingState._judge
    with mutants.active(name) as mutant:
        assert mutant.invariant
    assert (FencingState.start, FencingState._judge) == before
