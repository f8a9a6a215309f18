"""The choice of bookies for a ledger and for the slots of those that failed. Pure: chance is handed in.

Copies of an entry lie on different machines while there are enough, and then in different zones. The copies of an entry
are on neighbouring slots: entry i is on `write_quorum` slots from i on, modulo the ensemble size. So only slots that
are that near to each other have to differ. Where nothing is known of machines and zones, chance alone decides.

Rule for too few bookies: when fewer are usable than configured, a new ledger takes them all, with as many copies as
they allow. It never has fewer copies than the ack quorum. A failed slot without a spare is left empty.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...protocol.errors import NotEnoughBookies
from ...runtime.environment import Chance
from ...runtime.settings.declarations import Settings

TRIES_MAX = 50
"""Orders in which an ensemble is put together; the first without two copies on one machine or in one zone is taken."""
GOOD_TRIES = 3
"""After so many, one that has no two copies on one machine is good enough."""


class BookiePlace(NamedTuple):
    """Where a bookie runs; empty where nothing is known."""

    node: str = ""
    zone: str = ""


UNKNOWN_PLACE = BookiePlace()
PlaceOf = Callable[[str], BookiePlace]


class Clashes(NamedTuple):
    """How many neighbours are on the same machine, and in the same zone: less is better."""

    nodes: int = 0
    zones: int = 0


def nowhere(bookie: str) -> BookiePlace:
    """For `place_of`: nothing is known."""
    return UNKNOWN_PLACE


class Copies(NamedTuple):
    """Over how many bookies a ledger is striped, how many copies each entry has, on how many of them a writer waits."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    @staticmethod
    def of(settings: Settings) -> "Copies":
        """Those of ledgers of which nothing else is said."""
        return Copies(settings.ensemble_size, settings.write_quorum, settings.ack_quorum)


class NewEnsemble(NamedTuple):
    """Where a new ledger goes. `under_replicated`: fewer copies than configured."""

    bookies: tuple[str, ...]
    write_quorum: int
    ack_quorum: int
    under_replicated: bool


def place(
    random: Chance,
    usable: Iterable[str],
    copies: Copies,
    unusable: Sequence[str] = (),
    place_of: PlaceOf = nowhere,
) -> NewEnsemble:
    """Choose the ensemble of a new ledger among the usable bookies.

    Raises NotEnoughBookies when fewer than the ack quorum are usable; `unusable` says why the others are not.
    """
    candidates = sorted(usable)
    if len(candidates) < copies.ack_quorum:
        others = "; ".join(unusable) or "no other bookie is alive"
        raise NotEnoughBookies(
            f"a ledger needs {copies.ack_quorum} bookies for its ack quorum, but {len(candidates)} are usable: "
            f"{others}",
            usable=len(candidates),
            ack_quorum=copies.ack_quorum,
        )
    size = min(copies.ensemble_size, len(candidates))
    quorum = min(copies.write_quorum, size)
    chosen = _spread(random, candidates, size, quorum, place_of)
    return NewEnsemble(chosen, quorum, copies.ack_quorum, quorum < copies.write_quorum)


def _spread(random: Chance, candidates: list[str], size: int, quorum: int, place_of: PlaceOf) -> tuple[str, ...]:
    random.shuffle(candidates)
    if len({place_of(one) for one in candidates}) <= 1:
        return tuple(candidates[:size])
    too_few = len({place_of(one).node for one in candidates}) < quorum  # machines, so that some clash in any order
    best: tuple[Clashes, list[str]] | None = None
    for attempt in range(TRIES_MAX):
        slots: list[str] = []
        left = list(candidates)
        for slot in range(size):
            near = [slots[other] for other in neighbours(slot, size, quorum) if other < slot]
            found = min(left, key=lambda one: _weight(one, near, slots, left, attempt, place_of))
            slots.append(found)
            left.remove(found)
        clashes = clashes_of(slots, quorum, place_of)
        if best is None or clashes < best[0]:
            best = (clashes, slots)
        if clashes == Clashes() or (attempt >= GOOD_TRIES and (not best[0].nodes or too_few)):
            break
        random.shuffle(candidates)
    assert best is not None
    return tuple(best[1])


def _weight(
    bookie: str, near: Sequence[str], chosen: Sequence[str], left: Sequence[str], attempt: int, place_of: PlaceOf
) -> tuple[Clashes, int, Clashes]:
    """What speaks against a bookie: neighbours at the same place first, then all others of the ensemble.

    What is left for the last slots must not be on the machine of the first. So after a first failure, machines with
    many bookies come early, or chance decides among those without a neighbour at the same place.
    """
    clashes = clashes_with(bookie, near, place_of)
    if attempt and attempt % 2 == 0:
        return clashes, 0, Clashes()
    rest = sum(place_of(one).node == place_of(bookie).node for one in left) if attempt else 0
    return clashes, -rest, clashes_with(bookie, chosen, place_of)


def neighbours(slot: int, size: int, quorum: int) -> list[int]:
    """The slots that share an entry with `slot`, ascending."""
    near = {(slot + distance) % size for step in range(1, quorum) for distance in (step, -step)}
    return sorted(near - {slot})


def clashes_with(bookie: str, others: Iterable[str], place_of: PlaceOf) -> Clashes:
    """How many of the others are on the machine of a bookie, and in its zone."""
    own = place_of(bookie)
    places = [place_of(other) for other in others]
    nodes = sum(bool(own.node) and own.node == other.node for other in places)
    return Clashes(nodes, sum(bool(own.zone) and own.zone == other.zone for other in places))


def clashes_of(slots: Sequence[str], quorum: int, place_of: PlaceOf) -> Clashes:
    """How many pairs of copies of an entry, over all entries, are on one machine, and in one zone."""
    nodes = zones = 0
    for slot, bookie in enumerate(slots):
        near = [slots[other] for other in neighbours(slot, len(slots), quorum) if other < slot]
        found = clashes_with(bookie, near, place_of)
        nodes, zones = nodes + found.nodes, zones + found.zones
    return Clashes(nodes, zones)


def replace_slots(
    random: Chance,
    ensemble: Sequence[str],
    slots: Iterable[int],
    usable: Iterable[str],
    excluded: Iterable[str] = (),
    write_quorum: int | None = None,
    place_of: PlaceOf = nowhere,
) -> dict[int, str]:
    """A spare for as many of the failed slots as there are spares: slot → bookie. Empty when there is none.

    A spare is usable, not in the ensemble (the failed ones neither) and not excluded. If it can, it is on another
    machine than its neighbours, and in another zone. Without `write_quorum` all others are neighbours.
    """
    taken = dict.fromkeys([*ensemble, *excluded])
    failed = sorted(slots)
    spares = [bookie for bookie in sorted(usable) if bookie not in taken]
    random.shuffle(spares)
    members: list[str | None] = [None if slot in failed else bookie for slot, bookie in enumerate(ensemble)]
    found: dict[int, str] = {}
    for slot in failed:
        if not spares:
            break
        stay = [one for one in members if one is not None]
        close = neighbours(slot, len(members), write_quorum or len(members))
        near = [one for one in (members[other] for other in close) if one is not None]
        spare = min(spares, key=lambda one: (clashes_with(one, near, place_of), clashes_with(one, stay, place_of)))
        found[slot] = members[slot] = spare
        spares.remove(spare)
    return found


def should_move(copies: Copies, *, degraded: bool, keeps_in_limbo: bool, usable_bookies: int) -> bool:
    """Whether the copies of a ledger are a reason to go on in a new one. `copies` are those that it should have."""
    if keeps_in_limbo and usable_bookies >= copies.ack_quorum:
        return True
    return degraded and usable_bookies >= copies.ensemble_size
