"""The metadata store as everybody but the coordinator sees it: calls to the coordinator.

Which connection to use, and whether there is one, is the business of whoever gives `connection` (the coordinator
client). Without one a call fails at once with MetadataUnavailable; a write whose answer was lost raises OutcomeUnknown,
because the coordinator may have carried it out. Nothing is retried here.

`MetadataMethods` is the other side: what the coordinator does with such calls.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

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
from ...runtime.rpc.connection import RpcConnection
from . import keys as metadata_keys
from .keys import counter as counter_key
from .ledger_ids import LedgerIds
from .ledger_records import renew
from .store import Guard, MetadataStore, Versioned, Write, WriteResult, one_result

CALL_TIMEOUT_S = 10.0
LIST_ANSWER_BYTES = 4 << 20
"""Bytes at which a page of a listing ends early; the asking side then asks for the rest."""
ALLOCATED_MAX = 1 << 32
"""Numbers of a counter given out at a time."""


class RemoteMetadataStore:
    """A `MetadataStore` over the connection that `connection()` returns, or MetadataUnavailable when it has none."""

    def __init__(self, connection: Callable[[], RpcConnection | None], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._closed = False

    async def get(self, key: str) -> Versioned | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        answer = await self._read("metadata_get_many", keys=list(keys))
        return [Versioned(item[0], item[1]) if item is not None else None for item in answer]

    async def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        return one_result(await self.write_many([Write(key, value, expected_version)]))

    async def delete(self, key: str, expected_version: int | None) -> None:
        one_result(await self.write_many([Write(key, None, expected_version)]))

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        answer = await self._write(
            "metadata_write_many", writes=[list(write) for write in writes], guard=list(guard) if guard else None
        )
        return [item if isinstance(item, int) else error_from_wire(item[0], item[1], item[2]) for item in answer]

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        answer = await self._write(
            "metadata_allocate", counter=counter, count=count, guard=list(guard) if guard else None
        )
        return int(answer)

    async def close(self) -> None:
        self._closed = True

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        found: list[tuple[str, Versioned]] = []
        more = True
        while more and len(found) < limit:
            answer, more = await self._read("metadata_list", prefix=prefix, after=after, limit=limit - len(found))
            found += [(key, Versioned(value, version)) for key, value, version in answer]
            after = found[-1][0] if found else after
        return found

    # -- calls ---------------------------------------------------------------------------------------------------

    async def _read(self, method: str, **arguments: Any) -> Any:
        try:
            return await self._ready_connection().call(method, timeout_s=self._timeout_s, **arguments)
        except (RpcDisconnected, RpcTimeout) as error:
            raise MetadataUnavailable(f"the coordinator did not answer {method}: {error}") from error

    async def _write(self, method: str, **arguments: Any) -> Any:
        try:
            return await self._ready_connection().call(method, timeout_s=self._timeout_s, **arguments)
        except (RpcDisconnected, RpcTimeout) as error:
            raise OutcomeUnknown(f"the coordinator's answer to {method} was lost: {error}") from error

    def _ready_connection(self) -> RpcConnection:
        connection = None if self._closed else self._connection()
        if connection is None or connection.closed or not connection.ready:
            raise MetadataUnavailable("there is no connection to the coordinator")
        return connection


class MetadataMethods:
    """The serving side: a group of methods of the coordinator's RPC service.

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

    # Values of another kind are refused here: one number that is none would be stored, and be read by everybody.

    async def rpc_metadata_get_many(self, connection: RpcConnection, keys: list[str]) -> list[list[object] | None]:
        records = await self._store.get_many([_text(key) for key in _list(keys)])
        return [[record.value, record.version] if record is not None else None for record in records]

    async def rpc_metadata_list(
        self, connection: RpcConnection, prefix: str, after: str, limit: int
    ) -> tuple[list[tuple[str, bytes, int]], bool]:
        records = await self._store.list(_text(prefix), after=_text(after), limit=_number(limit))
        page: list[tuple[str, bytes, int]] = []
        size = 0
        for key, record in records:
            page.append((key, record.value, record.version))
            size += len(key) + len(record.value)
            if size >= LIST_ANSWER_BYTES:
                break
        return page, len(page) < len(records)

    async def rpc_metadata_write_many(
        self, connection: RpcConnection, writes: list[list[Any]], guard: list[Any] | None
    ) -> list[object]:
        changes = [_write(write) for write in _list(writes)]
        self._check_writer(connection, [change.key for change in changes])
        results = await self._store.write_many(changes, _guard(guard))
        return [list(error_to_wire(item)) if isinstance(item, MagnetarError) else item for item in results]

    async def rpc_renew_ledger(self, connection: RpcConnection, ledger: int, version: int) -> int:
        """See `ledger_records.renew`: all that a bookie may do to a ledger's record."""
        return await renew(self._store, _number(ledger), _number(version))

    async def rpc_metadata_allocate(
        self, connection: RpcConnection, counter: str, count: int, guard: list[Any] | None
    ) -> int:
        self._check_writer(connection, [counter_key(_text(counter))])
        if _number(count) > ALLOCATED_MAX:
            raise ProtocolError(f"{count} numbers are not given out at a time")
        ids = self._ledger_ids if counter == metadata_keys.LEDGER_COUNTER and guard is None else None
        if ids is not None:
            return await ids.allocate(count)
        return await self._store.allocate(_text(counter), count, _guard(guard))


def _write(value: object) -> Write:
    key, content, version, needs = _list(value, 4)
    if content is not None and not isinstance(content, bytes):
        raise _malformed("bytes", content)
    return Write(_text(key), content, None if version is None else _number(version), _guard(needs))


def _guard(value: object) -> Guard | None:
    if value is None:
        return None
    key, version = _list(value, 2)
    return Guard(_text(key), _number(version))


def _list(value: Any, size: int | None = None) -> list[Any]:
    if not isinstance(value, list) or size not in (None, len(cast("list[Any]", value))):
        raise _malformed("a list" if size is None else f"a list of {size}", cast(object, value))
    return cast("list[Any]", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _malformed("text", value)
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _malformed("a number", value)
    return value


def _malformed(wanted: str, value: object) -> ProtocolError:
    return ProtocolError(f"malformed call for metadata: not {wanted} but {value!r:.100}")
