"""The metadata store for all processes but the coordinator: calls to the coordinator.

`connection` (the coordinator client) decides which connection to use, and whether there is one. If there is none, a
call fails at once with MetadataUnavailable. A write whose answer was lost raises OutcomeUnknown, because the
coordinator may have executed it. Nothing is retried here.

`MetadataMethods` is the other side: what the coordinator does with such calls.
"""

from collections.abc import Callable, Sequence
from typing import cast

from ...protocol.errors import (
    MagnetarError,
    MetadataUnavailable,
    OutcomeUnknown,
    ProtocolError,
    RpcDisconnected,
    RpcTimeout,
    error_from_wire,
    error_to_wire,
)
from ...runtime.rpc.connection import RpcConnection, RpcConnectionState
from ...runtime.rpc.contract import CALLER
from . import keys as metadata_keys
from .contract import FailedWrite, ListedPage, ListedRecord, MetadataContract
from .keys import counter as counter_key
from .ledger_ids import LedgerIds
from .ledger_records import renew
from .store import Guard, MetadataStore, Versioned, Write, WriteResult

CALL_TIMEOUT_S = 10.0
LIST_ANSWER_BYTES = 4 << 20
"""Bytes at which a page of a listing ends early; the asking side then asks for the rest."""
ALLOCATED_MAX = 1 << 32
"""Numbers of a counter given out at a time."""


class RemoteMetadataStore(MetadataStore):
    """A `MetadataStore` over the connection that `connection()` returns, or MetadataUnavailable when it has none."""

    def __init__(self, connection: Callable[[], RpcConnection | None], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._closed = False
        self._reading = MetadataContract(self._read)
        self._writing = MetadataContract(self._write)

    async def get(self, key: str) -> Versioned | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        return await self._reading.metadata_get_many(keys=list(keys))

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        # An older coordinator takes four fields of a write, and none of its brokers needs the fifth.
        sent = [write if write.also is not None else cast("Write", tuple(write)[:4]) for write in writes]
        results = await self._writing.metadata_write_many(writes=sent, guard=guard)
        return [item if isinstance(item, int) else error_from_wire(*item) for item in results]

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        return await self._writing.metadata_allocate(counter=counter, count=count, guard=guard)

    async def close(self) -> None:
        self._closed = True

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        found: list[tuple[str, Versioned]] = []
        more = True
        while more and len(found) < limit:
            page, more = await self._reading.metadata_list(prefix=prefix, after=after, limit=limit - len(found))
            found += [(key, Versioned(value, version)) for key, value, version in page]
            after = found[-1][0] if found else after
        return found

    # -- calls ---------------------------------------------------------------------------------------------------

    async def _read(self, method: str, **arguments: object) -> object:
        try:
            return await self._ready_connection().call(method, timeout_s=self._timeout_s, **arguments)
        except (RpcDisconnected, RpcTimeout) as error:
            raise MetadataUnavailable(f"the coordinator did not answer {method}: {error}") from error

    async def _write(self, method: str, **arguments: object) -> object:
        try:
            return await self._ready_connection().call(method, timeout_s=self._timeout_s, **arguments)
        except (RpcDisconnected, RpcTimeout) as error:
            raise OutcomeUnknown(f"the coordinator's answer to {method} was lost: {error}") from error

    def _ready_connection(self) -> RpcConnection:
        connection = None if self._closed else self._connection()
        if connection is None or connection.state is not RpcConnectionState.READY:
            raise MetadataUnavailable("the coordinator is not connected: try again")
        return connection


class MetadataMethods(MetadataContract):
    """The serving side: a part of what the coordinator offers.

    `ledger_ids` gives out the ids of new ledgers; without it the store's counter does, as it is.
    `check_writer(connection, keys)` raises to refuse a peer's writes.
    """

    def __init__(
        self,
        store: MetadataStore,
        ledger_ids: LedgerIds | None,
        check_writer: Callable[[RpcConnection, Sequence[str]], None],
    ) -> None:
        self._store = store
        self._ledger_ids = ledger_ids
        self._check_writer = check_writer

    # Numbers out of range are refused here: every process would read a stored one.

    async def metadata_get_many(self, *, keys: list[str]) -> list[Versioned | None]:
        return await self._store.get_many(keys)

    async def metadata_list(self, *, prefix: str, after: str, limit: int) -> ListedPage:
        records = await self._store.list(prefix, after=after, limit=_number(limit))
        page: list[ListedRecord] = []
        size = 0
        for key, record in records:
            page.append(ListedRecord(key, record.value, record.version))
            size += len(key) + len(record.value)
            if size >= LIST_ANSWER_BYTES:
                break
        return ListedPage(page, len(page) < len(records))

    async def metadata_write_many(
        self, *, writes: list[Write], guard: Guard | None, caller: RpcConnection = CALLER
    ) -> list[int | FailedWrite]:
        for write in writes:
            if write.expected_version is not None:
                _number(write.expected_version)
            for condition in write.conditions:
                _check_guard(condition)
        _check_guard(guard)
        self._check_writer(caller, [write.key for write in writes])
        results = await self._store.write_many(writes, guard)
        return [FailedWrite(*error_to_wire(item)) if isinstance(item, MagnetarError) else item for item in results]

    async def renew_ledger(self, *, ledger: int, version: int) -> int:
        return await renew(self._store, _number(ledger), _number(version))

    async def metadata_allocate(
        self, *, counter: str, count: int, guard: Guard | None, caller: RpcConnection = CALLER
    ) -> int:
        self._check_writer(caller, [counter_key(counter)])
        if _number(count) > ALLOCATED_MAX:
            raise ProtocolError(f"{count} numbers cannot be allocated in one call")
        _check_guard(guard)
        ids = self._ledger_ids if counter == metadata_keys.LEDGER_COUNTER and guard is None else None
        if ids is not None:
            return await ids.allocate(count)
        return await self._store.allocate(counter, count, guard)


def _check_guard(guard: Guard | None) -> None:
    if guard is not None:
        _number(guard.version)


def _number(value: int) -> int:
    if not 0 <= value < 1 << 63:
        raise ProtocolError(f"malformed call for metadata: the number {value!r:.100} is out of range")
    return value
