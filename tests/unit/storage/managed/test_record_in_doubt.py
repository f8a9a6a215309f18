"""The record of a chain after a write whose answer was lost: nobody waits for long, and the doubt ends well."""

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.protocol.errors import MetadataUnavailable, OutcomeUnknown
from magnetar.storage.managed import chain_writer
from magnetar.storage.managed import record as managed_ledger_record
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.certain_writes import put_certain
from magnetar.storage.metadata.store import Guard, Write, WriteResult
from support.fakes.bookies import Adds, FakeCluster, until
from support.stores.managed_ledger_kit import NAME, append, bodies, open_, read_all

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=1.0, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.02
)

RECORD = metadata_keys.managed_ledger(NAME)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_writer, "CREATE_SETTLE_S", 0.1)
    monkeypatch.setattr(managed_ledger_record, "RECORD_WAIT_S", 0.3)


class Doubt:
    """From the next write of the record on its answers are lost: the first one lands as `lands` says, others never."""

    def __init__(self, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, lands: str) -> None:
        self.lands = lands
        self.late: list[tuple[Sequence[Write], Guard | None]] = []
        self.over = False
        self._store = cluster.metadata
        self._write_many = cluster.metadata.write_many
        monkeypatch.setattr(cluster.metadata, "write_many", self._lose)

    async def _lose(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        if self.over or writes[0].key != RECORD:
            return await self._write_many(writes, guard)
        if not self.late:
            self.late.append((writes, guard))
            if self.lands == "at once":
                await self._write_many(writes, guard)
        raise OutcomeUnknown("the answer was lost")

    async def end(self) -> None:
        """The store is back."""
        if self.lands == "late":
            await self._write_many(*self.late[0])
        self.over = True


@pytest.mark.parametrize("lands", ["at once", "late", "never"])
async def test_a_subscriber_does_not_wait_for_a_lost_answer_and_is_served_afterwards(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, lands: str
) -> None:
    managed = await open_(cluster)
    fenced: list[object] = []
    managed.on_fenced.append(fenced.append)
    doubt, adds = Doubt(cluster, monkeypatch, lands), Adds()
    managed.append(b"lost", adds.callback)  # its first ledger is put into the record
    await until(lambda: doubt.late)
    for attempt in (managed.open_cursor("s", "earliest"), managed.pin([1], 60.0), managed.plan((-1, -1))):
        try:
            async with asyncio.timeout(2):
                await attempt
        except (OutcomeUnknown, MetadataUnavailable):
            continue  # an empty plan asks for nothing
    assert isinstance((await _first_outcome(adds)), OutcomeUnknown)
    await doubt.end()
    await managed.open_cursor("s", "earliest")
    adds = await append(managed, bodies(3))
    assert not adds.errors and not fenced
    assert [body for _, body in await read_all(managed)] == bodies(3)
    await managed.close()
    managed = await open_(cluster, epoch=2)
    assert [body for _, body in await read_all(managed)] == bodies(3)
    await managed.close()


async def _first_outcome(adds: Adds) -> object:
    await adds.wait(1)
    return adds.outcomes[0]


@pytest.mark.parametrize("lands", ["at once", "late", "never"])
async def test_a_trim_in_doubt_is_known_before_anything_is_pinned(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, lands: str
) -> None:
    monkeypatch.setattr("magnetar.storage.managed.record.put_certain", _impatient)
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest")
    await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(2, 10))
    old = managed.ledger_infos[0].ledger_id
    cursor.acknowledge_cumulative(managed.last_confirmed)
    await cursor.flush()
    doubt = Doubt(cluster, monkeypatch, lands)
    with pytest.raises(OutcomeUnknown):
        await managed.trim()
    await doubt.end()
    plan = await managed.plan((-1, -1))
    record = ManagedLedgerRecord.unpack(cluster.metadata.records.by_key[RECORD].value)
    named = [info.ledger_id for info in record.ledgers]
    planned = [ledger.ledger_id for ledger in plan.ledgers]
    assert (old in planned) == (old in named) == (lands == "never")
    assert [info.ledger_id for info in managed.ledger_infos] == named
    await managed.close()


async def _impatient(*arguments: object, settle_limit_s: float, **options: object) -> int:
    return await put_certain(*arguments, settle_limit_s=min(settle_limit_s, 0.1), **options)  # type: ignore[arg-type]


async def with_a_ledger_that_the_owner_does_not_know(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> ManagedLedger:
    """A topic of eleven entries. Between its two ledgers lies an empty one, which was stored in doubt."""
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    await append(managed, bodies(9))
    doubt = Doubt(cluster, monkeypatch, "at once")
    await append(managed, bodies(1, 9))  # the ledger is full: the next one is stored, and the answer lost
    await until(lambda: doubt.late)
    await until(lambda: not managed._writer._record_lock.locked())
    await doubt.end()
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(1, 10))
    assert len(stored(cluster).ledgers) == 3, "one ledger lies between, which the owner does not know"
    return managed


def stored(cluster: FakeCluster) -> ManagedLedgerRecord:
    return ManagedLedgerRecord.unpack(cluster.metadata.records.by_key[RECORD].value)


async def test_a_ledger_stored_in_doubt_is_closed_at_the_next_start_behind_later_ledgers(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await with_a_ledger_that_the_owner_does_not_know(cluster, monkeypatch)
    cluster[1].hang()
    cluster[2].crash()
    failed = Adds()
    managed.append(b"refused", failed.callback)
    await failed.wait(1)
    cluster[1].wake()
    cluster[2].restart()
    await until(lambda: len(cluster.client.usable()) == 3)
    adds = await append(managed, bodies(1, 11))
    assert not adds.errors
    assert [body for _, body in await read_all(managed) if body != b"refused"] == bodies(12)
    await managed.close()


async def test_a_topic_with_a_ledger_stored_in_doubt_is_not_marked_as_at_rest(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = await with_a_ledger_that_the_owner_does_not_know(cluster, monkeypatch)
    await managed.close(at_rest=b"policies")
    assert not stored(cluster).rests
    managed = await open_(cluster, epoch=2)
    await managed.close(at_rest=b"policies")
    assert all(info.closed for info in stored(cluster).ledgers)
    assert stored(cluster).rests == b"policies"
