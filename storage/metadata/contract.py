"""What the coordinator offers of its metadata store to brokers and bookies over the internal RPC."""

from typing import NamedTuple

from ...protocol.names import ROLE_BOOKIE, ROLE_BROKER
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER, Contract, method
from .store import Guard, Versioned, Write

STORING = frozenset({ROLE_BROKER, ROLE_BOOKIE})


class ListedRecord(NamedTuple):
    key: str
    value: bytes
    version: int


class ListedPage(NamedTuple):
    """A part of a listing. `more` tells that it ended early, because of its size."""

    records: list[ListedRecord]
    more: bool


class FailedWrite(NamedTuple):
    """Why one change did not happen: the parts of a typed error (see `protocol.errors.error_from_wire`)."""

    kind: str
    message: str
    details: dict[str, object]


class MetadataContract(Contract):
    """See the module. Which keys a member may write is checked by the coordinator."""

    @method(STORING)
    async def metadata_get_many(self, *, keys: list[str]) -> list[Versioned | None]:
        """See `MetadataStore.get_many`."""
        ...

    @method(STORING)
    async def metadata_list(self, *, prefix: str, after: str, limit: int) -> ListedPage:
        """See `MetadataStore.list`. Ask again, behind the last record, while there is `more`."""
        ...

    @method(STORING)
    async def metadata_write_many(
        self, *, writes: list[Write], guard: Guard | None, caller: RpcConnection = CALLER
    ) -> list[int | FailedWrite]:
        """See `MetadataStore.write_many`."""
        ...

    @method(frozenset({ROLE_BOOKIE}))
    async def renew_ledger(self, *, ledger: int, version: int) -> int:
        """See `ledger_records.renew`: all that a bookie may do to a ledger's record."""
        ...

    @method(STORING)
    async def metadata_allocate(
        self, *, counter: str, count: int, guard: Guard | None, caller: RpcConnection = CALLER
    ) -> int:
        """See `MetadataStore.allocate`."""
        ...
