"""What the explorer is asked, what it reports, and how it judges a closed ledger."""

from dataclasses import dataclass, field
from typing import Any

from .explorer_nodes import ACK_QUORUM, CLIENTS, NAMES, thaw_metadata
from .explorer_recoverer import DONE


@dataclass
class Options:
    """What may happen. `crashes_max` counts bookies."""

    bookies: int = 4
    recoverers: int = 2
    entries: int = 2
    crashes_max: int = 4
    timeouts: int = 1
    writer_closes: bool = True
    states_max: int = 100_000_000


@dataclass
class Report:
    """What was found."""

    options: Options
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    violation: str = ""
    transcript: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        how = "all" if self.complete else "NOT all"
        return (
            f"{how} reached: {self.states:,} distinct states, {self.transitions:,} transitions, depth {self.depth}, "
            f"{self.seconds:.1f} s"
        )


def judge(acknowledged: int, recoverers: list[Any], core: Any, held: tuple[tuple[int, int], ...]) -> str:
    """The invariant that a closed record breaks, or nothing. `held`: (entries, fragments) of each bookie, as bits."""
    _, last_entry, _ = core
    if acknowledged > last_entry:
        return f"I3: entry {acknowledged} was acknowledged, and the ledger is closed at {last_entry}"
    metadata = thaw_metadata((core, tuple(bits for _, bits in held)))
    for entry in range(last_entry + 1):
        holders = [NAMES[i] for i, (entries, _) in enumerate(held) if entries >> entry & 1]
        there = [name for name in metadata.write_set(entry) if name in holders]
        if len(there) < ACK_QUORUM:
            return f"I1: entry {entry} of the closed ledger is only on {there or 'no bookie'} of its write set"
    for client, recoverer in enumerate(recoverers, 1):
        if recoverer[0] == DONE and recoverer[5] != last_entry:
            return f"agreement: {CLIENTS[client]} reports last entry {recoverer[5]}, the record {last_entry}"
    return ""
