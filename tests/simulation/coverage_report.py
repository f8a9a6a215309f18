"""`make coverage`: how much of the fencing and recovery code the simulator's seeds go through, branch by branch.

    python tests/simulation/coverage_report.py --seeds 3000

Every tenth seed is a whole cluster, the others are ledgers, which meet more of this code for less; the processes that
run them count lines and branches.
Counted are the files of `WHOLE` from end to end, and of others (`PARTS`) the members that decide on fences, limbo,
tombstones and repeated adds. What was not reached is listed. Exit status 1 below 95% of the branches.

What no seed can reach, and why:

- guards against our own mistakes: the ValueErrors of `LedgerWriterState`, the last `except` of
  `LedgerWriter._change_ensembles`, a watch begun after the end;
- what no writer of this project provokes: a fatal status as the answer to its add, CONFLICT;
- what no bookie of it does: to answer with an intact entry of another ledger, or without getting any further
  (`LedgerRecovery._take`, `_take_one`, `_length_at`);
- what nobody does to a record: to change the last fragment of an OPEN ledger but its writer (`plan_change`), or of one
  IN_RECOVERY (`LedgerRecovery.run`);
- to delete no ledger at all, or an unknown one (`BookieStore.add_tombstones`): garbage collection does not ask for it;
- an operation that is none (`BookieStore.request`): the connection refuses it before.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import coverage

TESTS = Path(__file__).resolve().parents[1]
STORAGE = TESTS.parent / "storage"

WHOLE = (
    "ledger/writer.py",
    "ledger/writer_state.py",
    "ledger/recovery.py",
    "ledger/recovery_state.py",
)
PARTS = {
    "bookie/store.py": (
        "refuse_unknown_ledger",
        "refuse_known_ledger",
        "judge_repeated",
        *(
            f"BookieStore.{name}"
            for name in (
                "request", "add", "_refuse_unknown_ledger", "_doubtful", "_learn", "_add_again",
                "_add_again.looked_up", "_fence", "_fence.durable", "_answer_state", "_read", "_read.done",
                "_read.read", "limbo", "enter_limbo", "clear_limbo", "add_tombstones", "add_tombstones.stored",
            )
        ),
    ),
    "bookie/entry_store.py": ("EntryStore.fence_all", "EntryStore.add_tombstone"),
    "bookie/held_ledgers.py": ("HeldLedger.__init__", "HeldLedger.extend", "IdRanges.__contains__", "IdRanges.add"),
}  # fmt: skip
CLUSTER_EVERY = 10
TO_REACH = 0.95


def collect(directory: str, seeds: list[int], scenario: str | None) -> list[str]:
    """Run seeds and count. Begins before anything of the product is imported. Returns violations, of which there should
    be none."""
    counting = coverage.Coverage(
        data_file=f"{directory}/data",
        data_suffix=True,
        branch=True,
        config_file=False,
        include=[str(STORAGE / name) for name in (*WHOLE, *PARTS)],
    )
    counting.start()
    try:
        sys.path[:0] = [str(TESTS)]
        from simulation.run import simulate

        violations: list[str] = []
        for seed in seeds:
            run_as = scenario or ("ledgers" if seed % CLUSTER_EVERY else "cluster")
            violations += [f"seed {seed} ({run_as}): {found}" for found in simulate(seed, run_as).violations]
    finally:
        counting.stop()
        counting.save()
    return violations


def measure(seeds: range, scenario: str | None, workers: int) -> dict[str, Any]:
    """Run the seeds; coverage's report, by file."""
    with tempfile.TemporaryDirectory() as directory:
        spawning = multiprocessing.get_context("spawn")  # a fork would have imported the product already
        with ProcessPoolExecutor(workers, mp_context=spawning) as pool:
            shares = [list(seeds[len(seeds) * n // workers : len(seeds) * (n + 1) // workers]) for n in range(workers)]
            for violations in pool.map(collect, [directory] * workers, shares, [scenario] * workers):
                for violation in violations:
                    print(violation, flush=True)
        combined = coverage.Coverage(data_file=f"{directory}/data", branch=True, config_file=False)
        combined.combine([directory])
        combined.json_report(outfile=f"{directory}/report.json", pretty_print=False)
        report = json.loads(Path(directory, "report.json").read_text())
    return {str(Path(name).resolve().relative_to(STORAGE)): found for name, found in report["files"].items()}


class Sum:
    """Branches and lines, reached and in all, and what was missed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.branches = self.branches_reached = self.lines = self.lines_reached = 0
        self.missing: list[str] = []

    def add(self, found: dict[str, Any]) -> None:
        summary = found["summary"]
        self.branches += summary["num_branches"]
        self.branches_reached += summary["covered_branches"]
        self.lines += summary["num_statements"]
        self.lines_reached += summary["covered_lines"]
        self.missing += [str(line) for line in found["missing_lines"]]
        self.missing += [
            f"{source}→{target if target > 0 else 'end'}"
            for source, target in found["missing_branches"]
            if source not in found["missing_lines"] and target not in found["missing_lines"]
        ]

    @property
    def share(self) -> float:
        return self.branches_reached / self.branches if self.branches else 1.0

    def __str__(self) -> str:
        return (
            f"{self.name:28} branches {self.branches_reached:4} of {self.branches:4} {self.share:6.1%}   "
            f"lines {self.lines_reached:4} of {self.lines:4} {self.lines_reached / max(self.lines, 1):6.1%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scenario", choices=("cluster", "ledgers"), help="this one for every seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began = time.perf_counter()
    files = measure(range(options.first, options.first + options.seeds), options.scenario, options.workers)
    total = Sum("all of it")
    for name in (*WHOLE, *PARTS):
        one = Sum(name if name in WHOLE else f"{name} (parts)")
        parts = [files[name]] if name in WHOLE else [files[name]["functions"][part] for part in PARTS[name]]
        for part in parts:
            one.add(part)
            total.add(part)
        print(one)
        if one.missing:
            print(f"    not reached: {', '.join(one.missing)}")
    print(total)
    print(f"{options.seeds} seeds in {time.perf_counter() - began:.0f} s")
    return 0 if total.share >= TO_REACH else 1


if __name__ == "__main__":
    sys.exit(main())
