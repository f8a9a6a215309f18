"""Load balancing under a skewed load: how even it becomes, how long that takes, and what it costs producers.

    python bench/balancing.py [--directory DIR] [--interval S]

Starts a cluster of three brokers on Ray. Of 36 plain topics, those of one broker get a load of 1, 1/2, 1/3, … of the
heaviest; the others get a little. Producers send single messages at these rates all the time. The coordinator looks for
overloaded brokers every `--interval` seconds (by default 10, where the setting's default is 60). A broker is overloaded
from 10 entries per second above the mean (else 100), because this load is a small one. All else is default. The load
begins when the coordinator has had reports for seven intervals, because it moves nothing earlier.

The loads of brokers are the rates at which the producers send, by the owners that the admin names. `even` is the first
moment in which the busiest broker is within the threshold, 10 % above the mean, or no more moves have come for four
intervals. The gap is the longest time for which a message of a topic that moved waited for its receipt.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from failover import owner
from rows import RESULTS, Report, Row

import magnetar
from magnetar.cluster.planning import load_settings
from magnetar.cluster.preparing import StartOptions
from magnetar.cluster.ray_cluster import RayCluster, start_on_ray

BROKERS = 3
TOPICS = 36
HEAVIEST_PER_S = 200.0
LIGHT_PER_S = 2.0
THRESHOLD = 1.1
SKEW_MAX = 1.2
GAP_MAX_S = 1.0
QUIET_INTERVALS = 4
SETTLING_INTERVALS = 7
LIMIT_S = 240.0
PAYLOAD = b"x" * 1000
PENDING_MAX = 200


@dataclass
class Load:
    """One topic: how often it is sent to, its present owner, how often it moved, and its slowest receipt."""

    topic: str
    per_s: float
    owner: int
    moves: int = 0
    slowest_s: float = 0.0


def run(cluster: RayCluster, interval_s: float, report: Report) -> None:
    """All rows."""
    loads, begun, even_s = asyncio.run(_balance(cluster, interval_s))
    moved = [load for load in loads if load.moves]
    after = skew(loads)
    report.rows += [
        Row("busiest broker ÷ mean, balanced", round(after, 3), "lower", SKEW_MAX, note=f"{begun:.2f} before"),
        Row("time until even", round(even_s, 1), "lower", LIMIT_S, unit="s", note=f"rounds of {interval_s:g} s"),
        Row("moves", sum(load.moves for load in moved), "lower", TOPICS / 2, note="topics that changed their owner"),
    ]
    gaps = sorted((round(load.slowest_s, 3) for load in moved), reverse=True)
    if gaps:
        report.rows.append(Row("longest publish gap of a move", max(gaps), "lower", GAP_MAX_S, gaps, "s"))


def skew(loads: list[Load]) -> float:
    """The load of the busiest broker ÷ the mean."""
    totals: Counter[int] = Counter()
    for load in loads:
        totals[load.owner] += round(1000 * load.per_s)
    return max(totals.values()) * BROKERS / totals.total()


async def _send(producer: "magnetar.AsyncProducer", load: Load) -> None:
    """Send at an even rate, however long receipts take, with up to `PENDING_MAX` messages pending."""
    pending: set[asyncio.Task[None]] = set()
    due = time.perf_counter()
    try:
        while True:
            if len(pending) < PENDING_MAX:
                task = asyncio.create_task(_send_one(producer, load))
                pending.add(task)
                task.add_done_callback(pending.discard)
            due = max(due + 1 / load.per_s, time.perf_counter() - 1.0)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    finally:
        for task in pending:
            task.cancel()


async def _send_one(producer: "magnetar.AsyncProducer", load: Load) -> None:
    began = time.perf_counter()
    await producer.send(PAYLOAD)
    load.slowest_s = max(load.slowest_s, time.perf_counter() - began)


async def _balance(cluster: RayCluster, interval_s: float) -> tuple[list[Load], float, float]:
    """The loads as they are in the end, the skew before, and the seconds until even."""
    async with magnetar.AsyncClient(cluster.service_url) as client:
        names = [f"bench-load-{number}" for number in range(TOPICS)]
        producers = [await client.create_producer(name, batching_enabled=False) for name in names]
        owners = [await asyncio.to_thread(owner, cluster, name) for name in names]
        busiest = Counter(owners).most_common(1)[0][0]
        heavy = (HEAVIEST_PER_S / number for number in range(1, TOPICS + 1))
        loads = [
            Load(name, next(heavy) if number == busiest else LIGHT_PER_S, number)
            for name, number in zip(names, owners, strict=True)
        ]
        begun = skew(loads)
        await asyncio.sleep(SETTLING_INTERVALS * interval_s)
        senders = [asyncio.create_task(_send(one, load)) for one, load in zip(producers, loads, strict=True)]
        try:
            even_s = await _watch(cluster, loads, interval_s)
        finally:
            for sender in senders:
                sender.cancel()
        return loads, begun, even_s


async def _watch(cluster: RayCluster, loads: list[Load], interval_s: float) -> float:
    """Follow the owners until nothing has moved for long. Returns after how many seconds the last one moved, or loads
    were even."""
    began = time.monotonic()
    even_s = 0.0 if skew(loads) <= THRESHOLD else -1.0
    last_move_s = 0.0
    while (now_s := time.monotonic() - began) < LIMIT_S:
        if now_s - last_move_s > QUIET_INTERVALS * interval_s + (interval_s if not last_move_s else 0.0):
            break
        for load in loads:
            found = await asyncio.to_thread(owner, cluster, load.topic)
            if found != load.owner:
                load.owner, last_move_s = found, time.monotonic() - began
                load.moves += 1
        if even_s < 0 and skew(loads) <= THRESHOLD:
            even_s = time.monotonic() - began
        await asyncio.sleep(0.2)
    return even_s if even_s >= 0 else last_move_s


def main() -> int:
    """The command line. Returns 0 if every figure is within its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the cluster's data lies")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two rounds of the coordinator")
    options = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    options.directory.mkdir(parents=True, exist_ok=True)
    settings = replace(
        load_settings(), load_shedding_interval_minutes=options.interval / 60, load_least_entries_over_mean=10
    )
    report = Report()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="cluster-") as directory:
        start = StartOptions(settings.to_dict(), brokers=BROKERS, port=0, admin_port=0)
        cluster = start_on_ray(directory, start, detach=False)
        try:
            run(cluster, options.interval, report)
        finally:
            cluster.stop()
    for row in report.rows:
        verdict = "ok" if row.ok else "NO"
        print(f"{row.row}: {row.figure:g} {row.unit} (≤ {row.target:g}: {verdict}) {row.note} {row.samples or ''}")
    print(f"results in {report.save(RESULTS / 'balancing')}")
    return 0 if all(row.ok for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
