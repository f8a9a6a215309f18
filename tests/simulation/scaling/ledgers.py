"""Topics with a ledger each on very many bookies: what deaths, deletions, collections and restarts cost.

The coordinator's office, its auditor, a bookie's collection and the metadata are the real ones. Bookies answer the
auditor as if every copy always succeeded. One of them, `MEASURED`, has a real store, which knows its ledgers but holds
no entries. Waits are left out, so walks and searches are not held back to `RECORDS_PER_S_MAX`.
"""

import random
from functools import partial

from magnetar.actors.auditor import pace
from magnetar.actors.auditor.index import LedgerCondition
from magnetar.actors.auditor.repair import LedgerRepair
from magnetar.actors.bookie.service import Collecting
from magnetar.actors.coordinator.office import Office
from magnetar.actors.members.contracts_bookie import BookieContract, Copied, Lacking, Part
from magnetar.actors.members.contracts_coordinator import LedgerChanges, UnnamedLedgers
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie.garbage_collection import Collected, collect_garbage
from magnetar.storage.bookie.held_ledgers import HeldLedger
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata import ledger_records
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Versioned, Write, pack
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import Bookie, make_env

from .counting import Costs, CountingStore, Event, RemoteStore, Traffic

CLUSTER = "c"
MEASURED = "bookie-000"
COPIES = 3
DELETED = 1000
DELETIONS_PER_TRANSACTION = 250
SEED = 7


class Bookies:
    """What the auditor talks to: every bookie holds what it should, and copies what it is told to."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def of(self, bookie: str) -> BookieContract:
        return BookieContract(partial(self._call, bookie))

    async def close(self) -> None:
        """There are no connections."""

    async def _call(self, bookie: str, method: str, **arguments: object) -> object:
        return self._traffic.called([method, arguments], self._answer(method, arguments))

    def _answer(self, method: str, arguments: dict[str, object]) -> Lacking | Copied:
        if method == "lacking":
            parts = arguments["parts"]
            assert isinstance(parts, list)
            return Lacking([], len(parts))
        assert method == "copy_entries"
        part = arguments["part"]
        assert isinstance(part, Part)
        return Copied(part.last + 1, part.last + 1 - part.first, 100 * (part.last + 1 - part.first))


class Asking:
    """What the measured bookie asks of the coordinator."""

    def __init__(self, cluster: "LedgerScale") -> None:
        self._cluster = cluster

    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        answer = await self._cluster.office.auditor.feed.ledger_changes(epoch=epoch, since=since)
        self._cluster.traffic.called([epoch, since], answer)
        return answer

    async def unnamed_ledgers(self, *, ledgers: list[int]) -> UnnamedLedgers:
        answer = self._cluster.office.auditor.unnamed(MEASURED, ledgers)
        self._cluster.traffic.called(ledgers, answer)
        return answer

    async def renew_ledger(self, *, ledger: int, version: int) -> int:
        renewed = await ledger_records.renew(self._cluster.office.store, ledger, version)
        self._cluster.traffic.called([ledger, version], renewed)
        return renewed


class LedgerScale:
    """See the module. `run` goes through all events; `costs` has what each of them cost."""

    office: Office
    bookie: Bookie

    def __init__(self, bookies: int, topics: int) -> None:
        self.costs: dict[str, Costs] = {}
        self.store = CountingStore()
        self.traffic = Traffic()
        self._names = [f"bookie-{number:03}" for number in range(bookies)]
        self._topics = topics
        self._deleted = 0
        self._settings = Settings()
        self._env = make_env(FaultyFiles(), SEED)
        self._calls = Bookies(self.traffic)
        self._collecting = Collecting()

    # -- the cluster -------------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Write the records of all topics, as they are when the topics are at rest, and open the measured bookie."""
        await create_cluster(self.store, CLUSTER, 0)
        self.bookie = await Bookie.started(FaultyFiles())
        chance, held = random.Random(SEED), self.bookie.store.entries.ledgers
        topics: dict[str, Versioned] = {}
        chains: dict[str, Versioned] = {}
        ledgers: dict[str, Versioned] = {}
        topic = Versioned(pack({"created_ms": 1, "partitions": 0, "epoch": 1}), 0)
        for number in range(self._topics):
            ledger_id = number + 1
            path = f"persistent/public/default/topic-{number:07}"
            chain = ManagedLedgerRecord(1, (LedgerInfo(ledger_id, 1, 100, 10_000, closed=True, closed_ms=2),))
            metadata = LedgerMetadata(
                ledger_id,
                COPIES,
                COPIES,
                COPIES - 1,
                (Fragment(0, tuple(chance.sample(self._names, COPIES))),),
                LedgerState.CLOSED,
                last_entry=99,
                length=10_000,
                nonce=chance.getrandbits(64),
            )
            topics[metadata_keys.topic(path)] = topic
            chains[metadata_keys.managed_ledger(path)] = Versioned(chain.pack(), 1)
            ledgers[metadata_keys.ledger(ledger_id)] = Versioned(metadata.pack(), 1)
            if MEASURED in metadata.bookies:
                state = held[ledger_id] = HeldLedger(ledger_id, metadata.nonce)
                state.fenced = state.fence_durable = True
                state.new_here = state.touched = False
        records = self.store.records
        records.by_key.update({**topics, **chains, **ledgers})
        records.keys = sorted(records.by_key)
        await self.store.allocate(metadata_keys.LEDGER_COUNTER, self._topics + 1)

    def list_bookies(self, *, without: str = "", full: bool = False, spare: str = "") -> None:
        """Tell the coordinator which bookies are alive. If their disks are full, only the `spare` takes copies."""
        infos = [BookieInfo(name, "host", 1 + at, not full) for at, name in enumerate(self._names) if name != without]
        self.office.bookies.update([*infos, BookieInfo(spare, "host", 1)] if spare else infos)

    async def take_office(self, *, full: bool = False) -> None:
        """A coordinator starts: it reads what it keeps in memory."""
        self.office = await Office.open(
            self._env, self.store, CLUSTER, RootKeys(b"scale"), self._settings, lambda: None
        )
        auditor = self.office.auditor
        await auditor._calls.close()
        auditor._calls = self._calls  # type: ignore[assignment]
        auditor._repair = LedgerRepair(self._calls, self.office.bookies, auditor._progress.copied)  # type: ignore[arg-type]
        self.list_bookies(full=full)

    async def rounds(self) -> None:
        """Rounds of the auditor, until nothing is due."""
        auditor = self.office.auditor
        await auditor.round()
        while auditor._unfinished() or auditor._due.written_count:
            await auditor.round()

    def check(self) -> None:
        """The auditor knows every ledger, and all of them are whole."""
        counts = self.office.auditor._index.counts
        assert counts[LedgerCondition.WHOLE] == sum(counts.values()) == self._topics - self._deleted

    async def collect(self) -> Collected:
        """A collection of the measured bookie, as `BookieService.collect` does it."""
        ask = Asking(self)
        changed = await self._collecting.changed(ask, self.bookie.store.entries.ledgers)
        collected = await collect_garbage(
            self.bookie.store,
            RemoteStore(self.office.store, self.traffic),  # type: ignore[arg-type]
            lambda ledger_id, version: ask.renew_ledger(ledger=ledger_id, version=version),
            CLUSTER,
            MEASURED,
            scope=self._collecting.scope,
            changed=changed,
        )
        self._collecting.succeeded(changed)
        return collected

    # -- events ------------------------------------------------------------------------------------------------------

    def event(self, what: str) -> Event:
        return Event(self.store, self.traffic, what, self.costs)

    async def run(self) -> None:
        """All events, one after the other."""
        with self.event("coordinator starts"):
            await self.take_office()
        await self._search_and_walk("start")
        with self.event("auditor round, nothing changed"):
            await self.rounds()
        with self.event("collection of a bookie that started"):
            await self.collect()
        with self.event("collection of a bookie, nothing changed"):
            await self.collect()
        await self._bookie_goes()
        await self._ledgers_are_deleted()
        await self.office.close()
        with self.event("coordinator restarts"):
            await self.take_office(full=True)
        await self._search_and_walk("restart")
        with self.event("collection of a bookie after that restart"):
            await self.collect()
        await self._bookie_is_lost_without_a_spare()
        await self.office.close()
        await self.bookie.store.close()

    async def _search_and_walk(self, after: str) -> None:
        with self.event(f"search for ledgers without a name, after the {after}"):
            await self.office.auditor._orphans.collect_due()
        with self.event(f"walk of the auditor, after the {after}"):
            await self.rounds()
        self.check()

    async def _bookie_goes(self) -> None:
        gone, watch = self._names[len(self._names) // 2], self.office.auditor._watch
        with self.event("a bookie goes away, not yet lost"):
            self.list_bookies(without=gone)
            await self.rounds()
        with self.event("that bookie comes back"):
            self.list_bookies()
            await self.rounds()
        with self.event("a bookie dies: its ledgers get other bookies"):
            self.list_bookies(without=gone)
            watch._grace_s = 0.0
            await self.rounds()
        with self.event("the dead bookie comes back"):
            self.list_bookies()
            await self.rounds()
        self.check()
        with self.event("collection of a bookie after that repair"):
            await self.collect()

    async def _bookie_is_lost_without_a_spare(self) -> None:
        gone, auditor = self._names[-1], self.office.auditor
        auditor._watch._grace_s = 0.0
        with self.event("a bookie is lost, and there is no spare"):
            self.list_bookies(without=gone, full=True)
            await self.rounds()
        waiting = auditor._index.counts[LedgerCondition.FILLED]
        assert waiting == sum(1 for _ in auditor._index.of(gone)) > 0
        with self.event("auditor round, a bookie is lost, and no spare"):
            await self.rounds()
        with self.event("a spare joins: those ledgers get it"):
            self.list_bookies(without=gone, full=True, spare="spare")
            await self.rounds()
        assert sum(1 for _ in auditor._index.of("spare")) == waiting
        self.check()

    async def _ledgers_are_deleted(self) -> None:
        chosen = random.Random(SEED).sample(range(1, self._topics + 1), DELETED)
        held = self.bookie.store.entries.ledgers
        expected = sum(ledger_id in held for ledger_id in chosen)
        with self.event(f"{DELETED:,} ledgers are deleted"):
            writes = [Write(metadata_keys.ledger(ledger_id), None, None) for ledger_id in chosen]
            for first in range(0, DELETED, DELETIONS_PER_TRANSACTION):
                await self.office.store.write_many(writes[first : first + DELETIONS_PER_TRANSACTION])
        self._deleted = DELETED
        with self.event("auditor round after that"):
            await self.rounds()
        with self.event("collection of a bookie after that"):
            collected = await self.collect()
        assert collected.ledgers_deleted == expected


async def measure(bookies: int, topics: int) -> dict[str, Costs]:
    """Print what each event costs, and return it."""
    scale = LedgerScale(bookies, topics)
    await scale.fill()
    print(f"\n{bookies} bookies, {topics} topics with a ledger each, {COPIES} copies")
    Event.print_head()
    paced, pace.RECORDS_PER_S_MAX = pace.RECORDS_PER_S_MAX, 1 << 30
    try:
        await scale.run()
    finally:
        pace.RECORDS_PER_S_MAX = paced
    return scale.costs
