"""Runs simulations: `python tests/simulation/run.py --seeds 1000`, or `--seed 7` for one transcript.

A sweep draws its first seed and prints it, so that each sweep looks at something new. `--first` repeats one.

There are two scenarios: a whole cluster (`scenarios.cluster`), and ledgers without brokers (`scenarios.ledgers`),
which costs much less. An even seed is one of the first, an odd one of the second, unless `--scenario` says which. With
"kept" each cluster has a workload of `scenarios.kept`, which else takes part in a share of them. With the name of a
kind of those, each cluster has this kind.

A run prints an *unseed*, drawn from all that happened: two runs of a seed that differ in it were not deterministic.
"""

import argparse
import concurrent.futures
import functools
import itertools
import logging
import os
import random
import sys
import time
import zlib
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from simulation.scenarios import cluster, kept, ledgers
from simulation.world.harness import Outcome
from simulation.world.transcript import Transcript

FIRST_MAX = 1_000_000_000
SCENARIOS = {
    "cluster": cluster.simulate,
    "ledgers": ledgers.simulate,
    "kept": functools.partial(cluster.simulate, kept_share=1.0),
    **{kind: functools.partial(cluster.simulate, kept_kind=kind) for kind in kept.KINDS},
}


def scenario_of(seed: int, chosen: str | None) -> str:
    """Which scenario a seed is run in."""
    return chosen or ("ledgers" if seed % 2 else "cluster")


def simulate(seed: int, chosen: str | None, **options: Any) -> Outcome:
    """Run one seed."""
    return SCENARIOS[scenario_of(seed, chosen)](seed, **options)


def sweep(seeds: list[int], chosen: str | None, workers: int) -> list[Outcome]:
    """Many seeds, on all processors; one line for each that fails."""
    outcomes: list[Outcome] = []
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for outcome in pool.map(simulate, seeds, itertools.repeat(chosen)):
            outcomes.append(outcome)
            if outcome.violations:
                where = scenario_of(outcome.seed, chosen)
                print(f"seed {outcome.seed} ({where}): {outcome.violations[0][:400]}")
                print(f"    again: {how_to_replay(outcome.seed, chosen)}", flush=True)
    return outcomes


def how_to_replay(seed: int, chosen: str | None) -> str:
    """The command that runs a seed again, with its transcript."""
    if chosen is None:
        return f"make simulate SEED={seed}"
    return f"python tests/simulation/run.py --scenario {chosen!r} --seed {seed}"


def how_to_repeat(first: int, options: argparse.Namespace) -> str:
    """The command that runs a sweep again."""
    if options.scenario is None:
        return f"make simulate FIRST={first} SEEDS={options.seeds}"
    return f"python tests/simulation/run.py --scenario {options.scenario!r} --first {first} --seeds {options.seeds}"


def replay(options: argparse.Namespace) -> int:
    """Run one seed, and print its transcript and the verdict."""
    transcript = Transcript(None if options.quiet else sys.stdout, options.node)
    outcome = simulate(
        options.seed,
        options.scenario,
        with_faults=not options.no_faults,
        validate_every=options.validate,
        transcript=transcript,
    )
    for trace in transcript.tracebacks:
        print(trace)
    print("counts", ", ".join(f"{name}: {count}" for name, count in sorted(outcome.counts.items())))
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    what = f"seed {options.seed} ({scenario_of(options.seed, options.scenario)})"
    spent = f"{outcome.virtual_s:.1f} s of virtual time in {outcome.real_s:.2f} s"
    if outcome.violations:
        broken = ", ".join({violation.partition(":")[0]: None for violation in outcome.violations})
        print(f"{what} violates {broken}; {spent}. Again: {how_to_replay(options.seed, options.scenario)}")
        print("(of some nodes: NODE=broker-1 or --node; with all live state looked at after each event: --validate 1)")
    else:
        print(f"{what} violates nothing; {spent}")
    print(f"unseed {outcome.seed} {outcome.unseed:08x}")
    # What a violation cut off in mid-air is taken apart when this process exits, and complains then.
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda unraisable: None
    return 1 if outcome.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to sweep")
    parser.add_argument("--first", type=int, help="the first of them; it is drawn and printed if this is not given")
    parser.add_argument("--seed", type=int, help="run this one and print its transcript")
    parser.add_argument("--node", nargs="+", default=(), help="with --seed: only what these nodes and faults say")
    parser.add_argument("--quiet", action="store_true", help="with --seed: no transcript")
    parser.add_argument("--validate", type=int, help="with --seed: look at all live state after every so many events")
    parser.add_argument("--no-faults", action="store_true", help="with --seed: leave the faults out")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="this one for every seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options)
    first = random.SystemRandom().randrange(FIRST_MAX) if options.first is None else options.first
    print(f"seeds {first} to {first + options.seeds - 1}; again: {how_to_repeat(first, options)}", flush=True)
    began = time.perf_counter()
    outcomes = sweep(list(range(first, first + options.seeds)), options.scenario, options.workers)
    elapsed = time.perf_counter() - began
    failed = [outcome.seed for outcome in outcomes if outcome.violations]
    totals: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.counts.items():
            totals[name] = totals.get(name, 0) + count
    for name in sorted(totals):
        print(f"  {name}: {totals[name]}")
    unseed = zlib.crc32(repr([(outcome.seed, outcome.unseed) for outcome in outcomes]).encode())
    ran = [scenario_of(outcome.seed, options.scenario) for outcome in outcomes]
    kinds = ", ".join(f"{ran.count(name)} {name}" for name in SCENARIOS if name in ran)
    print(f"{len(ran)} seeds ({kinds}) in {elapsed:.0f} s ({len(ran) / elapsed:.2f}/s), unseed {unseed:08x}")
    print(f"failed: {failed}" if failed else "no violation")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
