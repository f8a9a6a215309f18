"""What the services of a cluster on Ray wrote to their logs: these outlive a SIGKILL, unlike counters in memory."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

PATTERNS = {
    "sessions of brokers lost": re.compile(r": broker-\d+ \(incarnation \w+\) lost its session: "),
    "sessions of bookies lost": re.compile(r": bookie-\d+ \(incarnation \w+\) lost its session: "),
    "recoveries": re.compile(r"ledger \d+ is recovered: its last entry is"),
    "ensemble changes": re.compile(r"ledger \d+: ensemble change at entry"),
    "writes with too few bookies": re.compile(r"ledger \d+ has fewer bookies from entry"),
    "writers fenced": re.compile(r"ledger \d+: \d+ writes were refused by the fence"),
}
MOVED = re.compile(r"(?:rebalancing|balancing the load .*): (\d+) topics move")
REFUSED = re.compile(r"ledger \d+: (\d+) writes were refused by the fence")
REGISTERED = re.compile(r": (broker-\d+) registered \(incarnation (\w+)")
LOST = re.compile(r": (broker-\d+) \(incarnation (\w+)\) lost its session: ")


def count_events(directories: Sequence[Path]) -> Counter[str]:
    """Counts so far, of all processes that there were.

    `failovers`: incarnations of brokers that were replaced. `brokers ended`: those, and incarnations that lost their
    session and were not replaced yet. `rounds of moves`: each moves a topic at most once.
    """
    counts: Counter[str] = Counter(dict.fromkeys(PATTERNS, 0))
    incarnations: dict[str, set[str]] = {}
    lost: dict[str, set[str]] = {}
    for path in sorted(path for directory in directories for path in directory.glob("worker-*.err")):
        with path.open(errors="replace") as lines:
            for line in lines:
                for name, pattern in PATTERNS.items():
                    if pattern.search(line):
                        counts[name] += 1
                refused = REFUSED.search(line)
                if refused:
                    counts["writes refused by a fence"] += int(refused[1])
                moved = MOVED.search(line)
                if moved:
                    counts["topics moved"] += int(moved[1])
                    counts["rounds of moves"] += 1
                registered = REGISTERED.search(line)
                if registered:
                    incarnations.setdefault(registered[1], set()).add(registered[2])
                ended = LOST.search(line)
                if ended:
                    lost.setdefault(ended[1], set()).add(ended[2])
                if "Traceback (most recent call last)" in line:
                    counts["tracebacks in logs"] += 1
    counts["failovers"] = sum(len(one) - 1 for one in incarnations.values())
    counts["brokers ended"] = sum(
        len(one) if one <= lost.get(broker, set()) else len(one) - 1 for broker, one in incarnations.items()
    )
    return counts


def incarnations(events: Mapping[str, int]) -> int:
    """How often a topic may have begun again, at most, as long as there were no faults."""
    return events["brokers ended"] + events["rounds of moves"]
