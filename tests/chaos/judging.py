"""What a chaos run found, as a table, as JSON and as an exit status: 1 when a safety check fails, 2 when only a target
of speed or a minimum of faults is missed, 0 when all hold.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from support.checks.chaos_checks import Found

RATE_MIN = 0.30
STALL_MAX_S = 10.0
MINIMA = {"failovers": 20, "recoveries": 20, "ensemble changes or too few bookies": 20, "writes refused by a fence": 5}


@dataclass(frozen=True)
class Fault:
    """One that was done. `over`: when its process ran again or was gone forever (monotonic seconds).

    `noticed`: when the official client has noticed it by its keep-alive rule, if that is later than `over`, else 0.
    """

    node_id: str
    kind: str
    begun: float
    over: float
    noticed: float = 0.0


@dataclass
class Outcome:
    """Everything that a run found."""

    rounds: int
    seconds: float
    seed: int
    faults: list[Fault] = field(default_factory=list[Fault])
    lasts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For each round: when its last fault was over, and when the next round's first one was due."""
    official_lasts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The same for the official client: when it had noticed the last fault, too."""
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    events: dict[str, int] = field(default_factory=dict[str, int])
    reference_rate: float = 0.0
    rate: float = 0.0
    acknowledged: int = 0
    failed_sends: int = 0
    longest_stall_s: float = 0.0
    stalls_after_last_fault_s: dict[str, float] = field(default_factory=dict[str, float])
    """The longest of each publisher."""
    delivery_stall_after_last_fault_s: float = 0.0
    logs: dict[str, Found] = field(default_factory=dict[str, Found])
    subscriptions: dict[str, Found] = field(default_factory=dict[str, Found])
    early_rewinds: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Of Shared consumers, before the first fault: by consumer and key."""
    early_incarnations: int = 0
    """How often a topic may have begun again before the first fault: moves for load, and sessions lost to a busy
    machine."""
    rewinds: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The same over the whole run."""
    backlogs: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    """Subscriptions that do not stand where they should at the end."""
    problems: list[str] = field(default_factory=list[str])

    @property
    def incarnations_max(self) -> int:
        """How often a topic may have begun again: with every other incarnation of a broker, and every move."""
        return self.events.get("failovers", 0) + self.events.get("topics moved", 0)


def judge(outcome: Outcome, console: Console) -> int:
    """Print the table; returns the exit status."""
    table = Table(
        title=f"{outcome.rounds} rounds of {outcome.seconds:.0f} s, {len(outcome.faults)} faults, seed {outcome.seed}"
    )
    for column in ("what", "measured", "to reach", ""):
        table.add_column(column)

    def row(what: str, measured: str, target: str, met: bool | None) -> None:
        table.add_row(what, measured, target, "" if met is None else "[green]ok" if met else "[red]MISSED")

    kinds = Counter(f"{fault.kind} {fault.node_id.split('-')[0]}" for fault in outcome.faults)
    row("faults", ", ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items())), "", None)
    row("acknowledged", f"{outcome.acknowledged:,} ({outcome.failed_sends} sends failed)", "", None)
    unsafe = False
    for what, count in _dangers(outcome):
        row(what, str(count), "0", count == 0)
        unsafe |= count > 0
    groups = (("in the logs", outcome.logs), ("at subscriptions", outcome.subscriptions))
    for kind, group in groups:
        row(f"duplicates {kind} (without deduplication)", str(sum(one.duplicates for one in group.values())), "", None)
    slow = False
    for target in _speeds(outcome):
        row(*target)
        slow |= not target[3]
    row("longest stall of all", f"{outcome.longest_stall_s:.1f} s", "", None)
    row("longest gap in deliveries after a last fault", f"{outcome.delivery_stall_after_last_fault_s:.1f} s", "", None)
    events = outcome.events
    events["ensemble changes or too few bookies"] = events.get("ensemble changes", 0) + events.get(
        "writes with too few bookies", 0
    )
    for name, count in sorted(events.items()):
        minimum = MINIMA.get(name)
        row(name, str(count), f"≥ {minimum}" if minimum else "", None if minimum is None else count >= minimum)
    missed = [name for name, minimum in MINIMA.items() if events.get(name, 0) < minimum]
    console.print(table)
    _explain(outcome, console)
    if missed:
        console.print(f"[yellow]this run does not count: too few {', '.join(missed)}")
    return 1 if unsafe else 2 if slow or missed else 0


def _dangers(outcome: Outcome) -> list[tuple[str, int]]:
    picks: list[tuple[str, Callable[[Found], int]]] = [
        ("acknowledged, then lost", lambda one: len(one.lost)),
        ("out of order", lambda one: len(one.reordered)),
        ("never sent, yet there", lambda one: len(one.phantoms)),
        ("not where receipt or delivery said", lambda one: len(one.misplaced)),
    ]
    counts = [
        (f"{what}, {kind}", sum(map(pick, group.values())))
        for what, pick in picks
        for kind, group in (("in the logs", outcome.logs), ("at subscriptions", outcome.subscriptions))
    ]
    allowed = outcome.early_incarnations
    early = sum(max(0, count - allowed) for keys in outcome.early_rewinds.values() for count in keys.values())
    counts.append(("rewinds at Shared consumers before the first fault", early))
    most = outcome.incarnations_max
    many = sum(count > most for keys in outcome.rewinds.values() for count in keys.values())
    counts.append((f"Shared consumers' keys with more rewinds than incarnations ({most})", many))
    counts.append(("subscriptions with a wrong backlog at the end", len(outcome.backlogs)))
    return counts


def _speeds(outcome: Outcome) -> list[tuple[str, str, str, bool]]:
    share = outcome.rate / outcome.reference_rate if outcome.reference_rate else 0.0
    rates = f"{share:.0%} ({outcome.rate:,.0f} of {outcome.reference_rate:,.0f} messages/s)"
    stalls = outcome.stalls_after_last_fault_s
    stall = max(stalls.values(), default=0.0)
    told = f"{stall:.1f} s ({', '.join(f'{name} {one:.1f}' for name, one in stalls.items())})"
    return [
        ("publish rate over the fault-free one", rates, f"≥ {RATE_MIN:.0%}", share >= RATE_MIN),
        ("longest stall after a round's last fault", told, f"≤ {STALL_MAX_S:.0f} s", stall <= STALL_MAX_S),
    ]


def _explain(outcome: Outcome, console: Console) -> None:
    for name, one in {**{f"log {name}": one for name, one in outcome.logs.items()}, **outcome.subscriptions}.items():
        if not one.safe:
            console.print(
                f"[red]{name}: lost {one.lost[:5]}, reordered {one.reordered[:5]}, phantoms {one.phantoms[:5]}, "
                f"misplaced {one.misplaced[:5]}"
            )
    for name, keys in outcome.early_rewinds.items():
        if keys:
            console.print(f"[red]{name}: first deliveries out of order before the first fault: {keys}")
    for topic, name, backlog in outcome.backlogs:
        console.print(f"[red]{name} of {topic} is left with a backlog of {backlog} entries")
    for problem in outcome.problems:
        console.print(f"note: {problem}")


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
                "misplaced": one.misplaced[:100],
            }
            for name, one in getattr(outcome, group).items()
        }
        for group in ("logs", "subscriptions")
    }
    return {**vars(outcome), **groups, "faults": [vars(fault) for fault in outcome.faults]}
