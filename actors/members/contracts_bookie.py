"""What a bookie offers to the coordinator over the internal RPC, beside its entries.

Adding and reading entries, fencing and reading LACs are data operations (`protocol.bookie_wire`), not methods.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.cluster_status import BookieFigures
from ...runtime.rpc.contract import Contract, method
from .permissions import COORDINATOR


class Held(NamedTuple):
    """A range of entries, both ends inclusive."""

    first: int
    last: int


@dataclass(frozen=True)
class HeldEntries:
    """Which entries of a range a bookie holds, up to the entry `next`."""

    ranges: list[Held]
    next: int


class EntryPlace(NamedTuple):
    """An entry of any ledger."""

    ledger: int
    entry: int


class DamagedEntry(NamedTuple):
    """An entry that a bookie found damaged, and the nonce of its ledger."""

    ledger: int
    entry: int
    nonce: int


class BookieContract(Contract):
    """See the module."""

    @method(COORDINATOR)
    async def status(self) -> BookieFigures:
        """What an operator wants to see; sizes in bytes."""
        ...

    @method(COORDINATOR)
    async def ledgers(self, *, after: int = -1, limit: int = 1000) -> list[int]:
        """Ids of ledgers known there, ascending, greater than `after`, up to `limit` of them."""
        ...

    @method(COORDINATOR)
    async def entry_ids(
        self, *, ledger: int, nonce: int, first: int, last: int, intact_only: bool | None = None
    ) -> HeldEntries:
        """The entries held, those known to be damaged left out. Ask again from `next` on while that is not behind
        `last`: an answer takes a few seconds' work.

        With `intact_only` (without it: in limbo) the bookie reads and verifies each first. Raises ForeignLedger.
        """
        ...

    @method(COORDINATOR)
    async def damaged_entries(self, *, after: EntryPlace, limit: int = 1000) -> list[DamagedEntry]:
        """The entries known to be damaged, ascending, behind `after`."""
        ...

    @method(COORDINATOR)
    async def forget_damage(self, *, ledger: int, above: int) -> None:
        """The ledger is closed and ends at entry `above`: no reader asks for its damaged entries behind that."""
        ...

    @method(COORDINATOR)
    async def collect_garbage(self, *, major: bool = False) -> dict[str, int]:
        """One round now, compaction included; returns what it did."""
        ...

    @method(COORDINATOR)
    async def clear_limbo(self, *, fence_floor: int | None = None, reason: str | None = None) -> None:
        """The auditor has copied back everything that should be there, knowing of that reason for limbo.

        Every ledger id given out before the loss is below `fence_floor`; without one the bookie asks the metadata.
        Raises BadVersion when more was lost meanwhile.
        """
        ...
