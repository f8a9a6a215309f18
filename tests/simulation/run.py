"""Runs a cluster under simulation: `python tests/simulation/run.py --seeds 1000`, or `--seed 7` for one transcript.

A run: start → set up → workloads under faults (safety) → heal → everything outstanding is done (liveness, I8) → read
the logs and check → close. It prints an *unseed*, drawn from all that happened: two runs of a seed that differ in it
were not deterministic.
"""

import argparse
import asyncio
import concurrent.futures
import gc
import logging
import os
import sys
import time
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "support")]

from simulation.cluster import SimCluster, draw_settings
from simulation.faults import Faults
from simulation.history import History
from simulation.loop import PROCESS, START_S, SimLoop, Stuck
from simulation.transcript import Transcript
from simulation.workloads import Consuming, LogReading, Publishing

SAFETY_S = 8.0


@dataclass
class Outcome:
    """What one seed gave. `violations` is empty for a good run."""

    seed: int
    unseed: int = 0
    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    real_s: float = 0.0


async def scenario(cluster: SimCluster, history: History, random: Random, faults: Faults | None) -> None:
    """One run from start to end. Raises AssertionError, beginning with the invariant, where a wait is in vain."""
    await cluster.start()
    topics = [f"topic-{number}" for number in range(random.randint(1, 2))]
    reading = LogReading(cluster, history, Random(random.getrandbits(64)), "reader", topics)
    publishers: list[Publishing] = []
    consumers: list[Consuming] = []
    for topic in topics:
        for number in range(random.randint(1, 2)):
            name = f"publisher-{topic[-1]}{number}"
            publishers.append(Publishing(cluster, history, Random(random.getrandbits(64)), name, topic))
        for number in range(random.randint(1, 2)):
            name = f"consumer-{topic[-1]}{number}"
            consumers.append(Consuming(cluster, history, Random(random.getrandbits(64)), name, topic))
    early = faults is not None and random.random() < 0.3
    if early and faults is not None:
        faults.start()
    limit_s = 120.0 if early else 60.0
    for workload in (reading, *consumers, *publishers):
        await workload.run(workload.setup, limit_s)
    for workload in (*consumers, *publishers):
        await workload.run(workload.start)
    if faults is not None and not early:
        faults.start()
    await asyncio.sleep(SAFETY_S)
    if faults is not None:
        await faults.heal()
    for publisher in publishers:
        await publisher.run(publisher.stop)
    await reading.run(reading.read)
    for consumer in consumers:
        await consumer.run(consumer.stop)
    for logs in reading.logs.values():
        for partition, log in logs.items():
            history.check_log(partition, log)
    if history.violations:
        return
    history.begin_again()
    for consumer in consumers:
        logs = reading.logs[consumer.topic]

        async def drain(consumer: Consuming = consumer, logs: dict = logs) -> None:
            await consumer.drain(logs)

        try:
            await consumer.run(drain)
        except AssertionError:
            missing = {
                partition: places
                for partition, log in logs.items()
                if (places := history.missing_deliveries(partition, consumer.name, log))
            }
            if not missing:
                raise
            history.violated(f"I7: {consumer.name} is not given {next(iter(missing.values()))[:3]} of {list(missing)}")
            return
    for workload in (reading, *consumers, *publishers):
        await workload.run(workload.close)
    history.counts["messages"] = len(history.sent)
    history.counts["acknowledged"] = len(history.acknowledged)
    await cluster.close()


def simulate(seed: int, *, with_faults: bool = True, transcript: Transcript | None = None) -> Outcome:
    """Run one seed."""
    began = time.perf_counter()
    outcome = Outcome(seed)
    random = Random(seed)
    history = History()
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    transcript = transcript or Transcript()
    logging.disable(logging.CRITICAL)
    gc.collect()  # what an earlier run left must not speak in this one
    logging.disable(logging.NOTSET)
    transcript.begin(loop)
    gc.disable()  # finalizers run at moments that no seed decides
    try:
        settings = draw_settings(random)
        cluster = SimCluster(loop, random, settings, random.choice((3, 4)), 2)
        cluster.records.watcher = history.metadata_changed
        faults = Faults(cluster, history, Random(random.getrandbits(64))) if with_faults else None
        task = loop.create_task(scenario(cluster, history, random, faults))
        try:
            loop.run_until_complete(task)
        except AssertionError as error:
            history.violated(str(error))
        except Stuck as error:
            history.violated(f"I8: {error}")
        except (Exception, asyncio.CancelledError) as error:
            transcript.note("the simulator", "".join(traceback.format_exception(error)))
            history.violated(f"the scenario failed: {error!r}")
        for failure in (*loop.failures, *transcript.unexpected):
            history.violated(f"unexpected: {failure}")
        outcome.unseed = zlib.crc32(
            repr(
                [
                    (loop.handles_run, loop.now, random.random(), cluster.network.random.random()),
                    (list(history.acknowledged.items()), list(history.places), sorted(history.counts.items())),
                ]
            ).encode()
        )
    finally:
        transcript.end()
        _tear_down(loop)
        gc.enable()
    outcome.violations = history.violations
    outcome.counts = dict(history.counts)
    outcome.virtual_s = loop.now - START_S
    outcome.real_s = time.perf_counter() - began
    return outcome


def _tear_down(loop: SimLoop) -> None:
    """Let go of everything without running it."""
    PROCESS.set(None)
    logging.disable(logging.CRITICAL)
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.set_exception_handler(lambda loop, context: None)
    loop.abandon()
    asyncio.set_event_loop(None)
    gc.collect()
    loop.close()
    logging.disable(logging.NOTSET)


def sweep(seeds: list[int], workers: int) -> list[Outcome]:
    """Many seeds, on all processors; one line for each that fails."""
    outcomes: list[Outcome] = []
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for outcome in pool.map(simulate, seeds, chunksize=4):
            outcomes.append(outcome)
            if outcome.violations:
                print(f"seed {outcome.seed}: {outcome.violations[0][:400]}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to sweep")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one and print its transcript")
    parser.add_argument("--quiet", action="store_true", help="with --seed: no transcript")
    parser.add_argument("--no-faults", action="store_true", help="with --seed: leave the faults out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        transcript = Transcript(None if options.quiet else sys.stdout)
        outcome = simulate(options.seed, with_faults=not options.no_faults, transcript=transcript)
        for violation in outcome.violations:
            print(f"VIOLATION {violation}")
        print(f"counts {outcome.counts}; {outcome.virtual_s:.1f} s of virtual time in {outcome.real_s:.2f} s")
        print(f"unseed {outcome.seed} {outcome.unseed:08x}")
        return 1 if outcome.violations else 0
    began = time.perf_counter()
    outcomes = sweep(list(range(options.first, options.first + options.seeds)), options.workers)
    elapsed = time.perf_counter() - began
    failed = [outcome.seed for outcome in outcomes if outcome.violations]
    totals: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.counts.items():
            totals[name] = totals.get(name, 0) + count
    for name in sorted(totals):
        print(f"  {name}: {totals[name]}")
    unseed = zlib.crc32(repr([(outcome.seed, outcome.unseed) for outcome in outcomes]).encode())
    print(f"{len(outcomes)} seeds in {elapsed:.0f} s ({len(outcomes) / elapsed:.2f}/s), unseed {unseed:08x}")
    print(f"failed: {failed}" if failed else "no violation")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
