"""The metadata record of a durable cursor, and what the cursors of one managed ledger have in common."""

import asyncio
import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ...protocol.errors import MetadataError, ProtocolError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..ledger.ledgers import Ledgers
from ..metadata import keys as metadata_keys
from ..metadata.record_kinds import RecordKind
from ..metadata.store import MetadataStore, pack, unpack
from .chain import LedgerChain


class CursorKind(enum.StrEnum):
    """Who a durable cursor belongs to. Each kind keeps what it has not passed; only subscriptions are shown as such."""

    SUBSCRIPTION = "subscription"
    DEDUPLICATION = "deduplication"
    REPLICATOR = "replicator"
    COMPACTION = "compaction"


class CursorRecord(NamedTuple):
    """The metadata record. `state` is the packed state when `ledger_id` is None, else None or an older one.

    `beside` are ledgers that hold something else for the cursor's owner (`SideLedgers`).

    The stored record has a kind only where that is not a subscription, and `beside` only where there are some: records
    were written before there were these.

    `idle_since_ms` says since when a subscription has had no consumer, 0 if that is not known. Only an owner that
    closed in order leaves it: its successor takes it out in the write with which it takes the cursor over.
    """

    epoch: int
    ledger_id: int | None
    state: bytes | None
    kind: CursorKind = CursorKind.SUBSCRIPTION
    idle_since_ms: int = 0
    beside: tuple[int, ...] = ()

    @property
    def ledgers(self) -> tuple[int, ...]:
        """All that it names."""
        return self.beside if self.ledger_id is None else (self.ledger_id, *self.beside)

    def pack(self) -> bytes:
        record: dict[str, Any] = {"epoch": self.epoch, "ledger": self.ledger_id, "state": self.state}
        if self.kind is not CursorKind.SUBSCRIPTION:
            record["kind"] = self.kind.value
        if self.idle_since_ms:
            record["idle_since_ms"] = self.idle_since_ms
        if self.beside:
            record["beside"] = list(self.beside)
        return pack(record)

    @staticmethod
    def unpack(value: bytes) -> "CursorRecord":
        """Raises MetadataError for anything that is no such record, a kind of a later version included."""
        try:
            record = cast("Mapping[str, Any]", unpack(value))
            ledger_id, state = record["ledger"], record["state"]
            return CursorRecord(
                int(record["epoch"]),
                None if ledger_id is None else int(ledger_id),
                # bytes() of a number would be as many zeros
                None if state is None else memoryview(state).tobytes(),
                CursorKind(record.get("kind", CursorKind.SUBSCRIPTION)),
                int(record.get("idle_since_ms", 0)),
                tuple(map(int, record.get("beside", ()))),
            )
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of a cursor cannot be decoded: {error!r}") from error


CURSOR_RECORDS = RecordKind(
    metadata_keys.CURSORS_PREFIX,
    CursorRecord.unpack,
    lambda record: record.ledgers,
    brokers_write=True,
)


class CursorHome(NamedTuple):
    """Where the cursors of one managed ledger live."""

    env: Environment
    ledgers: Ledgers
    metadata: MetadataStore
    settings: Settings
    topic_path: str
    epoch: int
    chain: LedgerChain
    record_lock: asyncio.Lock
