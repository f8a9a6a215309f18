"""Brokers take the id of a ledger when they create it, never before."""

import asyncio

import pytest

from magnetar.protocol.errors import LedgerError
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_ids import counter_of
from support.fakes.bookies import until


async def next_id(cluster):
    return counter_of(await cluster.metadata.get(metadata_keys.counter(metadata_keys.LEDGER_COUNTER)))


async def test_the_counter_is_exactly_above_the_ledgers_that_exist(cluster):
    for _ in range(3):
        writer = await cluster.ledgers.create()
        assert await next_id(cluster) == writer.ledger_id + 1


async def test_those_who_wait_together_share_one_change_of_the_counter(cluster):
    allocations = []
    allocate = cluster.ledgers.records.allocate

    async def allocating(count):
        allocations.append(count)
        await asyncio.sleep(0)
        return await allocate(count)

    cluster.ledgers.records.allocate = allocating
    writers = await asyncio.gather(*(cluster.ledgers.create() for _ in range(200)))
    ids = sorted(writer.ledger_id for writer in writers)
    assert ids == list(range(1, 201)) and len(allocations) <= 3 and await next_id(cluster) == 201


async def test_an_id_whose_caller_went_away_is_not_given_to_a_later_one(cluster):
    turns = [asyncio.Event() for _ in range(2)]
    asked = []
    allocate = cluster.ledgers.records.allocate

    async def slow(count):
        asked.append(count)
        if len(asked) <= len(turns):
            await turns[len(asked) - 1].wait()
        return await allocate(count)

    cluster.ledgers.records.allocate = slow
    callers = [asyncio.create_task(cluster.ledgers.create()) for _ in range(3)]
    await until(lambda: asked == [1])
    turns[0].set()
    await until(lambda: asked == [1, 2])
    callers[2].cancel()
    turns[1].set()
    assert [(await caller).ledger_id for caller in callers[:2]] == [1, 2]
    assert (await cluster.ledgers.create()).ledger_id == 4 and await next_id(cluster) == 5


async def test_an_id_that_is_not_above_the_chain_is_refused(cluster):
    with pytest.raises(LedgerError):
        await cluster.ledgers.create(above=50)
