"""`make mutants`: is the simulator strong enough to find bugs? Each is switched on and has to be found.

    python tests/simulation/gate.py                       all mutants, then the unmutated build over the same seeds
    python tests/simulation/gate.py --mutant "#2614"      only this one
    python tests/simulation/gate.py --mutant "#2614" --seed 17     one run with its transcript
    python tests/simulation/gate.py --mutant "#2614" --scenario cluster    hunt in whole clusters
    python tests/simulation/gate.py --record              all, and write what it took to found.json beside the catalog

Each mutant names the scenario that hunts it: ledgers alone, or a whole cluster (`run.SCENARIOS`).

A mutant is caught by a seed whose run breaks the invariant that was named beforehand (`catalog.MUTANTS`); breaking
another one does not count. Exit status 1 when one is not caught within --seeds-max seeds, or when the unmutated build
breaks anything in any of the seeds that were needed, in the scenarios that were needed.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from simulation.mutants import catalog
from simulation.run import SCENARIOS
from simulation.world.transcript import Transcript

FOUND = Path(catalog.__file__).with_name("found.json")
"""When the gate ran whole last, and after how many seeds each mutant was found."""
SEEDS_MAX = 10_000
SEEDS_PER_TASK = 4
"""Of ledgers. Clusters take so much longer that each seed is a task: what was begun in vain goes on to its end."""


class Hunt(NamedTuple):
    """How a mutant was found: after how many seeds, by what; `seeds` were all in vain when `sentence` is empty."""

    seeds: int
    sentence: str
    others: int
    """Seeds in which it broke other invariants only."""
    seconds: float


class Shot(NamedTuple):
    """What a few seeds showed: the first that broke the named invariant, and how."""

    seed: int
    sentence: str
    others: int


def scenario_of(name: str, chosen: str | None) -> str:
    """The scenario that a mutant is hunted in."""
    return chosen or catalog.MUTANTS[name].scenario


def shoot(name: str, seeds: range, chosen: str | None = None) -> Shot:
    """Run seeds with a mutant switched on, until one breaks its invariant; `seed` is −1 when none does."""
    others = 0
    simulate = SCENARIOS[scenario_of(name, chosen)]
    for seed in seeds:
        with catalog.active(name) as mutant:
            violations = simulate(seed).violations
        for sentence in violations:
            if sentence.startswith(f"{mutant.invariant}:"):
                return Shot(seed, sentence, others)
        others += bool(violations)
    return Shot(-1, "", others)


def hunt(pool: ProcessPoolExecutor, name: str, chosen: str | None, seeds: range, workers: int) -> Hunt:
    """Look for a mutant, in the order of seeds."""
    began, others, first = time.perf_counter(), 0, seeds.start
    size = SEEDS_PER_TASK if scenario_of(name, chosen) == "ledgers" else 1
    tasks = (
        (start, pool.submit(shoot, name, range(start, min(start + size, seeds.stop)), chosen))
        for start in range(first, seeds.stop, size)
    )
    waiting: list[tuple[int, Future[Shot]]] = []
    for _, future in _ahead(tasks, waiting, 2 * workers):
        shot = future.result()
        others += shot.others
        if shot.seed >= 0:
            for _, unneeded in waiting:
                unneeded.cancel()
            return Hunt(shot.seed - first + 1, shot.sentence, others, time.perf_counter() - began)
    return Hunt(len(seeds), "", others, time.perf_counter() - began)


def _ahead(
    tasks: "Iterator[tuple[int, Future[Shot]]]", waiting: "list[tuple[int, Future[Shot]]]", ahead: int
) -> "Iterator[tuple[int, Future[Shot]]]":
    """The tasks in their order, `ahead` of them begun before they are asked for."""
    for task in tasks:
        waiting.append(task)
        if len(waiting) > ahead:
            yield waiting.pop(0)
    while waiting:
        yield waiting.pop(0)


def innocent(scenario: str, seed: int) -> list[str]:
    """What the unmutated build breaks in a seed: nothing, if all is well."""
    return SCENARIOS[scenario](seed).violations


class Verdict(NamedTuple):
    """Whether the gate holds, and after how many seeds each mutant was found."""

    holds: bool
    seeds: dict[str, int]


def run_gate(names: list[str], chosen: str | None, first: int, seeds_max: int, workers: int) -> Verdict:
    """Hunt all these mutants, then run the unmutated build over the same seeds; prints both."""
    holds = True
    caught: dict[str, int] = {}
    needed: dict[str, int] = {}  # scenario → how many of its seeds were run with a mutant
    print(f"{'mutant':17} {'bug':68} {'in':7} {'named':6} {'seeds':>6} {'s':>6}  caught by", flush=True)
    with ProcessPoolExecutor(workers) as pool:
        for name in names:
            mutant, scenario = catalog.MUTANTS[name], scenario_of(name, chosen)
            found = hunt(pool, name, chosen, range(first, first + seeds_max), workers)
            needed[scenario] = max(needed.get(scenario, 0), found.seeds)
            holds = holds and bool(found.sentence)
            if found.sentence:
                caught[name] = found.seeds
            verdict = found.sentence[:100] or f"NOT CAUGHT, in {found.others} seeds by other invariants only"
            figures = f"{scenario:7} {mutant.invariant:6} {found.seeds:6} {found.seconds:6.1f}"
            print(f"{name:17} {mutant.bug:68} {figures}  {verdict}", flush=True)
        began, failed = time.perf_counter(), 0
        for scenario, count in needed.items():
            seeds = range(first, first + count)
            for seed, violations in zip(seeds, pool.map(partial(innocent, scenario), seeds, chunksize=4), strict=True):
                if violations:
                    failed += 1
                    print(f"unmutated, seed {seed} ({scenario}): {violations[0][:300]}", flush=True)
    elapsed = time.perf_counter() - began
    ran = " and ".join(f"{count} seeds of {scenario}" for scenario, count in needed.items())
    print(f"unmutated: {ran} in {elapsed:.0f} s, {failed or 'none'} of them with a violation")
    return Verdict(holds and not failed, caught)


def record(verdict: Verdict, found: Path, day: str, commit: str) -> None:
    """Write what a run of the gate found to the file of which `make reference` makes a page."""
    known = json.loads(found.read_text())
    seeds = {**known["seeds"], **verdict.seeds}
    known["seeds"] = {name: seeds[name] for name in sorted(seeds) if name in catalog.MUTANTS}
    if verdict.holds and verdict.seeds.keys() == catalog.MUTANTS.keys():
        known["whole"] = {"day": day, "commit": commit, "mutants": len(catalog.MUTANTS)}
    found.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def replay(name: str, chosen: str | None, seed: int) -> int:
    """One run with its transcript."""
    with catalog.active(name):
        outcome = SCENARIOS[scenario_of(name, chosen)](seed, transcript=Transcript(sys.stdout))
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    return 1 if outcome.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mutant", action="append", choices=list(catalog.MUTANTS), help="only this one; may be repeated"
    )
    parser.add_argument("--seed", type=int, help="with one --mutant: run this seed and print its transcript")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="hunt in this one, whatever the mutant names")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds-max", type=int, default=SEEDS_MAX, help="a mutant has to be caught within so many")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", action="store_true", help=f"write what it took to {FOUND.name}")
    options = parser.parse_args()
    names = options.mutant or list(catalog.MUTANTS)
    if options.seed is not None:
        return replay(names[0], options.scenario, options.seed)
    verdict = run_gate(names, options.scenario, options.first, options.seeds_max, options.workers)
    if options.record:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=FOUND.parent, capture_output=True, text=True, check=True
        ).stdout.strip()
        record(verdict, FOUND, datetime.date.today().isoformat(), commit)
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
