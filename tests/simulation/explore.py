"""`make explore`: explore fencing and recovery exhaustively, then show that known bugs are found.

    python tests/simulation/explore.py            all configurations, then the mutants
    python tests/simulation/explore.py --mutants  the mutants only

`explorer.reduced` says how. Two processes work at a time: one with reductions, one without. Exit status 1 when an
invariant is broken, a configuration is not explored to its end, the reductions lose an outcome, or a mutant is not
found.
"""

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from simulation.explorer.plain import PlainExplorer
from simulation.explorer.reduced import Explorer
from simulation.explorer.report import Options, Report
from simulation.mutants import catalog

CONFIGURATIONS = (
    Options(bookies=4, recoverers=2, entries=2, breaks=True, store_timeouts=True),
    Options(bookies=3, recoverers=2, entries=2, breaks=True, store_timeouts=True),
)
"""Each is explored to its end. The first contains a crash of every node and a time-out of every client."""

PLAIN = (
    Options(bookies=3, recoverers=1, entries=1, breaks=True, store_timeouts=True),
    Options(bookies=3, recoverers=1, entries=2, breaks=False, store_timeouts=False),
    Options(bookies=3, recoverers=2, entries=1, breaks=False, store_timeouts=False),
    Options(bookies=4, recoverers=0, entries=1, breaks=True, store_timeouts=True),
    Options(bookies=3, recoverers=0, entries=2, breaks=True, store_timeouts=True),
)
"""Explored with the reductions and without them: the reductions may lose no outcome (see `Report.outcomes`)."""

SCHEDULES = 1500
"""Of the largest configuration, which has too many states without the reductions."""

HUNTS = {
    "#2614": Options(bookies=3, recoverers=1, entries=1, breaks=False, store_timeouts=False),
    "#2615": Options(bookies=4, recoverers=1, entries=1, breaks=True, store_timeouts=False),
    "#1591": Options(bookies=4, recoverers=1, entries=1, breaks=True, store_timeouts=False),
}
"""Where each mutant is looked for."""


def explore(options: Options) -> Report:
    """With reductions."""
    return Explorer(options).run()


def explore_plainly(options: Options) -> Report:
    """Without."""
    return PlainExplorer(options).run()


def wander(options: Options) -> set[Any]:
    """The outcomes of random schedules without reductions."""
    return PlainExplorer(options).wander(SCHEDULES, seed=1)


def hunt(name: str) -> Report:
    """Explore with a mutant switched on."""
    with catalog.active(name):
        return explore(HUNTS[name])


def main(arguments: list[str]) -> int:
    """Print what was found; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", action="store_true", help="show only that the mutants are found")
    only_mutants: bool = parser.parse_args(arguments).mutants
    began = time.monotonic()
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as processes:
        sound = only_mutants or _explore_all(processes)
        for name, report in zip(catalog.EXPLORED, processes.map(hunt, catalog.EXPLORED), strict=True):
            print(f"\nmutant {name}, {catalog.MUTANTS[name].bug}: {'found' if report.violation else 'NOT FOUND'}")
            print(f"    {HUNTS[name]}: after {report.states:,} states, {report.seconds:.1f} s")
            sound = sound and bool(report.violation)
            show(report)
    print(f"\n{'all is well' if sound else 'FAILED'}, {time.monotonic() - began:.0f} s")
    return int(not sound)


def _explore_all(processes: Executor) -> bool:
    reduced = [processes.submit(explore, options) for options in CONFIGURATIONS]
    plain = [processes.submit(explore_plainly, options) for options in PLAIN]
    wandering = processes.submit(wander, CONFIGURATIONS[0])
    states, sound = 0, True
    for options, report in zip(CONFIGURATIONS, (future.result() for future in reduced), strict=True):
        print(f"{options}\n    {report}", flush=True)
        show(report)
        states, sound = states + report.states, sound and report.complete
    print(f"together {states:,} distinct states\n\nwithout any reduction, where there is time for that:")
    for options, report in zip(PLAIN, (future.result() for future in plain), strict=True):
        sound = _compare(options, report) and sound
    seen, whole = wandering.result(), reduced[0].result().outcomes
    print(f"{CONFIGURATIONS[0]}\n    {SCHEDULES:,} random schedules: {len(seen)} of its {len(whole)} outcomes")
    print(f"    {len(seen - whole)} others, lost by the reductions", flush=True)
    return sound and not seen - whole


def _compare(options: Options, plain: Report) -> bool:
    reduced = explore(options)
    lost, more = len(plain.outcomes - reduced.outcomes), len(reduced.outcomes - plain.outcomes)
    print(f"{options}\n    {plain}\n    reduced to {reduced.states:,} distinct states, {reduced.seconds:.1f} s")
    print(f"    {len(plain.outcomes)} outcomes, {lost} of them lost by the reductions, {more} others there", flush=True)
    show(plain)
    show(reduced)
    return plain.complete and reduced.complete and not lost


def show(report: Report) -> None:
    """The counter-example."""
    if report.violation:
        print(f"    {report.violation}; fewest steps, {len(report.transcript)} events:")
    for line in report.transcript:
        action, _, after = line.partition("\t")
        print(f"      {action:<64}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
