"""Garbage collection: deletes what the metadata has deleted, and in every doubtful case nothing."""

from typing import Any

import pytest
from bookie_kit import Bookie, bodies
from faulty_files import FaultyFiles

from magnetar.protocol import metadata_keys
from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.protocol.errors import CookieMismatch, MetadataError, MetadataUnavailable
from magnetar.storage.garbage_collection import collect_garbage
from magnetar.storage.metadata_memory import MemoryMetadataStore
from magnetar.storage.metadata_store import pack

S = BookieStatus
CLUSTER = "cluster-1"


class Metadata(MemoryMetadataStore):
    """`before_answer` is awaited before each `get_many` answers; `fail` is raised by it; `drop` shortens the answer."""

    before_answer: Any = None
    fail: Any = None
    drop = 0

    async def get_many(self, keys):
        answers = await super().get_many(keys)
        if self.before_answer is not None:
            await self.before_answer()
        if self.fail is not None:
            raise self.fail
        return answers[self.drop :]


@pytest.fixture
async def metadata():
    store = Metadata()
    await store.put(metadata_keys.CLUSTER, pack({"id": CLUSTER, "created_ms": 1}), None)
    for ledger_id in (1, 2):
        await store.put(metadata_keys.ledger(ledger_id), b"x", None)
    return store


@pytest.fixture
async def bookie():
    made = await Bookie.started(FaultyFiles())
    for ledger_id in (1, 2, 3):
        await made.add_many(ledger_id, range(3))
    yield made
    await made.store.close()


def kept(bookie):
    return sorted(bookie.store.entries.ledgers)


async def test_only_what_the_metadata_does_not_know_goes(bookie, metadata):
    done = await collect_garbage(bookie.store, metadata, CLUSTER)
    assert (done.ledgers_seen, done.ledgers_deleted) == (3, 1) and kept(bookie) == [1, 2]
    assert await bookie.add(3, 3) == S.FENCED
    await metadata.delete(metadata_keys.ledger(1), None)
    await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [2] and await bookie.read_all(2, 0, 9) == bodies(2, range(3))


async def test_an_empty_or_foreign_store_deletes_nothing(bookie, metadata):
    for store, cluster in ((Metadata(), CLUSTER), (metadata, "another"), (Metadata(), "")):
        with pytest.raises(CookieMismatch):
            await collect_garbage(bookie.store, store, cluster)
    assert kept(bookie) == [1, 2, 3]


async def test_a_store_that_is_emptied_in_the_middle_of_the_question_deletes_nothing(bookie, metadata):
    async def wipe():
        metadata.records.by_key.clear()
        metadata.records.keys.clear()

    metadata.before_answer = wipe
    with pytest.raises(CookieMismatch):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 3]


async def test_an_error_or_a_short_answer_deletes_nothing(bookie, metadata):
    metadata.fail = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    metadata.fail, metadata.drop = None, 1
    with pytest.raises(MetadataError):
        await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 3]


async def test_a_ledger_that_appears_during_the_round_is_not_judged(bookie, metadata):
    async def create():
        await bookie.add_many(9, [0])

    metadata.before_answer = create
    await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2, 9]


@pytest.mark.parametrize("touch", ["recovery copy", "fence"])
async def test_a_ledger_touched_by_recovery_during_the_round_is_kept_until_the_next(bookie, metadata, touch):
    async def race():
        if touch == "fence":
            await bookie.fence(3)
        else:
            await bookie.add_many(3, [3], recovery=True)

    metadata.before_answer = race
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_deleted == 0
    assert kept(bookie) == [1, 2, 3]
    metadata.before_answer = None
    assert (await collect_garbage(bookie.store, metadata, CLUSTER)).ledgers_deleted == 1


async def test_ledgers_that_were_only_fenced_go_too_and_stay_refused(bookie, metadata):
    assert (await bookie.fence(77))[0] == S.OK
    await collect_garbage(bookie.store, metadata, CLUSTER)
    assert kept(bookie) == [1, 2] and await bookie.add(77, 0) == S.FENCED
