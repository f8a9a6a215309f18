"""The choice of bookies for a ledger and for the slots of those that failed. Pure: chance is handed in.

Rule for too few bookies: when fewer are usable than configured, a new ledger takes them all, with as many copies as
they allow. It never has fewer copies than the ack quorum. A failed slot without a spare is left empty.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...protocol.errors import NotEnoughBookies
from ...runtime.environment import Chance
from ...runtime.settings.declarations import Settings


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
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    unusable: Sequence[str] = (),
) -> NewEnsemble:
    """Choose the ensemble of a new ledger among the usable bookies.

    Raises NotEnoughBookies when fewer than `ack_quorum` are usable; `unusable` says why the others are not.
    """
    candidates = sorted(usable)
    if len(candidates) < ack_quorum:
        others = "; ".join(unusable) or "no other bookie is alive"
        raise NotEnoughBookies(
            f"a ledger needs {ack_quorum} bookies for its ack quorum, but {len(candidates)} are usable: {others}",
            usable=len(candidates),
            ack_quorum=ack_quorum,
        )
    random.shuffle(candidates)
    chosen = tuple(candidates[:ensemble_size])
    copies = min(write_quorum, len(chosen))
    return NewEnsemble(chosen, copies, ack_quorum, copies < write_quorum)


def replace_slots(
    random: Chance, ensemble: Sequence[str], slots: Iterable[int], usable: Iterable[str], excluded: Iterable[str] = ()
) -> dict[int, str]:
    """A spare for as many of the failed slots as there are spares: slot → bookie. Empty when there is none.

    A spare is usable, not in the ensemble (the failed ones neither) and not excluded.
    """
    taken = dict.fromkeys([*ensemble, *excluded])
    spares = [bookie for bookie in sorted(usable) if bookie not in taken]
    random.shuffle(spares)
    return dict(zip(sorted(slots), spares, strict=False))


def should_move(copies: Copies, *, degraded: bool, keeps_in_limbo: bool, usable_bookies: int) -> bool:
    """Whether the copies of a ledger are a reason to go on in a new one. `copies` are those that it should have."""
    if keeps_in_limbo and usable_bookies >= copies.ack_quorum:
        return True
    return degraded and usable_bookies >= copies.ensemble_size
