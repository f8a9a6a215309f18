"""A metadata store in memory whose answers are lost for a while."""

from magnetar.protocol.errors import MetadataUnavailable, OutcomeUnknown
from magnetar.storage.metadata.store import Guard, Versioned, Write, WriteResult
from support.stores.memory_store import MemoryMetadataStore


class SilentStore(MemoryMetadataStore):
    """While `silent`, the answers of writes are lost, and from then on nothing is answered. The writes happen if
    `landed`. `away`: reads that fail afterwards.
    """

    silent = False
    landed = True
    away = 0
    _lost = False

    async def write_many(self, writes: list[Write], guard: Guard | None = None) -> list[WriteResult]:  # type: ignore[override]
        if not self.silent:
            return await super().write_many(writes, guard)
        self._lost = True
        if self.landed:
            await super().write_many(writes, guard)
        raise OutcomeUnknown("the answer was lost")

    async def get(self, key: str) -> Versioned | None:
        self._lost &= self.silent
        if self._lost or (self.away and not self.silent):
            self.away -= not self.silent
            raise MetadataUnavailable("the store is away")
        return await super().get(key)
