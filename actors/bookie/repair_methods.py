"""What a bookie offers to the auditor for repairs: what it lacks, what is damaged, and copying from others."""

from ...protocol.bookie_wire import ENTRY_ID_MAX
from ...protocol.errors import ProtocolError
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.groups import handlers_of
from ..members.contracts_bookie import Copied, CopySource, DamagedEntry, EntryPlace, Lacking, Part
from .copying import EntryCopies


class RepairMethods:
    """See the module."""

    def __init__(self, copies: EntryCopies) -> None:
        self._copies = copies
        self.handlers = handlers_of(self)

    async def close(self) -> None:
        """End the connections to other bookies."""
        await self._copies.close()

    async def rpc_lacking(self, connection: RpcConnection, parts: list[Part]) -> Lacking:
        """Which parts are not here as a whole; all of them in limbo. Raises ProtocolError."""
        for part in parts:
            _check_part(part)
        return await self._copies.lacking(parts)

    async def rpc_copy_entries(self, connection: RpcConnection, part: Part, sources: list[CopySource]) -> Copied:
        """Copy what is missing here of a part from the sources, for a few seconds. Raises as `EntryCopies.copy` does,
        and ProtocolError.
        """
        _check_part(part)
        return await self._copies.copy(part, sources)

    async def rpc_damaged_entries(
        self, connection: RpcConnection, after: EntryPlace, limit: int = 1000
    ) -> list[DamagedEntry]:
        """The entries known to be damaged, ascending, behind `after`. Raises ProtocolError."""
        if limit < 1:
            raise ProtocolError(f"a page of damaged entries cannot have {limit} of them: ask for 1 or more")
        entries = self._copies.store().entries
        page = entries.damage.notes.page((after.ledger, after.entry), limit)
        return [DamagedEntry(*key, entries.ledgers[key[0]].nonce) for key in page if key[0] in entries.ledgers]

    async def rpc_forget_damage(self, connection: RpcConnection, ledger: int, above: int) -> None:
        """The ledger is closed and ends at entry `above`: no reader asks for its damaged entries behind that."""
        self._copies.store().entries.damage.forget(ledger, above)


def _check_part(part: Part) -> None:
    """Raise ProtocolError for one that no ledger has."""
    in_range = 0 <= part.first <= part.last <= ENTRY_ID_MAX
    if not in_range or not 0 <= part.slot < part.ensemble_size or not 1 <= part.write_quorum <= part.ensemble_size:
        raise ProtocolError(f"{part} is no part of a ledger")
    if not 0 <= part.ledger < 1 << 63 or not 0 <= part.nonce < 1 << 64:
        raise ProtocolError(f"{part} names an impossible ledger")
