"""What is wrong with a ledger, and what to do about it: the auditor's decisions, as pure functions.

Only CLOSED ledgers are repaired. The writer repairs an open ledger: it rolls over when it is degraded and bookies are
back. Then its ledger is checked here.

Three things can be wrong with a closed ledger, in this order of repair:

- *missing*: a live bookie that should hold entries does not hold them all (it was away while the others went on);
- *lost*: a bookie has been away for too long, and there is a spare for its slot;
- *thin*: the ledger was created with fewer copies than configured, and there are bookies for more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...storage.metadata.ledger_metadata import Fragment, LedgerMetadata, write_slots

Range = tuple[int, int]
"""First and last entry id, both inclusive."""


class Piece(NamedTuple):
    """The part of a fragment that belongs on one bookie."""

    bookie: str
    slot: int
    fragment: Fragment
    first: int
    last: int


@dataclass(frozen=True)
class Change:
    """New metadata of a ledger, right after `pieces` have been copied to where it says."""

    metadata: LedgerMetadata
    pieces: tuple[Piece, ...]


def pieces_of(metadata: LedgerMetadata) -> list[Piece]:
    """What a closed ledger consists of: one piece for each slot of each fragment that holds entries."""
    found: list[Piece] = []
    for index, fragment in enumerate(metadata.fragments):
        following = metadata.fragments[index + 1].first_entry if index + 1 < len(metadata.fragments) else None
        last = metadata.last_entry if following is None else following - 1
        if last >= fragment.first_entry:
            found += [
                Piece(bookie, slot, fragment, fragment.first_entry, last)
                for slot, bookie in enumerate(fragment.bookies)
            ]
    return found


def missing_entries(metadata: LedgerMetadata, piece: Piece, held: Iterable[Sequence[int]]) -> list[Range]:
    """Ranges of entries that belong to a piece and are not among `held` (ranges, in any order)."""
    gaps: list[Range] = []
    following = piece.first
    for first, last in sorted((int(part[0]), int(part[1])) for part in held):
        if first > following:
            gaps.append((following, min(first - 1, piece.last)))
        following = max(following, last + 1)
        if following > piece.last:
            break
    if following <= piece.last:
        gaps.append((following, piece.last))
    if metadata.write_quorum == metadata.ensemble_size:
        return gaps
    return [entry_range for gap in gaps for entry_range in _striped(metadata, piece.slot, gap)]


def replace_lost(
    metadata: LedgerMetadata, lost: Iterable[str], spares: Sequence[str], load: Mapping[str, int]
) -> Change | None:
    """Each lost bookie's slots given to a spare that is not in the same fragment; None when nothing can be done.

    `load` counts what each spare was given already; the least loaded is taken.
    """
    gone = frozenset(lost)
    fragments: list[Fragment] = []
    taken = dict(load)
    for fragment in metadata.fragments:
        bookies = list(fragment.bookies)
        for slot, bookie in enumerate(bookies):
            if bookie not in gone:
                continue
            candidates = [spare for spare in spares if spare not in bookies]
            if candidates:
                chosen = min(candidates, key=lambda spare: (taken.get(spare, 0), spare))
                taken[chosen] = taken.get(chosen, 0) + 1
                bookies[slot] = chosen
        fragments.append(Fragment(fragment.first_entry, tuple(bookies)))
    if tuple(fragments) == metadata.fragments:
        return None
    return _change(metadata, replace(metadata, fragments=tuple(fragments)))


def thicken(
    metadata: LedgerMetadata, write_quorum: int, spares: Sequence[str], load: Mapping[str, int]
) -> Change | None:
    """A ledger created with too few copies, given `write_quorum` of them; None while there are not enough bookies.

    Such a ledger has as many slots as copies (E = Qw), so every bookie holds every entry, before and after.
    """
    if not metadata.under_replicated or metadata.ensemble_size != metadata.write_quorum:
        return None
    if metadata.write_quorum >= write_quorum:
        return _change(metadata, replace(metadata, under_replicated=False))
    fragments: list[Fragment] = []
    for fragment in metadata.fragments:
        candidates = sorted(
            (spare for spare in spares if spare not in fragment.bookies),
            key=lambda spare: (load.get(spare, 0), spare),
        )
        more = candidates[: write_quorum - len(fragment.bookies)]
        if len(fragment.bookies) + len(more) < write_quorum:
            return None
        fragments.append(Fragment(fragment.first_entry, (*fragment.bookies, *more)))
    thick = replace(
        metadata,
        ensemble_size=write_quorum,
        write_quorum=write_quorum,
        fragments=tuple(fragments),
        under_replicated=False,
    )
    return _change(metadata, thick)


def _change(before: LedgerMetadata, after: LedgerMetadata) -> Change:
    had = {(piece.first, piece.bookie, piece.slot): None for piece in pieces_of(before)}
    return Change(
        after, tuple(piece for piece in pieces_of(after) if (piece.first, piece.bookie, piece.slot) not in had)
    )


def _striped(metadata: LedgerMetadata, slot: int, gap: Range) -> list[Range]:
    """The entries of a gap that belong to a slot, as ranges."""
    found: list[Range] = []
    for entry in range(gap[0], gap[1] + 1):
        if slot not in write_slots(entry, metadata.ensemble_size, metadata.write_quorum):
            continue
        if found and found[-1][1] == entry - 1:
            found[-1] = (found[-1][0], entry)
        else:
            found.append((entry, entry))
    return found
