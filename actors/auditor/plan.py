"""What is wrong with a ledger, and what to do about it: the auditor's decisions, as pure functions.

Only CLOSED ledgers are repaired. The writer repairs an open ledger: it rolls over when it is degraded and bookies are
back. Then its ledger is checked here.

Four things can be wrong with a closed ledger, in this order of repair:

- *missing*: a live bookie that should hold entries does not hold them all (it was away while the others went on);
- *lost*: a bookie has been away for too long, or is being drained, and there is a spare for its slot;
- *thin*: the ledger was created with fewer copies than configured, and there are bookies for more;
- *crowded*: two copies of an entry are on one machine, or in one zone, and there is a spare elsewhere. So it is with
  ledgers that were written before there were bookies on enough machines, or while some were away.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...storage.ledger.ensemble import Clashes, PlaceOf, clashes_of, clashes_with, neighbours, nowhere
from ...storage.metadata.entry_gaps import Stripe
from ...storage.metadata.ledger_metadata import Fragment, LedgerMetadata


class Piece(NamedTuple):
    """The part of a fragment that belongs on one bookie."""

    bookie: str
    slot: int
    fragment: Fragment
    first: int
    last: int

    def stripe(self, metadata: LedgerMetadata) -> Stripe:
        """Which of its entries belong to its slot, by the quorums of its ledger."""
        return Stripe(self.slot, metadata.ensemble_size, metadata.write_quorum)


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


def replace_lost(
    metadata: LedgerMetadata,
    lost: Iterable[str],
    spares: Sequence[str],
    load: Mapping[str, int],
    place_of: PlaceOf = nowhere,
) -> Change | None:
    """Each lost bookie's slots given to a spare that is not in the same fragment; None when nothing can be done.

    A spare on another machine than its neighbours is taken first, then one in another zone (see `ledger.ensemble`),
    then the least loaded. `load` counts what each spare was given already.
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
                near = [bookies[other] for other in neighbours(slot, len(bookies), metadata.write_quorum)]
                stay = [bookie for bookie in near if bookie not in gone]
                chosen = min(
                    candidates,
                    key=lambda spare: (clashes_with(spare, stay, place_of), taken.get(spare, 0), spare),
                )
                taken[chosen] = taken.get(chosen, 0) + 1
                bookies[slot] = chosen
        fragments.append(Fragment(fragment.first_entry, tuple(bookies)))
    if tuple(fragments) == metadata.fragments:
        return None
    return _change(metadata, replace(metadata, fragments=tuple(fragments)))


def thicken(
    metadata: LedgerMetadata,
    write_quorum: int,
    spares: Sequence[str],
    load: Mapping[str, int],
    place_of: PlaceOf = nowhere,
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
        bookies = list(fragment.bookies)
        while len(bookies) < write_quorum:
            candidates = [spare for spare in spares if spare not in bookies]
            if not candidates:
                return None
            bookies.append(
                min(
                    candidates,
                    key=lambda spare: (clashes_with(spare, bookies, place_of), load.get(spare, 0), spare),
                )
            )
        fragments.append(Fragment(fragment.first_entry, tuple(bookies)))
    thick = replace(
        metadata,
        ensemble_size=write_quorum,
        write_quorum=write_quorum,
        fragments=tuple(fragments),
        under_replicated=False,
    )
    return _change(metadata, thick)


def crowding(metadata: LedgerMetadata, place_of: PlaceOf) -> Clashes:
    """How many pairs of copies of an entry are on one machine, and in one zone, in the worst fragment."""
    nodes = [node for bookie in metadata.bookies if (node := place_of(bookie).node)]
    zones = [zone for bookie in metadata.bookies if (zone := place_of(bookie).zone)]
    if len({*nodes}) == len(nodes) and len({*zones}) == len(zones):
        return Clashes()  # as of most ledgers: nothing about fragments has to be looked at
    holding = {piece.first for piece in pieces_of(metadata)}
    return max(
        (
            clashes_of(fragment.bookies, metadata.write_quorum, place_of)
            for fragment in metadata.fragments
            if fragment.first_entry in holding
        ),
        default=Clashes(),
    )


def spread(
    metadata: LedgerMetadata, spares: Sequence[str], load: Mapping[str, int], place_of: PlaceOf
) -> Change | None:
    """Copies that lie on one machine, or in one zone, given to spares elsewhere; None when no spare is better.

    Copies on one machine are worse than any number in one zone. Each slot that moves has fewer neighbours at its place
    than before, so a ledger that is looked at again comes to rest.
    """
    holding = {piece.first for piece in pieces_of(metadata)}
    taken = dict(load)
    fragments = tuple(
        _spread_fragment(fragment, metadata.write_quorum, spares, taken, place_of)
        if fragment.first_entry in holding
        else fragment
        for fragment in metadata.fragments
    )
    return _change(metadata, replace(metadata, fragments=fragments)) if fragments != metadata.fragments else None


def _spread_fragment(
    fragment: Fragment, write_quorum: int, spares: Sequence[str], taken: dict[str, int], place_of: PlaceOf
) -> Fragment:
    bookies = list(fragment.bookies)
    for slot, bookie in enumerate(bookies):
        near = [bookies[other] for other in neighbours(slot, len(bookies), write_quorum)]
        own = clashes_with(bookie, near, place_of)
        candidates = [spare for spare in spares if spare not in bookies]
        if own == Clashes() or not candidates:
            continue
        chosen = min(candidates, key=lambda spare: (clashes_with(spare, near, place_of), taken.get(spare, 0), spare))
        if clashes_with(chosen, near, place_of) < own:
            taken[chosen] = taken.get(chosen, 0) + 1
            bookies[slot] = chosen
    return Fragment(fragment.first_entry, tuple(bookies))


def _change(before: LedgerMetadata, after: LedgerMetadata) -> Change:
    had = {(piece.first, piece.bookie, piece.slot): None for piece in pieces_of(before)}
    return Change(
        after, tuple(piece for piece in pieces_of(after) if (piece.first, piece.bookie, piece.slot) not in had)
    )
