"""Deletions whose answer was lost, and which are carried out much later. Found by the simulator, seed 20006."""

import pytest

from magnetar.protocol.errors import BadVersion, OutcomeUnknown
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata.certain_writes import delete_certain
from support.stores.memory_store import MemoryMetadataStore


class LateStore(MemoryMetadataStore):
    """Its first deletion is not carried out before `carry_out`."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[str, int | None]] = []

    async def delete(self, key: str, expected_version: int | None) -> None:
        if not self.late:
            self.late.append((key, expected_version))
            raise OutcomeUnknown("no answer")
        await super().delete(key, expected_version)

    async def carry_out(self) -> None:
        await super().delete(*self.late[0])


async def test_a_deletion_that_is_carried_out_late_leaves_what_was_made_since() -> None:
    store = LateStore()
    await store.put("k", b"first", None)
    assert await delete_certain(Environment.real(threads_max=1), store, "k")
    await store.put("k", b"second", None)
    with pytest.raises(BadVersion):
        await store.carry_out()
    found = await store.get("k")
    assert found is not None and found.value == b"second"


async def test_what_is_not_there_is_not_deleted() -> None:
    assert not await delete_certain(Environment.real(threads_max=1), LateStore(), "k")
