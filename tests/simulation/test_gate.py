"""The mutation gate in small, and that a seed of ledgers is replayed as it was."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from magnetar.actors.coordinator.office import TopicWatchers
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.ledger.recovery import LedgerRecovery
from simulation import gate
from simulation.mutants import catalog
from simulation.mutants.mutant import Mutant, replace
from simulation.run import SCENARIOS
from simulation.scenarios import ledgers

GATE = Path(gate.__file__)
QUICK = ("#1591", "#4668", "old slot")
"""Two seeds find each of them."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh process, because a run must not depend on what ran before it."""
    return subprocess.run(
        [sys.executable, str(GATE), *arguments],
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_gate_finds_what_is_switched_on_and_nothing_else() -> None:
    names = [part for name in QUICK for part in ("--mutant", name)]
    result = run(*names, "--seeds-max", "200", "--workers", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    table = result.stdout.splitlines()
    for name, line in zip(QUICK, table[1:], strict=False):
        assert line.startswith(name) and f"{catalog.MUTANTS[name].invariant}:" in line
    assert table[-1].endswith("none of them with a violation")


@pytest.mark.parametrize("name", catalog.MUTANTS)
def test_what_a_mutant_replaces_is_there(name: str) -> None:
    with catalog.active(name):
        pass


def test_a_function_that_takes_other_arguments_is_no_mutant() -> None:
    """It would be found by its TypeError, whatever the checkers see."""
    with ExitStack() as stack, pytest.raises(TypeError, match="too many positional arguments"):
        replace(stack, TopicWatchers, "_changed", lambda self, topic: None)


def test_a_mutant_that_is_not_caught_fails_the_gate(monkeypatch, capsys) -> None:
    harmless = Mutant("harmless", "none", "I1", lambda stack: None)
    monkeypatch.setitem(catalog.MUTANTS, harmless.name, harmless)
    assert not gate.run_gate([harmless.name], None, 0, 2, 1).holds
    assert "NOT CAUGHT, in 0 seeds by other invariants only" in capsys.readouterr().out


def test_a_run_is_recorded_and_only_a_whole_one_that_held_counts_as_whole(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    found.write_text('{"whole": {"day": "2026-11-23"}, "seeds": {"#2614": 15, "#1067": 9, "gone": 3}}')
    gate.record(gate.Verdict(True, {"#2614": 7}), found, "2026-11-27", "abc")
    assert json.loads(found.read_text()) == {"whole": {"day": "2026-11-23"}, "seeds": {"#1067": 9, "#2614": 7}}
    gate.record(gate.Verdict(False, dict.fromkeys(catalog.MUTANTS, 1)), found, "2026-11-27", "abc")
    assert json.loads(found.read_text())["whole"] == {"day": "2026-11-23"}
    gate.record(gate.Verdict(True, dict.fromkeys(catalog.MUTANTS, 1)), found, "2026-11-27", "abc")
    assert json.loads(found.read_text())["whole"] == {
        "day": "2026-11-27",
        "commit": "abc",
        "mutants": len(catalog.MUTANTS),
    }


def test_a_caught_seed_is_caught_again_and_not_without_its_mutant() -> None:
    shot = gate.shoot("#4668", range(200))
    assert shot.seed >= 0
    assert gate.shoot("#4668", range(shot.seed, shot.seed + 1)) == shot
    assert gate.innocent("ledgers", shot.seed) == []


def test_a_mutant_can_be_hunted_in_whole_clusters() -> None:
    """Seed 5 finds it; others do, too."""
    choice = ("--mutant", "cursor ahead", "--scenario", "cluster")
    result = run(*choice, "--first", "5", "--seeds-max", "200", "--workers", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    line, last = result.stdout.splitlines()[1:]
    assert " cluster " in line and "I7:" in line
    assert "seeds of cluster" in last and last.endswith("none of them with a violation")


@pytest.mark.parametrize("name", catalog.MUTANTS)
def test_every_mutant_names_a_scenario(name: str) -> None:
    assert catalog.MUTANTS[name].scenario in SCENARIOS


@pytest.mark.parametrize("name", catalog.MUTANTS)
def test_a_mutant_goes_away_again(name: str) -> None:
    before = LedgerRecovery._take, BookieStore._fence
    with catalog.active(name) as mutant:
        assert mutant.invariant[0] == "I"
    assert (LedgerRecovery._take, BookieStore._fence) == before


def test_without_faults_nothing_fails() -> None:
    outcome = ledgers.simulate(11, with_faults=False)
    assert outcome.violations == []
    assert outcome.counts["acknowledged"] > 0
