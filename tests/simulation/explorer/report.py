"""What the explorer is asked, what it reports, and how it judges a closed ledger."""

from dataclasses import dataclass, field
from typing import Any

from .nodes import ACK_QUORUM, CLIENTS, NAMES, thaw_metadata
from .recoverer import DONE


@dataclass(frozen=True)
class Options:
    """What may happen. `breaks`: connections break, and clients wait too long, as often as they like; `store_timeouts`:
    so does the writer for the metadata store."""

    bookies: int = 4
    recoverers: int = 2
    entries: int = 2
    breaks: bool = True
    store_timeouts: bool = True
    writer_closes: bool = True
    states_max: int = 100_000_000

    def __str__(self) -> str:
        what = [f"{self.bookies} bookies", f"{self.recoverers} recoverers", f"{self.entries} entries"]
        what += ["connections break"] * self.breaks + ["the store times out"] * self.store_timeouts
        return ", ".join([*what, *["the writer never closes"] * (not self.writer_closes)])


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
    outcomes: set[Any] = field(default_factory=set)
    """Each (record but for the names of bookies, last entry that the writer saw acknowledged) that occurred."""

    def __str__(self) -> str:
        how = "all" if self.complete else "NOT all"
        return (
            f"{how} reached: {self.states:,} distinct states, {self.transitions:,} transitions, depth {self.depth}, "
            f"{self.seconds:.1f} s"
        )


def judge(acknowledged: int, recoverers: list[Any], core: Any, held: tuple[tuple[int, int], ...]) -> str:
    """The invariant that a closed record breaks, or nothing. `held`: (entries, fragments) of each bookie, as bits."""
    _, last_entry, _ = core
    reason = judge_acknowledged(acknowledged, core)
    if reason:
        return reason
    metadata = thaw_metadata((core, tuple(bits for _, bits in held)))
    for entry in range(last_entry + 1):
        holders = [NAMES[i] for i, (entries, _) in enumerate(held) if entries >> entry & 1]
        there = [name for name in metadata.write_set(entry) if name in holders]
        if len(there) < ACK_QUORUM:
            return f"I1: entry {entry} of the closed ledger is only on {there or 'no bookie'} of its write set"
    for client, recoverer in enumerate(recoverers, 1):
        if recoverer[0] == DONE and recoverer[4] != last_entry:
            return f"agreement: {CLIENTS[client]} reports last entry {recoverer[4]}, the record {last_entry}"
    return ""


def judge_acknowledged(acknowledged: int, core: Any) -> str:
    """Whether a closed record covers what was acknowledged: the reason why not, or nothing."""
    _, last_entry, _ = core
    if acknowledged > last_entry:
        return f"I3: entry {acknowledged} was acknowledged, and the ledger is closed at {last_entry}"
    return ""
