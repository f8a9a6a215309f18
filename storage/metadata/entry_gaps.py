"""Which entries of a range belong on one bookie, and which of them it lacks. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .ledger_metadata import write_slots

Range = tuple[int, int]
"""First and last entry id, both inclusive."""


class Stripe(NamedTuple):
    """The entries of a fragment that belong to one slot of its ensemble."""

    slot: int
    ensemble_size: int
    write_quorum: int

    @property
    def whole(self) -> bool:
        """Whether these are all entries."""
        return self.write_quorum == self.ensemble_size

    def __contains__(self, entry_id: object) -> bool:
        return isinstance(entry_id, int) and self.slot in write_slots(entry_id, self.ensemble_size, self.write_quorum)


def missing_entries(first: int, last: int, stripe: Stripe, held: Iterable[Sequence[int]]) -> list[Range]:
    """Ranges of the entries first…last of a stripe that are not among `held` (ranges, in any order)."""
    gaps: list[Range] = []
    following = first
    for low, high in sorted((int(part[0]), int(part[1])) for part in held):
        if low > following:
            gaps.append((following, min(low - 1, last)))
        following = max(following, high + 1)
        if following > last:
            break
    if following <= last:
        gaps.append((following, last))
    if stripe.whole:
        return gaps
    return ranges_of(entry_id for low, high in gaps for entry_id in range(low, high + 1) if entry_id in stripe)


def ranges_of(entry_ids: Iterable[int]) -> list[Range]:
    """Ascending ids as ranges."""
    found: list[Range] = []
    for entry_id in entry_ids:
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found
