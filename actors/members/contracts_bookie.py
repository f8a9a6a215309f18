"""What a bookie offers to the coordinator over the internal RPC, beside its entries.

Adding and reading entries, fencing and reading LACs are data operations (`protocol.bookie_wire`), not methods.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.cluster_status import BookieFigures, DiskReport
from ...protocol.errors import DiskFull
from ...runtime.environment import Environment
from ...runtime.rpc.contract import Contract, method
from .permissions import COORDINATOR

logger = logging.getLogger(__name__)


async def disk_report(env: Environment, directory: str) -> DiskReport:
    """`used`, `total` and `free` bytes of the disk that holds a directory; empty when there is none to look at."""
    if not directory:
        return {}
    try:
        usage = await env.offload.run(env.files.disk_usage, directory)
    except (OSError, DiskFull) as error:
        logger.debug("the disk usage of %s cannot be read: %s", directory, error)
        return {}
    return {"used": usage.used_bytes, "total": usage.total_bytes, "free": usage.free_bytes}


class EntryPlace(NamedTuple):
    """An entry of any ledger."""

    ledger: int
    entry: int


class DamagedEntry(NamedTuple):
    """An entry that a bookie found damaged, and the nonce of its ledger."""

    ledger: int
    entry: int
    nonce: int


class Part(NamedTuple):
    """Entries first…last of a ledger, as far as they belong to a slot of an ensemble: what a bookie should hold.

    Where both quorum and ensemble size are the same, these are all entries.
    """

    ledger: int
    nonce: int
    first: int
    last: int
    slot: int
    ensemble_size: int
    write_quorum: int


class CopySource(NamedTuple):
    """A live bookie that should hold entries of a part, and where it takes calls."""

    bookie: str
    host: str
    port: int


@dataclass(frozen=True)
class Lacking:
    """Indexes of the parts that a bookie does not hold as a whole, among those below `examined`."""

    found: list[int]
    examined: int


@dataclass(frozen=True)
class Copied:
    """A bookie holds a part durably up to, and without, entry `next`; so many entries and bytes were copied for it."""

    next: int
    entries: int
    size_bytes: int


class RepairContract(Contract):
    """What a bookie offers to the auditor for repairs: what it lacks, what is damaged, and copying from others."""

    @method(COORDINATOR, timeout_s=30.0)
    async def lacking(self, *, parts: list[Part]) -> Lacking:
        """Which parts the bookie does not hold as a whole, up to the first that it had no time to examine. In limbo all
        of them: nothing tells before it is read. Raises ProtocolError, OSError.
        """
        ...

    @method(COORDINATOR, timeout_s=60.0)
    async def copy_entries(self, *, part: Part, sources: list[CopySource]) -> Copied:
        """Copy what the bookie lacks of a part from the sources. Ask again from `next` on while that is not behind the
        part's last entry: an answer takes a few seconds' work. Raises ProtocolError, NoSuchEntry,
        EntryUnknown (no source gives an intact entry), ForeignLedger, OSError; what was copied until then stays.
        """
        ...

    @method(COORDINATOR)
    async def damaged_entries(self, *, after: EntryPlace, limit: int = 1000) -> list[DamagedEntry]:
        """The entries known to be damaged, ascending, behind `after`. Raises ProtocolError."""
        ...

    @method(COORDINATOR)
    async def forget_damage(self, *, ledger: int, above: int) -> None:
        """The ledger is closed and ends at entry `above`: no reader asks for its damaged entries behind that."""
        ...


class StoreContract(Contract):
    """What a bookie offers of its store as a whole."""

    @method(COORDINATOR)
    async def status(self) -> BookieFigures:
        """What an operator wants to see; sizes in bytes."""
        ...

    @method(COORDINATOR)
    async def ledgers(self, *, after: int = -1, limit: int = 1000) -> list[int]:
        """Ids of ledgers known there, ascending, greater than `after`, at most `limit` of them."""
        ...

    @method(COORDINATOR)
    async def collect_garbage(self, *, major: bool = False) -> dict[str, int]:
        """One round now: write tombstones for deleted ledgers, then compact. Returns what it did.

        Raises what the metadata and the disk raise, and EntryCorrupt.
        """
        ...

    @method(COORDINATOR)
    async def clear_limbo(self, *, fence_floor: int | None = None, reason: str | None = None) -> None:
        """The auditor has copied back everything that should be there, knowing of that reason for limbo.

        Every ledger id given out before the loss is below `fence_floor`; without one the bookie asks the metadata.
        Raises BadVersion when more was lost meanwhile, so that the reason is another one, and ProtocolError.
        """
        ...


class BookieContract(StoreContract, RepairContract):
    """See the module. Each part is served by one object of the bookie."""
