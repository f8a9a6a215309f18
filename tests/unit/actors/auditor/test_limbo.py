"""When the auditor lets a bookie out of limbo: only after a look at every ledger since it lost data."""

from dataclasses import replace
from functools import partial

import pytest

from magnetar.actors.auditor import orphans as orphan_ledgers
from magnetar.actors.auditor import service as auditor_module
from magnetar.actors.auditor.service import Auditor
from magnetar.actors.members.contracts_bookie import BookieContract
from magnetar.actors.members.contracts_coordinator import UnnamedLedgers
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Write
from support.fakes.bookies import FakeCluster, until

BOOKIES = ("bookie-1", "bookie-2", "bookie-3")


class Checks:
    """Stands for `LedgerRepair` and `MemberCalls`: notes which bookies were looked at and which were let out."""

    def __init__(self):
        self.looked_at = []
        self.let_out = []

    async def lacking(self, bookie, parts):
        self.looked_at.append(bookie)
        return []

    def of(self, bookie):
        return BookieContract(partial(self.call, bookie))

    async def call(self, bookie, method, **arguments):
        assert method == "clear_limbo"
        self.let_out.append((bookie, arguments["reason"]))

    async def close(self):
        pass


@pytest.fixture
async def made():
    """(auditor, its checks, why which bookies are in limbo): one closed ledger on three bookies."""
    cluster = FakeCluster(3)
    metadata = LedgerMetadata(
        ledger_id=1,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, BOOKIES),),
        state=LedgerState.CLOSED,
        last_entry=9,
    )
    await cluster.metadata.put(metadata_keys.ledger(1), metadata.pack(), None)
    limbo, checks = {}, Checks()
    identity = Identity("cluster", "coordinator", "coordinator", "1")
    auditor = Auditor(
        cluster.env,
        identity,
        RootKeys(b"secret"),
        cluster.settings,
        cluster.metadata,
        cluster.directory,
        lambda: dict(limbo),
    )
    for name in ("_repair", "_calls"):
        setattr(auditor, name, checks)
    yield auditor, checks, limbo
    await auditor.close()
    await cluster.close()


async def test_before_a_walk_has_ended_no_bookie_is_told_what_it_need_not_keep(made):
    auditor, *_ = made
    assert not auditor.unnamed("bookie-1", [1]).ready
    await auditor.round()
    assert auditor.unnamed("bookie-1", [1, 2]) == UnnamedLedgers(1, ready=True, ledgers=[2])
    assert auditor.unnamed("bookie-9", [1]).ledgers == [1]


async def test_a_walk_that_takes_several_rounds_is_made_once(made, monkeypatch):
    auditor, *_ = made
    monkeypatch.setattr(auditor_module, "WALK_S", 0.0)
    monkeypatch.setattr(auditor_module, "LEDGERS_PER_PAGE", 1)
    for _ in range(2):
        await auditor.round()
        assert auditor._walk.number == 1 and auditor._walk.after is not None
    monkeypatch.setattr(auditor_module, "WALK_S", 5.0)
    await auditor.round()
    assert auditor._walk.done == 1 and not auditor._walk.due and auditor._walk.after is None


async def test_a_ledger_whose_record_cannot_be_read_may_lie_on_every_bookie(made):
    auditor, *_ = made
    await auditor._store.put(metadata_keys.ledger(2), b"nonsense", None)
    await auditor.round()
    assert auditor.unnamed("bookie-9", [2]).ledgers == []


async def test_a_whole_ledger_is_checked_again_when_one_of_its_bookies_enters_limbo(made):
    auditor, checks, limbo = made
    await auditor.round()
    assert sorted(checks.looked_at) == list(BOOKIES)
    await auditor.round()
    assert len(checks.looked_at) == 3, "nothing has changed"
    for _ in range(2):  # a bookie that was read-only already changes in nothing else
        checks.looked_at.clear()
        limbo["bookie-2"] = "a loss"
        await auditor.round()
        assert sorted(checks.looked_at) == list(BOOKIES) and checks.let_out.pop() == ("bookie-2", "a loss")
        limbo.clear()


async def test_and_again_when_it_loses_more_before_it_is_let_out(made):
    auditor, checks, limbo = made
    limbo["bookie-2"] = "a loss"
    auditor._changed = True  # something keeps it from being let out in this round
    await auditor.round()
    assert not checks.let_out
    auditor._changed = False
    checks.looked_at.clear()
    limbo["bookie-2"] = "a loss; another loss"
    await auditor.round()
    assert sorted(checks.looked_at) == list(BOOKIES) and checks.let_out == [("bookie-2", "a loss; another loss")]


async def test_a_ledger_that_waits_for_it_as_a_spare_keeps_no_bookie_in_limbo(made):
    """Too few copies, and the only bookie for one more is in limbo and holds other entries of it: the two must not wait
    for each other."""
    auditor, checks, limbo = made
    cluster_wide = await auditor._records.get(1)
    thin = replace(
        cluster_wide.metadata,
        ensemble_size=2,
        write_quorum=2,
        fragments=(Fragment(0, ("bookie-3", "bookie-1")), Fragment(1, ("bookie-3", "bookie-2"))),
        under_replicated=True,
    )
    await auditor._records.replace(thin, cluster_wide.version)
    directory = auditor._watch._directory
    infos = directory.bookies.values()
    directory.update([info._replace(writable=info.id != "bookie-2") for info in infos])
    auditor._changed = False
    limbo["bookie-2"] = "a loss"
    await auditor.round()
    assert checks.let_out == [("bookie-2", "a loss")]
    assert not auditor.status()["whole"]


async def test_a_ledger_that_its_broker_never_named_keeps_no_bookie_in_limbo(made, monkeypatch):
    auditor, checks, limbo = made
    monkeypatch.setattr(orphan_ledgers, "SEARCH_PAUSE_S", 0.0)
    record = await auditor._store.get(metadata_keys.ledger(1))
    still_open = replace(LedgerMetadata.unpack(record.value), ledger_id=2, state=LedgerState.OPEN, last_entry=-1)
    await auditor._store.put(metadata_keys.ledger(2), still_open.pack(), None)
    limbo["bookie-2"] = "a loss"
    await auditor.round()
    assert not checks.let_out
    monkeypatch.setattr(orphan_ledgers, "ORPHAN_AFTER_S", 0.0)
    auditor.written([Write(metadata_keys.ledger(one), None, None) for one in (1, 2)])
    await auditor.round()
    await until(lambda: not auditor._orphans.busy)
    auditor.written([Write(metadata_keys.ledger(one), None, 1) for one in (1, 2)])
    await auditor.round()
    assert checks.let_out == [("bookie-2", "a loss")]
    assert auditor.status()["orphans_deleted_total"] == 2
    assert await auditor._store.get(metadata_keys.ledger(2)) is None


async def test_an_error_that_nobody_expected_does_not_end_the_auditor(made, monkeypatch):
    """Found by `tests/fuzz` (target coordinator): a spoilt counter ended it forever, and repair with it."""
    auditor, checks, limbo = made
    for name in ("FIRST_ROUND_DELAY_S", "CHANGE_DELAY_S"):
        monkeypatch.setattr(auditor_module, name, 0.01)
    limbo["bookie-2"] = "a loss"
    counter = metadata_keys.counter(metadata_keys.LEDGER_COUNTER)
    version = await auditor._store.put(counter, pack({"next": float("nan")}), None)
    auditor.start()
    await until(lambda: auditor.status()["failures_total"] >= 2)
    assert not checks.let_out and "NaN" in auditor.status()["last_failure"]
    await auditor._store.put(counter, pack({"next": 8}), version)
    await until(lambda: ("bookie-2", "a loss") in checks.let_out)
