"""Pins: ledgers that a planned read keeps from being trimmed, until it says that it is done or the time is over.

A pin is a metadata record, so that it holds whoever owns the topic. It names ledgers, not entries.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..protocol import metadata_keys
from ..protocol.errors import BadVersion, MetadataError, NoSuchKey, ProtocolError
from ..runtime.environment import Environment
from .metadata_cas import delete_certain, put_certain
from .metadata_store import Guard, MetadataStore, list_all, pack, unpack


class Pins:
    """The pins of one topic."""

    def __init__(self, env: Environment, store: MetadataStore, topic_path: str) -> None:
        self._env = env
        self._store = store
        self._topic_path = topic_path

    async def add(self, ledger_ids: Iterable[int], ttl_s: float, needs: Guard) -> str:
        """Store a pin, provided that `needs` holds, and return its id. Raises ConditionFailed."""
        pin_id = self._env.random.hex(8)
        key = metadata_keys.pin(self._topic_path, pin_id)
        await put_certain(self._env, self._store, key, self._pack(ledger_ids, ttl_s), None, needs=needs)
        return pin_id

    async def remove(self, pin_id: str) -> bool:
        """Delete a pin. Returns whether it was there."""
        return await delete_certain(self._env, self._store, metadata_keys.pin(self._topic_path, pin_id))

    async def pinned(self) -> frozenset[int]:
        """The ledgers under valid pins; pins whose time is over are deleted on the way."""
        found: set[int] = set()
        now_ms = self._env.clock.now_ms()
        for key, record in await list_all(self._store, metadata_keys.pins_prefix(self._topic_path)):
            try:
                pin = cast("Mapping[str, Any]", unpack(record.value))
                ledger_ids, expires_ms = [int(one) for one in pin["ledgers"]], int(pin["expires_ms"])
            except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
                raise MetadataError(f"not the record of a pin: {error!r}") from error
            if expires_ms > now_ms:
                found.update(ledger_ids)
                continue
            try:
                await self._store.delete(key, record.version)
            except (BadVersion, NoSuchKey):
                continue  # removed by the read itself
        return frozenset(found)

    async def remove_all(self) -> None:
        """The topic is deleted."""
        for key, _ in await list_all(self._store, metadata_keys.pins_prefix(self._topic_path)):
            await delete_certain(self._env, self._store, key)

    def _pack(self, ledger_ids: Iterable[int], ttl_s: float) -> bytes:
        expires_ms = self._env.clock.now_ms() + round(ttl_s * 1000)
        return pack({"ledgers": sorted(ledger_ids), "expires_ms": expires_ms})
