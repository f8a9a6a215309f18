"""`make chaos`: a cluster on a Ray of its own, harmed every 5 s, under producers and consumers in other processes.

    python tests/chaos/run.py [--rounds N] [--seconds 60] [--seed S] [--nodes 4]

A round without faults comes first: its publish rate is the reference. The last 10 s of a round have no faults, so that
the time to come back can be seen. The seed fixes which faults are drawn, not what they meet. Logs are
kept in build/chaos, data too when a safety check fails. With `--nodes` the cluster runs on so many Ray nodes with
addresses of their own, each with a broker and a bookie, and nodes are cut off the network, too. Exit status: 0 when all
safety checks and targets hold, 1 when a safety check fails, 2 when only a target of speed or a minimum of faults is
missed. docs/RELIABILITY.md says what this shows.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from rich.console import Console

import magnetar
from chaos.checking import Checking
from chaos.events import count_events, incarnations
from chaos.faults import Faults
from chaos.judging import Outcome, judge, plain
from chaos.nodes import CONTROL, on_nodes
from chaos.publishing import place_of
from chaos.sites import OneMachine, SeveralNodes, Site
from chaos.workloads import ProcessWorkload, RayWorkload, Running
from magnetar.cluster.handle import Cluster
from support.checks.chaos_checks import Message, find_backlogs, longest, stall_after
from support.clients.partitions import create_partitioned
from support.nodes.namespaces import reason_to_skip

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "chaos"
PARTITIONS = 2
FAULT_EVERY_S = 5.0
QUIET_S = 10.0
OFFICIAL = "official"
"""The publisher of the official client."""
KEEPER = "keeper"
"""A subscription that never acknowledges, so that nothing is trimmed."""
PUBLISHERS = {
    "batched": ("ours", "batched"),
    "unbatched": ("ours", "unbatched"),
    "async": ("ours", "async"),
    "official": ("official", "batched"),
    "ray": ("ray", "batched"),
}
"""By name, each with a topic `chaos-NAME`: whose client, and how."""
CONSUMERS = {
    ("ours", "consume"): (
        "shared:chaos-batched:ours-shared",
        "shared:chaos-batched:ours-shared",
        "exclusive:chaos-official:ours-exclusive",
        "cumulative:chaos-unbatched:ours-cumulative",
        "batch:chaos-ray:ours-batch",
        "listener:chaos-async:ours-listener",
        "reader:chaos-unbatched-partition-0:ours-reader",
    ),
    ("ours", "consume-async"): (
        "exclusive:chaos-batched:ours-async-exclusive",
        "shared:chaos-async:ours-async-shared",
        "shared:chaos-async:ours-async-shared",
        "reader:chaos-ray-partition-0:ours-async-reader",
    ),
    ("official", "consume"): (
        "exclusive:chaos-unbatched:official-exclusive",
        "shared:chaos-official:official-shared",
        "shared:chaos-official:official-shared",
        "batch:chaos-batched:official-batch",
        "listener:chaos-ray:official-listener",
        "several:chaos-unbatched+chaos-async:official-several",
        "reader:chaos-batched-partition-1:official-reader",
    ),
    ("official", "consume-async"): (
        "exclusive:chaos-official:official-async-exclusive",
        "reader:chaos-async-partition-1:official-async-reader",
    ),
    ("ray", "consume"): (
        "exclusive:chaos-ray:ray-exclusive",
        "shared:chaos-official:ray-shared",
    ),
}
"""By whose client in which process, as `consuming.py` takes them."""
BACKLOG_S = 30.0

console = Console(width=130 if not sys.stdout.isatty() else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--nodes", type=int, default=0, help="Ray nodes with addresses of their own; needs root")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if options.nodes and CONTROL not in os.environ:
        reason = reason_to_skip()
        if reason is not None:
            parser.error(reason)
        return on_nodes(options.nodes, __file__, [*sys.argv[1:], f"--seed={options.seed}"])
    outcome = Outcome(options.rounds, options.seconds, options.seed)
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = Path(tempfile.mkdtemp(prefix="magnetar-chaos-", dir=RESULTS))
    where = f" on {options.nodes} nodes" if options.nodes else ""
    console.print(
        f"chaos{where}: {options.rounds} rounds of {options.seconds:.0f} s, seed {options.seed}; everything lies in "
        f"{kept}"
    )
    site = SeveralNodes(options.nodes) if options.nodes else OneMachine(kept)
    try:
        with site.start() as cluster:
            run(cluster, kept, site, outcome)
    finally:
        site.end(kept)
    status = judge(outcome, console)
    site.keep_data(kept, unsafe=status == 1)
    (kept / "outcome.json").write_text(json.dumps(plain(outcome), indent=1))
    (RESULTS / "latest.json").write_text(json.dumps(plain(outcome), indent=1))
    return status


def start_workloads(cluster: Cluster, kept: Path) -> tuple[list[Running], dict[str, Running]]:
    """The consumers, and the publishers by name; all are ready."""
    url = cluster.service_url

    def start(name: str, peer: str, action: str, *arguments: str) -> Running:
        if peer == "ray":
            return RayWorkload(name, action, *arguments)
        return ProcessWorkload(kept, name, peer, url, action, *arguments)

    started: list[Running] = []
    try:
        for (peer, action), specifications in CONSUMERS.items():
            started.append(start(f"{action}-{peer}", peer, action, *specifications))
        consumers = list(started)
        for workload in consumers:
            workload.wait_ready()
        publishers: dict[str, Running] = {}
        for name, (peer, how) in PUBLISHERS.items():
            publishers[name] = start(f"publish-{name}", peer, "publish", f"chaos-{name}", how)
            started.append(publishers[name])
        for workload in publishers.values():
            workload.wait_ready()
    except BaseException:
        for workload in started:
            workload.kill()
        raise
    return consumers, publishers


def run(cluster: Cluster, kept: Path, site: Site, outcome: Outcome) -> None:
    """The rounds, then the checks."""
    with cluster.client() as client:
        for name in PUBLISHERS:
            create_partitioned(cluster, f"chaos-{name}", PARTITIONS)
            client.subscribe(f"chaos-{name}", KEEPER).close()
    at_start = count_events(site.logs)
    consumers, publishers = start_workloads(cluster, kept)
    try:
        time.sleep(2.0)  # until everything is warm
        begin = time.monotonic()
        time.sleep(outcome.seconds)
        before = count_events(site.logs)
        outcome.early_incarnations = incarnations(before) - incarnations(at_start)
        for workload in consumers:
            workload.mark()
        middle = time.monotonic()
        faults = site.faults(outcome.seed)
        for number in range(outcome.rounds):
            over, noticed, following = one_round(number, faults, outcome.seconds)
            outcome.lasts.append((over, following))
            outcome.official_lasts.append((min(noticed, following), following))
        end = time.monotonic()
        faults.heal()
        outcome.faults, outcome.skipped = faults.done, dict(faults.skipped)
        for workload in publishers.values():
            workload.stop()
        histories = {name: workload.result() for name, workload in publishers.items()}
        for workload in consumers:
            workload.stop()
        events = count_events(site.logs)
        events.subtract(before)
        outcome.events = dict(events)
        measure(outcome, histories, (begin, middle, end))
        with cluster.client() as client:
            logs_read = {
                name: {partition: list(read_all(client, partition)) for partition in partitions_of(client, name)}
                for name in PUBLISHERS
            }
        checking = Checking(outcome, histories, logs_read)
        for workload in consumers:
            checking.take_deliveries(workload.result())
    finally:
        for workload in [*consumers, *publishers.values()]:
            workload.kill()
    check_backlogs(cluster, outcome, checking.entries)


def one_round(number: int, faults: Faults, seconds: float) -> tuple[float, float, float]:
    """Faults every FAULT_EVERY_S, then QUIET_S without.

    Returns when the last one was over, when the official client had noticed all of them, and when the next comes.
    """
    begin = time.monotonic()
    at = begin + FAULT_EVERY_S
    done: list[str] = []
    over = noticed = begin
    while at <= begin + seconds - QUIET_S:
        time.sleep(max(0.0, at - time.monotonic()))
        fault = faults.do_one(begin + seconds - QUIET_S - at)
        done.append(f"{fault.kind} {fault.node_id}" if fault else "–")
        if fault is not None:
            over, noticed = max(over, fault.over), max(noticed, fault.over, fault.noticed)
        at += FAULT_EVERY_S
    console.print(f"round {number + 1}: {', '.join(done)}")
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    return over, noticed, begin + seconds + FAULT_EVERY_S


def measure(outcome: Outcome, histories: dict[str, Any], times: tuple[float, float, float]) -> None:
    """Rates and stalls, from what the publishers' callbacks noted."""
    begin, middle, end = times
    per_second: Counter[int] = Counter()
    for history in histories.values():
        for second, count in history["per_second"].items():
            per_second[int(second)] += count
        outcome.acknowledged += sum(map(len, history["acknowledged"].values()))
        outcome.failed_sends += len(history["failed"])
    outcome.reference_rate = _rate(per_second, begin, middle)
    outcome.rate = _rate(per_second, middle, end)
    for name, history in histories.items():
        gaps = [(gap_begin, gap_end) for gap_begin, gap_end in history["gaps"] if gap_end > middle]
        outcome.longest_stall_s = max(outcome.longest_stall_s, longest(gaps))
        lasts = outcome.official_lasts if name == OFFICIAL else outcome.lasts
        outcome.stalls_after_last_fault_s[name] = max(
            (stall_after(gaps, last, following) for last, following in lasts), default=0.0
        )


def _rate(per_second: Counter[int], begin: float, end: float) -> float:
    seconds = range(int(begin) + 1, int(end))
    return sum(per_second[second] for second in seconds) / max(1, len(seconds))


def partitions_of(client: Any, name: str) -> list[str]:
    """Partitions of a publisher's topic, in full."""
    return client.get_topic_partitions(f"chaos-{name}")


def read_all(client: Any, topic: str) -> Iterator[tuple[Message, str]]:
    """A partition from its start to its end: each message and its place."""
    reader = client.create_reader(topic, magnetar.MessageId.earliest)
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=30_000)
        key, sequence, _ = message.data().split(b":", 2)
        yield (key.decode(), int(sequence)), place_of(message.message_id())
    reader.close()


def check_backlogs(cluster: Cluster, outcome: Outcome, entries: dict[str, int]) -> None:
    """Wait until every subscription stands where it should; what does not within BACKLOG_S is wrong."""
    end = time.monotonic() + BACKLOG_S
    while True:
        backlogs = {topic: backlogs_of(cluster, topic) for topic in entries}
        outcome.backlogs = find_backlogs(backlogs, entries, KEEPER)
        if not outcome.backlogs or time.monotonic() > end:
            return
        time.sleep(1.0)


def backlogs_of(cluster: Cluster, topic: str) -> dict[str, int]:
    """Entries that each durable subscription of a partition has before it."""
    url = f"{cluster.admin_url}/admin/v2/{topic.replace('://', '/')}/stats"
    with urllib.request.urlopen(url, timeout=20) as answer:
        subscriptions = json.load(answer)["subscriptions"]
    return {name: one["msgBacklog"] for name, one in subscriptions.items() if one["isDurable"]}


if __name__ == "__main__":
    sys.exit(main())
