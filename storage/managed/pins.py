"""Pins: ledgers that a planned read keeps from being trimmed, until it says that it is done or the time is over.

A pin is a metadata record, so that it holds under every owner of the topic. It names ledgers, not entries. It says how
long it lasts, not until when: one machine's clock would set a date, and another's would judge it. Who prolongs a pin
writes the record again, which gives it another version.

One clock judges: the owner's own, which never jumps. A pin's time is over when its owner has seen the same version for
that long. A new owner starts the time again, so after a move a pin may last longer than it says, and never shorter.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from ...protocol.errors import BadVersion, MetadataError, NoSuchKey, ProtocolError
from ...protocol.message_id import Position
from ...runtime.environment import Environment
from ..metadata import keys as metadata_keys
from ..metadata.certain_writes import delete_certain, put_certain
from ..metadata.ledger_metadata import LedgerMetadata
from ..metadata.record_kinds import RecordKind
from ..metadata.store import Guard, MetadataStore, list_all, pack, unpack


class BulkReadPlan(NamedTuple):
    """What a bulk read is told: acknowledged entries `first`…`last` (inclusive), their ledgers, and their pin.

    `first` > `last` when there is nothing in the log; then `ledgers` is empty. Otherwise it may begin before `first`.
    `compacted` is the compacted ledger, if it is to be read before the log. There is no pin when there is nothing to
    read at all.
    """

    first: Position
    last: Position
    ledgers: tuple[LedgerMetadata, ...]
    pin: str | None
    compacted: LedgerMetadata | None = None
    open_entry_bytes: int = 0
    """Size of an entry in the ledger that is still open, on average; 0 if it has none."""


class PinRecord(NamedTuple):
    ledger_ids: tuple[int, ...]
    ttl_ms: int

    def pack(self) -> bytes:
        return pack({"ledgers": sorted(self.ledger_ids), "ttl_ms": self.ttl_ms})

    @staticmethod
    def unpack(value: bytes) -> "PinRecord":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            pin = cast("Mapping[str, Any]", unpack(value))
            return PinRecord(tuple(map(int, pin["ledgers"])), int(pin["ttl_ms"]))
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of a pin cannot be decoded: {error!r}") from error


PIN_RECORDS = RecordKind(
    metadata_keys.PINS_PREFIX, PinRecord.unpack, lambda record: record.ledger_ids, brokers_write=True
)


class Pinned(NamedTuple):
    """What is pinned now. The first of these pins ends in `ends_in_s`, unless it is prolonged; None without pins."""

    ledger_ids: frozenset[int]
    ends_in_s: float | None


class Pins:
    """The pins of one topic, for its owner. `add` and `pinned` are not called at the same time.

    `prolong` and `remove` may run beside them: a pin is deleted by version, so one that was prolonged meanwhile stays.
    """

    def __init__(self, env: Environment, store: MetadataStore, topic_path: str) -> None:
        self._env = env
        self._store = store
        self._topic_path = topic_path
        self._seen: dict[str, tuple[int, float]] = {}
        """Key → the version that was seen last, and when it was seen first."""

    async def add(self, ledger_ids: Iterable[int], ttl_s: float, needs: Guard) -> str:
        """Store a pin, provided that `needs` holds, and return its id. Raises ConditionFailed."""
        pin_id = self._env.random.hex(8)
        key = metadata_keys.pin(self._topic_path, pin_id)
        pin = PinRecord(tuple(ledger_ids), round(ttl_s * 1000))
        version = await put_certain(self._env, self._store, key, pin.pack(), None, needs=needs)
        self._seen[key] = (version, asyncio.get_running_loop().time())
        return pin_id

    async def prolong(self, pin_id: str, ttl_s: float) -> bool:
        """Let a pin last `ttl_s` seconds from now on. Returns whether it was there.

        Raises BadVersion when another call prolonged it meanwhile, MetadataUnavailable.
        """
        key = metadata_keys.pin(self._topic_path, pin_id)
        record = await self._store.get(key)
        if record is None:
            return False
        pin = PinRecord.unpack(record.value)._replace(ttl_ms=round(ttl_s * 1000))
        version = await self._store.put(key, pin.pack(), record.version)
        self._seen[key] = (version, asyncio.get_running_loop().time())
        return True

    async def remove(self, pin_id: str) -> bool:
        """Delete a pin. Returns whether it was there."""
        key = metadata_keys.pin(self._topic_path, pin_id)
        self._seen.pop(key, None)
        return await delete_certain(self._env, self._store, key)

    async def pinned(self) -> Pinned:
        """The ledgers under valid pins; pins whose time is over are deleted on the way."""
        found: set[int] = set()
        ends_in_s: float | None = None
        before, self._seen = self._seen, {}
        now = asyncio.get_running_loop().time()
        for key, record in await list_all(self._store, metadata_keys.pins_prefix(self._topic_path)):
            pin = PinRecord.unpack(record.value)
            version, since = before.get(key, (-1, now))
            since = since if version == record.version else now
            left_s = since + pin.ttl_ms / 1000 - now
            if left_s <= 0 and await self._end(key, record.version):
                continue
            found.update(pin.ledger_ids)
            self._seen[key] = (record.version, since)
            ends_in_s = left_s if ends_in_s is None else min(ends_in_s, left_s)
        return Pinned(frozenset(found), ends_in_s)

    async def _end(self, key: str, version: int) -> bool:
        """Delete a pin whose time is over. False when it was prolonged just now."""
        try:
            await self._store.delete(key, version)
        except BadVersion:
            return False
        except NoSuchKey:
            return True  # removed by the read itself
        return True
