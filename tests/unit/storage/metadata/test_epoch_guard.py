"""The coordinator's guard: what it asked for and gave up is not carried out late."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from magnetar.protocol.errors import KeyExists, MetadataUnavailable, OutcomeUnknown
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore, raise_epoch
from magnetar.storage.metadata.store import Guard, Versioned, Write, WriteResult, pack
from support.stores.memory_store import MemoryMetadataStore

KEY = "topics/persistent/public/default/t"


class SlowDatabase(MemoryMetadataStore):
    """`lose` and `lose_answer` say which writes of a key go wrong. `late` are the lost ones, to be carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: dict[str, int] = {}
        self.lose_answer: dict[str, int] = {}
        self.late: list[Callable[[], Awaitable[list[WriteResult]]]] = []
        self.writes: list[str] = []
        self.held: asyncio.Event | None = None

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        key = writes[0].key
        self.writes.append(key)
        if self.held is not None and key == "tenants/held":
            await self.held.wait()
        carry_out = super().write_many
        if self.lose.get(key, 0):
            self.lose[key] -= 1
            self.late.append(lambda: carry_out(writes, guard))
            raise OutcomeUnknown("the connection broke before the write was carried out")
        results = await carry_out(writes, guard)
        if self.lose_answer.get(key, 0):
            self.lose_answer[key] -= 1
            raise OutcomeUnknown("the connection broke after the write was carried out")
        return results

    async def carry_out_late(self) -> list[Any]:
        return await asyncio.gather(*(write() for write in self.late), return_exceptions=True)


async def office_and_database() -> tuple[EpochMetadataStore, SlowDatabase]:
    database = SlowDatabase()
    await database.put(metadata_keys.COORDINATOR_EPOCH, pack({"epoch": 0}), None)
    office = await raise_epoch(database)
    database.writes.clear()
    return office, database


async def create_in_the_second_try(office: EpochMetadataStore, database: SlowDatabase) -> None:
    database.lose[KEY] = 1
    with pytest.raises(OutcomeUnknown):
        await office.put(KEY, b"first", None)
    await office.put(KEY, b"first", None)


async def test_a_record_that_was_deleted_does_not_come_back_by_an_earlier_try_to_create_it():
    """Seed 791115930: the coordinator did not know the topic, and it could not be created again."""
    office, database = await office_and_database()
    await create_in_the_second_try(office, database)
    await office.delete(KEY, None)
    await database.carry_out_late()
    assert await office.get(KEY) is None
    await office.put(KEY, b"second", None)
    assert not office.superseded


async def test_one_renewal_serves_all_creations_that_were_in_doubt():
    office, database = await office_and_database()
    await create_in_the_second_try(office, database)
    await office.put("tenants/a", b"", None)
    await office.put("tenants/b", b"", None)
    await office.delete(KEY, None)
    await office.delete("tenants/a", None)
    assert database.writes.count(metadata_keys.COORDINATOR_EPOCH) == 1
    database.writes.clear()
    await office.delete("tenants/b", None)
    assert database.writes == ["tenants/b"]


async def test_a_cancelled_creation_may_be_carried_out_late_too():
    office, database = await office_and_database()
    database.held = asyncio.Event()
    creation = asyncio.ensure_future(office.put("tenants/held", b"", None))
    await asyncio.sleep(0)
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    await office.put(KEY, b"", None)
    await office.delete(KEY, None)
    assert metadata_keys.COORDINATOR_EPOCH in database.writes


async def test_a_write_under_way_is_asked_for_again_when_the_guard_was_renewed():
    office, database = await office_and_database()
    await create_in_the_second_try(office, database)
    database.held = asyncio.Event()
    write = asyncio.ensure_future(office.put("tenants/held", b"", None))
    await asyncio.sleep(0)
    await office.delete(KEY, None)
    database.held.set()
    assert await write is not None
    assert database.writes.count("tenants/held") == 2 and not office.superseded


@pytest.mark.parametrize("lost", ["lose", "lose_answer"])
async def test_a_renewal_whose_outcome_is_unknown_is_taken_over_when_it_was_carried_out(lost: str):
    office, database = await office_and_database()
    await create_in_the_second_try(office, database)
    getattr(database, lost)[metadata_keys.COORDINATOR_EPOCH] = 1
    with pytest.raises(OutcomeUnknown):
        await office.delete(KEY, None)
    await office.verify()
    await office.delete(KEY, None)
    await database.carry_out_late()
    assert await office.get(KEY) is None
    assert await office.allocate("ledger-id", 1) == 1
    assert not office.superseded


async def test_another_coordinator_still_ends_this_one():
    office, database = await office_and_database()
    await create_in_the_second_try(office, database)
    await raise_epoch(database)
    with pytest.raises(MetadataUnavailable, match="superseded"):
        await office.delete(KEY, None)
    assert office.superseded and await database.get(KEY) is not None
    with pytest.raises(MetadataUnavailable, match="superseded"):
        await office.verify()


async def test_a_coordinator_ends_when_the_database_has_an_older_record_of_its_epoch():
    """As after a failover of the database to a replica that lacks the renewal."""
    office, database = await office_and_database()
    before = await database.get(metadata_keys.COORDINATOR_EPOCH)
    assert before is not None
    await create_in_the_second_try(office, database)
    await office.delete(KEY, None)
    database.records.store(metadata_keys.COORDINATOR_EPOCH, Versioned(before.value, before.version))
    with pytest.raises(MetadataUnavailable, match="superseded"):
        await office.verify()
    assert office.superseded


async def test_a_renewal_does_not_keep_another_coordinator_from_the_epoch():
    office, database = await office_and_database()
    await create_in_the_second_try(office, database)
    await office.delete(KEY, None)
    successor = await raise_epoch(database)
    assert successor.epoch == office.epoch + 1
    with pytest.raises(MetadataUnavailable, match="superseded"):
        await office.put(KEY, b"", None)
    await successor.put(KEY, b"", None)
    with pytest.raises(KeyExists):
        await successor.put(KEY, b"", None)
