"""`make chaos`: a cluster on a Ray of its own, harmed every 5 s, under producers and consumers in other processes.

    python tests/chaos/run.py [--rounds N] [--seconds 60] [--seed S]

A round without faults comes first: its publish rate is the reference. The last 10 s of a round have no faults, so that
the time to come back can be seen. The seed fixes which faults are drawn, not what they meet. Logs are
kept in build/chaos, data too when a safety check fails. Exit status: 0 when all
safety checks and targets hold, 1 when a safety check fails, 2 when only a target of speed or a minimum of faults is
missed. docs/RELIABILITY.md says what this shows.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from chaos_checks import Found, compare, longest, stall_after
from events import count_events
from faults import Fault, Faults
from rich.console import Console
from rich.table import Table

import magnetar
from magnetar.cluster.handle import Cluster

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "chaos"
BROKERS, BOOKIES, PARTITIONS = 2, 4, 2
FAULT_EVERY_S = 5.0
QUIET_S = 10.0
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 2000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "addEntryTimeoutSeconds": 1.0,
    "auditorPeriodicCheckSeconds": 10.0,
}
PUBLISHERS = {
    "batched": ("ours", "chaos-batched", "batched"),
    "unbatched": ("ours", "chaos-unbatched", "unbatched"),
    "official": ("official", "chaos-official", "batched"),
}
CONSUMERS = {
    "ours": (
        "shared:chaos-batched:ours-shared",
        "shared:chaos-batched:ours-shared",
        "exclusive:chaos-unbatched:ours-exclusive",
        "exclusive:chaos-official:ours-exclusive",
        "reader:chaos-unbatched-partition-0:ours-reader",
    ),
    "official": (
        "exclusive:chaos-batched:official-exclusive",
        "shared:chaos-official:official-shared",
        "shared:chaos-official:official-shared",
        "exclusive:chaos-unbatched:official-exclusive",
        "reader:chaos-batched-partition-1:official-reader",
    ),
}
RATE_MIN = 0.30
STALL_MAX_S = 10.0
MINIMA = {"failovers": 20, "recoveries": 20, "ensemble changes or too few bookies": 20, "writes refused by a fence": 5}
READY_S, DONE_S = 60.0, 240.0

console = Console(width=130 if not sys.stdout.isatty() else None)


class Workload:
    """A process of `workload_process.py`."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._output = directory / f"{name}.json"
        self.name = name
        command = [sys.executable, "-P", str(Path(__file__).with_name("workload_process.py")), str(self._output)]
        self._log = (directory / f"{name}.log").open("w")
        self._process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the workload {self.name} did not start: {Path(self._log.name).read_text()[-2000:]}")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def result(self) -> Any:
        """What it learned. Raises RuntimeError when it does not end or failed."""
        try:
            status = self._process.wait(DONE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise RuntimeError(f"the workload {self.name} did not end within {DONE_S:.0f} s") from None
        if not self._output.exists():
            raise RuntimeError(
                f"the workload {self.name} failed ({status}): {Path(self._log.name).read_text()[-2000:]}"
            )
        return json.loads(self._output.read_text())

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass
class Outcome:
    """Everything that a run found."""

    rounds: int
    seconds: float
    seed: int
    faults: list[Fault] = field(default_factory=list)
    lasts: list[tuple[float, float]] = field(default_factory=list)
    """For each round: when its last fault was over, and when the next round's first one was due."""
    skipped: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    reference_rate: float = 0.0
    rate: float = 0.0
    acknowledged: int = 0
    failed_sends: int = 0
    longest_stall_s: float = 0.0
    stall_after_last_fault_s: float = 0.0
    logs: dict[str, Found] = field(default_factory=dict)
    subscriptions: dict[str, Found] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    outcome = Outcome(options.rounds, options.seconds, options.seed)
    RESULTS.mkdir(parents=True, exist_ok=True)
    os.environ.pop("RAY_ADDRESS", None)
    kept = Path(tempfile.mkdtemp(prefix="magnetar-chaos-", dir=RESULTS))
    ray_directory = tempfile.mkdtemp(prefix="chaos-ray-")
    console.print(
        f"chaos: {options.rounds} rounds of {options.seconds:.0f} s, seed {options.seed}; everything lies in {kept}"
    )
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        _temp_dir=ray_directory,
    )
    logs = Path(ray_directory) / "session_latest" / "logs"
    try:
        with magnetar.start(
            data_dir=kept / "data", brokers=BROKERS, bookies=BOOKIES, port=0, admin_port=0, settings=SETTINGS
        ) as cluster:
            run(cluster, kept, logs, outcome)
    finally:
        ray.shutdown()
        shutil.copytree(logs, kept / "logs", ignore_dangling_symlinks=True)
        shutil.rmtree(ray_directory, ignore_errors=True)
    status = judge(outcome)
    if status != 1:
        shutil.rmtree(kept / "data")
    (kept / "outcome.json").write_text(json.dumps(plain(outcome), indent=1))
    (RESULTS / "latest.json").write_text(json.dumps(plain(outcome), indent=1))
    return status


def run(cluster: Cluster, kept: Path, logs: Path, outcome: Outcome) -> None:
    """The rounds, then the checks."""
    with cluster.client() as client:
        for _, topic, _ in PUBLISHERS.values():
            create_partitioned(cluster, topic)
            client.subscribe(topic, "keeper").close()  # never acknowledges, so that nothing is trimmed
    workloads: list[Workload] = []
    try:
        consumers = [
            Workload(kept, f"consume-{peer}", peer, cluster.service_url, "consume", *specifications)
            for peer, specifications in CONSUMERS.items()
        ]
        workloads += consumers
        for workload in consumers:
            workload.wait_ready()
        publishers = {
            name: Workload(kept, f"publish-{name}", peer, cluster.service_url, "publish", topic, batching)
            for name, (peer, topic, batching) in PUBLISHERS.items()
        }
        workloads += publishers.values()
        for workload in publishers.values():
            workload.wait_ready()
        time.sleep(2.0)  # until everything is warm
        begin = time.monotonic()
        time.sleep(outcome.seconds)
        before = count_events(logs)
        middle = time.monotonic()
        faults = Faults(outcome.seed, BROKERS, BOOKIES)
        for number in range(outcome.rounds):
            outcome.lasts.append(one_round(number, faults, outcome.seconds))
        end = time.monotonic()
        faults.heal()
        outcome.faults, outcome.skipped = faults.done, dict(faults.skipped)
        for workload in publishers.values():
            workload.stop()
        histories = {name: workload.result() for name, workload in publishers.items()}
        for workload in consumers:
            workload.stop()
        consumed = [one for workload in consumers for one in workload.result()]
    finally:
        for workload in workloads:
            workload.kill()
    events = count_events(logs)
    events.subtract(before)
    outcome.events = dict(events)
    measure(outcome, list(histories.values()), (begin, middle, end))
    check(cluster, outcome, histories, consumed)


def one_round(number: int, faults: Faults, seconds: float) -> tuple[float, float]:
    """Faults every FAULT_EVERY_S, then QUIET_S without. Returns when the last one was over and when the next comes."""
    begin = time.monotonic()
    at = begin + FAULT_EVERY_S
    done: list[str] = []
    over = begin
    while at <= begin + seconds - QUIET_S:
        time.sleep(max(0.0, at - time.monotonic()))
        fault = faults.do_one()
        done.append(f"{fault.kind} {fault.node_id}" if fault else "–")
        over = max(over, fault.over) if fault else over
        at += FAULT_EVERY_S
    console.print(f"round {number + 1}: {', '.join(done)}")
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    return over, begin + seconds + FAULT_EVERY_S


def measure(outcome: Outcome, histories: list[Any], times: tuple[float, float, float]) -> None:
    """Rates and stalls, from what the publishers' callbacks noted."""
    begin, middle, end = times
    per_second: Counter[int] = Counter()
    for history in histories:
        for second, count in history["per_second"].items():
            per_second[int(second)] += count
        outcome.acknowledged += sum(map(len, history["acknowledged"].values()))
        outcome.failed_sends += len(history["failed"])
    outcome.reference_rate = _rate(per_second, begin, middle)
    outcome.rate = _rate(per_second, middle, end)
    for history in histories:
        gaps = [(gap_begin, gap_end) for gap_begin, gap_end in history["gaps"] if gap_end > middle]
        outcome.longest_stall_s = max(outcome.longest_stall_s, longest(gaps))
        for last, following in outcome.lasts:
            outcome.stall_after_last_fault_s = max(outcome.stall_after_last_fault_s, stall_after(gaps, last, following))


def _rate(per_second: Counter[int], begin: float, end: float) -> float:
    seconds = range(int(begin) + 1, int(end))
    return sum(per_second[second] for second in seconds) / max(1, len(seconds))


def check(cluster: Cluster, outcome: Outcome, histories: dict[str, Any], consumed: list[Any]) -> None:
    """What was acknowledged against the logs, read anew, and against what every subscription was given."""
    client = cluster.client()
    by_topic: dict[str, Any] = {}
    for name, (_, topic, _) in PUBLISHERS.items():
        history = by_topic[topic] = histories[name]
        logs = [read_all(client, partition) for partition in client.get_topic_partitions(topic)]
        outcome.logs[name] = compare(history["acknowledged"], history["sent"], logs)
    client.close()
    together: dict[tuple[str, str, str], list[Any]] = {}
    for one in consumed:
        together.setdefault((one["topic"], one["name"], one["kind"]), []).append(
            [(key, sequence) for key, sequence in one["log"]]
        )
        if one["errors"]:
            outcome.problems.append(f"{one['name']} of {one['topic']}: {len(one['errors'])} errors: {one['errors'][0]}")
    for (topic, name, kind), logs in together.items():
        history = by_topic[topic.split("-partition-")[0]]
        acknowledged = history["acknowledged"]
        if "-partition-" in topic:  # of one partition: the keys that lie in it
            keys = {key for log in logs for key, _ in log}
            acknowledged = {key: told for key, told in acknowledged.items() if key in keys}
            if not keys:
                outcome.problems.append(f"{name} of {topic} got nothing")
        outcome.subscriptions[f"{name} of {topic}"] = compare(
            acknowledged, history["sent"], logs, ordered=kind != "shared"
        )


def read_all(client: Any, topic: str) -> list[tuple[str, int]]:
    """A partition from its start to its end."""
    reader = client.create_reader(topic, magnetar.MessageId.earliest)
    log: list[tuple[str, int]] = []
    while reader.has_message_available():
        key, sequence, _ = reader.read_next(timeout_millis=30_000).data().split(b":", 2)
        log.append((key.decode(), int(sequence)))
    reader.close()
    return log


def judge(outcome: Outcome) -> int:
    """Print the table; returns the exit status."""
    table = Table(
        title=f"{outcome.rounds} rounds of {outcome.seconds:.0f} s, {len(outcome.faults)} faults, seed {outcome.seed}"
    )
    for column in ("what", "measured", "to reach", ""):
        table.add_column(column)
    found = {**{f"log {name}": one for name, one in outcome.logs.items()}, **outcome.subscriptions}
    unsafe = slow = False

    def row(what: str, measured: str, target: str, met: bool | None) -> None:
        table.add_row(what, measured, target, "" if met is None else "[green]ok" if met else "[red]MISSED")

    kinds = Counter(f"{fault.kind} {fault.node_id.split('-')[0]}" for fault in outcome.faults)
    row("faults", ", ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items())), "", None)
    row("acknowledged", f"{outcome.acknowledged:,} ({outcome.failed_sends} sends failed)", "", None)
    for what, pick in (
        ("acknowledged, then lost", lambda one: len(one.lost)),
        ("out of order", lambda one: len(one.reordered)),
        ("never sent, yet there", lambda one: len(one.phantoms)),
    ):
        for kind, group in (("in the logs", outcome.logs), ("at subscriptions", outcome.subscriptions)):
            count = sum(map(pick, group.values()))
            unsafe |= count > 0
            row(f"{what}, {kind}", str(count), "0", count == 0)
    for kind, group in (("in the logs", outcome.logs), ("at subscriptions", outcome.subscriptions)):
        row(f"duplicates {kind} (without deduplication)", str(sum(one.duplicates for one in group.values())), "", None)
    share = outcome.rate / outcome.reference_rate if outcome.reference_rate else 0.0
    rates = f"{share:.0%} ({outcome.rate:,.0f} of {outcome.reference_rate:,.0f} messages/s)"
    stall = outcome.stall_after_last_fault_s
    targets = (
        ("publish rate over the fault-free one", rates, f"≥ {RATE_MIN:.0%}", share >= RATE_MIN),
        ("longest stall after a round's last fault", f"{stall:.1f} s", f"≤ {STALL_MAX_S:.0f} s", stall <= STALL_MAX_S),
    )
    for target in targets:
        row(*target)
        slow |= not target[3]
    row("longest stall of all", f"{outcome.longest_stall_s:.1f} s", "", None)
    events = outcome.events
    events["ensemble changes or too few bookies"] = events.get("ensemble changes", 0) + events.get(
        "writes with too few bookies", 0
    )
    for name, count in sorted(events.items()):
        minimum = MINIMA.get(name)
        row(name, str(count), f"≥ {minimum}" if minimum else "", None if minimum is None else count >= minimum)
    missed = [name for name, minimum in MINIMA.items() if events.get(name, 0) < minimum]
    console.print(table)
    for name, one in found.items():
        if not one.safe:
            console.print(
                f"[red]{name}: lost {one.lost[:5]}, reordered {one.reordered[:5]}, phantoms {one.phantoms[:5]}"
            )
    for problem in outcome.problems:
        console.print(f"note: {problem}")
    if missed:
        console.print(f"[yellow]this run does not count: too few {', '.join(missed)}")
    return 1 if unsafe else 2 if slow or missed else 0


def plain(outcome: Outcome) -> dict[str, Any]:
    """As JSON."""
    groups = {
        group: {
            name: {
                "messages": one.messages,
                "duplicates": one.duplicates,
                "lost": one.lost[:100],
                "reordered": one.reordered[:100],
                "phantoms": one.phantoms[:100],
            }
            for name, one in getattr(outcome, group).items()
        }
        for group in ("logs", "subscriptions")
    }
    return {**vars(outcome), **groups, "faults": [vars(fault) for fault in outcome.faults]}


def create_partitioned(cluster: Cluster, topic: str) -> None:
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/partitions",
        data=json.dumps(PARTITIONS).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=20):
        pass


if __name__ == "__main__":
    sys.exit(main())
